"""A model that makes one call again and again is told, then stopped, and the call hardly runs."""

from __future__ import annotations

import pytest

from tests.unit.machine_builders import came_to, lease_decision, ok, proposed, replied, submitted
from toolfleet.schemas.events import CallsSettled
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, RunStatus
from toolfleet.schemas.records import ReuseResult, StoreResult
from toolfleet.workers.machine import reduce


@pytest.mark.parametrize("outcome", [CallOutcome.OK, CallOutcome.FAILED, CallOutcome.BUSINESS_ERROR])
def test_a_call_made_for_ever_runs_at_most_three_times(outcome: CallOutcome) -> None:
    # B069: the same tool and canonical arguments; ids and labels vary.
    state = submitted(Limits(turns_max=50, calls_max=50))
    executions, told, now = 0, [], 1.0
    while not state.terminal:
        leased = reduce(state, lease_decision(state, f"d{now}"), now).state
        call = proposed(0, signature="noop({})", wire_id=f"call_{now}", tool="noop")
        step = reduce(leased, replied(leased, [call], text=f"step {now}"), now + 1)
        state = step.state
        told += [r.notice for r in step.records if isinstance(r, ReuseResult) and r.notice]
        told += [r.result.reason for r in step.records if isinstance(r, StoreResult)]
        if state.open_calls:
            executions += 1
            (open_call,) = state.open_calls
            result = ok(open_call) if outcome is CallOutcome.OK else came_to(open_call, outcome)
            state = reduce(state, CallsSettled((result,)), now + 2).state
        now += 10

    assert executions <= 3
    assert told, "the model was told before it was stopped"
    assert (state.status, state.reason) == (RunStatus.LIMIT_REACHED, ReasonCode.REPEATED_CALL)
    assert state.turn == 5
    assert state.output is not None and "made again and again" in state.output
