"""What of a Redis or Valkey would lose or refuse messages sooner or later: asked at start, said with the reason."""

from __future__ import annotations

from typing import Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from toolfleet.adapters.redis_client import open_client, translated
from toolfleet.schemas.errors import UnsafeSettings

VERSION_MIN: Final = (6, 2)  # XAUTOCLAIM


async def refuse_unsafe(url: str) -> None:
    """Raises UnsafeSettings for a server a fleet must not be started on, BrokerUnavailable for one that is away."""
    client = open_client(url, name="toolfleet-check")
    try:
        with translated():
            info: dict[str, Any] = await client.info()
            saves = await _setting(client, "save")
    except ResponseError as exc:
        if isinstance(exc, NoPermissionError):
            hint = "Give the user of the fleet +info, or another user."
        else:
            hint = (
                "Correct the URL: redis://user:password@host:6379/0; the number at its end is the database."
            )
        raise UnsafeSettings(f"Redis refuses to tell about itself: {exc}", hint=hint) from exc
    finally:
        await client.aclose()
    for problem, hint in problems(info, saves):
        raise UnsafeSettings(f"the broker is not safe to use: {problem}", hint=hint)


def problems(info: dict[str, Any], saves: str | None) -> list[tuple[str, str]]:
    """(what, what to do) of INFO's facts; `saves` is the setting `save`, None where it may not be asked."""
    found = []
    version = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2])
    if version < VERSION_MIN:
        found.append((f"it is Redis {info.get('redis_version')}, and 6.2 is needed", "Upgrade the server."))
    if info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == 1:
        found.append(
            (
                "it is a Redis Cluster: a fetch and the scripts touch several keys, which live on different nodes there",
                "Use a single server, with replicas if you like; the database is the truth, so it may be small.",
            )
        )
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        found.append(
            (
                f"maxmemory-policy is {policy}, so a full server throws queues away",
                "Set maxmemory-policy noeviction; use another server as a cache.",
            )
        )
    if info.get("aof_enabled") == 0 and saves == "":
        found.append(
            (
                "it keeps nothing on disk, so every restart wipes all queues",
                "Set appendonly yes (appendfsync everysec is enough: the database is the truth).",
            )
        )
    return found


async def _setting(client: Any, name: str) -> str | None:
    """The value of a setting; None where CONFIG is not allowed, as with most hosted servers."""
    try:
        found: dict[str, str] = await client.config_get(name)
    except (NoPermissionError, ResponseError):
        return None
    value = found.get(name, "")
    return value.decode() if isinstance(value, bytes) else value
