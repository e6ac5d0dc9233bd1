"""The scripts by name, and how they are called: through the pump, by hash, loaded again where the server lost them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from toolfleet.adapters.redis_client import Pump, open_client
from toolfleet.schemas.errors import CacheUnavailable

CONNECT_S: Final = 1.0
SOCKET_S: Final = 1.0  # a cache that takes longer is away: no call waits for it


@cache
def text(name: str) -> str:
    """The text of a script; what goes in and out is said at its top."""
    return (files(__package__) / "lua" / f"{name}.lua").read_text()


@cache
def digest(name: str) -> str:
    return hashlib.sha1(text(name).encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """The connection to the cache. Raises CacheUnavailable where it cannot be used, and nothing else."""

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = f"{prefix}:pace:"
        self._redis: Redis = open_client(
            url, name="toolfleet-cache", what="cache", connect_s=CONNECT_S, socket_s=SOCKET_S
        )
        self._pump = Pump(self._redis, error=CacheUnavailable)

    def key(self, *parts: str) -> str:
        return self._prefix + "\x1f".join(parts)

    async def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The answer of one script."""
        (answer,) = await self._pump.run([("EVALSHA", digest(name), len(keys), *keys, *args)], errors=True)
        if isinstance(answer, NoScriptError):
            (answer,) = await self._pump.run([("EVAL", text(name), len(keys), *keys, *args)], errors=True)
        if isinstance(answer, Exception):
            raise CacheUnavailable(
                f"the cache refused a command: {answer}", hint="Redis or Valkey 6.2 or newer is needed."
            )
        return answer

    async def commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers of plain commands, in order."""
        return await self._pump.run(commands)

    async def aclose(self) -> None:
        await self._pump.aclose()
        await self._redis.aclose()
