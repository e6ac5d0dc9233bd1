"""What the keeper asks and writes beside the machine: due and lost rows, leases, deadlines, marks, broker markers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, and_, bindparam, or_, select, union_all, update

from toolfleet.adapters.store import codec, rules
from toolfleet.adapters.store.dialect import execute_many, insert_new, members
from toolfleet.adapters.store.tables import brokers, calls, commands, runs
from toolfleet.queues.topology import QUEUE_BY_NAME
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId, new_event_id
from toolfleet.schemas.limits import WAITING_MARGIN_S
from toolfleet.schemas.ports import SentMark
from toolfleet.schemas.views import DueRow, HeldLease

_RESET_AT: Final = select(brokers.c.reset_at).where(brokers.c.name == bindparam("broker")).scalar_subquery()
# Rows whose message waits unfetched are no lost ones; one number for each queue, so that the statement stays the same.
_SINCE: Final = {name: f"since_{number}" for number, name in enumerate(QUEUE_BY_NAME)}
_NEVER: Final = 1e18
_NOT_WAITING: Final = and_(
    *(
        or_(commands.c.queue != name, commands.c.sent_at.is_(None), commands.c.sent_at <= bindparam(since))
        for name, since in _SINCE.items()
    )
)
_WIPED: Final = commands.c.sent_at < _RESET_AT
_OPEN: Final = and_(commands.c.token.is_(None), commands.c.due_at <= bindparam("now"))
# A union, not an OR: each half is answered by its own partial index, so that a long queue of rows that only wait
# costs nothing (SQLite scans all of them for the OR). The halves have no row in common.
_due = union_all(
    select(commands).where(_OPEN, commands.c.check_at <= bindparam("now"), or_(_WIPED, _NOT_WAITING)),
    select(commands).where(_OPEN, commands.c.check_at > bindparam("now"), _WIPED),
).subquery("due")
DUE: Final = select(_due).order_by(_due.c.due_at, _due.c.id).limit(bindparam("limit"))
EXPIRED: Final = (
    select(commands.c.run_id, commands.c.id, commands.c.token)
    .where(commands.c.token.is_not(None), commands.c.lease_until < bindparam("now"))
    .order_by(commands.c.lease_until, commands.c.id)
    .limit(bindparam("limit"))
)
HELD: Final = (
    select(
        commands.c.run_id,
        commands.c.id,
        commands.c.token,
        commands.c.owner,
        commands.c.queue,
        calls.c.tool,
    )
    .outerjoin(
        calls,
        and_(
            calls.c.run_id == commands.c.run_id,
            calls.c.turn == commands.c.turn,
            calls.c.call_id == commands.c.call_id,
        ),
    )
    .where(commands.c.token.is_not(None))
    .order_by(commands.c.lease_until, commands.c.id)
    .limit(bindparam("limit"))
)
OVERDUE: Final = (
    select(runs.c.id)
    .where(runs.c.deadline_at <= bindparam("now"), runs.c.finished_at.is_(None))
    .order_by(runs.c.deadline_at, runs.c.id)
    .limit(bindparam("limit"))
)
# In the order of load.LOCKED_COMMANDS. By id alone it is another one: a call's begins otherwise than a decision's.
HOLDERS: Final = (
    select(commands.c.id, commands.c.token)
    .where(members(commands.c.id, "ids"))
    .order_by(commands.c.run_id, commands.c.id)
    .with_for_update()
)
RENEW: Final = update(commands).where(members(commands.c.id, "ids")).values(lease_until=bindparam("until"))
# SKIP LOCKED: a mark never waits while its transaction holds others. It is tried again: who settles one call of a turn
# locks the rows of all.
MARKED: Final = (
    select(commands.c.id, commands.c.due_at, commands.c.sent_at, commands.c.sends, commands.c.lost_after_s)
    .where(members(commands.c.id, "ids"))
    .order_by(commands.c.id)
    .with_for_update(skip_locked=True)
)
MARK: Final = (
    update(commands)
    .where(commands.c.id == bindparam("key_id"))
    .values({name: bindparam(name) for name in ("sent_at", "sends", "check_at")})
)
THERE: Final = select(commands.c.id).where(members(commands.c.id, "ids"))
BROKER: Final = select(brokers.c.marker).where(brokers.c.name == bindparam("broker"))
NEW_BROKER: Final = insert_new(brokers)
RESET: Final = update(brokers).where(brokers.c.name == bindparam("broker")).values(reset_at=bindparam("now"))


def due_rows(
    connection: Connection, now: float, *, limit: int, broker: str, waiting_since_s: Mapping[str, float]
) -> list[DueRow]:
    asked: dict[str, Any] = {"now": now, "limit": limit, "broker": broker}
    for name, since in _SINCE.items():
        asked[since] = waiting_since_s[name] + WAITING_MARGIN_S if name in waiting_since_s else _NEVER
    return [
        DueRow(RunId(row["run_id"]), codec.command_row(row), orjson.loads(row["body"])["trace"])
        for row in connection.execute(DUE, asked).mappings()
    ]


def expired_leases(
    connection: Connection, now: float, *, limit: int
) -> list[tuple[RunId, CommandId, LeaseToken]]:
    found = connection.execute(EXPIRED, {"now": now, "limit": limit})
    return [(RunId(run_id), CommandId(id_), LeaseToken(token)) for run_id, id_, token in found]


def held_leases(connection: Connection, *, limit: int) -> list[HeldLease]:
    found = connection.execute(HELD, {"limit": limit})
    return [
        HeldLease(RunId(run_id), CommandId(id_), LeaseToken(token), owner or "", queue, tool)
        for run_id, id_, token, owner, queue, tool in found
    ]


def overdue_runs(connection: Connection, now: float, *, limit: int) -> list[RunId]:
    return [RunId(id_) for (id_,) in connection.execute(OVERDUE, {"now": now, "limit": limit})]


def renew(
    connection: Connection, leases: Sequence[tuple[CommandId, LeaseToken]], until: float
) -> set[CommandId]:
    """T25. `lease_until` is not asked: only the keeper expires a lease."""
    asked = dict(leases)
    rows = connection.execute(HOLDERS, {"ids": sorted(asked)})
    held = {CommandId(id_) for id_, token in rows if asked[CommandId(id_)] == token}
    if held:
        connection.execute(RENEW, {"ids": sorted(held), "until": until})
    return held


def write_marks(connection: Connection, marks: Sequence[SentMark]) -> list[SentMark]:
    """`sent_at` and `sends` + 1 for each publish of a row whose `due_at` is still the one that was published.

    Returns the marks of rows that somebody is changing at the moment: to be written later."""
    of_row: dict[str, list[SentMark]] = defaultdict(list)
    for mark in marks:
        of_row[mark.command_id].append(mark)
    changed: list[dict[str, Any]] = []
    rows = connection.execute(MARKED, {"ids": sorted(of_row)}).all()
    for id_, due_at, sent_at, sends, lost_after in rows:
        counted = [mark for mark in of_row[id_] if mark.due_at == due_at]
        if counted:
            sent = max([mark.at_s for mark in counted] + ([] if sent_at is None else [sent_at]))
            sends += len(counted)
            checked = sent + rules.lost_after_s(sends, lost_after)
            changed.append({"key_id": id_, "sent_at": sent, "sends": sends, "check_at": checked})
    if changed:
        execute_many(connection, MARK, changed)
    missing = of_row.keys() - {row.id for row in rows}
    if not missing:
        return []
    there = {id_ for (id_,) in connection.execute(THERE, {"ids": sorted(missing)})}
    return [mark for mark in marks if mark.command_id in there]


def broker_marker(connection: Connection, name: str) -> str | None:
    return connection.execute(BROKER, {"broker": name}).scalar_one_or_none()


def make_broker(connection: Connection, name: str) -> str:
    """The marker of that broker; the first one that asks makes it."""
    connection.execute(NEW_BROKER, {"name": name, "marker": new_event_id(), "reset_at": None})
    return str(connection.execute(BROKER, {"broker": name}).scalar_one())


def note_reset(connection: Connection, name: str, now: float) -> None:
    make_broker(connection, name)
    connection.execute(RESET, {"broker": name, "now": now})
