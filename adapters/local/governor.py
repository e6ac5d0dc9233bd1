"""The quotas of models inside one process: the same rules as adapters/redis/lua/reserve.lua, held in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from toolfleet.adapters.clock import SystemClock
from toolfleet.schemas.limits import PAUSE_FIRST_S, PAUSE_MAX_S
from toolfleet.schemas.pace import ModelEntry, ModelLane, ModelPermit, ModelWait, Quota, RateHint


@dataclass(slots=True)
class _Bucket:
    """What may be used now of one thing, out of `most` in a period; None: it is not limited."""

    level: float | None = None
    cap: float = 0.0
    rate: float = 0.0  # for a second

    def fill(self, most: int | None, cap: float, rate: float, passed_s: float) -> None:
        self.cap, self.rate = (0.0, 0.0) if most is None else (cap, rate)
        if most is None:
            return
        level = cap if self.level is None else self.level
        self.level = level if level >= cap else min(cap, level + rate * max(0.0, passed_s))

    def wait_s(self, need: float, ahead: int, batch: bool, each: float) -> float:
        """Seconds until there is enough for this one and for those before it, each of whom uses `each`."""
        if self.cap == 0.0 or self.level is None:
            return 0.0
        if need > 1:  # below the brim: what comes in while nobody looks is kept
            need = min(need, self.cap / 2)
        wanted = min(need, self.cap) + ahead * each
        if batch:
            wanted += max(0.0, (self.cap - need) / 2)
        return (wanted - self.level) / self.rate if wanted > self.level else 0.0

    def take(self, amount: float) -> None:
        self.level = (self.cap if self.level is None else self.level) - amount


@dataclass(slots=True)
class _Lane:
    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    at_s: float | None = None
    paused_s: float = 0.0
    strikes: int = 0
    limit_requests: int | None = None
    limit_tokens: int | None = None
    mean: float | None = None  # tokens a call really uses
    # who waits, in the order they came, and until when: of interactive ones and of batch ones
    waiting: tuple[dict[str, float], dict[str, float]] = field(default_factory=lambda: ({}, {}))


class LocalGovernor:
    """Implements Governor. `share`: among how many processes a quota is divided, asked at each call."""

    def __init__(
        self, *, share: Callable[[], int] = lambda: 1, now_s: Callable[[], float] | None = None
    ) -> None:
        self._share = share
        self._now_s = SystemClock().now_s if now_s is None else now_s
        self._lanes: dict[ModelLane, _Lane] = {}  # bounded by the models of the agents

    async def reserve(self, entry: ModelEntry) -> ModelPermit | ModelWait:
        now = self._now_s()
        lane = self._lanes.setdefault(entry.lane, _Lane())
        if lane.paused_s > now:
            return ModelWait(lane.paused_s - now, paused=True)
        given = entry.quota
        quota = Quota(
            lane.limit_requests if given.requests is None else given.requests,
            lane.limit_tokens if given.tokens is None else given.tokens,
            given.period_s,
        ).divided(self._share())
        if quota.requests is None and quota.tokens is None:
            return ModelPermit(entry, entry.tokens)
        _fill(lane, quota, now)
        for waiting in lane.waiting:
            for gone in [who for who, until in waiting.items() if until <= now]:
                del waiting[gone]
        first, batch = lane.waiting
        mine = batch if entry.batch else first
        ahead = list(mine).index(entry.owner) if entry.owner in mine else len(mine)
        if entry.batch:
            ahead += len(first)
        # calls that write all they may are rare
        tokens = entry.tokens if lane.mean is None else min(entry.tokens, math.ceil(2 * lane.mean))
        mean = tokens if lane.mean is None else lane.mean
        wait = max(
            lane.requests.wait_s(1, ahead, entry.batch, 1),
            lane.tokens.wait_s(tokens, ahead, entry.batch, mean),
        )
        if wait > 0:
            wait = max(0.002, min(wait, quota.period_s / 240 * (1 + ahead)))
            mine[entry.owner] = now + wait + 2.0
            return ModelWait(wait)
        mine.pop(entry.owner, None)
        lane.requests.take(1)
        lane.tokens.take(tokens)
        return ModelPermit(entry, tokens)

    async def settle(self, permit: ModelPermit, used_tokens: int | None, hint: RateHint | None) -> None:
        lane = self._lanes.setdefault(permit.entry.lane, _Lane())
        said, share = hint or RateHint(), self._share()
        if lane.tokens.level is not None and used_tokens is not None:
            lane.tokens.level += permit.tokens - used_tokens
        for bucket, left in ((lane.requests, said.remaining_requests), (lane.tokens, said.remaining_tokens)):
            if bucket.level is not None and left is not None:
                bucket.level = min(bucket.level, left / share)
        lane.limit_requests = said.limit_requests or lane.limit_requests
        lane.limit_tokens = said.limit_tokens or lane.limit_tokens
        if used_tokens:
            lane.strikes = 0
            lane.mean = used_tokens if lane.mean is None else 0.9 * lane.mean + 0.1 * used_tokens

    async def pause(self, lane: ModelLane, wait_s: float | None) -> float:
        now = self._now_s()
        paused = self._lanes.setdefault(lane, _Lane())
        if wait_s is None:
            if paused.paused_s > now:
                return paused.paused_s - now
            paused.strikes += 1
            wait_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(20, paused.strikes - 1))
        paused.paused_s = paused.at_s = max(paused.paused_s, now + wait_s)
        for bucket in (paused.requests, paused.tokens):
            bucket.level = min(0.0, bucket.level or 0.0)
        return paused.paused_s - now

    async def withdraw(self, entry: ModelEntry) -> None:
        lane = self._lanes.get(entry.lane)
        if lane is not None:
            lane.waiting[int(entry.batch)].pop(entry.owner, None)

    async def aclose(self) -> None:
        return None


def _fill(lane: _Lane, quota: Quota, now: float) -> None:
    """Bring both buckets to now. Spread over the period, a hundredth of it at once; see reserve.lua for the reasons."""
    passed, period = now - (now if lane.at_s is None else lane.at_s), quota.period_s
    share = min(0.05, max(0.01, 0.5 / period))
    if (most := quota.requests) is not None:
        cap = max(1.0, min(most / 20, max(2.0, most * share)))
        lane.requests.fill(most, cap, max(0.5, 0.98 * most - (cap - 1)) / period, passed)
    else:
        lane.requests.fill(None, 0.0, 0.0, 0.0)
    if (most := quota.tokens) is not None:
        cap = max(1.0, most * share)
        lane.tokens.fill(most, cap, max(0.5, 0.985 * most - cap) / period, passed)
    else:
        lane.tokens.fill(None, 0.0, 0.0, 0.0)
    lane.at_s = now
