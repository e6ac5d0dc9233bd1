"""Rows written together, as one JSON parameter, are those that would be written one by one; and plans and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, select, text

from tests import servers
from toolfleet.adapters.store import apply, relay
from toolfleet.adapters.store.dialect import execute_many
from toolfleet.adapters.store.engine import open_engine
from toolfleet.adapters.store.tables import calls, commands, dead, items, metadata, runs, steps, usage

TEXTS: Final = (
    "",
    "plain",
    'quotes " and \\ and {braces}',
    "ünïcode ☂ \U0001f9f3",
    "line\nline\ttab\x1f",
    "%s %(x)s %%",
)
NUMBERS: Final = (0.0, -1.5, 0.1, 1e-300, 1e300, 1_700_000_000.123456, 2**53 + 1.0, 1 / 3)


@pytest.fixture(scope="module")
def connection(postgresql: servers.Server) -> Iterator[Connection]:
    engine = open_engine(servers.new_database(postgresql))
    with engine.connect() as connection:
        connection.execute(
            text("SET session_replication_role = replica")
        )  # rows without the run they belong to
        connection.commit()
        yield connection
    engine.dispose()


def _value(name: str, type_: str, number: int) -> Any:
    match type_:
        case "TEXT":
            return TEXTS[number % len(TEXTS)] + str(number)  # no two are equal: some are keys
        case "DOUBLE":
            return NUMBERS[number % len(NUMBERS)]
        case "BOOLEAN":
            return number % 2 == 0
        case "BIGINT" | "BIG_INTEGER":
            return 2**62 + number
        case _:
            return 2**31 - 1 - number


def _rows(table: Any, count: int = 24) -> list[dict[str, Any]]:
    """Rows of every kind of value; every third value that may be missing is."""
    made = []
    for number in range(count):
        row = {
            column.name: None
            if column.nullable and number % 3 == 0
            else _value(column.name, column.type.__visit_name__.upper(), number)
            for column in table.c
        }
        made.append({str(name): value for name, value in row.items()})
    return made


def _stored(connection: Connection, table: Any) -> list[dict[str, Any]]:
    """All rows, in no order of their own."""
    return [dict(row) for row in connection.execute(select(table)).mappings()]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items(), key=lambda pair: pair[0])))


@pytest.mark.parametrize("table", [runs, calls, commands, items, usage], ids=lambda table: table.name)
def test_an_insert_of_many_stores_what_inserts_of_one_store(connection: Connection, table: Any) -> None:
    rows = _rows(table)
    statement = apply.INSERT_USAGE if table is usage else apply.INSERTS[table.name]

    with connection.begin() as together:
        execute_many(connection, statement, rows)
        of_many = _stored(connection, table)
        together.rollback()
    with connection.begin() as alone:
        for row in rows:
            execute_many(connection, statement, [row])
        of_one = _stored(connection, table)
        alone.rollback()

    assert _sorted(of_many) == _sorted(of_one) == _sorted(rows)


def test_an_update_of_many_changes_what_updates_of_one_change(connection: Connection) -> None:
    before, after = _rows(commands), list(reversed(_rows(commands)))
    columns = [str(name) for name in apply.COMMAND_COLUMNS]
    changes = [
        {"key_id": row["id"], **{name: other[name] for name in columns}}
        for row, other in zip(before, after, strict=True)
    ]

    with connection.begin() as together:
        execute_many(connection, apply.INSERTS["commands"], before)
        execute_many(connection, apply.UPDATE_COMMANDS, changes)
        of_many = {row["id"]: row for row in _stored(connection, commands)}
        together.rollback()

    assert len(of_many) == len(before)
    for row, other in zip(before, after, strict=True):
        assert of_many[row["id"]] == {**row, **{name: other[name] for name in columns}}


def test_steps_are_numbered_in_the_order_of_their_rows(connection: Connection) -> None:
    rows = [{key: value for key, value in row.items() if key != "id"} for row in _rows(steps, 200)]

    with connection.begin() as transaction:
        execute_many(connection, apply.INSERTS["steps"], rows)
        found = _stored(connection, steps)
        transaction.rollback()

    in_order = sorted(found, key=lambda row: row["id"])
    assert [row["turn"] for row in in_order] == [row["turn"] for row in rows]


def test_a_key_that_is_there_wins_and_a_closed_usage_row_stays(connection: Connection) -> None:
    rows = [{**row, "status": "reserved", "model": "asked"} for row in _rows(usage, 4)]
    used = {name: 7 for name in apply.USED}
    closing = [
        {"key_token": row["token"], "status": "replied", "model": model, "closed_at": 5.0, **used}
        for row, model in zip(rows, ("said", "", "said", ""), strict=True)
    ]

    with connection.begin() as transaction:
        execute_many(connection, apply.INSERT_USAGE, rows)
        execute_many(connection, apply.INSERT_USAGE, [{**row, "model": "again"} for row in rows])
        execute_many(connection, apply.CLOSE_USAGE, closing)
        execute_many(connection, apply.CLOSE_USAGE, [{**row, "status": "twice"} for row in closing])
        found = {row["token"]: (row["status"], row["model"]) for row in _stored(connection, usage)}
        transaction.rollback()

    assert [found[row["token"]] for row in rows] == [
        ("replied", "said"),
        ("replied", "asked"),
        ("replied", "said"),
        ("replied", "asked"),
    ]


def test_marks_of_many_rows_and_letters_with_bytes_are_written(connection: Connection) -> None:
    rows = [{**row, "sent_at": None} for row in _rows(commands, 5)]
    marks = [{"key_id": row["id"], "sent_at": 1.5, "sends": 3, "check_at": 9.0} for row in rows[:3]]
    letters = [{**row, "body": b"\x00\xff{"} for row in _rows(dead, 3)]

    with connection.begin() as transaction:
        execute_many(connection, apply.INSERTS["commands"], rows)
        execute_many(connection, relay.MARK, marks)
        execute_many(connection, apply.INSERT_DEAD, letters)
        sent = {row["id"]: row["sends"] for row in _stored(connection, commands) if row["sent_at"] == 1.5}
        bodies = [row["body"] for row in _stored(connection, dead)]
        transaction.rollback()

    assert sent == {row["id"]: 3 for row in rows[:3]}
    assert bodies == [b"\x00\xff{"] * 3


def test_the_migrations_make_what_the_tables_say(connection: Connection) -> None:
    assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    connection.rollback()


WAITING: Final = """
    INSERT INTO commands (id, run_id, turn, queue, due_at, sent_at, sends, lost_after_s, check_at, deaths, token,
                          lease_until, body)
    SELECT 'call_' || i, 'run_' || i, 1, 'exec.low', i, i, 1, 90, 1e9 + i, 0, CASE WHEN i % 500 = 0 THEN 't' END,
           CASE WHEN i % 500 = 0 THEN 1e9 + i END, '{}'
    FROM generate_series(1, 20000) i
"""


@pytest.mark.parametrize("asked", ["DUE", "EXPIRED", "HELD", "HOLDERS", "MARKED"])
def test_a_long_queue_of_rows_that_only_wait_is_not_read_through(connection: Connection, asked: str) -> None:
    statement = getattr(relay, asked).compile(dialect=connection.dialect)
    given = {"now": 500.0, "limit": 100, "broker": "b", "ids": [f"call_{n}" for n in range(100)]}
    given |= {name: 1e18 for name in statement.params if name.startswith("since_")}

    with connection.begin() as transaction:
        connection.execute(text(WAITING))
        connection.execute(text("ANALYZE commands"))
        found = connection.exec_driver_sql(
            f"EXPLAIN {statement}", {name: given.get(name, own) for name, own in statement.params.items()}
        )
        plan = [line for (line,) in found]
        transaction.rollback()

    assert not any("Seq Scan on commands" in line for line in plan), plan
