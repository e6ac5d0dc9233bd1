"""What a batch of transitions writes: the differences between states, and the records, as rows of each table. Pure.

Collected over all runs of a batch, so that each table is written by one multi-row statement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_never

from toolfleet.adapters.sqlstore import codec
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.records import (
    AppendDead,
    AppendEvent,
    AppendItem,
    AppendMerge,
    AppendStep,
    CloseUsage,
    OpenUsage,
    Record,
    ReuseResult,
    StoreResult,
)
from toolfleet.schemas.run import NewRun, RunState

Rows = list[dict[str, Any]]


@dataclass(slots=True)
class Changes:
    """Rows to write, by table and kind; merges and copies wait until the results of the batch are in."""

    runs_new: Rows = field(default_factory=list)
    runs: Rows = field(default_factory=list)
    turns: Rows = field(default_factory=list)
    calls_new: Rows = field(default_factory=list)
    calls: Rows = field(default_factory=list)
    commands_new: Rows = field(default_factory=list)
    commands: Rows = field(default_factory=list)
    commands_gone: Rows = field(default_factory=list)
    results: Rows = field(default_factory=list)
    copies: list[tuple[RunId, ReuseResult]] = field(default_factory=list)
    items: Rows = field(default_factory=list)
    merges: list[tuple[RunId, AppendMerge]] = field(default_factory=list)
    usage_new: Rows = field(default_factory=list)
    usage: Rows = field(default_factory=list)
    steps: Rows = field(default_factory=list)
    events: Rows = field(default_factory=list)
    dead: Rows = field(default_factory=list)

    def begin(self, new: NewRun, state: RunState, now_s: float) -> None:
        """A run that did not exist."""
        self.runs_new.append({**codec.new_run_columns(new, now_s), **codec.state_columns(state, None)})
        self._difference(None, state, now_s)

    def move(self, before: RunState, after: RunState, now_s: float) -> None:
        """A run whose state changed."""
        finished_at = now_s if after.terminal else None
        self.runs.append({**codec.state_columns(after, finished_at), "b_run_id": after.run_id})
        self._difference(before, after, now_s)

    def _difference(self, before: RunState | None, after: RunState, now_s: float) -> None:
        run_id = after.run_id
        if before is None or (before.turn, before.phase) != (after.turn, after.phase):
            self._turn(before, after, now_s)
        old_calls = {} if before is None else {call.call_id: call for call in before.calls}
        for call in after.calls:
            old = old_calls.get(call.call_id)
            if old is None:
                self.calls_new.append(codec.call_columns(call, run_id, after.turn))
            elif old != call:
                self._call(codec.call_columns(call, run_id, after.turn))
        old_rows = {} if before is None else {row.id: row for row in before.commands}
        for row in after.commands:
            known = old_rows.pop(row.id, None)
            if known is None:
                self.commands_new.append(codec.command_columns(row, run_id))
            elif known != row:
                columns = codec.command_columns(row, run_id)
                columns["b_id"] = columns.pop("id")
                self.commands.append(columns)
        self.commands_gone.extend({"b_id": row_id} for row_id in old_rows)

    def _turn(self, before: RunState | None, after: RunState, now_s: float) -> None:
        if before is not None and before.turn != after.turn:
            self.turns.append(self._turn_row(before, "merged" if before.calls else "ended", now_s))
        self.turns.append(self._turn_row(after, after.phase.value, now_s))

    def _turn_row(self, state: RunState, phase: str, now_s: float) -> dict[str, Any]:
        return {
            "run_id": state.run_id,
            "turn": state.turn,
            "phase": phase,
            "calls": len(state.calls),
            "changed_at": now_s,
        }

    def _call(self, columns: dict[str, Any]) -> None:
        changing = ("waiting", "attempt", "dispatched", "outcome")
        self.calls.append({**{name: columns[name] for name in changing}, "b_call_id": columns["call_id"]})

    def record(self, run_id: RunId, record: Record, now_s: float) -> None:
        """One record of a transition."""
        match record:
            case AppendItem():
                self.items.append(item_row(run_id, record.seq, record.turn, record.item, now_s))
            case StoreResult():
                self.results.append(codec.result_columns(record.result, run_id, record.turn, now_s))
            case ReuseResult():
                self.copies.append((run_id, record))
            case AppendMerge():
                self.merges.append((run_id, record))
            case AppendStep():
                self.steps.append(
                    {
                        "run_id": run_id,
                        "turn": record.turn,
                        "kind": record.kind,
                        "outcome": record.outcome,
                        "call_id": record.call_id,
                        "tool_name": record.tool_name,
                        "attempt": record.attempt,
                        "fields": codec.dumps(record.fields),
                        "at": now_s,
                    }
                )
            case AppendEvent():
                data = codec.dumps(record.data)
                self.events.append(
                    {"run_id": run_id, "seq": record.seq, "type": record.type, "data": data, "at": now_s}
                )
            case OpenUsage() | CloseUsage():
                self._usage(run_id, record, now_s)
            case AppendDead():
                self.dead.append(
                    {
                        "id": f"{record.command_id}@{record.deaths}",
                        "kind": "step",
                        "queue": record.queue,
                        "reason": record.reason,
                        "at": now_s,
                        "run_id": run_id,
                        "turn": record.turn,
                        "call_id": record.call_id,
                        "body": None,
                        "detail": f"given up after {record.deaths} deaths",
                    }
                )
            case _:
                assert_never(record)

    def _usage(self, run_id: RunId, record: OpenUsage | CloseUsage, now_s: float) -> None:
        if isinstance(record, CloseUsage):
            self.usage.append(
                {
                    "b_token": record.token,
                    "status": record.status,
                    "model": record.model,
                    "cost_usd": record.cost_usd,
                    "input_tokens": record.input_tokens,
                    "output_tokens": record.output_tokens,
                    "cached_tokens": record.cached_tokens,
                    "reasoning_tokens": record.reasoning_tokens,
                }
            )
            return
        self.usage_new.append(
            {
                "token": record.token,
                "run_id": run_id,
                "turn": record.turn,
                "attempt": record.attempt,
                "status": "reserved",
                "model": record.model,
                "reserved_usd": record.reserved_usd,
                "cost_usd": record.reserved_usd,
                "input_tokens": 0,
                "output_tokens": 0,
                "cached_tokens": 0,
                "reasoning_tokens": 0,
                "at": now_s,
            }
        )


def item_row(run_id: RunId, seq: int, turn: int, item: Any, now_s: float) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "seq": seq,
        "turn": turn,
        "kind": item.kind,
        "body": codec.item_body(item),
        "at": now_s,
    }
