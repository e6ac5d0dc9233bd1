"""A fleet of real processes over one stack (embedded, Redis Streams or RabbitMQ with PostgreSQL), and what tests do to it.

Everything that is asserted is read from the database, from the broker and from the outside world's own file.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from tests import servers
from tests.fault.app import AGENT
from toolfleet import Fleet, Lane, RunRequest, ScriptedModel
from toolfleet.adapters.store.engine import parse_url
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.schemas.conversation import MergeItem
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.ids import RunId
from toolfleet.settings import Settings

ROOT = Path(__file__).parent.parent.parent
APP = "tests.fault.app:fleet"
START_S = 90.0
RECOVER_S = (
    90.0  # three times what the defaults of a test fleet would need at most, on a machine that is busy
)
ROLES = ("decide", "exec", "collect", "keep")
LEASE_S = 3.0

_numbers = iter(range(1, 10_000))


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float = RECOVER_S) -> Any:
    """What the condition says once it says something. Looks again and again; fails with `what` when time is over."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)  # between two looks at another process; the deadline above bounds them


@dataclass(slots=True)
class Process:
    """A worker process of the stack."""

    role: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def ended(self, seconds: float = RECOVER_S) -> int:
        """Its exit status once it has one: below zero the signal that ended it."""
        return self.popen.wait(seconds)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@dataclass(slots=True)
