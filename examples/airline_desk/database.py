"""The desk's own durable database: one SQLite file for all conversations and all processes.

A conversation starts from the same initial records and sees its own changes only: a changed record is one row, over
the initial one. An effect is one transaction: the changed records, the line in the ledger of effects, and what came
of it under the caller's idempotency key. So a process may be killed at any point, and a call may be made again at
any time: the effect is there whole and once, or not at all. Results are stored for refusals as well, because the
same call made again after others might be answered differently.

The file is prepared beside its place and linked into it, whole: no process ever meets a half-made one, and the
journal mode, which cannot be changed while others are connected, is set before anyone can be.
"""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolfleet.examples.airline_desk.difference import difference
from toolfleet.examples.airline_desk.initial import initial_records
from toolfleet.examples.airline_desk.records import (
    Flight,
    InitialRecords,
    JsonValue,
    Refused,
    Reservation,
    Table,
    User,
)

VERSION: Final = 1
BUSY_TIMEOUT_S: Final = 30.0  # as long as a tool may take; a writer holds the file for milliseconds
_SCHEMA: Final = f"""
CREATE TABLE records (
    conversation TEXT NOT NULL, kind TEXT NOT NULL, record_id TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (conversation, kind, record_id)
) WITHOUT ROWID;
CREATE TABLE outcomes (
    conversation TEXT NOT NULL, idempotency_key TEXT NOT NULL, call TEXT NOT NULL,
    result TEXT NOT NULL, refusal TEXT, reason_code TEXT NOT NULL,
    PRIMARY KEY (conversation, idempotency_key)
) WITHOUT ROWID;
CREATE TABLE effects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, conversation TEXT NOT NULL, tool TEXT NOT NULL,
    idempotency_key TEXT NOT NULL, arguments TEXT NOT NULL
);
PRAGMA user_version = {VERSION};
"""


class DeskDatabaseError(Exception):
    """The file cannot be used, or is used wrongly; the text says which and what to do."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the ledger: an effect that happened, in the order they happened."""

    id: int
    conversation: str
    tool: str
    idempotency_key: str
    arguments: dict[str, JsonValue]


class DeskView:
    """The records of one conversation as they are now; what is written is kept aside until it is stored.

    Fulfils `rules.Draft`. Whatever it hands out is a copy, except flights, which nobody changes.
    """

    def __init__(self, connection: sqlite3.Connection, conversation: str) -> None:
        self._connection = connection
        self._conversation = conversation
        self._initial = initial_records()
        self._written: dict[tuple[Table, str], Any] = {}

    @property
    def flights(self) -> Mapping[str, Flight]:
        return self._initial.flights

    def user(self, user_id: str) -> User | None:
        written = self._changed("users", user_id)
        found: User | None = self._initial.users.get(user_id) if written is None else written
        return deepcopy(found)

    def reservation(self, reservation_id: str) -> Reservation | None:
        written = self._changed("reservations", reservation_id)
        found: Reservation | None = (
            self._initial.reservations.get(reservation_id) if written is None else written
        )
        return deepcopy(found)

    def put_user(self, user_id: str, user: User) -> None:
        self._written["users", user_id] = user

    def put_reservation(self, reservation: Reservation) -> None:
        self._written["reservations", reservation["reservation_id"]] = reservation

    def store(self) -> None:
        """Writes what was put, within the caller's transaction."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)",
            [
                (self._conversation, table, record_id, json.dumps(value))
                for (table, record_id), value in self._written.items()
            ],
        )

    def _changed(self, table: Table, record_id: str) -> Any:
        if (table, record_id) in self._written:
            return self._written[table, record_id]
        row = self._connection.execute(
            "SELECT value FROM records WHERE conversation = ? AND kind = ? AND record_id = ?",
            (self._conversation, table, record_id),
        ).fetchone()
        return None if row is None else json.loads(row[0])


@contextmanager
def reading(path: str | Path, conversation: str) -> Iterator[DeskView]:
    """The conversation's records, to be read."""
    with closing(_connected(path)) as connection:
        yield DeskView(connection, conversation)


