"""Replicas of the HTTP API as processes: what is killed in the middle of a stream is gone on with at another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.integration.api_processes import DEADLINE_S, replicas
from toolfleet.access import Access
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.client import Client, RunRequest
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.events import CancelRequested
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.ports import Transition
from toolfleet.workers.machine import MACHINE


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    upgrade(url)
    return url


async def _prepared(database: str) -> tuple[str, str]:
    """A key, and a run whose events are ours to write: nobody works on it."""
    store = SqlStore(database, MACHINE)
    try:
        await store.register_agents([AgentSpec(name="desk", model="scripted")])
        made = await Access(store).create("svc", tenants=["acme"])
        (run_id,) = await Client(store).submit([RunRequest("desk", "hi", tenant="acme")])
        return made.token, run_id
    finally:
        await store.aclose()


async def _cancelled(database: str, run_id: str) -> int:
    """The run ends; how many events it has."""
    store = SqlStore(database, MACHINE)
    try:
        await store.transact([Transition(RunId(run_id), CancelRequested("test"))])
        return len(await store.events(RunId(run_id)))
    finally:
        await store.aclose()


class Reader:
    """What a client of EventSource does: reads, and goes on elsewhere from the id it has read last."""

    def __init__(self, token: str, run_id: str) -> None:
        self.headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        self.path = f"/api/v1/runs/{run_id}/events"
        self.ids: list[int] = []

    @contextlib.contextmanager
    def reading(self, url: str) -> Iterator[Iterator[str]]:
        last = {"Last-Event-ID": str(self.ids[-1])} if self.ids else {}
        with httpx2.stream(
            "GET", url + self.path, headers={**self.headers, **last}, timeout=DEADLINE_S
        ) as found:
            assert found.status_code == 200
            yield found.iter_lines()

    def note(self, line: str) -> None:
        if line.startswith("id: "):
            self.ids.append(int(line[4:]))


def test_a_stream_goes_on_at_another_replica_where_the_first_one_was_killed(
    tmp_path: Path, database: str
) -> None:
    token, run_id = asyncio.run(_prepared(database))
    reader = Reader(token, run_id)

    with replicas(tmp_path, database, 2) as (first, second):
        with reader.reading(first.url) as lines:
            for line in lines:
                reader.note(line)
                if reader.ids:
                    break
            os.kill(first.process.pid, signal.SIGKILL)
            with contextlib.suppress(httpx2.TransportError):
                for line in lines:
                    reader.note(line)
        count = asyncio.run(_cancelled(database, run_id))
        with reader.reading(second.url) as lines:
            for line in lines:
                reader.note(line)
        last = {"Last-Event-ID": str(reader.ids[-1])}
        over = httpx2.get(second.url + reader.path, headers={**reader.headers, **last}, timeout=DEADLINE_S)

    assert reader.ids == list(range(1, count + 1)), "no gap, and nothing twice"
    assert over.status_code == 204


def test_a_replica_that_is_told_to_end_lets_its_streams_go(tmp_path: Path, database: str) -> None:
    token, run_id = asyncio.run(_prepared(database))
    reader = Reader(token, run_id)

    with replicas(tmp_path, database, 1) as (replica,):
        with reader.reading(replica.url) as lines:
            for line in lines:
                reader.note(line)
                if len(reader.ids) == 1:
                    replica.process.send_signal(signal.SIGTERM)
        assert replica.process.wait(DEADLINE_S) == 0

    assert reader.ids == [1]
    assert "stopped" in replica.out.read_text()


def test_a_database_that_is_not_there_or_an_open_door_is_refused_at_once(tmp_path: Path) -> None:
    def refused(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TOOLFLEET")}
        return subprocess.run(
            [sys.executable, "-m", "toolfleet", "serve", *arguments],
            cwd=tmp_path,
            env={**kept, **environment},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    nothing = refused("--database", f"sqlite:///{tmp_path / 'none.db'}")
    upgrade(f"sqlite:///{tmp_path / 'some.db'}")
    open_door = refused(
        *("--database", f"sqlite:///{tmp_path / 'some.db'}", "--host", "0.0.0.0", "--port", "0"),
        TOOLFLEET_HTTP_AUTH="off",
    )

    assert (nothing.returncode, open_door.returncode) == (5, 5)
    assert "there is no database" in nothing.stderr
    assert "without keys whoever reaches 0.0.0.0" in open_door.stderr
