"""Dead letters: what could not be processed, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, bindparam, delete, select, tuple_

from toolfleet.adapters.store.apply import INSERT_DEAD, dead_values
from toolfleet.adapters.store.tables import dead
from toolfleet.schemas.views import DeadLetter

_ONE: Final = select(dead).where(dead.c.id == bindparam("id"))
_NEWEST: Final = select(dead).order_by(dead.c.at.desc(), dead.c.id.desc()).limit(bindparam("limit"))
_cursor = dead.alias("cursor")
_OLDER: Final = _NEWEST.where(
    tuple_(dead.c.at, dead.c.id)
    < select(_cursor.c.at, _cursor.c.id).where(_cursor.c.id == bindparam("before")).scalar_subquery()
)
_DISCARD: Final = delete(dead).where(dead.c.id == bindparam("id"))


def add(connection: Connection, letter: DeadLetter, now: float) -> None:
    """Store it, at `now` if it does not say when; adding it again is harmless."""
    connection.execute(INSERT_DEAD, dead_values(replace(letter, at=letter.at or now), letter.tenant))


def letters(
    connection: Connection, *, limit: int, before: str | None, tenant: str | None
) -> list[DeadLetter]:
    """Newest first; `before` is the id of the last one seen."""
    statement: Select[Any] = _NEWEST if before is None else _OLDER
    if tenant is not None:
        statement = statement.where(dead.c.tenant == tenant)
    found = connection.execute(statement, {"limit": limit, "before": before})
    return [_letter(row) for row in found]


def letter(connection: Connection, dead_id: str) -> DeadLetter | None:
    row = connection.execute(_ONE, {"id": dead_id}).one_or_none()
    return None if row is None else _letter(row)


def discard(connection: Connection, dead_id: str) -> bool:
    return connection.execute(_DISCARD, {"id": dead_id}).rowcount == 1


def _letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        kind=row.kind,
        queue=row.queue,
        reason=row.reason,
        at=row.at,
        run_id=row.run_id,
        turn=row.turn,
        call_id=row.call_id,
        body=row.body,
        detail=row.detail,
        tenant=row.tenant,
    )
