"""Brings a stack up as people run it: servers, worker processes, one driver; and takes it down by the ids of what it started.

embedded    SQLite; all roles in the driver process
streams     Redis Streams and PostgreSQL; decide x2, exec, collect, keep, each a process
rabbitmq    RabbitMQ quorum queues and PostgreSQL; the same processes
celery      chords by hand: Redis as broker and result backend; one prefork worker
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.w3.safety import KEYS
from tests import servers
from toolfleet.adapters.store.migrate import upgrade

ROOT: Final = Path(__file__).parent.parent.parent
APP: Final = "benchmarks.w3.app:fleet"
CELERY_APP: Final = "benchmarks.w3.celery_chord:app"
STACKS: Final = ("embedded", "streams", "rabbitmq", "celery")
WORKERS: Final = ("decide", "decide", "exec", "collect", "keep")
SERVERS: Final = {"embedded": (), "streams": ("redis", "postgresql"), "rabbitmq": ("rabbitmq", "postgresql")}
START_S: Final = 90.0
END_S: Final = 30.0
GRACE_S: Final = 20.0  # how much longer than its own limit a driver may take to say so


class StackFailed(Exception):
    """A process ended or said nothing; the message has the end of what it wrote."""


@dataclass(slots=True)
class Process:
    kind: str
    popen: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def end(self) -> None:
        """SIGTERM, then SIGKILL; with everything it started."""
        found = servers.descendants(self.popen.pid)
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(END_S)
        for pid in found[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


@dataclass(slots=True)
class Speaker:
    """A process that answers lines of JSON."""

    process: Process
    _buffer: bytes = b""

    def ask(self, op: str, *, limit_s: float = 60.0, **given: Any) -> dict[str, Any]:
        """Its answer. Raises StackFailed where it says that it failed, or nothing."""
        popen = self.process.popen
        assert popen.stdin is not None
        popen.stdin.write(json.dumps({"op": op, "limit_s": limit_s, **given}).encode() + b"\n")
        popen.stdin.flush()
        told = json.loads(self.line(limit_s + GRACE_S))
        if "error" in told:
            raise StackFailed(f"{op} {given}: {told['error']}")
        assert isinstance(told, dict)
        return told

    def line(self, limit_s: float) -> bytes:
        popen = self.process.popen
        assert popen.stdout is not None
        give_up = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = give_up - time.monotonic()
            if left <= 0 or not select.select([popen.stdout], [], [], left)[0]:
                raise StackFailed(
                    f"{self.process.kind} said nothing for {limit_s:g} s: {self.process.tail()}"
                )
            piece = os.read(popen.stdout.fileno(), 1 << 20)
            if not piece:
                raise StackFailed(f"{self.process.kind} ended: {self.process.tail()}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


@dataclass(slots=True)
class Stack:
    kind: str
    folder: Path
    model_url: str
    database: str = ""
    broker: str = ""
    servers: dict[str, servers.Server] = field(default_factory=dict)
    workers: list[Process] = field(default_factory=list)
    driver: Speaker | None = None
    _number: int = 0

    def groups(self) -> dict[str, list[int]]:
        """Kind of process -> the roots of its process trees. Everything that works for the runs is in it."""
        found: dict[str, list[int]] = {}
        for worker in self.workers:
            found.setdefault(worker.kind, []).append(worker.popen.pid)
        for name, server in self.servers.items():
            assert server.process is not None
            found["database" if name == "postgresql" else "broker"] = [server.process.pid]
        assert self.driver is not None
        found["driver"] = [self.driver.process.popen.pid]
        return found

    def ask(self, op: str, **given: Any) -> dict[str, Any]:
        assert self.driver is not None
        try:
            return self.driver.ask(op, **given)
        except StackFailed as exc:
            ended = [
                f"{one.kind} ended: {one.tail()}" for one in self.workers if one.popen.poll() is not None
            ]
            if ended:
                raise StackFailed("\n".join([str(exc), *ended])) from exc
            raise

    def query(self, statement: str, *values: Any) -> list[Any]:
        """Of the database server, by a connection that is closed again."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            return connection.execute(statement, values or None).fetchall()

    # -- processes ------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Nothing of the machine's own settings gets in."""
        foreign = ("TOOLFLEET_", "OTEL_", "OPENAI_", "CELERY_", "W3_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        clean |= {"PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": self.model_url, "OPENAI_API_KEY": "none"}
        if self.kind == "celery":
            return clean | {"W3_REDIS": self.broker}
        clean |= {"TOOLFLEET_DATABASE": self.database, "TOOLFLEET_BROKER": self.broker}
        return clean if self.kind == "embedded" else clean | {"TOOLFLEET_SIGNING_KEYS": KEYS}

    def spawn(
        self,
        kind: str,
        command: Sequence[str],
        *,
        speaks: bool = False,
        extra: Mapping[str, str] | None = None,
    ) -> Process:
        """A process of this environment, and what is said beside it; one that `speaks` answers lines of JSON."""
        self._number += 1
        log = self.folder / f"{kind}-{self._number}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE if speaks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if speaks else out,
                stderr=out,
                env={**self.environment(), **(extra or {})},
                cwd=ROOT,
                start_new_session=True,  # Ctrl-C reaches the harness, which takes the stack down in order
            )
        return Process(kind, popen, log)

    def start_worker(self, kind: str) -> Process:
        worker = self.spawn(kind, ["-m", "toolfleet", "worker", kind, "-A", APP])
        self.workers.append(worker)
        return worker

    def wait_for_workers(self) -> None:
        """Until each says in the database that it is there."""
        give_up = time.monotonic() + START_S
        while True:
            there = {row[0] for row in self.query("SELECT pid FROM workers")}
            missing = [one for one in self.workers if one.popen.pid not in there]
            if not missing:
                return
            for one in missing:
                if one.popen.poll() is not None or time.monotonic() > give_up:
                    raise StackFailed(f"{one.kind} did not start: {one.tail()}")
            time.sleep(0.1)

    def start_driver(self, module: str) -> None:
        process = self.spawn("driver", ["-m", module], speaks=True)
        self.driver = Speaker(process)
        self.driver.line(START_S)

    def close(self) -> None:
        if self.driver is not None:
            assert self.driver.process.popen.stdin is not None
            self.driver.process.popen.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self.driver.process.popen.wait(END_S)
            self.driver.process.end()
        for worker in self.workers:
            worker.popen.send_signal(signal.SIGTERM)  # all at once; then one after the other
        for worker in self.workers:
            worker.end()


