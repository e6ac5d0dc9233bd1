"""The rows of one run in memory, and how a transition writes them: the fake's counterpart of `apply.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolfleet.adapters.store import rules
from toolfleet.schemas.effects import Audit
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
from toolfleet.schemas.views import (
    ApprovalView,
    DeadLetter,
    EffectView,
    RunEvent,
    RunInfo,
    StepView,
    StoredItem,
)


@dataclass(slots=True)
class MemoryRun:
    """All rows of one run. Replaced as a whole by a transition (copy on write), so that one that raises leaves none."""

    new: NewRun
    state: RunState
    created_at: float
    finished_at: float | None = None
    items: list[StoredItem] = field(default_factory=list)
    results: dict[tuple[int, str], CallResult] = field(default_factory=dict)
    steps: list[StepView] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    effects: dict[str, EffectView] = field(default_factory=dict)  # by call id
    approvals: dict[str, ApprovalView] = field(default_factory=dict)  # by their own

    def copy(self) -> MemoryRun:
        return replace(
            self,
            items=list(self.items),
            results=dict(self.results),
            steps=list(self.steps),
            events=list(self.events),
            usage={token: dict(row) for token, row in self.usage.items()},
            dead=[],
            audits=[],
            effects=dict(self.effects),
            approvals=dict(self.approvals),
        )

    def info(self) -> RunInfo:
        return rules.info_of(self.new, self.created_at, self.finished_at)

    def write(self, machine: Machine, before: RunState | None, step: Step, now: float) -> None:
        """What the step leaves behind; `state` is the new one already."""
        if self.state.terminal and (before is None or not before.terminal):
            self.finished_at = now
        if before is not None and step.missed is None:
            self._ledger(before, step, now)
        merges = []
        for record in step.records:
            if isinstance(record, AppendMerge):
                merges.append(record)
            else:
                self._record(record, now)
        for merge in merges:  # last, so that they find every result of this transition
            stored = {call.call_id: self.results.get((merge.turn, call.call_id)) for call in merge.calls}
            results: dict[str, CallResult] = {
                call_id: result for call_id, result in stored.items() if result is not None
            }
            item = machine.merge(merge.calls, results)
            self.items.append(StoredItem(merge.seq, merge.turn, item))
        self.items.sort(key=lambda item: item.seq)
        _assert_unique([item.seq for item in self.items], "items")
        _assert_unique([event.seq for event in self.events], "events")

    def _ledger(self, before: RunState, step: Step, now: float) -> None:
        known = {call.call_id: call for call in before.calls}
        for call in rules.calls_left(before, step):
            old = known.get(call.call_id)
            if old is None:
                continue
            if call.entry is not None and call.entry != old.entry:
                view = self.effects.get(call.call_id) or rules.new_effect(self.new, before.turn, call, now)
                self.effects[call.call_id] = replace(
                    view, entry=call.entry, tier=call.tier, arguments=call.arguments, changed_at=now
                )
            if call.approval is not None and (call.approval, call.arguments) != (old.approval, old.arguments):
                self.approvals[call.approval.id] = rules.approval_view(self.new, before.turn, call)

    def _record(self, record: Record, now: float) -> None:
        run_id = self.new.run_id
        match record:
            case AppendItem(seq, turn, item):
                self.items.append(StoredItem(seq, turn, item))
            case StoreResult(turn, result):
                self.results.setdefault((turn, result.call_id), result)
            case ReuseResult(turn, call_id, _, source, _):
                found = next(result for (_, id_), result in self.results.items() if id_ == source)
                self.results.setdefault((turn, call_id), rules.reused(record, found))
            case OpenUsage():
                self.usage.setdefault(record.token, rules.opened_usage(record, now))
            case CloseUsage():
                _close(self.usage.get(record.token), record, now)
            case AppendStep():
                self.steps.append(_step(record, now))
            case AppendEvent(seq, type_, data):
                self.events.append(RunEvent(run_id, seq, type_, now, data))
            case AppendAudit(audit):
                self.audits.append(replace(audit, tenant=audit.tenant or self.new.tenant))
            case ResolveEffect():
                found_effect = self.effects[record.call_id]
                entry = replace(found_effect.entry, state=record.state)
                self.effects[record.call_id] = replace(
                    found_effect, entry=entry, resolved_by=record.by, answer=record.answer, changed_at=now
                )
            case AppendDead():
                self.dead.append(rules.dead_letter(record, run_id, now))
            case AppendMerge():
                raise AssertionError("merges are made after all results are stored")


def _assert_unique(numbers: Sequence[int], what: str) -> None:
    assert len(set(numbers)) == len(numbers), f"two {what} have one number"


def _close(row: dict[str, Any] | None, record: CloseUsage, now: float) -> None:
    if row is None or row["status"] != "reserved":
        return
    row.update(
        status=record.status,
        model=record.model or row["model"],
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cached_tokens=record.cached_tokens,
        reasoning_tokens=record.reasoning_tokens,
        cost_usd=record.cost_usd,
        closed_at=now,
    )


def _step(record: AppendStep, now: float) -> StepView:
    return StepView(
        turn=record.turn,
        kind=record.kind,
        outcome=str(record.outcome),
        call_id=record.call_id,
        tool_name=record.tool_name,
        attempt=record.attempt,
        at=now,
        fields=dict(record.fields),
    )
