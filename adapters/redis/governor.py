"""The quotas of models, shared by all processes through Redis or Valkey: one script per step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.redis.scripts import Scripts
from toolfleet.schemas.limits import BREAKERS_SEEN_S, PAUSE_FIRST_S, PAUSE_MAX_S
from toolfleet.schemas.pace import ModelEntry, ModelLane, ModelPermit, ModelWait, RateHint

log = structlog.get_logger("toolfleet.governor")

UNKNOWN: Final = -1


class RedisGovernor:
    """Implements Governor for all processes with the same server and prefix. Raises CacheUnavailable.

    `now_s`: instead of the server's clock, for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "toolfleet",
        seen_s: float = BREAKERS_SEEN_S,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._scripts = Scripts(url, prefix)
        self._seen_s = seen_s
        self._now_s = now_s
        self._clock = SystemClock()
        self._limited: set[bytes] = set()  # lanes that are limited or were paused, as of _seen_at
        self._seen_at: float | None = None
        self._looking: asyncio.Task[None] | None = None

    async def reserve(self, entry: ModelEntry) -> ModelPermit | ModelWait:
        quota = entry.quota
        if quota.requests is None and quota.tokens is None and not await self._is_limited(entry.lane):
            return ModelPermit(entry, entry.tokens, counted=False)
        args = [
            self._now(),
            entry.owner,
            int(entry.batch),
            entry.tokens,
            UNKNOWN if quota.requests is None else quota.requests,
            UNKNOWN if quota.tokens is None else quota.tokens,
            round(quota.period_s * 1000),
        ]
        what, value, _ = await self._scripts.run("reserve", self._keys(entry.lane), args)
        if what == b"go":
            return ModelPermit(entry, value)
        return ModelWait(value / 1000, paused=what == b"paused")

    async def settle(self, permit: ModelPermit, used_tokens: int | None, hint: RateHint | None) -> None:
        said = RateHint() if hint is None else hint
        limits = said.limit_requests is not None or said.limit_tokens is not None
        if not permit.counted and not limits:
            return
        told = (said.limit_requests, said.remaining_requests, said.limit_tokens, said.remaining_tokens)
        args = [
            permit.tokens,
            UNKNOWN if used_tokens is None else used_tokens,
            *(UNKNOWN if one is None else one for one in told),
            int(used_tokens is not None and used_tokens > 0),
        ]
        lane = permit.entry.lane
        if limits:
            self._limited.add(_member(lane))
        keys = [self._keys(lane)[0], self._scripts.key("lanes")]
        await self._scripts.run("settle", keys, [*args, _member(lane)])

    async def pause(self, lane: ModelLane, wait_s: float | None) -> float:
        given = UNKNOWN if wait_s is None else round(wait_s * 1000)
        args = [self._now(), given, round(PAUSE_FIRST_S * 1000), round(PAUSE_MAX_S * 1000)]
        self._limited.add(_member(lane))
        keys = [self._keys(lane)[0], self._scripts.key("lanes")]
        left_ms = await self._scripts.run("pause", keys, [*args, _member(lane)])
        return float(left_ms) / 1000

    async def withdraw(self, entry: ModelEntry) -> None:
        queue, ends = self._keys(entry.lane)[3:5] if entry.batch else self._keys(entry.lane)[1:3]
        await self._scripts.commands([("ZREM", queue, entry.owner), ("ZREM", ends, entry.owner)])

    async def _is_limited(self, lane: ModelLane) -> bool:
        """Whether anything is known of it; asked twice a second at most, so that a lane without limits is free."""
        stale = self._seen_at is None or self._clock.monotonic_s() - self._seen_at >= self._seen_s
        if stale and _member(lane) not in self._limited:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            await asyncio.shield(self._looking)
        return _member(lane) in self._limited

    async def _look(self) -> None:
        (found,) = await self._scripts.commands([("SMEMBERS", self._scripts.key("lanes"))])
        self._limited |= set(found)
        self._seen_at = self._clock.monotonic_s()

    async def aclose(self) -> None:
        if self._looking is not None:
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._scripts.aclose()

    def _keys(self, lane: ModelLane) -> list[str]:
        parts = ("lane", "first", "first_ends", "batch", "batch_ends")
        return [self._scripts.key(part, lane.credential, lane.model) for part in parts]

    def _now(self) -> int | str:
        return "" if self._now_s is None else round(self._now_s() * 1000)


def _member(lane: ModelLane) -> bytes:
    return f"{lane.credential}\x1f{lane.model}".encode()
