"""The front door for keys and quotas: who a token belongs to and what it may do, made, rotated and revoked.

A token is shown once and stored as its hash. Runs that are submitted with a key act for its name, with its permissions.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from toolfleet.schemas.access import ANY, AccessStore, Key, Quota, Scope, TenantUse, among
from toolfleet.schemas.errors import InputError, KeyRefused
from toolfleet.schemas.outcomes import Tier

# So that a leaked one is found, and it is seen what it is.
TOKEN_PREFIX: Final = "tfk_"
TOKEN_PREFIX_APPROVER: Final = "tfa_"
SHOWN_CHARS: Final = 10  # of a token, prefix included; 37 of its 43 random ones stay unknown
TOKEN_CHARS_MAX: Final = 200
NAME_CHARS_MAX: Final = 128
NAMES_MAX: Final = 100  # tenants, agents, tools, permissions of one key
OVERLAP_S: Final = 24 * 3600.0
VALID_S_MAX: Final = 10 * 366 * 86_400.0
ID_PREFIXES: Final = {TOKEN_PREFIX: "key_", TOKEN_PREFIX_APPROVER: "apv_"}


def hashed(token: str) -> str:
    """Tokens are long and random, so a plain hash keeps them."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was made, and its token, which nobody can show again."""

    key: Key
    token: str


@dataclass(slots=True)
class Access:
    """Over any store."""

    store: AccessStore

    # -- keys ------------------------------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        *,
        tenants: Sequence[str] = ("default",),
        scopes: Sequence[Scope | str] = (Scope.SUBMIT, Scope.READ),
        agents: Sequence[str] = (ANY,),
        tools: Sequence[str] = (ANY,),
        tiers: Sequence[str] = (ANY,),
        permissions: Sequence[str] = (),
        grants: Sequence[str] = (),
        valid_s: float | None = None,
        prefix: str = TOKEN_PREFIX,
    ) -> NewKey:
        """A new key; `valid_s` None: until it is revoked. `tools` and `tiers` count for the scope `approve` only; so do
        `grants`: permissions that runs lack, and that it may grant for one call.

        Raises InputError naming what cannot be."""
        approves = Scope.APPROVE in scopes
        if grants and not approves:
            raise InputError(
                f"a key without the scope 'approve' cannot grant {', '.join(grants)}",
                hint="Give it --scope approve as well; --permission is what its own runs may do.",
            )
        key = Key(
            id=ID_PREFIXES[prefix] + secrets.token_hex(8),
            name=_named("a key", name),
            scopes=_scopes(scopes),
            tenants=_names("tenant", tenants),
            agents=_names("agent", agents) if Scope.SUBMIT in scopes or Scope.READ in scopes else (),
            tools=_names("tool", tools) if approves else (),
            tiers=_tiers(tiers) if approves else (),
            permissions=_names("permission", permissions, least=0),
            grants=_names("permission", grants, least=0) if approves else (),
            expires_at=await self._end(valid_s),
        )
        return await self._added(key, prefix)

    async def _added(self, key: Key, prefix: str) -> NewKey:
        token = prefix + secrets.token_urlsafe(32)
        key = replace(key, shown=token[:SHOWN_CHARS])
        await self.store.add_key(key, hashed(token))
        return NewKey(key, token)

    async def keys(self, *, tenant: str | None = None) -> list[Key]:
        """All of them, or those that may do anything for a tenant; the oldest first."""
        return await self.store.keys(tenant=tenant)

    async def revoke(self, key_id: str) -> None:
        """It is worth nothing from now on. Raises InputError where there is nothing to revoke."""
        if not await self.store.revoke_key(key_id):
            raise InputError(
                f"there is no key {key_id!r} that could be revoked", hint="List them: toolfleet keys ls"
            )

    async def rotate(
        self, key_id: str, *, overlap_s: float = OVERLAP_S, valid_s: float | None = None
    ) -> NewKey:
        """A new key that may do the same; the old one goes on for the overlap, so that nobody is locked out meanwhile.

        `valid_s` None: as long as the old one was valid for. Raises InputError."""
        if not 0 <= overlap_s <= VALID_S_MAX:
            raise InputError(
                f"overlap_s={overlap_s:g} cannot be", hint="Seconds, for example 86400; 0: none."
            )
        old = next((one for one in await self.store.keys() if one.id == key_id), None)
        if old is None or old.state != "active":
            state = "there is no such key" if old is None else f"it is {old.state}"
            raise InputError(
                f"key {key_id!r} cannot be rotated: {state}", hint="toolfleet keys ls; or create a new one."
            )
        if valid_s is None and old.expires_at is not None:
            valid_s = old.expires_at - old.created_at
        approver = old.id.startswith(ID_PREFIXES[TOKEN_PREFIX_APPROVER])
        prefix = TOKEN_PREFIX_APPROVER if approver else TOKEN_PREFIX
        token = prefix + secrets.token_urlsafe(32)
        new = replace(
            old,
            id=ID_PREFIXES[prefix] + secrets.token_hex(8),
            shown=token[:SHOWN_CHARS],
            expires_at=await self._end(valid_s),
            replaces=old.id,
        )
        if not await self.store.rotate_key(key_id, new, hashed(token), overlap_s=overlap_s):
            raise InputError(f"key {key_id!r} was revoked meanwhile", hint="Create a new one.")
        return NewKey(new, token)

    async def _end(self, valid_s: float | None) -> float | None:
        if valid_s is None:
            return None
        if not 0 < valid_s <= VALID_S_MAX:
            raise InputError(f"a key cannot be valid for {valid_s:g} s", hint="From a second to ten years.")
        return await self.store.now() + valid_s

    # -- what is asked at each request -----------------------------------------------------------------------------

    async def holder(self, token: str) -> Key:
        """Whose token it is. Raises KeyRefused: unknown_key, expired_key, revoked_key."""
        key = await self.store.key_of(hashed(token)) if len(token) <= TOKEN_CHARS_MAX else None
        if key is None:
            raise KeyRefused(
                "this key is of nobody",
                hint="Look for a typing error, or ask for a new one: toolfleet keys create NAME",
                reason="unknown_key",
            )
        if key.state != "active":
            raise KeyRefused(
                f"key {key.id} ({key.shown}…) {'has expired' if key.state == 'expired' else 'was revoked'}",
                hint="Ask for a new one: toolfleet keys rotate before it ends, toolfleet keys create after.",
                reason=f"{key.state}_key",
            )
        return key

    # -- quotas ----------------------------------------------------------------------------------------------------

    async def quotas(self) -> list[Quota]:
        return await self.store.quotas()

    async def set_quota(self, quota: Quota) -> None:
        """In place of the tenant's old one; known to every process within seconds. Raises InputError."""
        _named("a tenant", quota.tenant)
        for name in ("runs_in_flight_max", "requests_per_minute_max", "cost_usd_per_day_max"):
            value = getattr(quota, name)
            if value is not None and not 0 <= value <= 2_000_000_000:
                raise InputError(f"{name}={value!r} cannot be", hint="0 or more; none: without a limit.")
        await self.store.set_quota(quota)

    async def use(self, tenant: str) -> tuple[Quota, TenantUse]:
        """What a tenant may use, and what it uses now."""
        return await self.store.quota(tenant) or Quota(tenant), await self.store.tenant_use(tenant)


