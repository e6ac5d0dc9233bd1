"""Starts real servers on loopback for tests and benchmarks: Redis, PostgreSQL, RabbitMQ. Each in a folder of its own.

A server is found on the machine or it is not: `missing(kind)` says so. Nothing is shared with a server somebody runs
already, and everything is ended by the id of the process that was started here.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_S = 90.0  # RabbitMQ needs ten seconds on an idle machine
STOP_S = 30.0
KINDS = ("redis", "postgresql", "rabbitmq")

_numbers = itertools.count(1)


class ServerFailed(Exception):
    """A server did not come up; says what it wrote."""


def free_port(most: int = 65_535) -> int:
    """A port of loopback that nobody listens on."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        if port <= most:
            return port


def find(kind: str) -> str | None:
    """The program of that server: a path, or None."""
    match kind:
        case "redis":
            return shutil.which("redis-server") or shutil.which("valkey-server")
        case "postgresql":
            newest = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[4]))
            return str(newest[-1]) if newest else shutil.which("postgres")
        case "rabbitmq":
            inner = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # Debian's outer one changes the user
            return str(inner) if inner.exists() else shutil.which("rabbitmq-server")
        case _:
            raise ValueError(kind)


def missing(kind: str) -> str | None:
    """Why that server cannot be started here; None where it can."""
    if find(kind) is None:
        return f"not run: no {kind} server on this machine"
    if kind == "postgresql" and os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "not run: postgresql does not run as root, and there is no setpriv to change the user"
    return None


@dataclass(slots=True)
class Server:
    """A server process. `kill` is kill -9 of the whole thing; `start` brings it back with the data it had."""

    kind: str
    port: int
    folder: Path
    command: list[str]
    answers: Callable[[Server], bool]
    environment: Mapping[str, str] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    process: subprocess.Popen[bytes] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """Returns when it answers. Raises ServerFailed with the end of its log."""
        log = self.folder / "server.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=None if self.environment is None else dict(self.environment),
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self.answers(self):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = log.read_text(errors="replace")[-2000:]
                raise ServerFailed(f"{self.kind} did not start: {tail}")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)

    def stop(self) -> None:
        """As an operator stops it."""
        if self.process is None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None

    def kill(self) -> None:
        """kill -9 of every process of it."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def processes(self) -> list[int]:
        """The ids of the process and all its descendants, for measuring."""
        return [] if self.process is None else descendants(self.process.pid)


def descendants(pid: int) -> list[int]:
    """The process and everything it started, as far as the parents live; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found


def _listens(server: Server) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", server.port)) == 0


