"""What follows: one pure function from the state of a run and an event to the next state and its records.

The dispatcher, and nothing else. Transitions of a turn are in `turn.py`, of a call in `call.py`, the pure gates in
`gates.py`, limits in `limits.py`, what the gates of the present decide in `present.py`, approvals in `approval.py`, the
effect ledger in `effect.py`. No I/O, clock, randomness or logging in this package.
"""

from __future__ import annotations

from typing import assert_never

from toolfleet.schemas.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallAnswered,
    CallDeferred,
    CallFinished,
    CallLeased,
    CallRefused,
    CallRetry,
    CallsSettled,
    CallWoken,
    CancelRequested,
    DeadlineReached,
    DecisionDeferred,
    DecisionLeased,
    EffectClaimed,
    EffectEnded,
    EffectResolved,
    Event,
    HandedBack,
    LeaseExpired,
    ModelFailed,
    ModelReplied,
    ReconcileAnswered,
    ReconcileStarted,
    RunUnworkable,
    Submitted,
    TierRaised,
)
from toolfleet.schemas.records import Step
from toolfleet.schemas.run import RunState
from toolfleet.workers.machine import approval, call, effect, lease, present, stop, turn


def reduce(state: RunState | None, event: Event, now_s: float) -> Step:
    """The next state and its records; a miss where somebody was faster or the step is gone.

    `state` is None only for `Submitted`; `now_s` is the database's time, seconds since the epoch.
    """
    if isinstance(event, Submitted):
        return turn.submitted(state, event, now_s)
    if state is None:
        raise ValueError(f"{type(event).__name__} needs the state of its run")
    match event:
        case DecisionLeased():
            return turn.decision_leased(state, event, now_s)
        case ModelReplied():
            return turn.model_replied(state, event, now_s)
        case ModelFailed():
            return turn.model_failed(state, event, now_s)
        case RunUnworkable():
            return turn.run_unworkable(state, event, now_s)
        case DecisionDeferred():
            return lease.deferred(state, event, now_s)
        case CallLeased():
            return call.leased(state, event, now_s)
        case CallFinished():
            return call.finished(state, event, now_s)
        case CallRetry():
            return call.retry(state, event, now_s)
        case CallRefused() | CallDeferred() | TierRaised() | ApprovalRequested() | CallWoken():
            return _present(state, event, now_s)
        case ApprovalDecided():
            return approval.decided(state, event, now_s)
        case EffectClaimed() | EffectEnded() | ReconcileStarted() | ReconcileAnswered() | EffectResolved():
            return _effect(state, event, now_s)
        case CallsSettled():
            return call.settled(state, event, now_s)
        case CallAnswered():
            return call.answered(state, event, now_s)
        case LeaseExpired():
            return lease.expired(state, event, now_s)
        case HandedBack():
            return lease.handed_back(state, event, now_s)
        case CancelRequested():
            return stop.cancel(state, event, now_s)
        case DeadlineReached():
            return stop.deadline(state, event, now_s)
        case _:
            assert_never(event)


def _present(
    state: RunState,
    event: CallRefused | CallDeferred | TierRaised | ApprovalRequested | CallWoken,
    now_s: float,
) -> Step:
    match event:
        case CallRefused():
            return present.refused(state, event, now_s)
        case CallDeferred():
            return present.deferred(state, event, now_s)
        case TierRaised():
            return present.raised(state, event, now_s)
        case ApprovalRequested():
            return approval.requested(state, event, now_s)
        case CallWoken():
            return present.woken(state, event, now_s)
        case _:
            assert_never(event)


def _effect(
    state: RunState,
    event: EffectClaimed | EffectEnded | ReconcileStarted | ReconcileAnswered | EffectResolved,
    now_s: float,
) -> Step:
    match event:
        case EffectClaimed():
            return effect.claimed(state, event, now_s)
        case EffectEnded():
            return effect.ended(state, event, now_s)
        case ReconcileStarted():
            return effect.asked(state, event, now_s)
        case ReconcileAnswered():
            return effect.answered(state, event, now_s)
        case EffectResolved():
            return effect.resolved(state, event, now_s)
        case _:
            assert_never(event)
