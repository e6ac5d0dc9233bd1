"""Standing approvals: calls nobody has to be asked about, for a while. Each names a tool, a tenant, values of arguments
and its end; who made it and who ended it is written down, and so is whoever was refused."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from toolfleet.access import hashed
from toolfleet.schemas.access import ANY, Key, Scope
from toolfleet.schemas.effects import Audit, StandingApproval
from toolfleet.schemas.errors import InputError, NotAllowed, UnknownApproval
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.ports import RunStore
from toolfleet.schemas.tools import ToolSpec

VALID_S_MAX: Final = 366 * 86_400.0
ARGUMENTS_BYTES_MAX: Final = 8_000


@dataclass(frozen=True, slots=True)
class Standing:
    """List, make and end standing approvals."""

    store: RunStore

    async def ls(
        self,
        *,
        tenant: str | None = None,
        tool: str | None = None,
        ended: bool = False,
        limit: int = 100,
    ) -> list[StandingApproval]:
        """The one that was made last first; `ended`: those that are over as well."""
        return await self.store.standings(limit=limit, tenant=tenant, tool=tool, ended=ended)

    async def add(
        self, tool: str, *, arguments: Mapping[str, Any], tenant: str, valid_s: float, token: str
    ) -> StandingApproval:
        """Calls of this tool with these values, of this tenant, need not be asked for until then; up to tier high.

        Raises InputError for a scope that is not explicit or fits no call, NotAllowed."""
        if not 0 < valid_s <= VALID_S_MAX or not tool or not tenant or tenant == ANY:
            raise InputError(
                "a standing approval names one tool and one tenant, and for how long it holds (a year at most)",
                hint="valid_s=3600, tenant='default', arguments={'currency': 'EUR'}",
            )
        pattern = dict(arguments)
        await self._check(tool, pattern)
        scope = {"tool": tool, "arguments": pattern, "valid_s": valid_s}
        who = await self._entitled("standing_add", tool, tenant, token, scope)
        now = await self.store.now()
        made = StandingApproval(
            f"std_{secrets.token_hex(8)}", tenant, tool, pattern, now + valid_s, who.name, now
        )
        said = {"standing": made.id, **scope, "expires_at": made.expires_at}
        await self.store.add_standing(made, _audit("standing_add", "added", who.name, tenant, said))
        return made

    async def end(self, standing_id: str, *, token: str) -> StandingApproval:
        """It covers nothing from now on, neither calls it has let through that were not sent. Raises UnknownApproval,
        NotAllowed, and InputError where it is over."""
        found = await self.store.standing_of(standing_id)
        if found is None:
            raise UnknownApproval(
                f"there is no standing approval {standing_id!r}", hint="toolfleet approvals standing ls"
            )
        said = {"standing": found.id, "tool": found.tool}
        who = await self._entitled("standing_end", found.tool, found.tenant, token, said)
        audit = _audit("standing_end", "ended", who.name, found.tenant, said)
        if not await self.store.end_standing(standing_id, audit):
            raise InputError(
                f"the standing approval {standing_id} is over already",
                hint="toolfleet approvals standing ls --ended",
            )
        after = await self.store.standing_of(standing_id)
        assert after is not None, "standing approvals are kept"
        return after

    async def _check(self, tool: str, pattern: Mapping[str, Any]) -> None:
        """The scope is explicit, and there are calls that it could cover."""
        specs = [one for agent in await self.store.agents() for one in agent.tools if one.name == tool]
        if not specs:
            raise InputError(
                f"no registered agent has a tool {tool!r}",
                hint="Its name as in `toolfleet tools ls`; a fleet registers its agents when it starts.",
            )
        known = {name for one in specs for name in one.parameters.get("properties", {})}
        if known and not pattern:
            raise InputError(
                f"a standing approval for {tool} names values of its arguments; any values would be no scope",
                hint=f"It takes: {', '.join(sorted(known))}.",
            )
        if strange := sorted(set(pattern) - known):
            raise InputError(
                f"{tool} takes no argument {strange[0]!r}, so no call would be covered",
                hint=f"It takes: {', '.join(sorted(known)) or 'none'}.",
            )
        if all(map(_never, specs)):
            raise InputError(
                f"{tool} is of tier irreversible, or takes two confirmations: each call of it is asked for",
                hint="Standing approvals go up to tier high.",
            )
        if len(_bytes(pattern)) > ARGUMENTS_BYTES_MAX:
            raise InputError(f"the values are longer than {ARGUMENTS_BYTES_MAX} bytes", hint="Name fewer.")

    async def _entitled(
        self, action: str, tool: str, tenant: str, token: str, said: Mapping[str, Any]
    ) -> Key:
        """Whose token it is, if they may approve such calls. A refusal is written down."""
        who = await self.store.key_of(hashed(token))
        if who is None or who.state != "active" or Scope.APPROVE not in who.scopes:
            await self.store.add_audit(_audit(action, "unknown_token", "", tenant, said, accepted=False))
            raise NotAllowed(
                "this token is of no approver, or has expired or was revoked",
                hint="toolfleet approvers ls",
                reason="unknown_token",
            )
        what = who.may_approve(tenant=tenant, tool=tool, tier=Tier.HIGH)
        if what is not None:
            reason = f"not_this_{what}"
            await self.store.add_audit(_audit(action, reason, who.name, tenant, said, accepted=False))
            raise NotAllowed(
                f"{who.name} may not approve calls of {tool} of {tenant} at tier high, by {what}",
                hint="Ask somebody whose approver row allows it: toolfleet approvers ls",
                reason=reason,
            )
        return who


def _never(spec: ToolSpec) -> bool:
    return spec.tier is Tier.IRREVERSIBLE or spec.two_person or spec.double_confirm


def _bytes(pattern: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(pattern)
    except TypeError as exc:
        raise InputError(
            f"the values are no JSON: {exc}", hint="Texts, numbers, flags, lists, objects."
        ) from None


def _audit(
    action: str, reason: str, by: str, tenant: str, said: Mapping[str, Any], *, accepted: bool = True
) -> Audit:
    return Audit(action=action, accepted=accepted, reason=reason, by=by, tenant=tenant, data=dict(said))
