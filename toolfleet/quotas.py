"""What tenants may use, as whoever submits holds to it: runs in flight, and what a day may cost."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from toolfleet.schemas.access import AccessStore, Quota
from toolfleet.schemas.errors import QuotaExceeded
from toolfleet.schemas.run import NewRun

T = TypeVar("T")

SEEN_S: Final = 5.0  # how old a process's view of a quota, and of what a day has cost so far, may be
TENANTS_KEPT: Final = 10_000


@dataclass(slots=True)
class Quotas:
    """Remembers for a few seconds, so that a submit for a tenant without a quota asks the database nothing."""

    store: AccessStore
    monotonic_s: Callable[[], float] = time.monotonic
    _seen: OrderedDict[str, tuple[Quota | None, float]] = field(default_factory=OrderedDict)
    _spent: OrderedDict[str, tuple[float, float, float]] = field(default_factory=OrderedDict)

    async def of(self, tenant: str) -> Quota | None:
        now, known = self.monotonic_s(), self._seen.get(tenant)
        if known is not None and now - known[1] < SEEN_S:
            return known[0]
        quota = await self.store.quota(tenant)
        _remember(self._seen, tenant, (quota, now))
        return quota

    async def admitted(self, new: Sequence[NewRun]) -> Sequence[NewRun]:
        """The same runs, with the limit of their tenants that the store holds them to. Raises QuotaExceeded where a
        tenant has spent what a day may cost."""
        limits: dict[str, int | None] = {}
        for tenant in sorted({one.tenant for one in new}):
            quota = await self.of(tenant)
            if quota is not None:
                limits[tenant] = quota.runs_in_flight_max
                await self._refuse_spent(quota)
        if all(most is None for most in limits.values()):
            return new
        return [replace(one, in_flight_max=limits.get(one.tenant)) for one in new]

    async def refuse_spent(self, tenant: str) -> None:
        """Raises QuotaExceeded where the tenant has spent what a day may cost."""
        quota = await self.of(tenant)
        if quota is not None:
            await self._refuse_spent(quota)

    async def _refuse_spent(self, quota: Quota) -> None:
        most = quota.cost_usd_per_day_max
        if most is None:
            return
        spent, day_left_s = await self._spent_today(quota.tenant)
        if spent >= most:
            raise QuotaExceeded(
                f"tenant {quota.tenant!r} may spend {most:g} USD a day, and has spent {spent:.2f}",
                hint="Runs that were accepted go on. New ones are accepted from midnight UTC on.",
                quota="cost_usd_per_day",
                retry_after_s=max(1.0, day_left_s),
            )

    async def _spent_today(self, tenant: str) -> tuple[float, float]:
        now, known = self.monotonic_s(), self._spent.get(tenant)
        if known is not None and now - known[2] < min(SEEN_S, known[1]):
            return known[0], known[1] - (now - known[2])
        use = await self.store.tenant_use(tenant)
        _remember(self._spent, tenant, (use.cost_usd_today, use.day_left_s, now))
        return use.cost_usd_today, use.day_left_s


def _remember(kept: OrderedDict[str, T], tenant: str, value: T) -> None:
    """The tenant that was looked up longest ago is forgotten first."""
    kept[tenant] = value
    kept.move_to_end(tenant)
    if len(kept) > TENANTS_KEPT:
        kept.popitem(last=False)
