"""Statements that only read: for handlers before they act, and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, bindparam, func, select

from toolfleet.adapters.store import codec, ledger_rows
from toolfleet.adapters.store.dialect import members
from toolfleet.adapters.store.load import load
from toolfleet.adapters.store.tables import (
    calls,
    commands,
    dead,
    events,
    items,
    results,
    run_inputs,
    runs,
    steps,
    usage,
)
from toolfleet.schemas.conversation import Item
from toolfleet.schemas.ids import CommandId, RunId
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState
from toolfleet.schemas.views import CallView, Conversation, RunEvent, RunInfo, RunView, StepView, StoredItem

EXEC_PATTERN: Final = "exec.%"
USAGE_COLUMNS: Final = (
    "turn",
    "attempt",
    "model",
    "status",
    "reserved_usd",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cost_usd",
    "at",
    "closed_at",
)

INFOS: Final = (
    select(
        runs.c.id,
        runs.c.agent,
        runs.c.agent_version,
        runs.c.tenant,
        runs.c.previous_run_id,
        runs.c.created_at,
        runs.c.finished_at,
        run_inputs,
    )
    .join(run_inputs, run_inputs.c.run_id == runs.c.id)
    .where(members(runs.c.id, "run_ids"))
)
PEEK: Final = (
    select(
        commands,
        calls,
        commands.c.id.label("command_id"),
        commands.c.turn.label("command_turn"),
        runs.c.status,
        runs.c.agent,
        runs.c.agent_version,
        runs.c.tenant,
        run_inputs.c.correlation_id,
        run_inputs.c.context,
        run_inputs.c.principal,
        run_inputs.c.permissions,
        run_inputs.c.effect_scope,
    )
    .join(
        calls,
        (calls.c.run_id == commands.c.run_id)
        & (calls.c.turn == commands.c.turn)
        & (calls.c.call_id == commands.c.call_id),
    )
    .join(runs, runs.c.id == commands.c.run_id)
    .join(run_inputs, run_inputs.c.run_id == commands.c.run_id)
    .where(members(commands.c.id, "ids"), commands.c.queue.like(EXEC_PATTERN))
)


def _chain() -> Any:
    """The run and its ancestors, `depth` 0 being the run itself."""
    own = select(runs.c.id, runs.c.previous_run_id, bindparam("zero", 0).label("depth"))
    own = own.where(runs.c.id == bindparam("run_id"))
    chain = own.cte("chain", recursive=True)
    older = select(runs.c.id, runs.c.previous_run_id, (chain.c.depth + 1).label("depth"))
    return chain.union_all(older.join(chain, runs.c.id == chain.c.previous_run_id))


_ancestry = _chain()
ANCESTRY: Final = select(_ancestry.c.id).order_by(_ancestry.c.depth.desc())
# By the key of `items`: joined with the ancestry, whose length no planner can guess, the whole table was read.
BODIES: Final = (
    select(items.c.run_id, items.c.body)
    .where(members(items.c.run_id, "run_ids"))
    .order_by(items.c.run_id, items.c.seq)
)
RUN_IDS: Final = select(runs.c.id).order_by(runs.c.id.desc()).limit(bindparam("limit"))
FINISHED: Final = select(runs.c.id).where(members(runs.c.id, "run_ids"), runs.c.finished_at.is_not(None))
ITEMS: Final = (
    select(items.c.seq, items.c.turn, items.c.body)
    .where(items.c.run_id == bindparam("run_id"))
    .order_by(items.c.seq)
)
RESULTS: Final = (
    select(results)
    .where(results.c.run_id == bindparam("run_id"))
    .order_by(results.c.turn, results.c.position)
)
_asking = runs.alias("asking")
FULL: Final = (
    select(func.coalesce(results.c.full_text, results.c.content))
    .join(runs, runs.c.id == results.c.run_id)
    .join(_asking, _asking.c.id == bindparam("run_id"))
    .where(
        members(results.c.run_id, "run_ids"),
        results.c.call_id == bindparam("call_id"),
        runs.c.tenant == _asking.c.tenant,
    )
)
STEPS: Final = select(steps).where(steps.c.run_id == bindparam("run_id")).order_by(steps.c.id)
USAGE: Final = (
    select(*(usage.c[name] for name in USAGE_COLUMNS))
    .where(usage.c.run_id == bindparam("run_id"))
    .order_by(usage.c.at, usage.c.turn, usage.c.attempt)
)
EVENTS: Final = (
    select(events)
    .where(events.c.run_id == bindparam("run_id"), events.c.seq > bindparam("after"))
    .order_by(events.c.seq)
    .limit(bindparam("limit"))
)
STATUS_COUNTS: Final = select(runs.c.status, func.count()).group_by(runs.c.status)
COMMAND_COUNTS: Final = select(func.count(), func.count(commands.c.token))
DEAD_COUNT: Final = select(func.count()).select_from(dead)


def peek_calls(connection: Connection, command_ids: Sequence[CommandId], now: float) -> list[CallView | None]:
    rows = connection.execute(PEEK, {"ids": list(command_ids)}).mappings().all()
    of_run: dict[str, list[CallState]] = {}
    for row in rows:
        of_run.setdefault(row["run_id"], []).append(codec.call_state(row))
    ledger_rows.attach(connection, of_run)
    known = {call.call_id: call for found in of_run.values() for call in found}
    views = {row["command_id"]: _call_view(row, known[row["call_id"]], now) for row in rows}
    return [views.get(command_id) for command_id in command_ids]


def _call_view(row: codec.Row, call: CallState, now: float) -> CallView:
    return CallView(
        row=codec.command_row(row, id_column="command_id"),
        call=call,
        run_id=RunId(row["run_id"]),
        run_status=row["status"],
        turn=row["turn"],
        agent=row["agent"],
        agent_version=row["agent_version"],
        tenant=row["tenant"],
        correlation_id=row["correlation_id"],
        context=orjson.loads(row["context"]),
        trace=orjson.loads(row["body"])["trace"],
        now_s=now,
        principal=row["principal"],
        permissions=tuple(orjson.loads(row["permissions"])),
        effect_scope=row["effect_scope"],
    )


def conversation(connection: Connection, run_id: RunId) -> Conversation | None:
    info = infos(connection, [run_id]).get(run_id)
    if info is None:
        return None
    chain = [run_id]
    if info.previous_run_id is not None:
        chain = [RunId(id_) for (id_,) in connection.execute(ANCESTRY, {"run_id": run_id})]
    bodies: dict[str, list[str]] = {one: [] for one in chain}
    for of_run, body in connection.execute(BODIES, {"run_ids": chain}):
        bodies[of_run].append(body)
    found: list[Item] = [codec.item_of(body) for one in chain for body in bodies[one]]
    return Conversation(info, tuple(found))


def infos(connection: Connection, run_ids: Sequence[RunId]) -> dict[RunId, RunInfo]:
    found = connection.execute(INFOS, {"run_ids": list(run_ids)}).mappings()
    return {RunId(row["id"]): _info(row) for row in found}


def _info(row: codec.Row) -> RunInfo:
    previous, retry_of = row["previous_run_id"], row["retry_of"]
    return RunInfo(
        run_id=RunId(row["id"]),
        agent=row["agent"],
        agent_version=row["agent_version"],
        prompt_version=row["prompt_version"],
        toolset_version=row["toolset_version"],
        tenant=row["tenant"],
        previous_run_id=None if previous is None else RunId(previous),
        retry_of=None if retry_of is None else RunId(retry_of),
        correlation_id=row["correlation_id"],
        input=row["input"],
        context=orjson.loads(row["context"]),
        metadata=orjson.loads(row["metadata"]),
        trace=orjson.loads(row["trace"]),
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        principal=row["principal"],
        permissions=tuple(orjson.loads(row["permissions"])),
        effect_scope=row["effect_scope"],
    )


def finished_runs(connection: Connection, run_ids: Sequence[RunId]) -> set[RunId]:
    return {RunId(id_) for (id_,) in connection.execute(FINISHED, {"run_ids": list(run_ids)})}


def run_views(connection: Connection, run_ids: Sequence[RunId]) -> list[RunView]:
    """Those that exist, in the order asked for."""
    states = load(connection, run_ids, lock=False)
    known = infos(connection, run_ids)
    return [RunView(known[run_id], states[run_id].state) for run_id in run_ids if run_id in states]


def newest_runs(
    connection: Connection,
    *,
    limit: int,
    before: RunId | None,
    status: str | None,
    agent: str | None,
    tenant: str | None,
) -> list[RunView]:
    statement = RUN_IDS
    for column, value in ((runs.c.tenant, tenant), (runs.c.status, status), (runs.c.agent, agent)):
        if value is not None:
            statement = statement.where(column == value)
    if before is not None:
        statement = statement.where(runs.c.id < before)
    run_ids = [RunId(id_) for (id_,) in connection.execute(statement, {"limit": limit})]
    return run_views(connection, run_ids)


def stored_items(connection: Connection, run_id: RunId) -> list[StoredItem]:
    rows = connection.execute(ITEMS, {"run_id": run_id})
    return [StoredItem(seq, turn, codec.item_of(body)) for seq, turn, body in rows]


def call_results(connection: Connection, run_id: RunId) -> list[tuple[int, CallResult]]:
    rows = connection.execute(RESULTS, {"run_id": run_id}).mappings()
    return [(row["turn"], codec.call_result(row)) for row in rows]


def full_result(connection: Connection, run_id: str, call_id: str) -> str | None:
    chain = [id_ for (id_,) in connection.execute(ANCESTRY, {"run_id": run_id})]
    asked = {"run_id": run_id, "run_ids": chain, "call_id": call_id}
    found: str | None = connection.execute(FULL, asked).scalar_one_or_none()
    return found


def step_views(connection: Connection, run_id: RunId) -> list[StepView]:
    return [
        StepView(
            turn=row.turn,
            kind=row.kind,
            outcome=row.outcome,
            call_id=row.call_id,
            tool_name=row.tool_name,
            attempt=row.attempt,
            at=row.at,
            fields=orjson.loads(row.fields),
        )
        for row in connection.execute(STEPS, {"run_id": run_id})
    ]


def usage_rows(connection: Connection, run_id: RunId) -> list[dict[str, Any]]:
    """Columns of `usage`; `at` is when the model call was begun, `cost_usd` what stands as spent."""
    return [dict(row) for row in connection.execute(USAGE, {"run_id": run_id}).mappings()]


def run_events(connection: Connection, run_id: RunId, *, after: int, limit: int) -> list[RunEvent]:
    asked = {"run_id": run_id, "after": after, "limit": limit}
    return [
        RunEvent(RunId(row.run_id), row.seq, row.type, row.at, orjson.loads(row.data))
        for row in connection.execute(EVENTS, asked)
    ]


def counts(connection: Connection) -> dict[str, int]:
    """`runs.<status>` for each status there is, `commands` outstanding, `leases` held, `dead` letters."""
    found = {f"runs.{status}": int(count) for status, count in connection.execute(STATUS_COUNTS)}
    outstanding, leases = connection.execute(COMMAND_COUNTS).one()
    letters = connection.execute(DEAD_COUNT).scalar_one()
    return {**found, "commands": int(outstanding), "leases": int(leases), "dead": int(letters)}
