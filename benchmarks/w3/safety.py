"""Refuses figures that were bought with safety: every setting that could lose or repeat work is at its default.

What is asked is what is in force: the settings a worker of the stack would read, and the servers themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import psycopg
import redis

from tests import servers

if TYPE_CHECKING:
    from benchmarks.w3.stacks import Stack

KEYS: Final = "w3:" + "5a" * 32  # messages are signed; a key for figures only
# Where things are. Everything else a setting could say has to be what it says by itself.
PLACES: Final = {"database", "broker", "signing_keys", "openai_base_url", "openai_api_key"}
REDIS_SETTINGS: Final = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
}
POSTGRES_SETTINGS: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
_ASK: Final = "from toolfleet.settings import load_settings; print(load_settings().model_dump_json())"
_ASK_SQLITE: Final = """
import sys
from toolfleet.adapters.store.engine import open_engine
with open_engine(sys.argv[1]).connect() as connection:
    print(*(connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("synchronous", "journal_mode")))
"""


class Unsafe(Exception):
    """A figure would not be that of a fleet as it comes."""


def changed(settings: Mapping[str, Any], default: Mapping[str, Any]) -> list[str]:
    """One line for each setting that is not what it is by itself."""
    return [
        f"{name} is {settings[name]!r} instead of {default[name]!r}"
        for name in sorted(default)
        if name not in PLACES and settings[name] != default[name]
    ]


def refuse_unsafe(stack: Stack) -> None:
    """Raises Unsafe with all that is not at its default."""
    if stack.kind == "celery":
        found = _redis(stack)
    else:
        found = _fleet(stack.environment(), embedded=stack.kind == "embedded") + _servers(stack)
    if found:
        raise Unsafe(f"{stack.kind}: {'; '.join(found)}")


def _fleet(environment: Mapping[str, str], *, embedded: bool) -> list[str]:
    import json

    from toolfleet.settings import Settings

    told = subprocess.run(
        [sys.executable, "-c", _ASK], env=dict(environment), capture_output=True, check=True, text=True
    ).stdout
    default = {
        name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()
    }
    found = changed(json.loads(told), json.loads(json.dumps(default, default=str)))
    if not embedded and not environment.get("TOOLFLEET_SIGNING_KEYS"):
        found.append("messages are not signed with a key of ours")
    return found


def _servers(stack: Stack) -> list[str]:
    found = []
    if stack.kind == "embedded":
        told = subprocess.run(
            [sys.executable, "-c", _ASK_SQLITE, stack.database],
            env={**os.environ, "PYTHONPATH": stack.environment()["PYTHONPATH"]},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
        if told != ["2", "wal"]:  # 2: FULL, https://www.sqlite.org/pragma.html#pragma_synchronous
            found.append(f"SQLite says synchronous, journal_mode = {told}")
    if "postgresql" in stack.servers:
        found += _postgres(stack.database)
    if "redis" in stack.servers:
        found += _redis(stack)
    if "rabbitmq" in stack.servers:
        listed = servers.rabbitmq_control(stack.servers["rabbitmq"], "list_queues", "name", "type")
        rows = [line.split("\t") for line in listed.splitlines()]
        found += [
            f"queue {name} is {kind}" for name, kind in rows if kind != "quorum" and _carries_steps(name)
        ]
        found += [] if any(kind == "quorum" for _, kind in rows) else ["there is no quorum queue"]
    return found


def _carries_steps(name: str) -> bool:
    """Celery's own queues (control tasks, `inspect`) carry no step of a run."""
    return not any(part in name for part in ("celery", "pidbox", "reply", ".control", "name"))


def _postgres(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        told = {name: connection.execute(f"SHOW {name}").fetchone() for name in POSTGRES_SETTINGS}  # type: ignore[call-overload]
    return [
        f"PostgreSQL says {name} = {value and value[0]}"
        for name, value in told.items()
        if not value or value[0] != POSTGRES_SETTINGS[name]
    ]


def _redis(stack: Stack) -> list[str]:
    with redis.Redis(port=stack.servers["redis"].port, decode_responses=True) as client:
        told = {name: client.config_get(name).get(name) for name in REDIS_SETTINGS}
    return [f"Redis says {name} = {value}" for name, value in told.items() if value != REDIS_SETTINGS[name]]