def apply_effect(
    path: str | Path,
    conversation: str,
    *,
    tool: str,
    arguments: Mapping[str, object],
    idempotency_key: str,
    change: Callable[[DeskView], JsonValue],
) -> JsonValue:
    """What `change` returned when the call with this key was made first; it is made now if it never was.

    Raises Refused as `change` did, then and ever after, and DeskDatabaseError where the key belongs to another call.
    """
    call = json.dumps([tool, arguments], sort_keys=True)
    with closing(_connected(path)) as connection, _writing(connection):
        known = connection.execute(
            "SELECT call, result, refusal, reason_code FROM outcomes WHERE conversation = ? AND idempotency_key = ?",
            (conversation, idempotency_key),
        ).fetchone()
        if known is not None:
            outcome = _Outcome(*known)
        else:
            made = _made(connection, conversation, tool, arguments, idempotency_key, change)
            outcome = _Outcome(call, *made)
            connection.execute(
                "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?)", (conversation, idempotency_key, *outcome)
            )
    if outcome.call != call:
        raise DeskDatabaseError(
            f"idempotency key {idempotency_key!r} was used for another call of conversation {conversation!r}; "
            "a key belongs to one call and its attempts"
        )
    if outcome.refusal is not None:
        raise Refused(outcome.refusal, outcome.reason_code)
    result: JsonValue = json.loads(outcome.result)
    return result


def effects(path: str | Path, conversation: str | None = None) -> list[Effect]:
    """The ledger, oldest first; of one conversation or of all."""
    with closing(_connected(path)) as connection:
        rows = connection.execute(
            "SELECT id, conversation, tool, idempotency_key, arguments FROM effects "
            "WHERE conversation = coalesce(?, conversation) ORDER BY id",
            (conversation,),
        ).fetchall()
    return [
        Effect(effect_id, name, tool, key, json.loads(arguments))
        for effect_id, name, tool, key, arguments in rows
    ]


def state_diff(path: str | Path, conversation: str) -> list[dict[str, Any]]:
    """What the conversation changed in the initial database, in the form of `db_diff_after_recorded_calls`."""
    with closing(_connected(path)) as connection:
        rows = connection.execute(
            "SELECT kind, record_id, value FROM records WHERE conversation = ?", (conversation,)
        ).fetchall()
    after: dict[str, dict[str, Any]] = {"reservations": {}, "users": {}}
    for table, record_id, value in rows:
        after[table][record_id] = json.loads(value)
    return difference(_initial_of(initial_records(), after), after)


def _initial_of(initial: InitialRecords, after: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    tables: dict[str, Mapping[str, Any]] = {"reservations": initial.reservations, "users": initial.users}
    return {
        name: {record_id: tables[name][record_id] for record_id in changed if record_id in tables[name]}
        for name, changed in after.items()
    }


class _Outcome(NamedTuple):
    """What came of a call, as stored; `refusal` decides which of the others count."""

    call: str  # the tool and its arguments: the key belongs to them
    result: str  # JSON; empty where it was refused
    refusal: str | None
    reason_code: str


def _made(
    connection: sqlite3.Connection,
    conversation: str,
    tool: str,
    arguments: Mapping[str, object],
    idempotency_key: str,
    change: Callable[[DeskView], JsonValue],
) -> tuple[str, str | None, str]:
    """Makes the effect and writes its line in the ledger; result, refusal and reason code of its `_Outcome`."""
    view = DeskView(connection, conversation)
    try:
        result = json.dumps(change(view))
    except Refused as refusal:
        return "", refusal.message, refusal.reason_code
    view.store()
    connection.execute(
        "INSERT INTO effects (conversation, tool, idempotency_key, arguments) VALUES (?, ?, ?, ?)",
        (conversation, tool, idempotency_key, json.dumps(arguments)),
    )
    return result, None, ""


@contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction that holds the write lock from its start, so that what it reads stays true until it commits."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _connected(path: str | Path) -> sqlite3.Connection:
    file = Path(path)
    if not file.exists():
        _create(file)
    connection = _opened(file)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        connection.close()
        raise DeskDatabaseError(
            f"{file} is not a desk database of version {VERSION} (it says {version}); "
            "delete it, or choose another place for it"
        )
    return connection


def _opened(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    connection.execute(
        "PRAGMA synchronous = FULL"
    )  # an effect that was reported survives a power cut as well
    return connection


def _create(file: Path) -> None:
    if not file.parent.is_dir():
        raise DeskDatabaseError(f"there is no folder {file.parent} for the desk database; create it first")
    prepared = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with closing(_opened(prepared)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
        os.link(prepared, file)
    except FileExistsError:
        pass  # another process was faster, and its file is as good
    finally:
        prepared.unlink(missing_ok=True)
