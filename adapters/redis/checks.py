"""What of a Redis or Valkey cannot serve as the cache: its version, and a cluster."""

from __future__ import annotations

from typing import Any, Final

from redis.exceptions import ResponseError

from toolfleet.adapters.redis.scripts import CONNECT_S, SOCKET_S
from toolfleet.adapters.redis_client import open_client, translated
from toolfleet.schemas.errors import CacheUnavailable

VERSION_MIN: Final = (6, 2)


async def problem_of(url: str) -> tuple[str, str] | None:
    """(what is wrong, what to do), or None. Raises CacheUnavailable. Evicting keys is fine: all of it may be lost."""
    client = open_client(url, name="toolfleet-check", what="cache", connect_s=CONNECT_S, socket_s=SOCKET_S)
    try:
        with translated(CacheUnavailable):
            info: dict[str, Any] = await client.info("server")
    except ResponseError as exc:
        return f"it does not answer INFO: {exc}", "Give the user of the fleet +info, or another user."
    finally:
        await client.aclose()
    return problem(info)


def problem(info: dict[str, Any]) -> tuple[str, str] | None:
    version = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2])
    if version < VERSION_MIN:
        return f"it is Redis {info.get('redis_version')}, and 6.2 is needed", "Upgrade the server."
    if info.get("redis_mode") == "cluster":
        return (
            "it is a Redis Cluster: one script touches several keys, which live on different nodes there",
            "Use a single server, which may be small: all of it may be lost.",
        )
    return None
