"""How a database is set up and how far behind its work is: for people who look (`toolfleet doctor`), never for workers."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from toolfleet.adapters.sqlstore import tables as t
from toolfleet.adapters.sqlstore.engine import database_now, reading_engine
from toolfleet.adapters.sqlstore.writer import unavailable

_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}  # https://sqlite.org/pragma.html


@dataclass(frozen=True, slots=True)
class Inspection:
    """`journal_mode` and `synchronous` are SQLite's, as our connections use them; None elsewhere.

    `oldest_due_s`: for how many seconds the oldest outstanding step has been due (below 0: not due yet); None: none.
    """

    journal_mode: str | None
    synchronous: str | None
    oldest_due_s: float | None


def inspect(database: str) -> Inspection:
    """Of a migrated database. Raises StoreUnavailable."""
    engine = reading_engine(database)
    journal_mode = synchronous = None
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                journal_mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()).upper()
                level = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
                synchronous = _SYNCHRONOUS.get(level, str(level))
            oldest = connection.execute(select(func.min(t.commands.c.due_at))).scalar_one()
            now_s = database_now(connection)
    except OperationalError as exc:
        raise unavailable(exc) from exc
    finally:
        engine.dispose()
    return Inspection(journal_mode, synchronous, None if oldest is None else now_s - oldest)
