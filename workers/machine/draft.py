"""A transition being written: the state so far and the records so far.

The only mutable thing in the machine, made and used up inside one call of `reduce`. It numbers items and events, so
that no transition can leave a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.conversation import Item
from toolfleet.schemas.effects import Approval, ApprovalStatus, Audit, arguments_hash
from toolfleet.schemas.ids import CallId, RunId
from toolfleet.schemas.limits import Counters
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, RunStatus, Tier
from toolfleet.schemas.records import (
    AppendAudit,
    AppendEvent,
    AppendItem,
    AppendMerge,
    AppendStep,
    Record,
    Step,
    StoreResult,
)
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState


class Draft:
    """Collects one transition; `step()` is what it came to."""

    def __init__(self, state: RunState, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.records: list[Record] = []

    def change(self, **fields: Any) -> None:
        self.state = replace(self.state, **fields)

    def count(self, **fields: float) -> None:
        """Add to counters by name."""
        counters = self.state.counters
        added: dict[str, Any] = {name: getattr(counters, name) + value for name, value in fields.items()}
        self.change(counters=replace(counters, **added))

    def set_counters(self, counters: Counters) -> None:
        self.change(counters=counters)

    def put(self, row: CommandRow) -> None:
        """Put a command row, or change the one of that id."""
        rows = tuple(row if old.id == row.id else old for old in self.state.commands)
        if all(old.id != row.id for old in self.state.commands):
            rows = (*rows, row)
        self.change(commands=rows)

    def drop(self, unwanted: Callable[[CommandRow], bool]) -> None:
        self.change(commands=tuple(row for row in self.state.commands if not unwanted(row)))

    def set_call(self, call_id: CallId, **fields: Any) -> None:
        self.change(
            calls=tuple(
                replace(call, **fields) if call.call_id == call_id else call for call in self.state.calls
            )
        )

    def called(self, call_id: CallId, **fields: Any) -> CallState:
        """The call with these fields changed."""
        self.set_call(call_id, **fields)
        changed = self.state.call(call_id)
        assert changed is not None
        return changed

    def add(self, record: Record) -> None:
        self.records.append(record)

    def item(self, item: Item) -> None:
        self.add(AppendItem(self.state.item_count, self.state.turn, item))
        self.change(item_count=self.state.item_count + 1)

    def merge(self) -> None:
        self.add(AppendMerge(self.state.item_count, self.state.turn, self.state.calls))
        self.change(item_count=self.state.item_count + 1)

    def event(self, type_: str, **data: Any) -> None:
        self.change(event_count=self.state.event_count + 1)
        self.add(AppendEvent(self.state.event_count, type_, data))

    def result(self, call: CallState, result: CallResult) -> None:
        """Give an open call its terminal outcome: the one place where a call closes."""
        assert call.open, f"{call.call_id} has an outcome"
        self.add(StoreResult(self.state.turn, result))
        self.close_call(call, result)

    def close_call(self, call: CallState, result: CallResult) -> None:
        self.set_call(
            call.call_id,
            outcome=result.outcome,
            waits_key="",
            attempt=max(call.attempt, result.attempt),
            approval=withdrawn(call, self.now_s),
        )
        self.count(tool_s=result.tool_s, queue_s=result.queue_s)
        self.change(turn_tool_s=max(self.state.turn_tool_s, result.tool_s))
        self.add(
            AppendStep(
                kind="call",
                turn=self.state.turn,
                outcome=result.outcome.value,
                call_id=call.call_id,
                tool_name=call.tool,
                attempt=result.attempt,
                fields={
                    "reason": result.reason,
                    "tier": call.tier.value,
                    "repaired": call.repaired,
                    "tool_s": result.tool_s,
                    "queue_s": result.queue_s,
                },
            )
        )
        if call.tier is not Tier.LOW and call.approval is None:  # else the question was written down
            self.add(AppendAudit(_ran(self.state.run_id, call, result)))
        self.event(
            "call.finished",
            call_id=call.call_id,
            turn=self.state.turn,
            tool=call.tool,
            outcome=result.outcome.value,
            reason=result.reason,
        )

    def step(self) -> Step:
        return Step(self.state, tuple(self.records))


def withdrawn(call: CallState, now_s: float) -> Approval | None:
    """Nobody is asked any more about a call that is settled."""
    asked = call.approval
    if asked is None or asked.status is not ApprovalStatus.PENDING:
        return asked
    return replace(asked, status=ApprovalStatus.WITHDRAWN, decided_at=now_s)


def miss(state: RunState, why: str) -> Step:
    """Nothing follows: somebody was faster, or the step is gone."""
    return Step(state, (), missed=why)


def stopping(state: RunState) -> bool:
    """Nothing new may begin in this run."""
    return state.status is not RunStatus.WAITING or state.ending == ReasonCode.DEADLINE


def refusal_of(row: CommandRow | None, now_s: float) -> str | None:
    """R8, no row, no work: why this row may not be worked on now, or None."""
    if row is None:
        return "row gone"
    if row.due_at > now_s:
        return "not yet due"
    if row.token is not None:
        return "leased"
    return None


def _ran(run_id: RunId, call: CallState, result: CallResult) -> Audit:
    """What a call above low that nobody was asked about came to."""
    return Audit(
        action="call",
        accepted=result.outcome is CallOutcome.OK,
        reason=result.reason or result.outcome.value,
        run_id=run_id,
        call_id=call.call_id,
        data={
            "tool": call.tool,
            "tier": call.tier.value,
            "outcome": result.outcome.value,
            "arguments_hash": arguments_hash(call.arguments),
        },
    )
