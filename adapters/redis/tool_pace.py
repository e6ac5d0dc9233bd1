"""The pace of tools, shared by all processes through Redis or Valkey: one script per step.

An attempt of a tool that declares nothing costs no round trip while its breaker is closed: what is open is asked twice
a second at most, and attempts that were answered are counted together. Failures are counted at once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.redis.scripts import Scripts
from toolfleet.schemas.errors import CacheUnavailable
from toolfleet.schemas.limits import BREAKERS_SEEN_S, COUNTS_HELD_S, PACE_LEASE_S, RETRIES_ALWAYS
from toolfleet.schemas.pace import (
    BREAKER_RULE,
    BreakerRule,
    BreakerView,
    Ended,
    Open,
    Permit,
    ToolEntry,
    Wait,
)
from toolfleet.schemas.ports import Clock

log = structlog.get_logger("toolfleet.pace")

SHOWN_MAX: Final = 1000
PROBE_MARGIN_S: Final = 30.0  # beyond the deadline of the attempt; then another one may probe
SEP: Final = "\x1f"


class RedisToolPace:
    """Implements ToolPace for all processes with the same server and prefix. Raises CacheUnavailable.

    `now_s`: instead of the server's clock, for tests. `lease_s`: how long a dead process keeps places and keys.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "toolfleet",
        rule: BreakerRule = BREAKER_RULE,
        lease_s: float = PACE_LEASE_S,
        seen_s: float = BREAKERS_SEEN_S,
        held_s: float = COUNTS_HELD_S,
        clock: Clock | None = None,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._scripts = Scripts(url, prefix)
        self._rule = rule
        self._lease_s = lease_s
        self._seen_s = seen_s
        self._held_s = held_s
        self._clock: Clock = SystemClock() if clock is None else clock
        self._now_s = now_s
        self._open: dict[str, float] = {}  # tenant and tool -> until, as of _seen_at
        self._seen_at: float | None = None
        self._ahead_s = 0.0  # the server's clock (epoch) before our monotonic one, as of _seen_at
        self._looking: asyncio.Task[None] | None = None
        self._answered: dict[str, int] = {}  # tenant and tool -> attempts not yet counted
        self._counting: asyncio.Task[None] | None = None
        self._permits: dict[str, list[str]] = {}  # id -> the sets that hold it
        self._keeping: asyncio.Task[None] | None = None

    async def enter(self, entry: ToolEntry) -> Permit | Wait | Open:
        member = f"{entry.tenant}{SEP}{entry.tool}"
        if entry.plain:
            await self._look()
            if member not in self._open:
                return Permit(_new_id(), entry)
        permit_id = _new_id()
        held = self._held_by(entry)
        what, value, now = await self._scripts.run("enter", self._keys(entry), self._args(entry, permit_id))
        match what:
            case b"go":
                if held:
                    self._permits[permit_id] = held
                    self._start_keeping()
                return Permit(permit_id, entry, probe=bool(value), held=bool(held))
            case b"open":
                return Open(until_s=value / 1000, wait_s=max(0.0, (value - now) / 1000))
            case _:
                return Wait(what.decode(), value / 1000)

    def _keys(self, entry: ToolEntry) -> list[str]:
        key, tool = self._scripts.key, entry.tool
        serial = entry.serial_key or ""
        return [
            key("breaker", entry.tenant, tool),
            key("tries", tool),
            key("rate", tool),
            key("next", tool),
            key("busy", tool),
            key("serial", entry.tenant, serial),
            key("waiting", tool),
            key("queue", entry.tenant, serial),
        ]

    def _args(self, entry: ToolEntry, permit_id: str) -> list[object]:
        rate = entry.rate
        return [
            self._now(),
            permit_id,
            entry.call_id,
            _ms(self._lease_s),
            _ms(entry.deadline_s + PROBE_MARGIN_S),
            0 if rate is None else rate.count,
            0 if rate is None else _ms(rate.period_s),
            entry.concurrent_max or 0,
            int(entry.serial_key is not None),
            int(entry.retry),
            int(entry.returning),
            RETRIES_ALWAYS,
            -1 if entry.retry_share is None else entry.retry_share,
            _ms(self._rule.window_s),
            _ms(self._rule.bucket_s),
        ]

    def _held_by(self, entry: ToolEntry) -> list[str]:
        keys = self._keys(entry)
        busy = [keys[4]] if entry.concurrent_max else []
        return [*busy, *([keys[5]] if entry.serial_key is not None else [])]

    async def leave(self, permit: Permit, ended: Ended) -> None:
        entry = permit.entry
        member = f"{entry.tenant}{SEP}{entry.tool}"
        held = self._permits.pop(permit.id, None)
        if held:
            await self._scripts.commands([("ZREM", key, permit.id) for key in held])
        if permit.probe or ended == "failed":
            answered = self._answered.pop(member, 0) + (ended == "ok")
            await self._record(member, answered, int(ended == "failed"), permit.id if permit.probe else "")
        elif ended == "ok":
            self._answered[member] = self._answered.get(member, 0) + 1
            if self._counting is None or self._counting.done():
                self._counting = asyncio.create_task(self._count_soon())

    async def _record(self, member: str, answered: int, failed: int, probe: str) -> None:
        tenant, _, tool = member.partition(SEP)
        key, rule = self._scripts.key, self._rule
        keys = [key("breaker", tenant, tool), key("open"), key("breakers"), key("tries", tool)]
        times = [_ms(rule.window_s), _ms(rule.bucket_s)]
        args = [self._now(), member, answered, failed, probe, *times, rule.calls_min, rule.failures_share]
        opened, until, _ = await self._scripts.run("record", keys, [*args, _ms(rule.open_s)])
        if until:
            self._open[member] = until / 1000
        else:
            self._open.pop(member, None)
        if opened:
            log.warning("breaker_opened", tenant=tenant, tool=tool, until_s=until / 1000, probe=bool(probe))

    async def _count_soon(self) -> None:
        await self._clock.sleep(self._held_s)
        try:
            await self._count()
        except CacheUnavailable as exc:
            log.debug("counts_lost", error=exc.message)  # the next call finds out, and says so

    async def _count(self) -> None:
        counts, self._answered = self._answered, {}
        for member, answered in counts.items():
            await self._record(member, answered, 0, "")

    async def _look(self) -> None:
        """Ask what is open, unless somebody did a moment ago; many callers ask once."""
        if self._seen_at is not None and self._clock.monotonic_s() - self._seen_at < self._seen_s:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._ask())
        await asyncio.shield(self._looking)

    async def _ask(self) -> None:
        found, (seconds, micros) = await self._scripts.commands(
            [("HGETALL", self._scripts.key("open")), ("TIME",)]
        )
        self._ahead_s = int(seconds) + int(micros) / 1e6 - self._clock.monotonic_s()
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        self._open = {member.decode(): int(until) / 1000 for member, until in pairs}
        self._seen_at = self._clock.monotonic_s()

    async def open_breakers(self, tenant: str) -> Mapping[str, float]:
        await self._look()
        now = self._clock.monotonic_s() + self._ahead_s if self._now_s is None else self._now_s()
        found = ((*member.partition(SEP), until) for member, until in self._open.items())
        return {tool: until for mine, _, tool, until in found if mine == tenant and until > now}

    async def breakers(self) -> list[BreakerView]:
        await self._count()
        times = [self._now(), _ms(self._rule.window_s), _ms(self._rule.bucket_s)]
        keys = [self._scripts.key("breakers"), self._scripts.key("breaker", "")]
        now, *found = await self._scripts.run("look", keys, [*times, SHOWN_MAX])
        return [_view(now, *one) for one in found]

    async def reset(self, tenant: str, tool: str) -> bool:
        member, key = f"{tenant}{SEP}{tool}", self._scripts.key
        gone = await self._scripts.commands(
            [
                ("DEL", key("breaker", tenant, tool)),
                ("HDEL", key("open"), member),
                ("ZREM", key("breakers"), member),
            ]
        )
        self._open.pop(member, None)
        return any(gone)

    async def aclose(self) -> None:
        """What was not counted yet is counted; what is still held is left to its lease."""
        tasks = [task for task in (self._counting, self._keeping, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._count()
        except CacheUnavailable as exc:
            log.debug("counts_lost", error=exc.message)
        await self._scripts.aclose()

    def _start_keeping(self) -> None:
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """While something is held: renew it every third of its lease."""
        while self._permits:
            await self._clock.sleep(self._lease_s / 3)
            try:
                for permit_id, keys in list(self._permits.items()):
                    await self._scripts.run("keep", keys, [self._now(), permit_id, _ms(self._lease_s)])
            except CacheUnavailable as exc:
                log.debug("keep_failed", held=len(self._permits), error=exc.message)

    def _now(self) -> int | str:
        return "" if self._now_s is None else _ms(self._now_s())


def _view(
    now: int, member: bytes, opened: int, until: int, probing: int, calls: int, failures: int
) -> BreakerView:
    tenant, _, tool = member.decode().partition(SEP)
    if not until:
        return BreakerView(tenant, tool, "closed", calls, failures)
    return BreakerView(
        tenant,
        tool,
        "open" if until > now else "half_open",
        calls,
        failures,
        opened_at=opened / 1000,
        until_s=until / 1000,
        probing=probing > now,
    )


def _new_id() -> str:
    return secrets.token_hex(8)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
