"""The cache as a setting: where it is, what is refused, and what the command line says of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests import servers
from toolfleet import Fleet, tool
from toolfleet.adapters.redis.checks import problem
from toolfleet.adapters.redis.tool_pace import RedisToolPace
from toolfleet.cache import Known, cache_url, open_cache, refuse_unsafe_cache
from toolfleet.cli import run_command
from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.schemas.pace import ToolEntry
from toolfleet.schemas.views import WorkerBeat, WorkerView
from toolfleet.settings import load_settings


@tool(serial_key="order:{order}")
def one_by_one(order: int) -> int:
    """One at a time for each order."""
    return order


@pytest.mark.parametrize(
    ("broker", "cache", "expected"),
    [
        ("memory://", None, None),
        ("redis://h:1/0", None, "redis://h:1/0"),
        ("amqp://h//", None, None),
        ("amqp://h//", "valkey://h:1/2", "valkey://h:1/2"),
        ("redis://h:1/0", "memory://", None),
    ],
)
def test_the_cache_is_the_broker_where_it_can_be(
    broker: str, cache: str | None, expected: str | None
) -> None:
    settings = load_settings(broker=broker, cache=cache)

    assert cache_url(settings) == expected
    assert open_cache(settings).mode == ("own" if expected is None else "shared")


def test_a_cache_that_is_none_of_redis_is_refused_with_what_there_is() -> None:
    with pytest.raises(UnsafeSettings, match="no cache for a URL that starts with 'memcached'") as caught:
        cache_url(load_settings(cache="memcached://h:1"))

    assert "redis://host:6379/0" in caught.value.hint


def test_an_old_server_and_a_cluster_are_refused() -> None:
    old = problem({"redis_version": "6.0.16"})
    cluster = problem({"redis_version": "7.2.0", "redis_mode": "cluster"})

    assert old is not None and "6.2 is needed" in old[0]
    assert cluster is not None and "Cluster" in cluster[0]
    assert problem({"redis_version": "6.2.0", "redis_mode": "standalone"}) is None


def test_processes_that_share_no_cache_cannot_keep_a_serial_key() -> None:
    fleet = Fleet()
    fleet.registry.add_tool(one_by_one)
    settings = load_settings(broker="amqp://127.0.0.1:1//")

    with pytest.raises(UnsafeSettings, match="one_by_one: calls with one serial_key"):
        asyncio.run(refuse_unsafe_cache(settings, fleet.registry, processes=True))

    asyncio.run(refuse_unsafe_cache(settings, fleet.registry, processes=False))


def test_a_cache_that_is_away_is_no_reason_not_to_start() -> None:
    settings = load_settings(cache=f"redis://127.0.0.1:{servers.free_port()}/0")

    asyncio.run(refuse_unsafe_cache(settings, Fleet().registry, processes=True))


def test_quotas_are_divided_among_those_that_were_heard_of() -> None:
    def view(*roles: str, silent_s: float = 1.0) -> WorkerView:
        return WorkerView(WorkerBeat("w", "h", 1, roles, "0", 0.0), 0.0, silent_s)

    known = Known()
    known.look(
        [
            view("decide.batch", "decide.interactive"),
            view("decide.batch"),
            view("decide.batch", silent_s=1000.0),
            view("exec.low"),
            view("results"),
        ]
    )

    assert (known.deciders, known.executors) == (2, 1)
    known.look([])
    assert (known.deciders, known.executors) == (1, 1)


def test_breakers_are_listed_and_closed_from_the_command_line(
    redis: servers.Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = servers.redis_url(redis)
    monkeypatch.setenv("TOOLFLEET_BROKER_PREFIX", "cli-breakers")

    async def fail() -> None:
        pace = RedisToolPace(url, prefix="cli-breakers")
        for number in range(10):
            permit = await pace.enter(ToolEntry(tenant="acme", tool="charge", call_id=str(number)))
            await pace.leave(permit, "failed")  # type: ignore[arg-type]
        await pace.aclose()

    asyncio.run(fail())
    capsys.readouterr()  # the log line of the breaker that opened

    assert run_command(["breakers", "ls", "--cache", url, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["breakers"]
    assert (listed["tenant"], listed["tool"], listed["state"]) == ("acme", "charge", "open")
    assert run_command(["breakers", "ls", "--cache", url]) == 0
    assert "charge" in capsys.readouterr().out
    assert run_command(["breakers", "reset", "charge", "--tenant", "acme", "--cache", url]) == 0
    assert "closed the breaker of charge" in capsys.readouterr().out
    assert run_command(["breakers", "ls", "--cache", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"breakers": []}


def test_without_a_cache_the_command_says_where_breakers_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["breakers", "ls"]) == 2

    assert "has no cache" in capsys.readouterr().err


@pytest.mark.parametrize("away", [False, True])
def test_doctor_says_where_it_is_counted(
    redis: servers.Server,
    away: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"redis://:secret@127.0.0.1:{servers.free_port()}/0" if away else servers.redis_url(redis)
    monkeypatch.setenv("TOOLFLEET_CACHE", url)

    run_command(["doctor", "--database", f"sqlite:///{tmp_path / 'none.db'}", "--json"])

    said = capsys.readouterr().out
    (found,) = [check for check in json.loads(said)["checks"] if check["name"] == "cache"]
    assert found["status"] == ("WARN" if away else "OK")
    assert ("away" in found["detail"]) == away
    assert "secret" not in said
