"""A fleet of real processes while its servers, its connections or its workers fail under load.

Every test puts work in, does the harm once at least 20 runs are open, and then asks for the same runs, item by item, as
nobody disturbed; nothing may be left in the database or the broker.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
import pytest
import redis as redis_client

from tests import servers
from tests.conftest import require
from tests.fault.matrix import OUTAGE_CELLS, note_cell
from tests.fault.release import NEXT_REVISION, next_release
from tests.fault.stack import LEASE_S, ROLES, Process, Stack, stack_of, wait_until

RUNS = 80
OPEN_AT_LEAST = 20
RESET_WITHIN_S = 2.0
INPUTS = [f"work {n}" for n in range(RUNS)]
SELECTED = {
    ("streams", "broker emptied"),
    ("streams", "broker killed and started again"),
    ("rabbitmq", "database restarted at once"),
}

Harm = Callable[[Stack, dict[str, Process]], None]


@pytest.fixture(scope="module")
def own_servers() -> Iterator[Callable[[str], servers.Server]]:
    """Servers that tests of this module may kill; started with the first test that needs them."""
    with ExitStack() as opened:
        made: dict[str, servers.Server] = {}

        def server(kind: str) -> servers.Server:
            require(kind)
            if kind not in made:
                start = {
                    "redis": servers.redis_server,
                    "postgresql": servers.postgres_server,
                    "rabbitmq": servers.rabbitmq_server,
                }[kind]
                made[kind] = opened.enter_context(start())
            return made[kind]

        yield server


# -- what is done to them --------------------------------------------------------------------------------------------------


def _frozen(role: str) -> Harm:
    def harm(stack: Stack, processes: dict[str, Process]) -> None:
        """Past its lease: others take over; when it wakes up, what it still wants to say is too late."""
        other = stack.start(role)
        processes[role].signal(signal.SIGSTOP)
        _wait_s(2.5 * LEASE_S)
        processes[role].signal(signal.SIGCONT)
        processes[f"second {role}"] = other

    return harm


def _broker_killed(stack: Stack, processes: dict[str, Process]) -> None:
    assert stack.broker_server is not None
    stack.broker_server.kill()
    _wait_s(2.0)
    stack.broker_server.start()


def _broker_emptied(stack: Stack, processes: dict[str, Process]) -> None:
    """All queues and the marker are gone; every outstanding row is published again soon after."""
    assert stack.broker_server is not None
    before = _reset_at(stack)
    if stack.kind == "streams":
        with redis_client.Redis(port=stack.broker_server.port) as client:
            client.flushall()
    else:
        for line in servers.rabbitmq_control(stack.broker_server, "list_queues", "name").split():
            if line.startswith(stack.prefix):
                servers.rabbitmq_control(stack.broker_server, "delete_queue", line)
    wait_until(lambda: _reset_at(stack) > before, "the wipe is noticed", seconds=3 * RESET_WITHIN_S)
    wait_until(
        lambda: not _published_before(stack),
        "every outstanding row is published again",
        seconds=3 * RESET_WITHIN_S,
    )


def _reset_at(stack: Stack) -> float:
    return float(stack.query("SELECT coalesce(max(reset_at), 0) FROM brokers")[0][0])


def _published_before(stack: Stack) -> int:
    """Rows that are due, held by nobody, and were sent before the wipe if at all."""
    statement = """
        SELECT count(*) FROM commands, (SELECT max(reset_at) AS at FROM brokers) AS reset
        WHERE token IS NULL AND due_at < reset.at AND (sent_at IS NULL OR sent_at < reset.at)
    """
    return int(stack.query(statement)[0][0])


def _broker_cut(stack: Stack, processes: dict[str, Process]) -> None:
    """Every connection, three times in three seconds."""
    assert stack.broker_server is not None
    for _ in range(3):
        if stack.kind == "streams":
            with redis_client.Redis(port=stack.broker_server.port) as client:
                client.client_kill_filter(_type="normal", skipme=True)
        else:
            servers.rabbitmq_control(stack.broker_server, "close_all_connections", "test")
        _wait_s(1.0)


def _database_cut(stack: Stack, processes: dict[str, Process]) -> None:
    for _ in range(3):
        with psycopg.connect(stack.database, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        _wait_s(1.0)


def _database_restarted(stack: Stack, processes: dict[str, Process]) -> None:
    assert stack.database_server is not None
    servers.postgres_immediate(stack.database_server)


def _rolling(stack: Stack, processes: dict[str, Process]) -> None:
    """Each role in turn: a new one first, then SIGTERM for the old one, which drains and leaves with 0."""
    for role in ROLES:
        fresh = stack.start(role)
        old = processes[role]
        old.signal(signal.SIGTERM)
        assert old.ended() == 0, old.tail()
        stack.end(old)
        processes[role] = fresh


def _next_release(stack: Stack, processes: dict[str, Process]) -> None:
    """The database is migrated, workers with newer messages join; the older ones hold what they cannot read.

    Then each old one is killed and started again: it still works with the newer schema.
    """
    folder = next_release(stack.folder / "next")
    stack.command("db", "upgrade", cwd=folder)
    assert stack.query("SELECT version_num FROM alembic_version") == [(NEXT_REVISION,)]
    for role in ROLES:
        processes[f"next {role}"] = stack.start(role, cwd=folder, wait=False)
    stack.wait_for(*(one for name, one in processes.items() if name.startswith("next ")))
    for role in ROLES:
        processes[role].signal(signal.SIGKILL)
        assert processes[role].ended() == -signal.SIGKILL
        stack.end(processes[role])
        processes[role] = stack.start(role, wait=False)
    stack.wait_for(*(processes[role] for role in ROLES))
    more = stack.submit(INPUTS[:OPEN_AT_LEAST])
    wait_until(
        lambda: all(stack.query("SELECT finished_at FROM runs WHERE id = :id", id=run)[0][0] for run in more),
        "the runs submitted beside the new release end",
        seconds=240,
    )


def _random_kills(stack: Stack, processes: dict[str, Process]) -> None:
    """For a while, a random one each second, each started again as a supervisor would."""
    chance = random.Random(7)
    for number in itertools.count():
        name = chance.choice(sorted(processes))
        victim = processes[name]
        victim.signal(signal.SIGKILL)
        assert victim.ended() == -signal.SIGKILL
        stack.end(victim)
        processes[name] = stack.start(victim.role, wait=False)
        if number >= 8 or stack.open_runs() == 0:
            break
        _wait_s(1.0)
    stack.wait_for(*processes.values())


HARMS: dict[str, Harm] = {
    **{f"{role} frozen past its lease": _frozen(role) for role in ROLES},
    "broker killed and started again": _broker_killed,
    "broker emptied": _broker_emptied,
    "broker connections cut three times in 3 s": _broker_cut,
    "database connections cut": _database_cut,
    "database restarted at once": _database_restarted,
    "rolling restart of all roles": _rolling,
    "release N+1 beside N": _next_release,
    "random worker killed every second": _random_kills,
}


def _wait_s(seconds: float) -> None:
    """How long a fault lasts; nothing is waited for."""
    subprocess.run(["sleep", str(seconds)], check=True)


@dataclass(slots=True)
class Ground:
    """A stack with a steady worker of each role, and the stories of runs nobody disturbed."""

    stack: Stack
    processes: dict[str, Process]
    stories: list[tuple[str, ...]]


@pytest.fixture(scope="module")
def ground_of(
    own_servers: Callable[[str], servers.Server], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Ground]]:
    """The ground of a kind of stack; made with the first test that asks, and used by all."""
    with ExitStack() as opened:
        grounds: dict[str, Ground] = {}

        def ground(kind: str) -> Ground:
            if kind not in grounds:
                broker = own_servers("redis" if kind == "streams" else "rabbitmq")
                database = own_servers("postgresql")
                folder = tmp_path_factory.mktemp(kind)
                stack = opened.enter_context(
                    stack_of(kind, folder, database_server=database, broker_server=broker)
                )
                processes = stack.start_all()
                undisturbed = stack.submit(INPUTS)
                stack.wait_all(seconds=240)
                stories = [stack.story(run) for run in undisturbed]
                assert all(story[0].startswith("completed") for story in stories), stories[0]
                grounds[kind] = Ground(stack, processes, stories)
            return grounds[kind]

        yield ground


def _only_steady(ground: Ground) -> None:
    """One process of each role again, whatever a test left."""
    for process in [one for one in ground.stack.processes if one not in ground.processes.values()]:
        ground.stack.end(process)
    for name in [name for name in ground.processes if name not in ROLES]:
        ground.stack.end(ground.processes.pop(name))


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(kind, fault, marks=() if (kind, fault) in SELECTED else pytest.mark.slow)
        for kind, fault in OUTAGE_CELLS
    ],
)
@pytest.mark.timeout(600)
def test_the_fleet_goes_on_and_every_run_ends_as_if_nothing_had_happened(
    kind: str, fault: str, ground_of: Callable[[str], Ground]
) -> None:
    ground = ground_of(kind)
    stack = ground.stack
    runs = stack.submit(INPUTS)
    assert stack.open_runs() >= OPEN_AT_LEAST
    try:
        HARMS[fault](stack, ground.processes)
        stack.wait_all(seconds=240)
        # Before the newer release leaves: what it sent twice, nobody else can read, and is held for its return.
        stack.wait_for_an_empty_broker()
    finally:
        _only_steady(ground)

    assert [stack.story(run) for run in runs] == ground.stories
    keys = [key for key in stack.effects() if any(run.removeprefix("run_") in key for run in runs)]
    assert len(keys) == RUNS
    assert stack.query("SELECT count(*) FROM runs WHERE reason = 'worker_lost'")[0][0] == 0
    stack.assert_nothing_is_left()
    note_cell(fault, kind)
