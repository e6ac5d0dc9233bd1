"""Transitions that stop a run from outside: cancel and the wall deadline (T21, T23)."""

from __future__ import annotations

from toolfleet.schemas.envelopes import error
from toolfleet.schemas.events import CancelRequested, DeadlineReached
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, RunStatus
from toolfleet.schemas.records import Step
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import closing
from toolfleet.workers.machine.draft import Draft, miss
from toolfleet.workers.machine.gates import not_run


def cancel(state: RunState, event: CancelRequested, now_s: float) -> Step:
    """T21: every open call whose effect has not begun is cancelled; those that have begun run to their outcome, and
    the open calls of the new state are what the acknowledgement lists."""
    if state.terminal:
        return miss(state, f"run is {state.status.value}")
    if state.status is RunStatus.CANCELLING:
        return miss(state, "run is being cancelled")
    draft = Draft(state, now_s)
    if state.status in (RunStatus.QUEUED, RunStatus.DECIDING):
        closing.end(draft, RunStatus.CANCELLED, ReasonCode.CANCELLED, closing.CANCELLED_SENTENCE)
        return draft.step()
    # Without the deadline: it stops already, and the keeper need not find it overdue in each of its periods.
    draft.change(status=RunStatus.CANCELLING, deadline_at=None)
    draft.event("run.cancelling", by=event.by, running=[c.call_id for c in state.open_calls if c.dispatched])
    for call in state.open_calls:
        if not call.dispatched:
            draft.result(call, stopped_result(draft.state, call))
    closing.count(draft)
    return draft.step()


def deadline(state: RunState, event: DeadlineReached, now_s: float) -> Step:
    """T23: as a cancel, with `limit_reached` and open calls `not_run`."""
    if state.terminal or state.deadline_at is None or state.deadline_at > now_s:
        return miss(state, "not overdue")
    if state.status is RunStatus.CANCELLING or state.ending == ReasonCode.DEADLINE:
        return miss(state, "stopping already")
    draft = Draft(state, now_s)
    if state.status in (RunStatus.QUEUED, RunStatus.DECIDING):
        closing.end_by_limit(draft, ReasonCode.DEADLINE)
        return draft.step()
    draft.change(ending=str(ReasonCode.DEADLINE), deadline_at=None)  # said once
    for call in state.open_calls:
        if not call.dispatched:
            draft.result(call, stopped_result(draft.state, call))
    closing.count(draft)
    return draft.step()


def stopped_result(state: RunState, call: CallState) -> CallResult:
    """What a call comes to that is not begun because its run stops."""
    if state.status is not RunStatus.CANCELLING:
        return not_run(call, ReasonCode.DEADLINE, "not run: the deadline of the request has passed")
    content = error(
        outcome=CallOutcome.CANCELLED, reason=ReasonCode.CANCELLED, message="the run was cancelled"
    )
    return CallResult(call.call_id, call.index, CallOutcome.CANCELLED, content, reason=ReasonCode.CANCELLED)
