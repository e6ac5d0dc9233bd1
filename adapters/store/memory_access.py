"""Keys, quotas and requests that may be sent again, in memory: the fake's counterpart of `access_rows.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from toolfleet.adapters.store.access_rows import DAY_S, ends_at
from toolfleet.adapters.store.memory_run import MemoryRun
from toolfleet.schemas.access import Key, Quota, Replay, TenantUse, among, stated
from toolfleet.schemas.ids import RunId


class MemoryAccess:
    """AccessStore. `runs` are the store's own."""

    def __init__(self, runs: Mapping[RunId, MemoryRun], time_source: Callable[[], float]) -> None:
        self._of_runs = runs
        self._time_source = time_source
        self._identities: dict[str, tuple[Key, str]] = {}  # with the hash of the token
        self._quotas: dict[str, Quota] = {}
        self._replays: dict[tuple[str, str, str], tuple[Replay, float]] = {}  # with when it came

    async def add_key(self, key: Key, token_hash: str) -> None:
        self._identities[key.id] = (replace(key, created_at=self._time_source()), token_hash)

    async def key_of(self, token_hash: str) -> Key | None:
        found = next((key for key, known in self._identities.values() if known == token_hash), None)
        return None if found is None else stated(found, self._time_source())

    def all_keys(self) -> list[Key]:
        now = self._time_source()
        return [stated(key, now) for key, _ in self._identities.values()]

    async def keys(self, *, tenant: str | None = None) -> list[Key]:
        return [one for one in self.all_keys() if tenant is None or among(tenant, one.tenants)]

    async def revoke_key(self, key_id: str) -> bool:
        found = self._identities.get(key_id)
        if found is None or found[0].revoked_at is not None:
            return False
        self._identities[key_id] = (replace(found[0], revoked_at=self._time_source()), found[1])
        return True

    async def rotate_key(self, key_id: str, new: Key, token_hash: str, *, overlap_s: float) -> bool:
        now, found = self._time_source(), self._identities.get(key_id)
        if found is None or stated(found[0], now).state != "active":
            return False
        self._identities[key_id] = (
            replace(found[0], expires_at=ends_at(found[0], now + overlap_s)),
            found[1],
        )
        await self.add_key(new, token_hash)
        return True

    async def quota(self, tenant: str) -> Quota | None:
        return self._quotas.get(tenant)

    async def quotas(self) -> list[Quota]:
        return [self._quotas[tenant] for tenant in sorted(self._quotas)]

    async def set_quota(self, quota: Quota) -> None:
        self._quotas[quota.tenant] = quota

    def in_flight(self, tenants: Collection[str]) -> dict[str, int]:
        """Runs that have not ended, by tenant."""
        found = (run.new.tenant for run in self._of_runs.values() if not run.state.terminal)
        return dict(Counter(tenant for tenant in found if tenant in tenants))

    async def tenant_use(self, tenant: str) -> TenantUse:
        now = self._time_source()
        today = now - now % DAY_S
        spent = sum(
            row["cost_usd"]
            for run in self._of_runs.values()
            if run.new.tenant == tenant
            for row in run.usage.values()
            if row["at"] >= today
        )
        return TenantUse(self.in_flight([tenant]).get(tenant, 0), float(spent), today + DAY_S - now)

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
        now, name = self._time_source(), (tenant, route, key)
        known = self._replays.get(name)
        if known is not None and not anew:
            note, at = known
            if at >= now - keep_s and not (note.status is None and at < now - stale_s):
                return replace(note, age_s=now - at)
        self._replays[name] = (replay, now)
        return None

    async def end_replay(self, tenant: str, route: str, key: str, status: int, body: str) -> None:
        note, at = self._replays[tenant, route, key]
        self._replays[tenant, route, key] = (replace(note, status=status, body=body), at)

    async def drop_replay(self, tenant: str, route: str, key: str) -> None:
        known = self._replays.get((tenant, route, key))
        if known is not None and known[0].status is None:
            del self._replays[tenant, route, key]