def require(key: Key, scope: Scope) -> None:
    """Raises KeyRefused (wrong_scope) where the key is not for that."""
    if scope not in key.scopes:
        raise KeyRefused(
            f"key {key.id} ({key.shown}…) has no scope {scope.value!r}, which this needs; "
            f"it has {', '.join(key.scopes) or 'none'}",
            hint=f"Use another key: toolfleet keys create NAME --scope {scope.value}",
            reason="wrong_scope",
        )


def require_agent(key: Key, agent: str) -> None:
    """Raises KeyRefused (agent_not_allowed)."""
    if not among(agent, key.agents):
        raise KeyRefused(
            f"key {key.id} ({key.shown}…) may not use agent {agent!r}",
            hint=f"It may use: {', '.join(key.agents) or 'none'}. toolfleet keys create NAME --agent {agent}",
            reason="agent_not_allowed",
        )


def _named(what: str, name: str) -> str:
    cleaned = name.strip()
    if not cleaned or len(cleaned) > NAME_CHARS_MAX or not cleaned.isprintable():
        raise InputError(
            f"{what} has a name of 1 to {NAME_CHARS_MAX} characters that can be printed",
            hint="Choose another.",
        )
    return cleaned


def _names(what: str, names: Sequence[str], *, least: int = 1) -> tuple[str, ...]:
    if isinstance(names, str) or not least <= len(names) <= NAMES_MAX:
        raise InputError(f"a key names {least} to {NAMES_MAX} {what}s", hint=f"{ANY!r} stands for any.")
    return tuple(dict.fromkeys(_named(f"a {what}", one) for one in names))


def _scopes(scopes: Sequence[Scope | str]) -> tuple[Scope, ...]:
    unknown = sorted(set(scopes) - set(Scope))
    if unknown or not scopes:
        raise InputError(
            f"there is no scope {', '.join(map(repr, unknown))}" if unknown else "a key needs a scope",
            hint=f"Scopes: {', '.join(Scope)}.",
        )
    return tuple(scope for scope in Scope if scope in scopes)


def _tiers(tiers: Sequence[str]) -> tuple[str, ...]:
    unknown = set(tiers) - {ANY, *(tier.value for tier in Tier)}
    if unknown:
        raise InputError(
            f"there is no tier {', '.join(sorted(unknown))}", hint="low, medium, high, irreversible or *"
        )
    return _names("tier", tiers)
