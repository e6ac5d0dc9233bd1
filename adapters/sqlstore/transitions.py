"""A batch of transitions in one transaction: lock, load, reduce, write the differences.

Lock order: runs, then commands, ids ascending; then new statements read what the decisions depend on. Every table is
written by one multi-row statement for the whole batch. Called by the writer thread only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Table, and_, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from toolfleet.adapters.sqlstore import codec
from toolfleet.adapters.sqlstore import tables as t
from toolfleet.adapters.sqlstore.changes import Changes, item_row
from toolfleet.adapters.sqlstore.engine import for_commands, for_transition
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.envelopes import with_notice
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.ports import Applied, Machine, Transition
from toolfleet.schemas.records import AppendMerge, ReuseResult
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.schemas.views import DueRow

_LOCK_RUNS = for_transition(
    select(t.runs).where(t.runs.c.run_id.in_(bindparam("ids", expanding=True))).order_by(t.runs.c.run_id)
)
_LOCK_COMMANDS = for_commands(
    select(t.commands)
    .where(t.commands.c.run_id.in_(bindparam("ids", expanding=True)))
    .order_by(t.commands.c.id)
)
_CURRENT_CALLS = (
    select(t.calls)
    .join(t.runs, and_(t.runs.c.run_id == t.calls.c.run_id, t.runs.c.turn == t.calls.c.turn))
    .where(t.calls.c.run_id.in_(bindparam("ids", expanding=True)))
    .order_by(t.calls.c.run_id, t.calls.c.index)
)
_RESULTS_OF_CALLS = select(t.results).where(t.results.c.call_id.in_(bindparam("ids", expanding=True)))
_INSERT_USAGE = insert(t.usage)
_UPDATE_RUN = update(t.runs).where(t.runs.c.run_id == bindparam("b_run_id"))
_UPDATE_CALL = update(t.calls).where(t.calls.c.call_id == bindparam("b_call_id"))
_UPDATE_COMMAND = update(t.commands).where(t.commands.c.id == bindparam("b_id"))
_DELETE_COMMAND = delete(t.commands).where(t.commands.c.id == bindparam("b_id"))
_CLOSE_USAGE = update(t.usage).where(
    and_(t.usage.c.token == bindparam("b_token"), t.usage.c.status == "reserved")
)


def apply_batch(
    connection: Connection, machine: Machine, transitions: Sequence[Transition], now_s: float
) -> list[Applied]:
    """One result for each transition, in order; at most one transition per run."""
    run_ids = sorted({transition.run_id for transition in transitions})
    assert len(run_ids) == len(transitions), "a batch holds at most one transition per run"
    loaded = load_states(connection, run_ids, lock=True)
    changes = Changes()
    applied: list[Applied] = []
    for transition in transitions:
        found = loaded.get(transition.run_id)
        if found is None:
            applied.append(Applied(None, None, "no such run", (), now_s))
            continue
        before, trace = found
        step = machine.reduce(before, transition.event, now_s)
        if step.missed is None and step.state != before:
            changes.move(before, step.state, now_s)
        for record in step.records:
            changes.record(transition.run_id, record, now_s)
        due = () if step.missed is not None else newly_due(before, step.state, trace, now_s)
        applied.append(Applied(step.state, before, step.missed, due, now_s))
    write(connection, machine, changes, now_s)
    return applied


def load_states(
    connection: Connection, run_ids: Sequence[str], *, lock: bool
) -> dict[str, tuple[RunState, dict[str, str]]]:
    """The states of these runs with their trace contexts, in three statements."""
    ids = {"ids": list(run_ids)}
    plain_runs = select(t.runs).where(t.runs.c.run_id.in_(bindparam("ids", expanding=True)))
    plain_commands = (
        select(t.commands)
        .where(t.commands.c.run_id.in_(bindparam("ids", expanding=True)))
        .order_by(t.commands.c.id)
    )
    rows = connection.execute(_LOCK_RUNS if lock else plain_runs, ids).mappings().all()
    commands: dict[str, list[CommandRow]] = defaultdict(list)
    for row in connection.execute(_LOCK_COMMANDS if lock else plain_commands, ids).mappings():
        commands[row["run_id"]].append(codec.command_row(row))  # type: ignore[arg-type]
    calls: dict[str, list[CallState]] = defaultdict(list)
    for row in connection.execute(_CURRENT_CALLS, ids).mappings():
        calls[row["run_id"]].append(codec.call_state(row))  # type: ignore[arg-type]
    return {
        row["run_id"]: (
            codec.run_state(row, tuple(calls[row["run_id"]]), tuple(commands[row["run_id"]])),  # type: ignore[arg-type]
            codec.run_info(row).trace,  # type: ignore[arg-type]
        )
        for row in rows
    }


def newly_due(
    before: RunState | None, after: RunState, trace: dict[str, str], now_s: float
) -> tuple[DueRow, ...]:
    """Rows this transition put or changed, that are due, not leased, and not sent: to be published now."""
    known = set() if before is None else set(before.commands)
    return tuple(
        DueRow(after.run_id, row, trace)
        for row in after.commands
        if row not in known and row.token is None and row.sent_at is None and row.due_at <= now_s
    )


def write(connection: Connection, machine: Machine, changes: Changes, now_s: float) -> None:
    """Everything of a batch, parents before children, results before the merges that read them."""
    _many(connection, insert(t.runs), changes.runs_new)
    _many(connection, _UPDATE_RUN, changes.runs)
    _upsert_turns(connection, changes.turns)
    _many(connection, insert(t.calls), changes.calls_new)
    _many(connection, _UPDATE_CALL, changes.calls)
    _many(connection, insert(t.commands), changes.commands_new)
    _many(connection, _UPDATE_COMMAND, changes.commands)
    _many(connection, _DELETE_COMMAND, changes.commands_gone)
    _copy_results(connection, changes, now_s)
    first_wins = sorted(changes.results, key=lambda row: row["call_id"])
    _many(connection, or_nothing(connection, t.results), first_wins)
    _merge(connection, machine, changes, now_s)
    _many(connection, insert(t.items), changes.items)
    _many(connection, _INSERT_USAGE, changes.usage_new)
    _many(connection, _CLOSE_USAGE, changes.usage)
    _many(connection, insert(t.steps), changes.steps)
    _many(connection, insert(t.events), changes.events)
    _many(connection, or_nothing(connection, t.dead), changes.dead)


def or_nothing(connection: Connection, table: Table) -> Insert:
    """INSERT … ON CONFLICT DO NOTHING: the first row wins."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement: Insert = dialect.insert(table).on_conflict_do_nothing()
    return statement


