"""Transitions of a lease: expired, poison, handed back, given up until later (T16, T17, T24, T5)."""

from __future__ import annotations

from dataclasses import replace

from toolfleet.schemas.events import DecisionDeferred, HandedBack, LeaseExpired
from toolfleet.schemas.limits import DEATHS_MAX
from toolfleet.schemas.outcomes import ReasonCode, RunStatus
from toolfleet.schemas.records import AppendDead, CloseUsage, Step
from toolfleet.schemas.run import RunState
from toolfleet.workers.machine import call, closing
from toolfleet.workers.machine.draft import Draft, miss
from toolfleet.workers.machine.turn import FAILED_SENTENCE


def expired(state: RunState, event: LeaseExpired, now_s: float) -> Step:
    """T16: one death more, and the step is due now; at the third death, T17: it is given up."""
    row = state.command(event.command_id)
    if row is None or row.token != event.token or row.lease_until is None:
        return miss(state, "lease ended")
    if row.lease_until >= now_s and not event.owner_gone:
        return miss(state, "lease renewed")
    draft = Draft(state, now_s)
    row = replace(row, deaths=row.deaths + (1 if event.death else 0))
    if row.deaths < DEATHS_MAX:
        draft.put(row.due(now_s))
        if row.is_decide:
            draft.change(status=RunStatus.QUEUED)
            draft.set_counters(replace(state.counters, reserved_usd=0.0))  # stands as spent
        draft.event("lease.expired", step=row.queue, turn=state.turn, deaths=row.deaths)
        return draft.step()
    if row.is_decide:
        draft.add(AppendDead(row.id, row.queue, state.turn, None, ReasonCode.WORKER_LOST, row.deaths))
        closing.end(draft, RunStatus.FAILED, ReasonCode.WORKER_LOST, FAILED_SENTENCE)
        return draft.step()
    lost = state.call(row.call_id or "")
    if lost is None or not lost.open:
        return miss(state, "call closed")
    call.give_up(draft, row, lost)
    return draft.step()


def handed_back(state: RunState, event: HandedBack, now_s: float) -> Step:
    """T24: a worker that stops gives the step back at once. Not one whose effect may have begun: that waits for its
    outcome, or for the lease to expire."""
    row = state.command(event.command_id)
    if row is None or row.token != event.token:
        return miss(state, "lease lost")
    held = state.call(row.call_id) if row.call_id is not None else None
    if held is not None and held.dispatched:
        return miss(state, "its effect may have begun")
    draft = Draft(state, now_s)
    draft.put(row.due(now_s))
    if row.is_decide:
        draft.change(status=RunStatus.QUEUED, model_attempt=max(0, state.model_attempt - 1))
        draft.set_counters(replace(state.counters, reserved_usd=0.0))
    return draft.step()


def deferred(state: RunState, event: DecisionDeferred, now_s: float) -> Step:
    """T5: it is not this decision's turn at the model. Nothing was asked, so nothing was used, no try neither."""
    row = state.command(event.command_id)
    if row is None or row.token != event.token or not row.is_decide:
        return miss(state, "lease lost")
    draft = Draft(state, now_s)
    draft.add(CloseUsage(event.token, status="deferred", model=""))
    draft.count(cost_usd=-state.counters.reserved_usd)
    draft.set_counters(replace(draft.state.counters, reserved_usd=0.0))
    draft.put(row.due(now_s + event.delay_s))
    index, begun = state.model_index + event.next_model, max(0, state.model_attempt - 1)
    draft.change(status=RunStatus.QUEUED, model_attempt=begun, model_index=index)
    draft.event("turn.deferred", turn=state.turn, reason=event.reason, delay_s=round(event.delay_s, 3))
    return draft.step()