@contextmanager
def folder_of(name: str) -> Iterator[Path]:
    """A short path (a Unix socket's has 107 bytes at most) that anybody may read, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix=f"tf-{name}-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# -- Redis or Valkey -------------------------------------------------------------------------------------------------------


@contextmanager
def redis_server(*options: str) -> Iterator[Server]:
    """With an append-only file, written every second. `options` are of redis-server: `--maxmemory`, `1mb`, …"""
    program = find("redis")
    assert program is not None, missing("redis")
    with folder_of("redis") as folder:
        port = free_port(most=55_535)  # a Redis Cluster takes the one 10,000 above as well
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", *options]
        server = Server("redis", port, folder, command, _redis_answers)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def redis_url(server: Server, database: int = 0) -> str:
    return f"redis://127.0.0.1:{server.port}/{database}"


def _redis_answers(server: Server) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(b"PING\r\n")
            return sock.recv(64).startswith(b"+PONG")
        except OSError:
            return False


# -- PostgreSQL ------------------------------------------------------------------------------------------------------------


@contextmanager
def postgres_server(*options: str, durable: bool = False) -> Iterator[Server]:
    """A cluster of its own, user `toolfleet`, no password. `durable`: commits wait for the disk (for figures)."""
    program = find("postgresql")
    assert program is not None, missing("postgresql")
    binaries = Path(program).parent
    with folder_of("pg") as folder:
        data = folder / "data"
        data.mkdir()
        prefix = _other_user(folder, data)
        initdb = [*prefix, str(binaries / "initdb"), "-D", str(data), "-U", "toolfleet", "-A", "trust"]
        made = subprocess.run(
            [*initdb, "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8"],
            capture_output=True,
            cwd=folder,
            check=False,
        )
        if made.returncode:
            raise ServerFailed(f"initdb: {made.stderr.decode()[-2000:]}")
        port = free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": str(port),
            "max_connections": "200",
            "fsync": "on" if durable else "off",  # tests kill processes, not the kernel
            "log_min_messages": "warning",
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [*prefix, program, "-D", str(data), *given, *options]
        server = Server("postgresql", port, folder, command, _postgres_answers)
        server.stop_signal = signal.SIGINT  # a fast shutdown
        server.extra["data"] = data
        server.start()
        try:
            yield server
        finally:
            server.kill()


def postgres_url(server: Server, database: str = "postgres") -> str:
    return f"postgresql://toolfleet@127.0.0.1:{server.port}/{database}"


def postgres_immediate(server: Server) -> None:
    """As `pg_ctl restart -m immediate`: every backend is thrown out, and the log is replayed."""
    assert server.process is not None
    server.process.send_signal(signal.SIGQUIT)
    server.process.wait(STOP_S)
    server.process = None
    server.start()


def new_database(server: Server, *, migrated: bool = True) -> str:
    """The URL of a fresh database of that server; the schema is copied from one that was migrated once."""
    import psycopg

    from toolfleet.adapters.store.migrate import upgrade

    name = f"t{next(_numbers)}_{os.getpid()}"
    with psycopg.connect(postgres_url(server).replace("+psycopg", ""), autocommit=True) as admin:
        if not migrated:
            admin.execute(f'CREATE DATABASE "{name}"')
            return postgres_url(server, name)
        if "template" not in server.extra:
            admin.execute('CREATE DATABASE "migrated"')
            upgrade(postgres_url(server, "migrated"))
            server.extra["template"] = "migrated"
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "migrated"')
    return postgres_url(server, name)


def _other_user(*folders: Path) -> list[str]:
    """PostgreSQL refuses to run as root: the words before its command, and the folders given away."""
    if os.geteuid() != 0:
        return []
    import pwd

    names = [name for name in ("postgres", "nobody") if _known_user(name)]
    user = pwd.getpwnam(names[0])
    for folder in folders:
        os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _known_user(name: str) -> bool:
    import pwd

    with suppress(KeyError):
        return bool(pwd.getpwnam(name))
    return False


def _postgres_answers(server: Server) -> bool:
    if not _listens(server):
        return False
    import psycopg

    try:
        with psycopg.connect(postgres_url(server), connect_timeout=2) as connection:
            connection.execute("SELECT 1")
        return True
    except psycopg.Error:
        return False


# -- RabbitMQ --------------------------------------------------------------------------------------------------------------


@contextmanager
def rabbitmq_server(**settings: str) -> Iterator[Server]:
    """A node of its own with its own name and cookie. `settings`: lines of rabbitmq.conf, `_` for `.`-free names."""
    program = find("rabbitmq")
    assert program is not None, missing("rabbitmq")
    with folder_of("rabbit") as folder:
        port, distribution = free_port(), free_port()
        config = {
            "listeners.tcp.default": f"127.0.0.1:{port}",
            "loopback_users": "none",
            "disk_free_limit.absolute": "50MB",
            "vm_memory_high_watermark.relative": "0.4",
            **settings,
        }
        (folder / "rabbitmq.conf").write_text(
            "".join(f"{name} = {value}\n" for name, value in config.items())
        )
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / ".erlang.cookie").write_text("toolfleettests")
        (folder / ".erlang.cookie").chmod(0o400)
        node = f"tf{port}@localhost"
        environment = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": node,
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-env.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }
        for name in ("data", "log", "config"):
            (folder / name).mkdir()
        server = Server("rabbitmq", port, folder, [program], _rabbitmq_answers, environment)
        server.extra["node"] = node
        server.start()
        try:
            yield server
        finally:
            server.kill()


def rabbitmq_url(server: Server) -> str:
    return f"amqp://guest:guest@127.0.0.1:{server.port}//"


def rabbitmq_control(server: Server, *words: str) -> str:
    """What `rabbitmqctl` says. Raises CalledProcessError."""
    assert server.environment is not None
    program = find("rabbitmq")
    assert program is not None
    control = str(Path(program).with_name("rabbitmqctl"))
    return subprocess.run(
        [control, "-q", *words],
        env=dict(server.environment),
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    ).stdout


def _rabbitmq_answers(server: Server) -> bool:
    if not _listens(server):
        return False
    import amqp

    try:
        with amqp.Connection(f"127.0.0.1:{server.port}", connect_timeout=2, read_timeout=5) as connection:
            connection.channel()
        return True
    except (OSError, amqp.AMQPError):
        return False


if __name__ == "__main__":  # python -m tests.servers: which servers this machine has
    sys.stdout.write("".join(f"{kind}: {missing(kind) or find(kind)}\n" for kind in KINDS))
