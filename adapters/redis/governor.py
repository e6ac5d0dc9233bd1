"""The quotas of models, shared by all processes through Redis or Valkey: one script per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from toolfleet.adapters.redis.scripts import Scripts
from toolfleet.schemas.limits import PAUSE_FIRST_S, PAUSE_MAX_S
from toolfleet.schemas.pace import ModelEntry, ModelLane, ModelPermit, ModelWait, RateHint

log = structlog.get_logger("toolfleet.governor")

UNKNOWN: Final = -1


class RedisGovernor:
    """Implements Governor for all processes with the same server and prefix. Raises CacheUnavailable.

    `now_s`: instead of the server's clock, for tests.
    """

    def __init__(
        self, url: str, *, prefix: str = "toolfleet", now_s: Callable[[], float] | None = None
    ) -> None:
        self._scripts = Scripts(url, prefix)
        self._now_s = now_s

    async def reserve(self, entry: ModelEntry) -> ModelPermit | ModelWait:
        quota = entry.quota
        args = [
            self._now(),
            entry.owner,
            int(entry.batch),
            entry.tokens,
            UNKNOWN if quota.requests is None else quota.requests,
            UNKNOWN if quota.tokens is None else quota.tokens,
            round(quota.period_s * 1000),
        ]
        what, wait_ms, _ = await self._scripts.run("reserve", self._keys(entry.lane), args)
        if what == b"go":
            return ModelPermit(entry, entry.tokens)
        return ModelWait(wait_ms / 1000, paused=what == b"paused")

    async def settle(self, permit: ModelPermit, used_tokens: int | None, hint: RateHint | None) -> None:
        said = RateHint() if hint is None else hint
        told = (said.limit_requests, said.remaining_requests, said.limit_tokens, said.remaining_tokens)
        args = [
            permit.tokens,
            UNKNOWN if used_tokens is None else used_tokens,
            *(UNKNOWN if one is None else one for one in told),
            int(used_tokens is not None and used_tokens > 0),
        ]
        await self._scripts.run("settle", self._keys(permit.entry.lane)[:1], args)

    async def pause(self, lane: ModelLane, wait_s: float | None) -> float:
        given = UNKNOWN if wait_s is None else round(wait_s * 1000)
        args = [self._now(), given, round(PAUSE_FIRST_S * 1000), round(PAUSE_MAX_S * 1000)]
        left_ms = await self._scripts.run("pause", self._keys(lane)[:1], args)
        return float(left_ms) / 1000

    async def withdraw(self, entry: ModelEntry) -> None:
        queue, ends = self._keys(entry.lane)[3:5] if entry.batch else self._keys(entry.lane)[1:3]
        await self._scripts.commands([("ZREM", queue, entry.owner), ("ZREM", ends, entry.owner)])

    async def aclose(self) -> None:
        await self._scripts.aclose()

    def _keys(self, lane: ModelLane) -> list[str]:
        parts = ("lane", "first", "first_ends", "batch", "batch_ends")
        return [self._scripts.key(part, lane.credential, lane.model) for part in parts]

    def _now(self) -> int | str:
        return "" if self._now_s is None else round(self._now_s() * 1000)
