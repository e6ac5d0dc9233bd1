"""Where SQLite and PostgreSQL differ, and nothing else.

Lock clauses need no branch: SQLAlchemy leaves FOR UPDATE out on SQLite, where BEGIN IMMEDIATE takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import orjson
from sqlalchemy import (
    Boolean,
    ClauseElement,
    Column,
    Connection,
    Double,
    Executable,
    Table,
    Text,
    bindparam,
    func,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

# A reading is several statements about one moment. SQLite has that by itself; on PostgreSQL each statement of READ
# COMMITTED sees another one. Both are said with BEGIN, so nothing of it stays on a connection.
READING: Final[dict[str, dict[str, Any]]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}


def one_at_a_time(connection: Connection, key: int) -> None:
    """Wait until no other transaction that asked for that key is open; for what has no row to lock."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(key)))


def without_timeouts(connection: Connection) -> None:
    """For a transaction that changes tables: it may take long, and wait for another one that does the same."""
    if connection.dialect.name == "postgresql":
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            connection.exec_driver_sql(f"SET LOCAL {name} = 0")


def impatient(connection: Connection) -> None:
    """Who waits for a table lock has everybody else wait behind it: give up soon."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")


class database_now(FunctionElement[float]):
    """Seconds since the epoch by the database's clock, taken when the statement runs."""

    type = Double()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _now_sqlite(element: database_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"  # milliseconds; unixepoch('subsec') needs 3.42


@compiles(database_now, "postgresql")
def _now_postgresql(element: database_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"  # now() is the start of the transaction


class _TextList(TypeDecorator[Sequence[str]]):
    """A list of texts as one parameter, so that a statement has one text (and one plan) for every length."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(ARRAY(Text()) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> Any:
        if dialect.name == "postgresql" or value is None:
            return value
        return orjson.dumps(list(value)).decode()


class _Members(FunctionElement[bool]):
    type = Boolean()
    inherit_cache = True


@compiles(_Members, "sqlite")
def _members_sqlite(element: _Members, compiler: SQLCompiler, **kw: Any) -> str:
    column, names = (compiler.process(part, **kw) for part in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({names}))"


@compiles(_Members, "postgresql")
def _members_postgresql(element: _Members, compiler: SQLCompiler, **kw: Any) -> str:
    column, names = (compiler.process(part, **kw) for part in element.clauses)
    return f"{column} = ANY({names})"


def members(column: Column[Any], parameter: str) -> _Members:
    """The column is one of the texts of a parameter that is a list."""
    return _Members(column, bindparam(parameter, type_=_TextList()))


def execute_many(connection: Connection, statement: Executable, rows: Sequence[dict[str, Any]]) -> None:
    """Execute a statement for each row; all rows have the same keys, and values that every driver takes as they are.

    Same SQL and same errors as `connection.execute`, without its bookkeeping for each row: measured, 4 times less.
    """
    sql, positions = _prepared(connection.dialect, statement, tuple(rows[0]))
    if positions is None:
        connection.exec_driver_sql(sql, list(rows))
    else:
        connection.exec_driver_sql(sql, list(map(positions, rows)))


@lru_cache(maxsize=256)
def _prepared(
    dialect: Dialect, statement: Executable, keys: tuple[str, ...]
) -> tuple[str, Callable[[dict[str, Any]], tuple[Any, ...]] | None]:
    """The text, and how a row becomes its parameters; None: the driver takes them by name."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=dialect, column_keys=list(keys), for_executemany=True)
    assert isinstance(compiled, SQLCompiler)
    if not compiled.positional:
        return str(compiled), None
    names = tuple(compiled.positiontup or ())
    assert set(names) == set(keys), "every parameter is given, and none too many"
    if len(names) == 1:
        return str(compiled), lambda row: (row[names[0]],)
    return str(compiled), itemgetter(*names)


def insert_new(table: Table) -> postgresql.Insert:
    """An insert that leaves out rows whose key is there already. The SQLite compiler writes the same clause."""
    return postgresql.insert(table).on_conflict_do_nothing()
