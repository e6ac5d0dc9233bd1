"""What goes through the cache, and where it is: a Redis or Valkey that all processes share, or this process's memory.

It holds only what may be lost: breaker windows, rate tokens, places, quotas. A cache that is away stops nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import structlog

from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.local.governor import LocalGovernor
from toolfleet.adapters.local.request_rate import LocalRequestRate
from toolfleet.adapters.local.tool_pace import LocalToolPace
from toolfleet.brokers import EMBEDDED, REDIS, scheme_of
from toolfleet.definitions import Registry
from toolfleet.schemas.access import RequestRate
from toolfleet.schemas.commands import DECIDE_QUEUES, EXEC_QUEUES
from toolfleet.schemas.errors import CacheUnavailable, UnsafeSettings
from toolfleet.schemas.limits import WORKER_SILENT_S
from toolfleet.schemas.pace import BreakerRule
from toolfleet.schemas.ports import Governor, ToolPace
from toolfleet.schemas.views import WorkerView
from toolfleet.settings import Settings

log = structlog.get_logger("toolfleet.cache")

Mode = Literal["own", "shared", "away"]


@dataclass(slots=True)
class Known:
    """How many processes there are to divide quotas and rates among, where nothing is shared."""

    deciders: int = 1
    executors: int = 1

    def look(self, workers: list[WorkerView]) -> None:
        """Count those that were heard of lately."""
        roles = [set(view.beat.roles) for view in workers if view.silent_s < WORKER_SILENT_S]
        self.deciders = max(1, sum(not mine.isdisjoint(DECIDE_QUEUES.values()) for mine in roles))
        self.executors = max(1, sum(not mine.isdisjoint(EXEC_QUEUES.values()) for mine in roles))


@dataclass(slots=True)
class Cache:
    """The ports of one process, and how it stands with the cache."""

    pace: ToolPace
    governor: Governor
    requests: RequestRate
    known: Known = field(default_factory=Known)
    reach: Any = None  # a Reach, where there is a cache to be reached

    @property
    def mode(self) -> Mode:
        """own: in this process's memory. shared: all processes count together. away: they would, if it were there."""
        if self.reach is None:
            return "own"
        return "away" if self.reach.away else "shared"

    async def aclose(self) -> None:
        await self.pace.aclose()
        await self.governor.aclose()
        await self.requests.aclose()


def cache_url(settings: Settings) -> str | None:
    """Where the cache is: as set, else the broker if it is a Redis; None: in the memory of each process.

    Raises UnsafeSettings for a URL that is none of Redis.
    """
    if settings.cache is None:
        return settings.broker if scheme_of(settings) in REDIS else None
    scheme = urlsplit(settings.cache).scheme
    if scheme == EMBEDDED:
        return None
    if scheme not in REDIS:
        raise UnsafeSettings(
            f"there is no cache for a URL that starts with {scheme or settings.cache[:20]!r}",
            hint="Use redis://host:6379/0, rediss://…, valkey://…, or memory:// for counts of each process's own.",
        )
    return settings.cache


def breaker_rule(settings: Settings) -> BreakerRule:
    return BreakerRule(
        calls_min=settings.breaker_calls_min,
        failures_share=settings.breaker_failures_share,
        window_s=settings.breaker_window_s,
        open_s=settings.breaker_open_s,
    )


def open_cache(settings: Settings) -> Cache:
    """The ports of a process of these settings; connects with the first question."""
    rule, known = breaker_rule(settings), Known()
    local = LocalToolPace(rule=rule, share=lambda: known.executors)
    governor = LocalGovernor(share=lambda: known.deciders)
    requests = LocalRequestRate()
    url = cache_url(settings)
    if url is None:
        return Cache(local, governor, requests, known)
    from toolfleet.adapters.redis.governor import RedisGovernor
    from toolfleet.adapters.redis.outage import Reach, SharedGovernor, SharedRequestRate, SharedToolPace
    from toolfleet.adapters.redis.request_rate import RedisRequestRate
    from toolfleet.adapters.redis.tool_pace import RedisToolPace

    prefix, reach = settings.broker_prefix, Reach(SystemClock())
    return Cache(
        SharedToolPace(RedisToolPace(url, prefix=prefix, rule=rule), local, reach),
        SharedGovernor(RedisGovernor(url, prefix=prefix), governor, reach),
        SharedRequestRate(RedisRequestRate(url, prefix=prefix), requests, reach),
        known,
        reach,
    )


async def refuse_unsafe_cache(settings: Settings, registry: Registry, *, processes: bool) -> None:
    """What no restart would heal. Raises UnsafeSettings; a cache that is merely away is none of it.

    `processes`: the fleet is more than this process.
    """
    url = cache_url(settings)
    if url is None:
        serial = sorted(name for name, tool in registry.tools.items() if tool.spec.serial_key is not None)
        if serial and processes:
            raise UnsafeSettings(
                f"{', '.join(serial)}: calls with one serial_key are to run one at a time in the whole fleet, and its "
                "processes share no cache to agree by",
                hint="Give them one: --cache redis://127.0.0.1:6379/0 (TOOLFLEET_CACHE).",
            )
        return
    try:
        found = await probe_cache(url)
    except CacheUnavailable as exc:
        log.warning("cache_away", error=exc.message, mode="each process counts for itself")
        return
    if found:
        raise UnsafeSettings(f"the cache cannot be used: {found[0]}", hint=found[1])


async def probe_cache(url: str) -> tuple[str, str] | None:
    """(what is wrong with it, what to do); None where nothing is. Raises CacheUnavailable."""
    from toolfleet.adapters.redis.checks import problem_of

    return await problem_of(url)
