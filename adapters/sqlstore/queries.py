"""What is read without deciding anything: for handlers before they act, for the keeper, and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, Float, and_, bindparam, case, cast, func, literal, or_, select

from toolfleet.adapters.sqlstore import codec
from toolfleet.adapters.sqlstore import tables as t
from toolfleet.adapters.sqlstore.transitions import load_states
from toolfleet.schemas.commands import EXEC_QUEUES
from toolfleet.schemas.conversation import Item
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId
from toolfleet.schemas.limits import LOST_BACKOFF_MAX, UNSENT_AFTER_S
from toolfleet.schemas.outcomes import TERMINAL_STATUSES
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.views import (
    CallView,
    Conversation,
    DeadLetter,
    DueRow,
    HeldLease,
    RunEvent,
    RunView,
    StepView,
    StoredItem,
)

CHAIN_MAX = 10_000
_TERMINAL = [status.value for status in TERMINAL_STATUSES]

_PEEK = (
    select(
        t.commands,
        *(column.label(f"call_{column.name}") for column in t.calls.c),
        t.runs.c.status.label("run_status"),
        t.runs.c.agent,
        t.runs.c.agent_version,
        t.runs.c.tenant,
        t.runs.c.correlation_id,
        t.runs.c.context,
        t.runs.c.trace,
    )
    .join(t.calls, t.calls.c.call_id == t.commands.c.call_id)
    .join(t.runs, t.runs.c.run_id == t.commands.c.run_id)
    .where(
        t.commands.c.id.in_(bindparam("ids", expanding=True)),
        t.commands.c.queue.in_([*EXEC_QUEUES.values()]),
    )
)


def peek_calls(connection: Connection, ids: Sequence[CommandId], now_s: float) -> list[CallView | None]:
    found: dict[str, CallView] = {}
    for row in connection.execute(_PEEK, {"ids": list(ids)}).mappings():
        call = {name.removeprefix("call_"): value for name, value in row.items() if name.startswith("call_")}
        call["call_id"] = row["call_call_id"]
        found[row["id"]] = CallView(
            row=codec.command_row(row),  # type: ignore[arg-type]
            call=codec.call_state(call),
            run_id=RunId(row["run_id"]),
            run_status=row["run_status"],
            turn=row["turn"],
            agent=row["agent"],
            agent_version=row["agent_version"],
            tenant=row["tenant"],
            correlation_id=row["correlation_id"],
            context=orjson.loads(row["context"]),
            trace=orjson.loads(row["trace"]),
            now_s=now_s,
        )
    return [found.get(command_id) for command_id in ids]


def _chain_query() -> Any:
    chain = (
        select(t.runs.c.run_id, t.runs.c.previous_run_id, literal(0).label("depth"))
        .where(t.runs.c.run_id == bindparam("run_id"))
        .cte("chain", recursive=True)
    )
    older = (
        select(t.runs.c.run_id, t.runs.c.previous_run_id, (chain.c.depth + 1).label("depth"))
        .join(chain, t.runs.c.run_id == chain.c.previous_run_id)
        .where(chain.c.depth < CHAIN_MAX)
    )
    chain = chain.union_all(older)
    return (
        select(t.items.c.body)
        .join(chain, chain.c.run_id == t.items.c.run_id)
        .order_by(chain.c.depth.desc(), t.items.c.seq)
    )


_CHAIN = _chain_query()


def conversation(connection: Connection, run_id: RunId) -> Conversation | None:
    """The items of the whole chain of runs, oldest first."""
    row = connection.execute(select(t.runs).where(t.runs.c.run_id == run_id)).mappings().one_or_none()
    if row is None:
        return None
    items: tuple[Item, ...] = tuple(
        codec.item_of(body) for (body,) in connection.execute(_CHAIN, {"run_id": run_id})
    )
    return Conversation(codec.run_info(row), items)  # type: ignore[arg-type]


def due_rows(connection: Connection, now_s: float, *, limit: int, broker: str) -> list[DueRow]:
    """Rows due and not leased that nobody published in time, or whose message may be lost."""
    c = t.commands.c
    reset_at = connection.execute(
        select(t.brokers.c.reset_at).where(t.brokers.c.name == broker)
    ).scalar_one_or_none()
    doublings = case(
        (c.sends <= 1, 1), (c.sends == 2, 2), (c.sends == 3, 4), (c.sends == 4, 8), else_=LOST_BACKOFF_MAX
    )
    unsent = and_(c.sent_at.is_(None), c.due_at <= now_s - UNSENT_AFTER_S)
    lost = c.sent_at <= now_s - c.lost_after_s * cast(doublings, Float)
    reasons = [unsent, lost]
    if reset_at is not None:
        reasons.append(func.coalesce(c.sent_at, c.due_at) < reset_at)
    statement = (
        select(t.commands, t.runs.c.trace)
        .join(t.runs, t.runs.c.run_id == c.run_id)
        .where(c.token.is_(None), c.due_at <= now_s, or_(*reasons))
        .order_by(c.due_at, c.id)
        .limit(limit)
    )
    return [
        DueRow(RunId(row["run_id"]), codec.command_row(row), orjson.loads(row["trace"]))  # type: ignore[arg-type]
        for row in connection.execute(statement).mappings()
    ]


def expired_leases(
    connection: Connection, now_s: float, *, limit: int
) -> list[tuple[RunId, CommandId, LeaseToken]]:
    c = t.commands.c
    statement = (
        select(c.run_id, c.id, c.token)
        .where(c.token.is_not(None), c.lease_until < now_s)
        .order_by(c.id)
        .limit(limit)
    )
    return [(RunId(r.run_id), CommandId(r.id), LeaseToken(r.token)) for r in connection.execute(statement)]


def held_leases(connection: Connection, *, limit: int) -> list[HeldLease]:
    c = t.commands.c
    statement = (
        select(c.run_id, c.id, c.token, c.owner, c.queue, t.calls.c.tool)
        .outerjoin(t.calls, t.calls.c.call_id == c.call_id)
        .where(c.token.is_not(None))
        .order_by(c.id)
        .limit(limit)
    )
    return [
        HeldLease(RunId(r.run_id), CommandId(r.id), LeaseToken(r.token), r.owner or "", r.queue, r.tool)
        for r in connection.execute(statement)
    ]


def overdue_runs(connection: Connection, now_s: float, *, limit: int) -> list[RunId]:
    c = t.runs.c
    statement = (
        select(c.run_id)
        .where(c.deadline_at.is_not(None), c.deadline_at <= now_s, c.status.not_in(_TERMINAL))
        .order_by(c.deadline_at)
        .limit(limit)
    )
    return [RunId(run_id) for (run_id,) in connection.execute(statement)]


_FINISHED = select(t.runs.c.run_id).where(
    t.runs.c.run_id.in_(bindparam("ids", expanding=True)), t.runs.c.status.in_(_TERMINAL)
)


def finished(connection: Connection, run_ids: Sequence[RunId]) -> set[RunId]:
    return {RunId(run_id) for (run_id,) in connection.execute(_FINISHED, {"ids": list(run_ids)})}


def run_views(connection: Connection, rows: Sequence[Any]) -> list[RunView]:
    states = load_states(connection, [row["run_id"] for row in rows], lock=False)
    return [RunView(codec.run_info(row), states[row["run_id"]][0]) for row in rows]


def run(connection: Connection, run_id: RunId) -> RunView | None:
    rows = connection.execute(select(t.runs).where(t.runs.c.run_id == run_id)).mappings().all()
    return next(iter(run_views(connection, rows)), None)


def runs(
    connection: Connection, *, limit: int, before: RunId | None, status: str | None, agent: str | None
) -> list[RunView]:
    statement = select(t.runs).order_by(t.runs.c.run_id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(t.runs.c.run_id < before)
    if status is not None:
        statement = statement.where(t.runs.c.status == status)
    if agent is not None:
        statement = statement.where(t.runs.c.agent == agent)
    return run_views(connection, connection.execute(statement).mappings().all())


def items(connection: Connection, run_id: RunId) -> list[StoredItem]:
    statement = select(t.items).where(t.items.c.run_id == run_id).order_by(t.items.c.seq)
    return [
        StoredItem(row["seq"], row["turn"], codec.item_of(row["body"]))
        for row in connection.execute(statement).mappings()
    ]


def results(connection: Connection, run_id: RunId) -> list[tuple[int, CallResult]]:
    statement = (
        select(t.results).where(t.results.c.run_id == run_id).order_by(t.results.c.turn, t.results.c.index)
    )
    return [
        (row["turn"], codec.result_of(row))  # type: ignore[arg-type]
        for row in connection.execute(statement).mappings()
    ]


def steps(connection: Connection, run_id: RunId) -> list[StepView]:
    statement = select(t.steps).where(t.steps.c.run_id == run_id).order_by(t.steps.c.id)
    return [
        StepView(r.turn, r.kind, r.outcome, r.call_id, r.tool_name, r.attempt, r.at, orjson.loads(r.fields))
        for r in connection.execute(statement)
    ]


def usage(connection: Connection, run_id: RunId) -> list[dict[str, Any]]:
    statement = select(t.usage).where(t.usage.c.run_id == run_id).order_by(t.usage.c.at, t.usage.c.turn)
    return [dict(row) for row in connection.execute(statement).mappings()]


def events(connection: Connection, run_id: RunId, *, after: int, limit: int) -> list[RunEvent]:
    c = t.events.c
    statement = select(t.events).where(c.run_id == run_id, c.seq > after).order_by(c.seq).limit(limit)
    return [
        RunEvent(RunId(r.run_id), r.seq, r.type, r.at, orjson.loads(r.data))
        for r in connection.execute(statement)
    ]


def dead(connection: Connection, *, limit: int, before: str | None) -> list[DeadLetter]:
    statement = select(t.dead).order_by(t.dead.c.at.desc(), t.dead.c.id.desc()).limit(limit)
    if before is not None:
        last = select(t.dead.c.at).where(t.dead.c.id == before).scalar_subquery()
        statement = statement.where(or_(t.dead.c.at < last, and_(t.dead.c.at == last, t.dead.c.id < before)))
    return [DeadLetter(**row) for row in connection.execute(statement).mappings()]


def dead_letter(connection: Connection, dead_id: str) -> DeadLetter | None:
    row = connection.execute(select(t.dead).where(t.dead.c.id == dead_id)).mappings().one_or_none()
    return None if row is None else DeadLetter(**row)


def counts(connection: Connection) -> dict[str, int]:
    """`runs.<status>`, `commands`, `commands.<queue>`, `leases`, `dead`."""
    found: dict[str, int] = {}
    for status, count in connection.execute(select(t.runs.c.status, func.count()).group_by(t.runs.c.status)):
        found[f"runs.{status}"] = count
    for queue, count in connection.execute(
        select(t.commands.c.queue, func.count()).group_by(t.commands.c.queue)
    ):
        found[f"commands.{queue}"] = count
    found["commands"] = sum(n for name, n in found.items() if name.startswith("commands."))
    leased = select(func.count()).select_from(t.commands).where(t.commands.c.token.is_not(None))
    found["leases"] = connection.execute(leased).scalar_one()
    found["dead"] = connection.execute(select(func.count()).select_from(t.dead)).scalar_one()
    return found
