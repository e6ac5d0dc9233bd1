"""Writes what transitions came to: the difference between the states, and the records; a few statements for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Insert,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
)

from toolfleet.adapters.store import codec, ledger_codec, rules
from toolfleet.adapters.store.dialect import execute_many, insert_new, members
from toolfleet.adapters.store.tables import (
    approvals,
    audit,
    calls,
    commands,
    dead,
    effects,
    events,
    items,
    results,
    run_inputs,
    runs,
    steps,
    turns,
    usage,
)
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.outcomes import TurnPhase
from toolfleet.schemas.ports import Machine
from toolfleet.schemas.records import (
    AppendAudit,
    AppendDead,
    AppendEvent,
    AppendItem,
    AppendMerge,
    AppendStep,
    CloseUsage,
    OpenUsage,
    Record,
    ResolveEffect,
    ReuseResult,
    Step,
    StoreResult,
)
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import NewRun, RunState
from toolfleet.schemas.views import DeadLetter

Rows = list[dict[str, Any]]


def _update(table: Table, keys: Sequence[str], columns: Sequence[str]) -> Update:
    """UPDATE by key, for many parameter sets; parameters are `key_<column>` and the columns' names."""
    where = and_(*(table.c[key] == bindparam(f"key_{key}") for key in keys))
    return update(table).where(where).values({name: bindparam(name) for name in columns})


RUN_COLUMNS: Final = [
    c.name
    for c in runs.c
    if c.name
    not in {
        "id",
        "tenant",
        "agent",
        "agent_version",
        "previous_run_id",
        "idempotency_key",
        "created_at",
    }
]
COMMAND_COLUMNS: Final = [
    c.name for c in commands.c if c.name not in {"id", "run_id", "turn", "call_id", "body"}
]
UPDATE_RUNS: Final = _update(runs, ["id"], RUN_COLUMNS)
UPDATE_COMMANDS: Final = _update(commands, ["id"], COMMAND_COLUMNS)
DELETE_COMMANDS: Final = delete(commands).where(members(commands.c.id, "ids"))
UPDATE_TURNS: Final = _update(turns, ["run_id", "turn"], ["phase", "merged_at", "ended_at"])
CALL_COLUMNS: Final = (
    "tier", "waiting", "attempt", "outcome", "arguments", "terms", "waits_key", "edited", "deadline_at",
)  # fmt: skip
UPDATE_CALLS: Final = _update(calls, ["run_id", "turn", "position"], CALL_COLUMNS)
UPDATE_EFFECTS: Final = _update(effects, ["call_id"], ledger_codec.ENTRY_COLUMNS)
RESOLVE_EFFECTS: Final = _update(effects, ["call_id"], ("state", "changed_at", "resolved_by", "answer"))
UPDATE_APPROVALS: Final = _update(approvals, ["id"], ledger_codec.APPROVAL_COLUMNS)
USED: Final = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost_usd")
CLOSE_USAGE: Final = (
    update(usage)
    .where(usage.c.token == bindparam("key_token"), usage.c.status == literal_column("'reserved'"))
    .values(
        model=func.coalesce(
            func.nullif(bindparam("model"), literal_column("''")), usage.c.model
        ),  # not every reply names one
        **{name: bindparam(name) for name in ("status", "closed_at", *USED)},
    )
)
RESULTS: Final = select(results).where(
    members(results.c.run_id, "run_ids"), members(results.c.call_id, "call_ids")
)
INSERT_RESULTS: Final = insert_new(results)
INSERT_DEAD: Final = insert_new(dead)
INSERT_USAGE: Final = insert_new(usage)  # a lease that is asked for again under its token is one model call
INSERTS: Final = {
    table.name: insert(table)
    for table in (runs, run_inputs, turns, calls, commands, items, steps, events, effects, approvals, audit)
}


