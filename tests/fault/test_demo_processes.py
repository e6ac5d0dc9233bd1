"""The demo over worker processes: the same results as in one process, also while somebody kills one every second."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests import servers
from tests.fault.stack import wait_until
from tests.fault.test_kill_demo import some_conversations
from toolfleet.adapters.store.engine import parse_url
from toolfleet.examples.airline_desk.database import effects

FINISH_S = 900.0
SAME = ("conversations", "completed", "runs", "model_calls", "tool_calls", "merges", "fanout")
BROKERS = [pytest.param("redis", id="streams"), pytest.param("rabbitmq", id="rabbitmq")]


def _demo(
    out: Path, conversations: Path, broker: str | None, database: str | None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "toolfleet", "demo", "--out", str(out), "--seed", "7"]
    command += ["--conversations", str(conversations)]
    if broker is not None and database is not None:
        command += ["--broker", broker, "--database", database, "--workers", "2"]
    environment = {
        **os.environ,
        "TOOLFLEET_LEASE_S": "6",
        "TOOLFLEET_BROKER_PREFIX": f"demo-{os.getpid()}-{out.name}",
        "TOOLFLEET_CHILDREN": "2",
    }
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _finish(process: subprocess.Popen[bytes]) -> None:
    _, stderr = process.communicate(timeout=FINISH_S)
    assert process.returncode == 0, stderr.decode()[-3000:]


def _workers(database: str) -> list[int]:
    """The processes that have said that they are there, and still are."""
    engine = create_engine(parse_url(database))
    try:
        with engine.connect() as connection:
            pids = [int(row[0]) for row in connection.execute(text("SELECT pid FROM workers"))]
    finally:
        engine.dispose()
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _open_runs(database: str) -> int:
    engine = create_engine(parse_url(database))
    try:
        with engine.connect() as connection:
            query = text("SELECT count(*) FROM runs WHERE finished_at IS NULL")
            return int(connection.execute(query).scalar_one())
    finally:
        engine.dispose()


def _kill_again_and_again(process: subprocess.Popen[bytes], database: str, kills: int) -> int:
    """A random worker each second while the demo works; returns how many there were with runs open."""
    chance, done = random.Random(11), 0
    wait_until(lambda: process.poll() is not None or _open_runs(database) > 0, "the demo works", seconds=180)
    for _ in itertools.repeat(None):
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        there = _workers(database)
        if process.poll() is not None or done >= kills:
            return done
        if there and _open_runs(database) > 0:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(there), signal.SIGKILL)
                done += 1
    raise AssertionError("unreachable")


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", BROKERS)
def test_the_demo_ends_with_the_same_results_while_workers_are_killed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server, cluster = request.getfixturevalue(kind), request.getfixturevalue("postgresql")
    broker = servers.redis_url(server) if kind == "redis" else servers.rabbitmq_url(server)
    conversations = some_conversations(tmp_path, 24)
    alone, calm, shaken = (tmp_path / name for name in ("alone", "calm", "shaken"))

    _finish(_demo(alone, conversations, None, None))
    _finish(_demo(calm, conversations, broker, servers.new_database(cluster)))
    database = servers.new_database(cluster)
    process = _demo(shaken, conversations, broker, database)
    killed = _kill_again_and_again(process, database, kills=20)
    _finish(process)

    assert killed >= 5
    expected = (alone / "results.jsonl").read_bytes()
    assert (calm / "results.jsonl").read_bytes() == expected
    assert (shaken / "results.jsonl").read_bytes() == expected
    told = [json.loads((out / "summary.json").read_text()) for out in (alone, calm, shaken)]
    assert all({name: one[name] for name in SAME} == {name: told[0][name] for name in SAME} for one in told)
    made = Counter((effect.conversation, effect.idempotency_key) for effect in effects(shaken / "desk.db"))
    assert made and set(made.values()) == {1}
    assert len(made) == len(effects(alone / "desk.db"))
