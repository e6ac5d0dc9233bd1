"""What follows: one pure function from the state of a run and an event to the next state and its records.

The dispatcher, and nothing else. Transitions of a turn are in `turn.py`, of a call in `call.py`, the pure gates in
`gates.py`, limits in `limits.py`. No I/O, clock, randomness or logging in this package.
"""

from __future__ import annotations

from typing import assert_never

from toolfleet.schemas.events import (
    CallAnswered,
    CallFinished,
    CallLeased,
    CallRetry,
    CallsSettled,
    CancelRequested,
    DeadlineReached,
    DecisionDeferred,
    DecisionLeased,
    Event,
    HandedBack,
    LeaseExpired,
    ModelFailed,
    ModelReplied,
    RunUnworkable,
    Submitted,
)
from toolfleet.schemas.records import Step
from toolfleet.schemas.run import RunState
from toolfleet.workers.machine import call, lease, stop, turn


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