@dataclass(slots=True)
class Writes:
    """What one transaction writes, collected from all its transitions, then flushed table by table."""

    machine: Machine
    now: float
    inserted: dict[str, Rows] = field(default_factory=lambda: {name: [] for name in INSERTS})
    changed_runs: Rows = field(default_factory=list)
    changed_turns: Rows = field(default_factory=list)
    changed_calls: Rows = field(default_factory=list)
    changed_commands: Rows = field(default_factory=list)
    changed_effects: Rows = field(default_factory=list)
    resolved_effects: Rows = field(default_factory=list)
    changed_approvals: Rows = field(default_factory=list)
    deleted_commands: list[str] = field(default_factory=list)
    stored: Rows = field(default_factory=list)
    reuses: list[tuple[RunId, ReuseResult]] = field(default_factory=list)
    merges: list[tuple[RunId, AppendMerge]] = field(default_factory=list)
    opened_usage: Rows = field(default_factory=list)
    closed_usage: Rows = field(default_factory=list)
    dead: Rows = field(default_factory=list)

    # -- collect -------------------------------------------------------------------------------------------------------

    def add_new(self, new: NewRun, step: Step) -> None:
        """A run that did not exist."""
        created = {**codec.new_run_values(new, self.now), **codec.run_values(step.state, self.now)}
        self.inserted["runs"].append(created)
        self.inserted["run_inputs"].append(codec.input_values(new))
        self._commands(None, step.state, new.trace)
        self._turns(None, step)
        self._calls(None, step, new.tenant)
        self._records(new.run_id, new.tenant, step.records)

    def add(self, before: RunState, step: Step, *, tenant: str, trace: dict[str, str]) -> None:
        """One transition of a run that exists. Of a miss, only the records count."""
        after = step.state
        if step.missed is None and after is not before:
            self.changed_runs.append({"key_id": before.run_id, **codec.run_values(after, self.now)})
            self._turns(before, step)
            self._calls(before, step, tenant)
            self._commands(before, after, trace)
        self._records(before.run_id, tenant, step.records)

    def _turns(self, before: RunState | None, step: Step) -> None:
        after = step.state
        if before is not None:
            left = rules.phase_left(before, step)
            if left != before.phase:
                self.changed_turns.append(
                    {
                        "key_run_id": before.run_id,
                        "key_turn": before.turn,
                        "phase": left.value,
                        "merged_at": self.now if left is TurnPhase.MERGED else None,
                        "ended_at": self.now if left in (TurnPhase.MERGED, TurnPhase.ENDED) else None,
                    }
                )
        if before is None or before.turn != after.turn:
            self.inserted["turns"].append(
                {
                    "run_id": after.run_id,
                    "turn": after.turn,
                    "phase": after.phase.value,
                    "started_at": after.turn_started_at,
                    "merged_at": None,
                    "ended_at": None,
                }
            )

    def _calls(self, before: RunState | None, step: Step, tenant: str) -> None:
        after = step.state
        known = {} if before is None else {call.call_id: call for call in before.calls}
        if before is not None and (known or before.turn != after.turn):
            for call in rules.calls_left(before, step):
                self._call(before.run_id, before.turn, tenant, known.get(call.call_id), call)
        if before is None or before.turn != after.turn or not known:
            for call in after.calls:
                self._call(after.run_id, after.turn, tenant, known.get(call.call_id), call)

    def _call(self, run_id: RunId, turn: int, tenant: str, old: Any, call: Any) -> None:
        if old is None:
            self.inserted["calls"].append(codec.call_values(run_id, turn, call))
            return
        if old is call or old == call:
            return
        key = {"key_run_id": run_id, "key_turn": turn, "key_position": call.index}
        self.changed_calls.append({**key, **codec.changed_call_values(call)})
        if call.entry is not None and call.entry != old.entry:
            if old.entry is None:
                row = ledger_codec.new_entry_values(run_id, turn, tenant, call, self.now)
                self.inserted["effects"].append(row)
            else:
                values = ledger_codec.entry_values(call, self.now)
                self.changed_effects.append({"key_call_id": call.call_id, **values})
        if call.approval is not None and (call.approval, call.arguments) != (old.approval, old.arguments):
            if old.approval is None or old.approval.id != call.approval.id:
                row = ledger_codec.new_approval_values(run_id, turn, tenant, call)
                self.inserted["approvals"].append(row)
            else:
                self.changed_approvals.append(
                    {"key_id": call.approval.id, **ledger_codec.approval_values(call)}
                )

    def _commands(self, before: RunState | None, after: RunState, trace: dict[str, str]) -> None:
        known: dict[str, CommandRow] = {} if before is None else {row.id: row for row in before.commands}
        for row in after.commands:
            old = known.pop(row.id, None)
            if old is None:
                self.inserted["commands"].append(codec.new_command_values(after.run_id, trace, row, self.now))
            elif old != row:
                self.changed_commands.append({"key_id": row.id, **codec.command_values(row, self.now)})
        self.deleted_commands.extend(known)

    def _records(self, run_id: RunId, tenant: str, records: Sequence[Record]) -> None:
        for record in records:
            match record:
                case AppendItem(seq, turn, item):
                    self._item(run_id, seq, turn, item)
                case StoreResult(turn, result):
                    self.stored.append(codec.result_values(run_id, turn, result, self.now))
                case ReuseResult():
                    self.reuses.append((run_id, record))
                case AppendMerge():
                    self.merges.append((run_id, record))
                case OpenUsage():
                    self.opened_usage.append(
                        {
                            "token": record.token,
                            "run_id": run_id,
                            "tenant": tenant,
                            **rules.opened_usage(record, self.now),
                        }
                    )
                case CloseUsage():
                    self.closed_usage.append(_closed(record, self.now))
                case AppendStep():
                    self.inserted["steps"].append(_step(run_id, tenant, record, self.now))
                case AppendEvent(seq, type_, data):
                    event = {"run_id": run_id, "seq": seq, "type": type_, "at": self.now}
                    self.inserted["events"].append({**event, "data": codec.dump(data)})
                case AppendAudit(one):
                    self.inserted["audit"].append(ledger_codec.audit_values(one, tenant, self.now))
                case ResolveEffect():
                    self.resolved_effects.append(
                        {
                            "key_call_id": record.call_id,
                            "state": record.state.value,
                            "changed_at": self.now,
                            "resolved_by": record.by,
                            "answer": record.answer,
                        }
                    )
                case AppendDead():
                    self.dead.append(dead_values(rules.dead_letter(record, run_id, self.now), tenant))

    def _item(self, run_id: RunId, seq: int, turn: int, item: Any) -> None:
        self.inserted["items"].append(
            {"run_id": run_id, "seq": seq, "turn": turn, "kind": item.kind, "body": codec.dump(item)}
        )

    # -- write ---------------------------------------------------------------------------------------------------------

    def flush(self, connection: Connection) -> None:
        """Write it all: run, turn, call, command, result (R2), then what is only appended."""
        # Two stores that are given the same keys wait for each other's rows in one order.
        self.inserted["runs"].sort(key=lambda row: (row["tenant"], row["idempotency_key"] or "", row["id"]))
        self._insert(connection, "runs", "run_inputs")
        _many(connection, UPDATE_RUNS, self.changed_runs)
        self._insert(connection, "turns")
        _many(connection, UPDATE_TURNS, self.changed_turns)
        self._insert(connection, "calls")
        _many(connection, UPDATE_CALLS, self.changed_calls)
        if self.deleted_commands:
            connection.execute(DELETE_COMMANDS, {"ids": self.deleted_commands})
        _many(connection, UPDATE_COMMANDS, self.changed_commands)
        self._insert(connection, "commands")
        self._ledger(connection)
        self._results(connection)
        self._merge(connection)
        self._insert(connection, "items")
        _many(connection, INSERT_USAGE, self.opened_usage)
        _many(connection, CLOSE_USAGE, self.closed_usage)
        self._insert(connection, "steps", "events", "audit")
        _many(connection, INSERT_DEAD, self.dead)

    def _ledger(self, connection: Connection) -> None:
        """Effects by key, so that two stores that take the same keys wait for each other in one order."""
        for rows in (self.changed_effects, self.inserted["effects"]):
            rows.sort(key=lambda row: (row["key"], row.get("key_call_id", "")))
        _many(connection, UPDATE_EFFECTS, self.changed_effects)
        _many(connection, RESOLVE_EFFECTS, self.resolved_effects)
        self._insert(connection, "effects")
        _many(connection, UPDATE_APPROVALS, self.changed_approvals)
        self._insert(connection, "approvals")

    def _insert(self, connection: Connection, *names: str) -> None:
        for name in names:
            _many(connection, INSERTS[name], self.inserted[name])

    def _results(self, connection: Connection) -> None:
        if self.reuses:
            wanted = [(run_id, record.source) for run_id, record in self.reuses]
            sources = read_results(connection, wanted)
            for run_id, record in self.reuses:
                copy = rules.reused(record, sources[record.source])
                self.stored.append(codec.result_values(run_id, record.turn, copy, self.now))
        self.stored.sort(key=lambda row: (row["run_id"], row["turn"], row["call_id"]))
        _many(connection, INSERT_RESULTS, self.stored)

    def _merge(self, connection: Connection) -> None:
        """Each merge is made of the results as they are stored, so that it can say nothing else than they do."""
        if not self.merges:
            return
        wanted = [(run_id, call.call_id) for run_id, merge in self.merges for call in merge.calls]
        found = read_results(connection, wanted) if wanted else {}
        for run_id, merge in self.merges:
            of_turn: dict[str, CallResult] = {
                call.call_id: found[call.call_id] for call in merge.calls if call.call_id in found
            }
            self._item(run_id, merge.seq, merge.turn, self.machine.merge(merge.calls, of_turn))