@contextmanager
def stack_of(kind: str, model_url: str, *, concurrency: int = 2) -> Iterator[Stack]:
    """A stack that is up, with fresh servers. `concurrency`: processes of the celery worker."""
    with ExitStack() as open_, servers.folder_of("w3") as folder:
        stack = Stack(kind, folder, model_url)
        open_.callback(stack.close)
        if kind == "celery":
            _bring_up_celery(stack, open_, concurrency)
        else:
            _bring_up_fleet(stack, open_)
        yield stack


def _bring_up_fleet(stack: Stack, open_: ExitStack) -> None:
    servers_first = open_.pop_all()  # what is opened last is closed first: the stack's own processes
    starts = {
        "redis": servers.redis_server,
        "postgresql": lambda: servers.postgres_server(durable=True),
        "rabbitmq": servers.rabbitmq_server,
    }
    for name in SERVERS[stack.kind]:
        stack.servers[name] = open_.enter_context(starts[name]())
    open_.push(servers_first)
    if stack.kind == "embedded":
        stack.database, stack.broker = f"sqlite:///{stack.folder / 'fleet.db'}", "memory://"
    else:
        stack.database = servers.new_database(stack.servers["postgresql"], migrated=False)
        upgrade(stack.database)
        url = servers.redis_url if stack.kind == "streams" else servers.rabbitmq_url
        stack.broker = url(stack.servers["redis" if stack.kind == "streams" else "rabbitmq"])
        for kind in WORKERS:
            stack.start_worker(kind)
        stack.wait_for_workers()
    stack.start_driver("benchmarks.w3.driver")


def _bring_up_celery(stack: Stack, open_: ExitStack, concurrency: int) -> None:
    processes_first = open_.pop_all()
    stack.servers["redis"] = open_.enter_context(servers.redis_server())
    open_.push(processes_first)
    stack.broker = servers.redis_url(stack.servers["redis"])
    options = ["-P", "prefork", "-c", str(concurrency), "--loglevel", "WARNING"]
    stack.workers.append(stack.spawn("worker", ["-m", "celery", "-q", "-A", CELERY_APP, "worker", *options]))
    stack.start_driver("benchmarks.w3.celery_chord")
    stack.ask("ready", limit_s=START_S)


def missing(kind: str) -> str | None:
    """Why that stack cannot run here; None where it can."""
    needed = ("redis",) if kind == "celery" else SERVERS[kind]
    return next((why for why in map(servers.missing, needed) if why is not None), None)


@contextmanager
def model_server() -> Iterator[tuple[str, int]]:
    """Its base URL and its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.w3.model_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield process.stdout.readline().decode().strip(), process.pid
    finally:
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def environment_of(stack: Stack) -> Mapping[str, str]:
    return stack.environment()
