"""The pace of tools inside one process: the same rules as adapters/redis, held in memory."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from toolfleet.adapters.clock import SystemClock
from toolfleet.schemas.limits import PACE_LEASE_S, RETRIES_ALWAYS
from toolfleet.schemas.pace import (
    BREAKER_RULE,
    BreakerRule,
    BreakerView,
    Busy,
    Ended,
    Open,
    Permit,
    Rate,
    ToolEntry,
    Wait,
)

log = structlog.get_logger("toolfleet.pace")

PROBE_MARGIN_S: Final = 30.0
BUSY_WAIT_S: Final = 0.5
BUSY_WAIT_MAX_S: Final = 30.0
KEPT_MAX: Final = 10_000  # breakers and serial keys remembered; the ones used longest ago are forgotten first


@dataclass(slots=True)
class _Counts:
    """Of buckets of time: how many attempts, and how many of them failed or were retries."""

    buckets: dict[int, list[int]] = field(default_factory=dict)

    def add(self, bucket: int, attempts: int, marked: int) -> None:
        counts = self.buckets.setdefault(bucket, [0, 0])
        counts[0] += attempts
        counts[1] += marked

    def sums(self, first: int) -> tuple[int, int]:
        for bucket in [bucket for bucket in self.buckets if bucket < first]:
            del self.buckets[bucket]
        return sum(a for a, _ in self.buckets.values()), sum(m for _, m in self.buckets.values())


@dataclass(slots=True)
class _Breaker:
    counts: _Counts = field(default_factory=_Counts)
    opened_at: float | None = None
    until_s: float = 0.0
    probe: str | None = None
    probe_until_s: float = 0.0


@dataclass(slots=True)
class _Places:
    """Who holds a place until when, and which calls wait for one until when."""

    held: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)

    def wait_s(self, call_id: str, places: int, now: float) -> float | None:
        self.held = {one: until for one, until in self.held.items() if until > now}
        self.waiting = {one: until for one, until in self.waiting.items() if until > now}
        if len(self.held) < places:
            return None
        self.waiting.pop(call_id, None)
        wait = min(BUSY_WAIT_MAX_S, BUSY_WAIT_S * (1 + len(self.waiting) // places))
        self.waiting[call_id] = now + 2 * wait + 5.0
        return wait


@dataclass(slots=True)
class _Tool:
    tries: _Counts = field(default_factory=_Counts)
    starts: deque[float] = field(default_factory=deque)
    booked_s: float = 0.0
    places: _Places = field(default_factory=_Places)


class LocalToolPace:
    """Implements ToolPace. `share`: among how many processes rates and places are divided, asked at each call."""

    def __init__(
        self,
        *,
        rule: BreakerRule = BREAKER_RULE,
        lease_s: float = PACE_LEASE_S,
        share: Callable[[], int] = lambda: 1,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._rule = rule
        self._lease_s = lease_s
        self._share = share
        self._now_s = SystemClock().now_s if now_s is None else now_s
        self._breakers: OrderedDict[tuple[str, str], _Breaker] = OrderedDict()
        self._tools: dict[str, _Tool] = {}  # bounded by what is loaded
        self._serial: OrderedDict[tuple[str, str], _Places] = OrderedDict()
        self._numbers = itertools.count(1)

    async def enter(self, entry: ToolEntry) -> Permit | Wait | Open:
        now = self._now_s()
        tool = self._tools.setdefault(entry.tool, _Tool())
        breaker = self._breakers.get((entry.tenant, entry.tool))
        half_open = False
        if breaker is not None and breaker.opened_at is not None:
            until = breaker.until_s if breaker.until_s > now else breaker.probe_until_s
            if until > now:
                return Open(until, until - now)
            half_open = True
        wait = self._budget(tool, entry, now) or self._busy(tool, entry, now) or self._rate(tool, entry, now)
        if wait is not None:
            return wait
        permit_id = f"local-{next(self._numbers)}"
        for places in self._places_of(tool, entry):
            places.held[permit_id] = math.inf  # this process lives, or nothing of this does
            places.waiting.pop(entry.call_id, None)
        if half_open and breaker is not None:
            breaker.probe, breaker.probe_until_s = permit_id, now + entry.deadline_s + PROBE_MARGIN_S
        if entry.retry:
            tool.tries.add(self._bucket(now), 0, 1)
        return Permit(permit_id, entry, probe=half_open, held=not entry.plain)

    def _budget(self, tool: _Tool, entry: ToolEntry, now: float) -> Wait | None:
        if not entry.retry or entry.retry_share is None:
            return None
        attempts, retries = tool.tries.sums(self._first(now))
        if retries + 1 <= max(RETRIES_ALWAYS, entry.retry_share * attempts):
            return None
        return Wait("retry_budget", self._rule.bucket_s - now % self._rule.bucket_s)

    def _busy(self, tool: _Tool, entry: ToolEntry, now: float) -> Wait | None:
        asked: list[tuple[Busy, _Places, int]] = []
        if entry.serial_key is not None:
            asked.append(("serial", self._serial_places(entry), 1))
        if entry.concurrent_max:
            asked.append(("bulkhead", tool.places, max(1, entry.concurrent_max // self._share())))
        for reason, places, count in asked:
            wait = places.wait_s(entry.call_id, count, now)
            if wait is not None:
                return Wait(reason, wait)
        return None

    def _rate(self, tool: _Tool, entry: ToolEntry, now: float) -> Wait | None:
        if entry.rate is None:
            return None
        rate = Rate(max(1, entry.rate.count // self._share()), entry.rate.period_s)
        while tool.starts and tool.starts[0] <= now - rate.period_s:
            tool.starts.popleft()
        full = len(tool.starts) >= rate.count
        if full or (tool.booked_s > now and not entry.returning):
            room = tool.starts[len(tool.starts) - rate.count] + rate.period_s if full else now
            start = max(room, tool.booked_s)
            tool.booked_s = start + rate.period_s / rate.count
            return Wait("rate", max(0.001, start - now))
        tool.starts.append(now)
        return None

    def _places_of(self, tool: _Tool, entry: ToolEntry) -> list[_Places]:
        serial = [self._serial_places(entry)] if entry.serial_key is not None else []
        return [*serial, *([tool.places] if entry.concurrent_max else [])]

    def _serial_places(self, entry: ToolEntry) -> _Places:
        key = (entry.tenant, entry.serial_key or "")
        places = self._serial.setdefault(key, _Places())
        self._serial.move_to_end(key)
        for old in list(itertools.islice(self._serial, max(0, len(self._serial) - KEPT_MAX))):
            if not self._serial[old].held:
                del self._serial[old]
        return places

    async def leave(self, permit: Permit, ended: Ended) -> None:
        entry, now = permit.entry, self._now_s()
        tool = self._tools.setdefault(entry.tool, _Tool())
        for places in self._places_of(tool, entry):
            places.held.pop(permit.id, None)
        attempts, failed = int(ended != "neither"), int(ended == "failed")
        tool.tries.add(self._bucket(now), attempts, 0)
        self._count(entry, permit.id, attempts, failed, now)

    def _count(self, entry: ToolEntry, permit_id: str, attempts: int, failed: int, now: float) -> None:
        key = (entry.tenant, entry.tool)
        breaker = self._breakers.setdefault(key, _Breaker())
        self._breakers.move_to_end(key)
        if len(self._breakers) > KEPT_MAX:
            self._breakers.popitem(last=False)
        if breaker.opened_at is None:
            breaker.counts.add(self._bucket(now), attempts, failed)
            calls, failures = breaker.counts.sums(self._first(now))
            enough = calls >= self._rule.calls_min and failures >= self._rule.failures_share * calls
            if failed and enough:
                self._open(key, breaker, now)
        elif breaker.probe == permit_id:  # a straggler neither moves the time it opened nor closes it
            if failed:
                self._open(key, breaker, now)
            elif attempts:
                self._breakers[key] = _Breaker()
            else:
                breaker.probe, breaker.probe_until_s = None, 0.0

    def _open(self, key: tuple[str, str], breaker: _Breaker, now: float) -> None:
        self._breakers[key] = _Breaker(opened_at=now, until_s=now + self._rule.open_s)
        until_s = now + self._rule.open_s
        log.warning(
            "breaker_opened", tenant=key[0], tool=key[1], until_s=until_s, probe=breaker.probe is not None
        )

    async def open_breakers(self, tenant: str) -> Mapping[str, float]:
        now = self._now_s()
        return {
            tool: breaker.until_s
            for (mine, tool), breaker in self._breakers.items()
            if mine == tenant and breaker.opened_at is not None and breaker.until_s > now
        }

    async def breakers(self) -> list[BreakerView]:
        now = self._now_s()
        return [_view(key, one, now, self._first(now)) for key, one in reversed(self._breakers.items())]

    async def reset(self, tenant: str, tool: str) -> bool:
        return self._breakers.pop((tenant, tool), None) is not None

    async def aclose(self) -> None:
        return None

    def _bucket(self, now: float) -> int:
        return int(now // self._rule.bucket_s)

    def _first(self, now: float) -> int:
        return self._bucket(now - self._rule.window_s) + 1


def _view(key: tuple[str, str], breaker: _Breaker, now: float, first: int) -> BreakerView:
    calls, failures = breaker.counts.sums(first)
    if breaker.opened_at is None:
        return BreakerView(*key, "closed", calls, failures)
    state = "open" if breaker.until_s > now else "half_open"
    return BreakerView(
        *key,
        state,  # type: ignore[arg-type]  # one of the two
        calls,
        failures,
        opened_at=breaker.opened_at,
        until_s=breaker.until_s,
        probing=breaker.probe_until_s > now,
    )