def read_results(connection: Connection, wanted: Sequence[tuple[RunId, str]]) -> dict[str, CallResult]:
    """The stored results of these calls, by call id."""
    asked = {
        "run_ids": sorted({run_id for run_id, _ in wanted}),
        "call_ids": sorted({call_id for _, call_id in wanted}),
    }
    rows = connection.execute(RESULTS, asked).mappings()
    return {row["call_id"]: codec.call_result(row) for row in rows}


def _many(connection: Connection, statement: Insert | Update, rows: Rows) -> None:
    if rows:
        execute_many(connection, statement, rows)


def _closed(record: CloseUsage, now: float) -> dict[str, Any]:
    used = {name: getattr(record, name) for name in USED}
    return {
        "key_token": record.token,
        "status": record.status,
        "model": record.model,
        "closed_at": now,
        **used,
    }


def _step(run_id: RunId, tenant: str, record: AppendStep, now: float) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "tenant": tenant,
        "turn": record.turn,
        "kind": record.kind,
        "outcome": str(record.outcome),
        "call_id": record.call_id,
        "tool_name": record.tool_name,
        "attempt": record.attempt,
        "at": now,
        "fields": codec.dump(record.fields),
    }


def dead_values(letter: DeadLetter, tenant: str | None) -> dict[str, Any]:
    """The row of a dead letter. PostgreSQL takes no NUL in a text, and a detail may quote anything."""
    return {
        "id": letter.id,
        "tenant": tenant,
        "kind": letter.kind,
        "queue": letter.queue,
        "reason": letter.reason,
        "at": letter.at,
        "run_id": letter.run_id,
        "turn": letter.turn,
        "call_id": letter.call_id,
        "body": letter.body,
        "detail": letter.detail.replace("\x00", "\\0"),
    }
