"""What happens while the cache is away: every process counts for itself, says so once, and looks again each second."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from toolfleet.adapters.clock import SystemClock
from toolfleet.schemas.access import RequestRate, Taken
from toolfleet.schemas.errors import CacheUnavailable
from toolfleet.schemas.limits import CACHE_RETRY_S
from toolfleet.schemas.pace import (
    BreakerView,
    Ended,
    ModelEntry,
    ModelLane,
    ModelPermit,
    ModelWait,
    Open,
    Permit,
    RateHint,
    ToolEntry,
    Wait,
)
from toolfleet.schemas.ports import Clock, Governor, ToolPace

log = structlog.get_logger("toolfleet.cache")

T = TypeVar("T")

SERIAL_WAIT_S: Final = 5.0


class Reach:
    """Whether the cache answers. One for a process: it is said once that it went away, and once that it is back."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._ask_again_at: float | None = None

    @property
    def away(self) -> bool:
        return self._ask_again_at is not None

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T | None:
        """The answer of the cache; None while it is away. Only one caller a second waits to find out whether it is
        back."""
        now = self._clock.monotonic_s()
        if self._ask_again_at is not None and now < self._ask_again_at:
            return None
        if self._ask_again_at is not None:
            self._ask_again_at = now + CACHE_RETRY_S
        try:
            answer = await question()
        except CacheUnavailable as exc:
            if not self.away:
                log.warning("cache_away", error=exc.message, mode="each process counts for itself")
            self._ask_again_at = self._clock.monotonic_s() + CACHE_RETRY_S
            return None
        if self.away:
            self._ask_again_at = None
            log.warning("cache_back")
        return answer


class SharedToolPace:
    """A ToolPace over the cache that never raises: `local` while it is away.

    A serial key is the exception: nobody can tell who holds it then, so its calls wait.
    """

    def __init__(self, shared: ToolPace, local: ToolPace, reach: Reach) -> None:
        self._shared = shared
        self._local = local
        self._reach = reach

    async def enter(self, entry: ToolEntry) -> Permit | Wait | Open:
        answer = await self._reach.ask(lambda: self._shared.enter(entry))
        if answer is not None:
            return answer
        if entry.serial_key is not None:
            return Wait("serial", SERIAL_WAIT_S)
        alone = await self._local.enter(entry)
        return replace(alone, shared=False) if isinstance(alone, Permit) else alone

    async def leave(self, permit: Permit, ended: Ended) -> None:
        if not permit.shared or self._reach.away:
            await self._local.leave(permit, ended)
            return

        async def left() -> bool:
            await self._shared.leave(permit, ended)
            return True

        if await self._reach.ask(left) is None:  # what it held ends with its lease
            await self._local.leave(permit, ended)

    async def open_breakers(self, tenant: str) -> Mapping[str, float]:
        answer = await self._reach.ask(lambda: self._shared.open_breakers(tenant))
        return await self._local.open_breakers(tenant) if answer is None else answer

    async def breakers(self) -> list[BreakerView]:
        answer = await self._reach.ask(self._shared.breakers)
        return await self._local.breakers() if answer is None else answer

    async def reset(self, tenant: str, tool: str) -> bool:
        here = await self._local.reset(tenant, tool)
        return bool(await self._reach.ask(lambda: self._shared.reset(tenant, tool))) or here

    async def aclose(self) -> None:
        await self._shared.aclose()
        await self._local.aclose()


class SharedGovernor:
    """A Governor over the cache that never raises: while it is away, each process has its share of the quota."""

    def __init__(self, shared: Governor, local: Governor, reach: Reach) -> None:
        self._shared = shared
        self._local = local
        self._reach = reach

    async def reserve(self, entry: ModelEntry) -> ModelPermit | ModelWait:
        answer = await self._reach.ask(lambda: self._shared.reserve(entry))
        if answer is not None:
            return answer
        alone = await self._local.reserve(entry)
        return replace(alone, shared=False) if isinstance(alone, ModelPermit) else alone

    async def settle(self, permit: ModelPermit, used_tokens: int | None, hint: RateHint | None) -> None:
        if not permit.shared:
            await self._local.settle(permit, used_tokens, hint)
            return

        async def settled() -> bool:
            await self._shared.settle(permit, used_tokens, hint)
            return True

        await self._reach.ask(settled)  # lost: what was reserved stays used for a period

    async def pause(self, lane: ModelLane, wait_s: float | None) -> float:
        alone = await self._local.pause(lane, wait_s)
        answer = await self._reach.ask(lambda: self._shared.pause(lane, wait_s))
        return alone if answer is None else answer

    async def withdraw(self, entry: ModelEntry) -> None:
        async def withdrawn() -> bool:
            await self._shared.withdraw(entry)
            return True

        await self._reach.ask(withdrawn)
        await self._local.withdraw(entry)

    async def aclose(self) -> None:
        await self._shared.aclose()
        await self._local.aclose()


class SharedRequestRate:
    """A RequestRate over the cache that never raises: while it is away, each process counts for itself."""

    def __init__(self, shared: RequestRate, local: RequestRate, reach: Reach) -> None:
        self._shared = shared
        self._local = local
        self._reach = reach

    async def take(self, tenant: str, per_minute: int) -> Taken:
        answer = await self._reach.ask(lambda: self._shared.take(tenant, per_minute))
        return await self._local.take(tenant, per_minute) if answer is None else answer

    async def aclose(self) -> None:
        await self._shared.aclose()
        await self._local.aclose()
