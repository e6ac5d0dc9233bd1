"""Who may do what: keys of people and programs, and what a tenant may use.

There is one kind of identity. Somebody who approves calls and a service that submits runs both hold a key; what they may
do is in its scopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal, Protocol

from toolfleet.schemas.effects import Approval, StandingApproval

ANY: Final = "*"  # of tenants, agents, tools or tiers: all of them
MINUTE_S: Final = 60.0


class Scope(StrEnum):
    """What a key is for. None of them includes another one."""

    SUBMIT = "submit"  # start runs, and stop them
    READ = "read"  # look at runs, approvals, effects
    APPROVE = "approve"  # decide about calls that wait for a person
    ADMIN = "admin"  # dead letters, breakers; with a key of every tenant also the worker processes


@dataclass(frozen=True, slots=True)
class Key:
    """One key. The token itself is stored nowhere, only its hash. Two keys of one name are one person.

    `tenants`, `agents` (that runs may be submitted to), `tools` and `tiers` (that may be decided about) hold names, or
    ANY; empty ones allow nothing. `permissions`: what tools find that runs submitted with it may do; `grants`: those that
    may be granted with an approval, for one call. `shown`: the first
    characters of the token, to tell keys apart. `state` is that of the moment of reading, by the database's clock.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...]
    tenants: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    shown: str = ""
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    replaces: str | None = None  # the key it was rotated from
    state: Literal["active", "expired", "revoked"] = "active"

    def may_approve(self, *, tenant: str, tool: str, tier: str, grants: tuple[str, ...] = ()) -> str | None:
        """What of these it may not decide about: `tenant`, `tool`, `tier` or `permission`; None: it may."""
        for what, wanted, allowed in (
            ("tenant", tenant, self.tenants),
            ("tool", tool, self.tools),
            ("tier", tier, self.tiers),
        ):
            if not among(wanted, allowed):
                return what
        return None if all(among(one, self.grants) for one in grants) else "permission"


def stated(key: Key, now: float) -> Key:
    """The key with the state it has at that moment."""
    if key.revoked_at is not None:
        return replace(key, state="revoked")
    return replace(key, state="expired" if key.expires_at is not None and key.expires_at <= now else "active")


def lapsed(
    asked: Approval,
    *,
    tenant: str,
    tool: str,
    keys: Sequence[Key],
    standing: StandingApproval | None,
    now: float,
) -> str:
    """Why what granted a call holds no more, as a code; empty: it does. `keys`: all of those who granted it.

    A standing approval is over, or whoever made it may not approve such calls any more; or whoever granted it was revoked,
    or may decide about less by now. A key that has expired since then still stands for what it granted, one call.
    """
    if asked.standing is not None and (standing is None or standing.expires_at <= now):
        return "standing_ended"
    states = ("active",) if asked.standing is not None else ("active", "expired")
    for name in granters(asked, standing):
        of_name = [one for one in keys if one.name == name]
        may = any(
            one.state in states
            and Scope.APPROVE in one.scopes
            and one.may_approve(tenant=tenant, tool=tool, tier=asked.tier.value, grants=asked.permissions)
            is None
            for one in of_name
        )
        if of_name and not may:
            return (
                "approver_revoked" if all(one.state == "revoked" for one in of_name) else "approver_narrowed"
            )
    return ""


def granters(asked: Approval, standing: StandingApproval | None) -> tuple[str, ...]:
    """The names of those who granted it, themselves or by a standing approval."""
    if asked.standing is None:
        return asked.granted_by
    return () if standing is None else (standing.created_by,)


def among(wanted: str, allowed: tuple[str, ...]) -> bool:
    return wanted in allowed or ANY in allowed


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may use; None: as much as there is. A day begins at midnight UTC."""

    tenant: str
    runs_in_flight_max: int | None = None
    requests_per_minute_max: int | None = None
    cost_usd_per_day_max: float | None = None


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What one tenant uses now: runs that have not ended, what model calls of this day cost (those in flight count with
    what was reserved for them), and how long the day still is, seconds."""

    runs_in_flight: int
    cost_usd_today: float
    day_left_s: float


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a request that carries a key of its sender: `status` and `body` of its answer (None: it is being
    worked on, or its process died), and the run that was named for it. `age_s`: how long ago it came."""

    request_hash: str
    status: int | None = None
    body: str | None = None
    run_id: str | None = None
    age_s: float = 0.0


class AccessStore(Protocol):
    """Keys, quotas, and answers to requests that may be sent again."""

    async def add_key(self, key: Key, token_hash: str) -> None: ...

    async def key_of(self, token_hash: str) -> Key | None:
        """Whose token it is; also of a key that has expired or was revoked."""
        ...

    async def keys(self, *, tenant: str | None = None) -> list[Key]:
        """The one made first first; of a tenant: those that may do anything for it."""
        ...

    async def revoke_key(self, key_id: str) -> bool:
        """False: there is none, or it was revoked before."""
        ...

    async def rotate_key(self, key_id: str, new: Key, token_hash: str, *, overlap_s: float) -> bool:
        """One transaction: `new` is added, and the old one expires after the overlap, if not sooner. False: the old one
        is not there or not active, and nothing was written."""
        ...

    async def quota(self, tenant: str) -> Quota | None: ...

    async def quotas(self) -> list[Quota]: ...

    async def set_quota(self, quota: Quota) -> None:
        """In place of the tenant's old one."""
        ...

    async def tenant_use(self, tenant: str) -> TenantUse: ...

    async def begin_replay(
        self,
        tenant: str,
        route: str,
        key: str,
        replay: Replay,
        *,
        keep_s: float,
        stale_s: float,
        anew: bool = False,
    ) -> Replay | None:
        """None: it is the first request of that key, and is noted. Else what is noted of the first one. A note without
        an answer that is older than stale_s is taken over, one older than keep_s forgotten, as if there were none.
        `anew`: whatever is noted is forgotten."""
        ...

    async def end_replay(self, tenant: str, route: str, key: str, status: int, body: str) -> None: ...

    async def drop_replay(self, tenant: str, route: str, key: str) -> None:
        """The request came to nothing; it may be sent again."""
        ...

    async def now(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """Whether one request more may be answered. `remaining`: how many more at once; `reset_s`: when all of them are there
    again; `retry_after_s`: when the next one is, 0 where this one was taken."""

    allowed: bool
    limit: int
    remaining: int
    reset_s: float
    retry_after_s: float = 0.0


class RequestRate(Protocol):
    """Requests a minute of a tenant, counted by all processes that share the cache. Never raises for one that is away."""

    async def take(self, tenant: str, per_minute: int) -> Taken: ...

    async def aclose(self) -> None: ...


def taken(per_minute: int, tat_s: float, now_s: float) -> tuple[Taken, float]:
    """One request at `now_s` of a bucket whose requests are paid for until `tat_s` (GCRA); and until when then."""
    each_s = MINUTE_S / per_minute
    paid_s = max(tat_s, now_s) + each_s
    over_s = paid_s - now_s - MINUTE_S
    if over_s > 1e-9:
        full_s = max(0.0, tat_s - now_s)
        return Taken(False, per_minute, 0, full_s, over_s), tat_s
    return Taken(True, per_minute, int((MINUTE_S - (paid_s - now_s)) / each_s + 1e-6), paid_s - now_s), paid_s