class Stack:
    """`kind`: embedded, streams or rabbitmq."""

    kind: str
    folder: Path
    database: str
    broker: str
    prefix: str
    broker_server: servers.Server | None = None
    database_server: servers.Server | None = None
    processes: list[Process] = field(default_factory=list)
    app: str = APP
    agent: str = AGENT
    variables: dict[str, str] = field(default_factory=dict)  # more of the workers' environment
    _fleet: Fleet | None = None

    # -- processes ------------------------------------------------------------------------------------------------

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        ours = ("TOOLFLEET_", "PYTHONPATH")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **clean,
            "FAULT_WORLD": str(self.folder / "world.db"),
            "TOOLFLEET_DATABASE": self.database,
            "TOOLFLEET_BROKER": self.broker,
            "TOOLFLEET_BROKER_PREFIX": self.prefix,
            "TOOLFLEET_SIGNING_KEYS": "k1:" + "ab" * 32,
            "TOOLFLEET_LEASE_S": str(LEASE_S),
            "TOOLFLEET_KEEPER_PERIOD_S": "0.5",
            "TOOLFLEET_CHILDREN": "2",
            "TOOLFLEET_DRAIN_S": "10",
            "TOOLFLEET_APPROVALS": "off",
            **self.variables,
            **(extra or {}),
        }

    def start(
        self, role: str, *, extra: Mapping[str, str] | None = None, cwd: Path = ROOT, wait: bool = True
    ) -> Process:
        """A worker of that role (embedded: all of it). Returns when it says that it is there."""
        words = ["up"] if self.kind == "embedded" else ["worker", role]
        return self.run(
            [sys.executable, "-m", "toolfleet", *words, "-A", self.app], role, extra, cwd, wait=wait
        )

    def run(
        self,
        command: Sequence[str],
        role: str,
        extra: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        *,
        wait: bool = True,
    ) -> Process:
        """Any command that becomes a worker."""
        log = self.folder / f"{role}-{next(_numbers)}.log"
        environment = self.environment(extra)
        with log.open("wb") as out:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                cwd=cwd,
            )
        process = Process(role, popen, log)
        self.processes.append(process)
        if wait:
            self.wait_for(process)
        return process

    def command(self, *words: str, cwd: Path = ROOT) -> None:
        """A `toolfleet` command of this stack that has to succeed."""
        subprocess.run(
            [sys.executable, "-m", "toolfleet", *words],
            env=self.environment(),
            cwd=cwd,
            check=True,
            timeout=START_S,
        )

    def wait_for(self, *processes: Process, seconds: float = START_S) -> None:
        """Until they are there; a process that ended before says what it wrote."""
        for process in processes:
            wait_until(lambda one=process: self._there(one), f"{process.role} starts", seconds=seconds)

    def start_all(self, roles: Sequence[str] = ROLES) -> dict[str, Process]:
        """One process of each role, started side by side; of an embedded stack the one there is."""
        if self.kind == "embedded":
            return {"all": self.start("all")}
        started = {role: self.start(role, wait=False) for role in roles}
        self.wait_for(*started.values())
        return started

    def end(self, *processes: Process) -> None:
        """kill -9 and reap, for the end of a test."""
        for process in processes or tuple(self.processes):
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGCONT)
                process.popen.kill()
            process.popen.wait()
            if process in self.processes:
                self.processes.remove(process)

    def finish(self, *processes: Process) -> None:
        """As `end`, once they have settled what they took: a run ends before the last message of it is settled."""
        self.wait_for_an_empty_broker()
        self.end(*processes)

    def _there(self, process: Process) -> bool:
        if process.popen.poll() is not None:
            raise AssertionError(f"{process.role} ended with {process.popen.returncode}: {process.tail()}")
        if self.kind == "embedded":
            return "\nready" in process.log.read_text(errors="replace")
        return bool(self.query("SELECT count(*) FROM workers WHERE pid = :pid", pid=process.pid)[0][0])

    # -- work -----------------------------------------------------------------------------------------------------

    def fleet(self) -> Fleet:
        """Submits and looks; has no workers."""
        if self._fleet is None:
            os.environ["FAULT_WORLD"] = str(self.folder / "world.db")
            self._fleet = Fleet(
                model=ScriptedModel([]),
                settings=Settings(
                    database=self.database,
                    broker=self.broker,
                    broker_prefix=self.prefix,
                    signing_keys="k1:" + "ab" * 32,  # type: ignore[arg-type]
                ),
            )
        return self._fleet

    def submit(self, inputs: Sequence[str], *, lane: Lane | None = None) -> list[str]:
        """The runs' ids; the agent is the one the workers registered, and its lane is `batch`."""
        requests = [RunRequest(self.agent, one, lane=lane) for one in inputs]
        return [run.id for run in self.fleet().submit_many(requests)]

    def submit_unpublished(self, inputs: Sequence[str]) -> list[str]:
        """As a front door that dies between commit and publish: only the keeper can send these."""
        client = self.fleet().client()
        publish, client._publish = client._publish, None
        try:
            return self.submit(inputs)
        finally:
            client._publish = publish

    def open_runs(self) -> int:
        return int(self.query("SELECT count(*) FROM runs WHERE finished_at IS NULL")[0][0])

    def wait_all(self, *, seconds: float = RECOVER_S) -> None:
        """Until every run is terminal."""
        wait_until(lambda: self.open_runs() == 0, f"{self.open_runs()} runs end", seconds=seconds)

    def story(self, run_id: str) -> tuple[str, ...]:
        """Everything the conversation holds, without what differs from run to run."""
        for _ in range(5):
            with suppress(StoreUnavailable):  # our own connections were cut as well; each is noticed once
                return self._story(run_id)
        return self._story(run_id)

    def _story(self, run_id: str) -> tuple[str, ...]:
        fleet = self.fleet()
        view = fleet._run(fleet.client().get(run_id))
        told = [f"{view.state.status} {view.state.reason}"]
        for stored in fleet._run(fleet.client().store.items(RunId(run_id))):
            item = stored.item
            if isinstance(item, MergeItem):
                told += [f"{one.wire_id} {one.outcome} {one.content}" for one in item.results]
            else:
                told.append(repr(item))
        return tuple(re.sub(r"call_[0-9a-f]{32}|run_[0-9a-f]{32}", "ID", line) for line in told)

    # -- what is left ---------------------------------------------------------------------------------------------

    def query(self, statement: str, **values: Any) -> list[Any]:
        engine = create_engine(parse_url(self.database))
        try:
            with engine.connect() as connection:
                return list(connection.execute(text(statement), values))
        finally:
            engine.dispose()

    def depths(self) -> dict[str, int]:
        """Messages in the broker that are not settled. Of an embedded stack nobody outside can tell."""
        if self.kind == "embedded":
            return {}
        fleet = self.fleet()
        fleet.client()
        assert fleet._layer is not None
        return {name: count for name, count in fleet._run(fleet._layer.depths()).items() if count}

    def assert_nothing_is_left(self) -> None:
        """No command row, no lease, no message, no dead letter."""
        assert self.query("SELECT count(*) FROM commands")[0][0] == 0
        assert self.query("SELECT kind, reason, detail FROM dead") == []
        self.wait_for_an_empty_broker()

    def wait_for_an_empty_broker(self) -> None:
        """Until every message is settled."""
        try:
            wait_until(lambda: not self.depths(), "the broker is empty")
        except AssertionError as exc:
            exc.add_note(f"depths: {self.depths()}")
            raise

    def effects(self) -> dict[str, int]:
        """How often the outside world was asked, by key."""
        path = self.folder / "world.db"
        if not path.exists():
            return {}
        with closing(sqlite3.connect(path, timeout=30)) as world:
            try:
                asked = world.execute("SELECT key, count(*) FROM asked GROUP BY key").fetchall()
            except sqlite3.OperationalError:
                return {}
        return {str(key): int(count) for key, count in asked}

    def close(self) -> None:
        self.end()
        if self._fleet is not None:
            with suppress(Exception):  # its broker may have been ended by the test
                self._fleet.stop()


@contextmanager
def stack_of(
    kind: str,
    folder: Path,
    *,
    database_server: servers.Server | None = None,
    broker_server: servers.Server | None = None,
) -> Iterator[Stack]:
    """A fresh database and a prefix of its own in the broker."""
    prefix = f"f{os.getpid()}-{next(_numbers)}"
    if kind == "embedded":
        database = f"sqlite:///{folder / 'fleet.db'}"
        upgrade(database)
        broker = "memory://"
    else:
        assert database_server is not None and broker_server is not None
        database = servers.new_database(database_server)
        url = servers.redis_url if kind == "streams" else servers.rabbitmq_url
        broker = url(broker_server)
    stack = Stack(kind, folder, database, broker, prefix, broker_server, database_server)
    try:
        yield stack
    finally:
        stack.close()
