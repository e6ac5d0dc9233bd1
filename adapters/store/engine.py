"""Opens an engine with what every connection must have, and tells broken infrastructure from a bad statement."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from toolfleet.schemas.errors import NotMigrated, StoreError, StoreUnavailable, UnsafeSettings

READERS: Final = 4  # threads, and connections, for statements that only read
SQLITE_MIN: Final = (3, 35, 0)  # RETURNING
WAL: Final = "PRAGMA journal_mode = WAL"
WAL_TRIES: Final = 200  # a file becomes WAL once, in milliseconds; ten seconds in all, as busy_timeout
WAL_WAIT_S: Final = 0.05
SQLITE_PRAGMAS: Final = (
    "PRAGMA busy_timeout = 10000",  # first, so that it holds for the next ones; ms
    WAL,
    "PRAGMA synchronous = FULL",  # an answered commit survives a power cut
    "PRAGMA foreign_keys = ON",
)

# What each connection to PostgreSQL is given; what the URL's query says (`?connect_timeout=30`) wins.
CONNECT_TIMEOUT_S: Final = 5  # a host that does not answer; with several hosts in the URL, for each
PG_SETTINGS: Final = {
    # No statement of ours takes a second. Half a lease: a holder that hangs in one can still renew in time.
    "statement_timeout": "15s",
    # Locks are held for milliseconds, deadlocks found after one second (deadlock_timeout); who waits longer waits for
    # a migration or a process that stands still, and is better told so.
    "lock_timeout": "5s",
    # A process that stands still inside a transaction (paused, swapping, its host gone) holds up all others' runs.
    "idle_in_transaction_session_timeout": "10s",
}
PG_KEEPALIVES: Final = {
    # A silent network is noticed within 25 s, less than a lease, and no idle connection is forgotten by a firewall.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # ms; for what was sent and never acknowledged, where keepalives do not count
}
APPLICATION: Final = "toolfleet"
# No prepared statements: a pooler in transaction mode gives the next transaction to a server that does not know them
# (pgbouncer: from 1.21 on it keeps account of them), and their plans outlive the moment: our busiest tables are nearly
# empty or very full. Measured: nothing at batches of a hundred; a fifth to a half of the server's CPU at batches of
# one (two noisy rounds).
PREPARE_THRESHOLD: Final = None

POSTGRESQL_DRIVER: Final = "postgresql+psycopg"
URL_HINT: Final = "Write it as sqlite:///path/to/fleet.db or postgresql://host/name."
WRITING: Final = {"toolfleet_writing": True}
# https://www.postgresql.org/docs/current/errcodes-appendix.html
RETRIED_SQLSTATES: Final = frozenset(
    {"40001", "40P01"}
)  # serialization failure, deadlock: the whole batch again
UNAVAILABLE_CLASSES: Final = frozenset(
    {
        "08",  # connection exception
        "53",  # insufficient resources: disk full, out of memory, too many connections
        "57",  # operator intervention: statement_timeout, shutdown, crash of another backend, starting up
        "58",  # system error: I/O
    }
)
UNAVAILABLE_SQLSTATES: Final = RETRIED_SQLSTATES | {
    "25006",  # read-only transaction: a standby, or the primary of a moment ago
    "25P03",  # idle_in_transaction_session_timeout: we stood still
    "25P04",  # transaction_timeout
    "28000",  # this role may not connect
    "28P01",  # wrong password
    "3D000",  # no such database
    "40003",  # whether the statement was completed is not known
    "42501",  # this role may not write
    "42P01",  # no such table: NotMigrated
    "55P03",  # lock_timeout
    "XX001",  # damaged data
    "XX002",  # damaged index
}
NO_SUCH_TABLE: Final = "42P01"


def parse_url(url: str) -> URL:
    """The URL with its driver. Raises UnsafeSettings for a database we do not speak to; its password stays unsaid."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as exc:  # the last: a port that is no number
        raise UnsafeSettings("the database URL cannot be read", hint=URL_HINT) from exc
    if backend == "postgresql":
        if parsed.drivername not in ("postgresql", POSTGRESQL_DRIVER):
            raise UnsafeSettings(f"the driver {parsed.drivername!r} is not supported", hint=URL_HINT)
        return parsed.set(drivername=POSTGRESQL_DRIVER)
    if backend != "sqlite":
        raise UnsafeSettings(f"databases of kind {backend!r} are not supported", hint=URL_HINT)
    return parsed


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite database, None for a server."""
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def open_engine(url: str, *, readers: int = READERS, role: str = "") -> Engine:
    """An engine of this process: never to be used by another one (a fork has to open its own). Connects lazily.

    At most `readers` connections and one more, for the writer. `role` is what the server calls them in its views.
    """
    parsed = parse_url(url)
    file = sqlite_file(parsed)
    if file is not None and (str(file) in (".", ":memory:") or "mode=memory" in str(parsed)):
        raise UnsafeSettings(
            "an SQLite database in memory cannot be shared by the threads of a fleet",
            hint="Name a file: sqlite:///path/to/fleet.db.",
        )
    options: dict[str, Any] = {"pool_size": readers + 1, "max_overflow": 0, "hide_parameters": True}
    if file is None:
        options["pool_pre_ping"] = True  # a restart of the server costs no reader anything
        options["isolation_level"] = "READ COMMITTED"  # said with BEGIN: the server's default may be any
        options["connect_args"] = _postgresql_arguments(parsed, role)
    try:
        engine = create_engine(parsed, **options)
    except (ImportError, NoSuchModuleError) as exc:
        raise StoreError(
            f"the driver of {parsed.drivername!r} is not installed", hint="pip install 'psycopg[binary]'"
        ) from exc
    if file is not None:
        _prepare_sqlite(engine)
    return engine


def _postgresql_arguments(url: URL, role: str) -> dict[str, Any]:
    """Of psycopg.connect. Settings go by `options`, with the start of the connection: no statement, and nothing that a
    pooler would hand on to somebody else."""
    settings = " ".join(f"-c {name}={value}" for name, value in PG_SETTINGS.items())
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "/".join(filter(None, (APPLICATION, role, str(os.getpid())))),
        "prepare_threshold": PREPARE_THRESHOLD,
        **PG_KEEPALIVES,
    }
    own = {name: value for name, value in arguments.items() if name not in url.query}
    return {**own, "options": " ".join([settings, *url.normalized_query.get("options", ())])}


def _prepare_sqlite(engine: Engine) -> None:
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        raise StoreError(
            f"this Python carries SQLite {sqlite3.sqlite_version}, and {'.'.join(map(str, SQLITE_MIN))} is needed",
            hint="Use a Python with a newer SQLite.",
        )

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # sqlite3 itself begins nothing: `_begun` does
        for pragma in SQLITE_PRAGMAS:
            _set(connection, pragma)

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # A transaction that reads first and writes later cannot wait for a lock, it fails at once: so a writing one
        # takes the write lock at its start, where busy_timeout counts.
        writing = connection.get_execution_options().get("toolfleet_writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _set(connection: sqlite3.Connection, pragma: str) -> None:
    """Where two connections turn a new file to WAL at once, one is refused without the wait of busy_timeout."""
    for tried in range(1, WAL_TRIES + 1):
        try:
            connection.execute(pragma)
            return
        except sqlite3.OperationalError as exc:
            if pragma != WAL or "locked" not in str(exc) or tried == WAL_TRIES:
                raise
            time.sleep(WAL_WAIT_S)


def sqlstate(exc: BaseException) -> str | None:
    """What PostgreSQL calls the error; None where the driver gave up, and for every other database."""
    found = getattr(exc.orig, "sqlstate", None) if isinstance(exc, DBAPIError) else None
    return None if found is None else str(found)


def is_infrastructure(exc: BaseException) -> bool:
    """The database cannot be used at the moment, whatever the statement was."""
    if isinstance(exc, PoolTimeout):
        return True
    if is_cut(exc):
        return True
    state = sqlstate(exc)
    if (
        state is not None
    ):  # the classes of the driver do not say it: a row that is too long is an OperationalError
        return state[:2] in UNAVAILABLE_CLASSES or state in UNAVAILABLE_SQLSTATES
    if isinstance(exc, OperationalError) or type(exc) is DatabaseError:  # the latter: a file that is damaged
        return True
    return isinstance(exc, InterfaceError) and exc.statement is None


def is_cut(exc: BaseException) -> bool:
    """The connection is gone; a new one may do."""
    return isinstance(exc, DBAPIError) and exc.connection_invalidated


def is_passing(exc: BaseException) -> bool:
    """The same batch may well succeed when it is run again at once."""
    return sqlstate(exc) in RETRIED_SQLSTATES


def unavailable(exc: BaseException) -> StoreError:
    """The error the callers get for it."""
    cause = str(getattr(exc, "orig", None) or exc).splitlines()[0] if str(exc) else type(exc).__name__
    if "no such table" in cause or sqlstate(exc) == NO_SUCH_TABLE:
        return NotMigrated(
            f"the database is not migrated: {cause}", hint="Bring it up to date: toolfleet db upgrade"
        )
    return StoreUnavailable(
        f"the database cannot be used: {cause}",
        hint="Check that it is there, writable and not full; nothing that was accepted is lost.",
    )


@contextmanager
def translated() -> Iterator[None]:
    """Inside, a database that is away is StoreUnavailable."""
    try:
        yield
    except Exception as exc:
        if is_infrastructure(exc):
            raise unavailable(exc) from exc
        raise
