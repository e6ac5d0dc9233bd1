"""How a database is set up and how late its work is: for people who look (`toolfleet doctor`), never for workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select

from toolfleet.adapters.store.engine import open_engine, translated
from toolfleet.adapters.store.load import database_time
from toolfleet.adapters.store.tables import commands

_SYNCHRONOUS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}  # https://sqlite.org/pragma.html


@dataclass(frozen=True, slots=True)
class Inspection:
    """`journal_mode` and `synchronous` are SQLite's, as our connections use them; None elsewhere.

    `oldest_due_s`: for how many seconds the oldest outstanding step has been due (below 0: not yet); None: none is.
    """

    journal_mode: str | None
    synchronous: str | None
    oldest_due_s: float | None


def inspect(database: str) -> Inspection:
    """Of a migrated database. Raises StoreUnavailable, NotMigrated."""
    engine = open_engine(database)
    journal_mode = synchronous = None
    try:
        with translated(), engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                journal_mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()).upper()
                level = connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
                synchronous = _SYNCHRONOUS.get(level, str(level))
            oldest = connection.execute(select(func.min(commands.c.due_at))).scalar_one()
            now = database_time(connection)
    finally:
        engine.dispose()
    return Inspection(journal_mode, synchronous, None if oldest is None else now - oldest)
