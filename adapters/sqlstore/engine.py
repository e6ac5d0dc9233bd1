"""Engines and what differs between databases: begin, locks, the clock. SQLite here, PostgreSQL beside it."""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import Connection, Engine, Select, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from toolfleet.schemas.errors import UnsafeSettings

BUSY_TIMEOUT_MS = (
    10_000  # longer than any transaction of ours; another process may hold the write lock meanwhile
)
READERS = 4


def parse_url(database: str) -> URL:
    """The URL of a database this release can use. Raises UnsafeSettings, without its password."""
    try:
        url = make_url(database)
        backend = url.get_backend_name()
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as exc:
        raise UnsafeSettings(
            f"the database URL cannot be used ({type(exc).__name__})",
            hint="Write it as sqlite:///path/to/fleet.db.",
        ) from None
    if backend not in ("sqlite", "postgresql"):
        raise UnsafeSettings(
            f"databases of kind {backend!r} are not supported", hint="Use sqlite:///path/to/fleet.db."
        )
    return url


def writing_engine(database: str) -> Engine:
    """One connection, for the writer thread; its transactions take the write lock when they begin."""
    return _engine(parse_url(database), begin="BEGIN IMMEDIATE", pool_size=1)


def reading_engine(database: str) -> Engine:
    """A few connections for readers; WAL lets them read while the writer writes."""
    return _engine(parse_url(database), begin="BEGIN", pool_size=READERS)


def _engine(url: URL, *, begin: str, pool_size: int) -> Engine:
    sqlite = url.get_backend_name() == "sqlite"
    options: dict[str, Any] = {}
    if sqlite:
        options["connect_args"] = {"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000}
    engine = create_engine(
        url, poolclass=QueuePool, pool_size=pool_size, max_overflow=0, pool_timeout=60, **options
    )
    if sqlite:
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _prepare(connection: Any, _record: Any) -> None:
    """WAL, fsync at every commit, foreign keys, a patient lock; transactions begin as we say, not as the driver."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",  # first, so that it holds for the next one
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "journal_size_limit=67108864",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def database_now(connection: Connection) -> float:
    """Seconds since the epoch, by the database's clock."""
    if connection.dialect.name == "sqlite":
        statement = "SELECT (julianday('now') - 2440587.5) * 86400.0"  # unixepoch('subsec') needs 3.42
    else:
        statement = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
    return float(connection.execute(text(statement)).scalar_one())


def for_transition(statement: Select[Any]) -> Select[Any]:
    """Lock rows of runs: FOR NO KEY UPDATE. SQLite has the whole database locked already."""
    return statement.with_for_update(key_share=True)


def for_commands(statement: Select[Any]) -> Select[Any]:
    """Lock command rows: FOR UPDATE."""
    return statement.with_for_update()


class ForkGuard:
    """An engine made before a fork must not be used after it: both processes would share its sockets."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this store was opened before a fork; open a new one in the child process "
                f"(opened in {self._pid}, used in {os.getpid()})"
            )
