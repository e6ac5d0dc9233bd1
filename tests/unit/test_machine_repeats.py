"""The repeat gate and the correction count: what is a repeat, what is not, and when a run is stopped for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.machine_builders import (
    begin,
    came_to,
    effect,
    finish,
    invalid,
    lease_decision,
    ok,
    proposed,
    replied,
    submitted,
    with_calls,
)
from tests.unit.machine_invariants import check_invariants
from toolfleet.schemas.events import CallsSettled, Event, ProposedCall
from toolfleet.schemas.limits import REPEAT_WINDOW, Limits
from toolfleet.schemas.outcomes import CallOutcome, RunStatus
from toolfleet.schemas.records import ReuseResult, Step
from toolfleet.schemas.run import RunState
from toolfleet.workers.machine import reduce

LONG = Limits(turns_max=100, calls_max=100)
READ = proposed(0)


def _feed(state: RunState, event: Event, now_s: float = 5.0) -> Step:
    step = reduce(state, event, now_s)
    check_invariants(state, event, step, now_s)
    return step


def _settle(state: RunState, outcome: CallOutcome = CallOutcome.OK) -> RunState:
    """All open calls come to that outcome, effects through their executor, and the turn is counted."""
    for call in state.open_calls:
        if call.effect:
            state = _feed(state, begin(call, f"c{state.turn}")).state
            state = _feed(state, finish(call, outcome=outcome)).state
    return _feed(state, CallsSettled(tuple(came_to(call, outcome) for call in state.open_calls))).state


def _ask(state: RunState, calls: Iterable[ProposedCall], *, parallel: bool = True) -> Step:
    """The model replies to the outstanding decision with these calls."""
    leased = _feed(state, lease_decision(state, f"d{state.turn}")).state
    return _feed(leased, replied(leased, calls, parallel=parallel))


def _reuses(step: Step) -> list[ReuseResult]:
    return [record for record in step.records if isinstance(record, ReuseResult)]


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (READ, CallOutcome.FAILED),
        (effect(0), CallOutcome.OK),
        (effect(0), CallOutcome.BUSINESS_ERROR),
    ],
)
def test_a_call_that_cannot_be_reused_runs_three_times_is_withdrawn_and_then_stops_the_run(
    call: ProposedCall, outcome: CallOutcome
) -> None:
    state, _ = with_calls([call], LONG)

    for _ in (2, 3):
        step = _ask(_settle(state, outcome), [call])
        state = step.state
        assert [one.open for one in state.calls] == [True] and not _reuses(step)
        assert not state.withdrawn

    state = _ask(_settle(state, outcome), [call]).state
    assert state.withdrawn == (call.tool,) and state.status is RunStatus.QUEUED  # answered, not run

    state = _ask(state, [call]).state
    assert (state.status, state.reason) == (RunStatus.LIMIT_REACHED, "repeated_call")


@pytest.mark.parametrize("call", [READ, effect(0)])
def test_the_fifth_equal_call_of_a_tool_that_is_not_withdrawn_stops_the_run(call: ProposedCall) -> None:
    state, _ = with_calls([call, replace(call, index=1, wire_id="w1")], LONG)
    state = _ask(_settle(state), [call, replace(call, index=1, wire_id="w1")]).state
    state = replace(_settle(state) if state.open_calls else state, withdrawn=())

    step = _ask(state, [call, proposed(1)])

    assert (step.state.status, step.state.reason) == (RunStatus.LIMIT_REACHED, "repeated_call")
    assert [one.outcome for one in step.state.calls] == [CallOutcome.NOT_RUN, CallOutcome.NOT_RUN]


def test_calls_before_the_one_that_stops_the_run_still_run() -> None:
    state, _ = with_calls(
        [READ, replace(READ, index=1), replace(READ, index=2), replace(READ, index=3)], LONG
    )

    state = _ask(_settle(state), [proposed(0, tool="other", signature="other"), replace(READ, index=1)]).state

    assert [one.open for one in state.calls] == [True, False] and state.ending == "repeated_call"
    assert _settle(state).status is RunStatus.LIMIT_REACHED


def test_equal_reads_within_one_turn_each_run() -> None:
    state, step = with_calls([READ, replace(READ, index=1, wire_id="w1")])

    assert len(state.open_calls) == 2 and not _reuses(step)


@pytest.mark.parametrize("call", [proposed(0, repeatable=True), replace(effect(0), repeatable=True)])
def test_a_repeatable_call_is_never_stopped(call: ProposedCall) -> None:
    state, _ = with_calls([call], LONG)

    for _ in range(8):
        step = _ask(_settle(state), [call])
        state = step.state
        assert len(state.open_calls) == 1 and not _reuses(step) and not state.withdrawn


def test_a_reuse_names_the_newest_good_result_and_counts_no_call() -> None:
    state, _ = with_calls([READ], LONG)
    first = state.calls[0].call_id
    state = _settle(state)

    step = _ask(state, [READ])

    (reuse,) = _reuses(step)
    assert reuse.source == first and reuse.notice == ""
    assert step.state.counters.tool_calls == 1 and step.state.turn == 3
    (again,) = _reuses(_ask(step.state, [READ]))
    assert again.source == f"call_1_{2}_0" and "3 times" in again.notice


def test_a_read_that_failed_last_is_not_answered_with_an_older_success() -> None:
    state, _ = with_calls([READ, effect(1)], LONG)
    state = _ask(_settle(state), [READ]).state  # after an effect: runs again
    state = _settle(state, CallOutcome.FAILED)

    step = _ask(state, [READ])

    assert not _reuses(step) and len(step.state.open_calls) == 1


def test_other_arguments_are_no_repeat() -> None:
    state, _ = with_calls([READ], LONG)

    for number in range(6):
        state = _ask(_settle(state), [replace(READ, signature=f"other{number}")]).state
        assert len(state.open_calls) == 1


def test_what_the_repeat_gate_remembers_is_bounded() -> None:
    state, _ = with_calls([proposed(index) for index in range(20)], LONG)
    state = _ask(_settle(state), [proposed(i, signature=f"b{i}") for i in range(20)]).state

    state = _settle(state)

    assert len(state.window) == REPEAT_WINDOW and state.window[-1].signature == "b19"


def test_a_call_that_was_not_run_because_another_ran_is_no_repeat_when_it_is_asked_for_again() -> None:
    """A model that sends all that is left each time gets through its list: nothing of it was made twice."""
    left = list(range(7))
    state = submitted(LONG)

    while left:
        calls = [proposed(place, tool="cancel", signature=f"cancel {n}") for place, n in enumerate(left)]
        state = _ask(state, calls, parallel=False).state
        assert [call.outcome for call in state.calls] == [None] + [CallOutcome.NOT_RUN] * (len(left) - 1)
        state = _settle(state)
        left.pop(0)

    assert state.status is RunStatus.QUEUED and state.withdrawn == () and state.counters.tool_calls == 7


@pytest.mark.parametrize("most", [0, 1, 3])
def test_only_a_turn_that_may_be_repaired_counts_as_a_correction(most: int) -> None:
    state = submitted(Limits(corrections_max=most, turns_max=20))
    turns = 0

    while not state.terminal:
        state = _ask(state, [replace(invalid(0), signature=f"wrong {turns}")]).state
        turns += 1

    assert (state.reason, turns) == ("corrections_max", most + 1)
    assert state.counters.corrections == most


def test_invalid_calls_beside_good_ones_are_one_correction_for_their_turn() -> None:
    state, _ = with_calls([invalid(0), invalid(1), proposed(2)])

    assert state.counters.corrections == 1 and len(state.open_calls) == 1
    assert _settle(state).status is RunStatus.QUEUED


def test_an_empty_reply_uses_up_the_correction_of_the_run() -> None:
    state = _feed(submitted(), lease_decision(submitted())).state
    state = _feed(state, replied(state, text="")).state

    state = _ask(state, [invalid(0), proposed(1)]).state

    assert (state.status, state.reason) == (RunStatus.LIMIT_REACHED, "corrections_max")


def test_results_of_reads_are_never_taken_for_effects_of_the_same_signature() -> None:
    state, _ = with_calls([READ], LONG)

    step = _ask(_settle(state), [replace(effect(0), signature=READ.signature)])

    assert not _reuses(step) and [ok(call).call_id for call in step.state.open_calls] == ["call_1_2_0"]


def test_calls_above_the_limit_of_one_turn_are_not_run_and_may_be_asked_for_again() -> None:
    state, _ = with_calls([proposed(index) for index in range(4)], Limits(calls_per_turn_max=2))
    assert [call.open for call in state.calls] == [True, True, False, False]

    state = _ask(
        _settle(state), [proposed(0, signature="signature2"), proposed(1, signature="signature3")]
    ).state

    assert [call.open for call in state.calls] == [True, True] and state.status is RunStatus.WAITING
