"""Requests a minute of tenants, shared by all processes through Redis or Valkey."""

from __future__ import annotations

from collections.abc import Callable

from toolfleet.adapters.redis.scripts import Scripts
from toolfleet.schemas.access import Taken


class RedisRequestRate:
    """Implements RequestRate for all processes with the same server and prefix. Raises CacheUnavailable.

    `now_s`: instead of the server's clock, for tests.
    """

    def __init__(
        self, url: str, *, prefix: str = "toolfleet", now_s: Callable[[], float] | None = None
    ) -> None:
        self._scripts = Scripts(url, prefix)
        self._now_s = now_s

    async def take(self, tenant: str, per_minute: int) -> Taken:
        now = "" if self._now_s is None else self._now_s() * 1000
        keys = [self._scripts.key("requests", tenant)]
        allowed, remaining, reset_ms, retry_ms = await self._scripts.run("take", keys, [now, per_minute])
        return Taken(bool(allowed), per_minute, int(remaining), reset_ms / 1000, retry_ms / 1000)

    async def aclose(self) -> None:
        await self._scripts.aclose()
