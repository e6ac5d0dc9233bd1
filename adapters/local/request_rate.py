"""Requests a minute inside one process: the same rule as adapters/redis, held in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from toolfleet.adapters.clock import SystemClock
from toolfleet.schemas.access import Taken, taken

TENANTS_KEPT: Final = 10_000


class LocalRequestRate:
    """Implements RequestRate for this process alone."""

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self._now_s = SystemClock().monotonic_s if now_s is None else now_s
        self._paid_until_s: OrderedDict[str, float] = OrderedDict()

    async def take(self, tenant: str, per_minute: int) -> Taken:
        now = self._now_s()
        answer, paid_s = taken(per_minute, self._paid_until_s.get(tenant, now), now)
        self._paid_until_s[tenant] = paid_s
        self._paid_until_s.move_to_end(tenant)
        if len(self._paid_until_s) > TENANTS_KEPT:
            self._paid_until_s.popitem(last=False)
        return answer

    async def aclose(self) -> None:
        """Nothing to close."""