def _upsert_turns(connection: Connection, rows: list[dict[str, Any]]) -> None:
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(t.turns)
    kept = {name: statement.excluded[name] for name in ("phase", "calls", "changed_at")}
    _many(connection, statement.on_conflict_do_update(index_elements=["run_id", "turn"], set_=kept), rows)


def _many(connection: Connection, statement: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(statement, rows)


def _copy_results(connection: Connection, changes: Changes, now_s: float) -> None:
    """Reused results: the stored one of the source, with the notice, under the new call."""
    if not changes.copies:
        return
    sources = _results(connection, {copy.source for _, copy in changes.copies})
    for run_id, copy in changes.copies:
        changes.results.append(
            codec.result_columns(_copied(copy, sources[copy.source]), run_id, copy.turn, now_s)
        )


def _copied(copy: ReuseResult, source: CallResult) -> CallResult:
    return CallResult(
        copy.call_id,
        copy.index,
        source.outcome,
        with_notice(source.content, copy.notice),
        reason=source.reason,
        full=source.full,
    )


def _merge(connection: Connection, machine: Machine, changes: Changes, now_s: float) -> None:
    """The merged items, from the stored results of their turns."""
    if not changes.merges:
        return
    stored = _results(connection, {call.call_id for _, merge in changes.merges for call in merge.calls})
    for run_id, merge in changes.merges:
        changes.items.append(_merged(machine, run_id, merge, stored, now_s))


def _merged(
    machine: Machine, run_id: RunId, merge: AppendMerge, stored: dict[str, CallResult], now_s: float
) -> dict[str, Any]:
    results: dict[str, CallResult] = {call.call_id: stored[call.call_id] for call in merge.calls}
    return item_row(run_id, merge.seq, merge.turn, machine.merge(merge.calls, results), now_s)


def _results(connection: Connection, call_ids: Iterable[str]) -> dict[str, CallResult]:
    rows = connection.execute(_RESULTS_OF_CALLS, {"ids": sorted(call_ids)}).mappings()
    return {row["call_id"]: codec.result_of(row) for row in rows}  # type: ignore[arg-type]
