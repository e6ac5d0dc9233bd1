"""A turn: fan-out, fan-in, gates, corrections, limits and final states."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.unit.machine_builders import (
    ask,
    begin,
    came_to,
    check_invariants,
    effect,
    finish,
    invalid,
    lease_decision,
    merges,
    next_turn,
    ok,
    proposed,
    replied,
    submitted,
    with_calls,
)
from toolfleet.schemas.events import (
    CallRetry,
    CallsSettled,
    DecisionLeased,
    ModelFailed,
    StepFacts,
)
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.model import ModelFault
from toolfleet.schemas.outcomes import CallOutcome, RunStatus
from toolfleet.schemas.records import AppendItem, AppendStep, CloseUsage, OpenUsage, ReuseResult, Step
from toolfleet.schemas.run import RunState
from toolfleet.workers.machine import MACHINE, reduce


def _settle_in(state: RunState, order: tuple[int, ...]) -> list[Step]:
    """Deliver results in this order of call indices, one message each; a number that stands twice comes twice."""
    calls = state.calls
    steps = []
    for number, index in enumerate(order):
        step = reduce(state, CallsSettled((ok(calls[index]),)), 3.0 + number)
        check_invariants(state, step, 3.0 + number)
        steps.append(step)
        state = step.state
    return steps


def _orders(count: int) -> list[tuple[int, ...]]:
    doubled = tuple(range(count)) * 2
    every = sorted(set(itertools.permutations(doubled))) if count <= 3 else []
    if count == 4:
        chooser = random.Random(4)
        every = [tuple(chooser.sample(doubled, 8)) for _ in range(400)]
    return every


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_order_of_doubled_results_merges_once_in_call_order(count: int) -> None:  # B036, B005
    state, _ = with_calls([proposed(index) for index in range(count)])

    for order in _orders(count):
        steps = _settle_in(state, order)

        (merge,) = merges(steps)
        assert [call.index for call in merge.calls] == list(range(count))
        assert steps[-1].state.status is RunStatus.QUEUED and steps[-1].state.turn == 2


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_merged_item_does_not_depend_on_the_order_of_results(count: int) -> None:  # B005
    state, _ = with_calls([proposed(index) for index in range(count)])
    items = set()

    for order in itertools.permutations(range(count)):
        (merge,) = merges(_settle_in(state, order))
        shuffled = {state.calls[i].call_id: ok(state.calls[i]) for i in order}
        items.add(MACHINE.merge(merge.calls, shuffled))

    assert len(items) == 1


def test_nothing_is_merged_while_a_call_is_open() -> None:  # B036
    state, _ = with_calls([proposed(0), proposed(1), proposed(2)])

    steps = _settle_in(state, (0, 0, 1))

    assert merges(steps) == []
    assert [call.index for call in steps[-1].state.open_calls] == [2]


def test_no_call_ends_the_run_without_a_merge() -> None:  # B034
    state = reduce(submitted(), lease_decision(submitted()), 1.0).state

    step = reduce(state, replied(state, text="done"), 2.0)

    assert step.state.status is RunStatus.COMPLETED and merges([step]) == []


def test_a_turn_whose_calls_the_gates_answer_is_merged_at_once() -> None:
    state, step = with_calls([invalid(0), invalid(1)])

    assert len(merges([step])) == 1
    assert (state.status, state.turn, state.counters.tool_calls) == (RunStatus.QUEUED, 2, 0)


@pytest.mark.parametrize("count", [64, 65])
def test_sixty_four_calls_run_and_the_sixty_fifth_does_not(count: int) -> None:
    state, step = with_calls([proposed(i) for i in range(count)], Limits(calls_max=1000))

    assert len(state.open_calls) == 64
    step = reduce(state, CallsSettled(tuple(ok(call) for call in state.open_calls)), 3.0)
    (merge,) = merges([step])
    assert len(merge.calls) == count
    assert [c.outcome for c in merge.calls[64:]] == [CallOutcome.NOT_RUN] * (count - 64)
    assert step.state.status is RunStatus.QUEUED


def test_a_failing_call_leaves_the_shape_of_the_turn_alone() -> None:  # B032, B001
    state, _ = with_calls([proposed(0), proposed(1), proposed(2)])
    results = (ok(state.calls[2]), came_to(state.calls[1], CallOutcome.REJECTED), ok(state.calls[0]))

    step = reduce(state, CallsSettled(results), 3.0)

    (merge,) = merges([step])
    assert [c.outcome for c in merge.calls] == [CallOutcome.OK, CallOutcome.REJECTED, CallOutcome.OK]


def test_only_the_last_attempt_of_a_call_is_recorded() -> None:  # B038
    state, _ = with_calls([proposed(index) for index in range(5)])
    attempts = (1, 3, 1, 3, 1)
    steps = []
    for index, count in enumerate(attempts):
        for attempt in range(1, count):
            call = state.calls[index]
            retry = CallRetry(call.call_id, None, attempt, 0.0, False, came_to(call, CallOutcome.FAILED))  # type: ignore[arg-type]
            state = reduce(state, retry, 3.0).state
        step = reduce(state, CallsSettled((ok(state.calls[index]),)), 4.0)
        steps.append(step)
        state = step.state

    assert len(merges(steps)) == 1
    told = [r.attempt for s in steps for r in s.records if isinstance(r, AppendStep) and r.kind == "call"]
    assert tuple(told) == attempts


def test_invalid_calls_are_corrected_once_and_then_the_run_ends() -> None:
    state, _ = with_calls([invalid(0)])
    state, step = next_turn(state, [invalid(0), proposed(1)])

    assert state.status is RunStatus.LIMIT_REACHED and state.reason == "corrections_max"
    (merge,) = merges([step])
    assert [call.outcome for call in merge.calls] == [CallOutcome.INVALID_ARGUMENTS, CallOutcome.NOT_RUN]


def test_a_valid_call_beside_an_invalid_one_runs() -> None:  # B013
    state, _ = with_calls([invalid(0), proposed(1)])

    assert [call.index for call in state.open_calls] == [1]


def test_equal_reads_are_reused_told_withdrawn_and_stopped() -> None:
    state, _ = with_calls([proposed(0)], Limits(turns_max=9))
    told = []
    for _ in range(3):
        state, step = next_turn(state, [proposed(0)])
        (reuse,) = [record for record in step.records if isinstance(record, ReuseResult)]
        told.append(reuse.notice)
        assert not state.open_calls and state.counters.tool_calls == 1

    assert told[0] == "" and "3 times" in told[1] and "withdrawn" in told[2]
    assert state.withdrawn == ("tool0",)
    state, _ = next_turn(state, [proposed(0), proposed(1)])
    assert [call.outcome for call in state.calls] == [CallOutcome.NOT_RUN, CallOutcome.NOT_RUN]
    assert (state.status, state.reason) == (RunStatus.LIMIT_REACHED, "repeated_call")


def test_a_read_after_an_effect_is_run_again() -> None:
    state, _ = with_calls([proposed(0)])
    state, _ = next_turn(state, [replace(effect(0), tool="refund", signature="refund")])
    call = state.calls[0]
    state = reduce(state, begin(call), 6.0).state
    state = reduce(state, finish(call), 6.0).state
    state = reduce(state, CallsSettled(()), 6.0).state
    state, _ = next_turn(state, [proposed(0)], now=7.0)

    assert [c.tool for c in state.open_calls] == ["tool0"]


def test_a_repeatable_read_is_never_reused() -> None:
    state, _ = with_calls([proposed(0, repeatable=True)])
    state, _ = next_turn(state, [proposed(0, repeatable=True)])

    assert len(state.open_calls) == 1


def test_one_call_at_a_time_runs_the_first_and_answers_the_others() -> None:
    state, _ = with_calls([proposed(0), proposed(1), proposed(2)], parallel=False)

    assert [call.outcome for call in state.calls] == [None, CallOutcome.NOT_RUN, CallOutcome.NOT_RUN]


def test_a_denied_call_ends_the_run_after_its_turn_unless_the_model_is_told() -> None:
    for tell, status in ((False, RunStatus.DENIED), (True, RunStatus.QUEUED)):
        state, _ = with_calls([proposed(0, tell_on_denied=tell), proposed(1)])

        first = reduce(state, CallsSettled((came_to(state.calls[0], CallOutcome.DENIED),)), 3.0)
        second = reduce(first.state, CallsSettled((ok(state.calls[1]),)), 4.0)

        assert first.state.status is RunStatus.WAITING
        assert second.state.status is status and len(merges([second])) == 1


def test_an_effect_that_needs_a_human_withholds_its_tool() -> None:
    state, _ = with_calls([effect(0)])
    call = state.calls[0]
    state = reduce(state, begin(call), 3.0).state
    state = reduce(state, finish(call, outcome=CallOutcome.FAILED), 3.0).state
    state = reduce(state, ask(call), 50.0).state  # nothing tells what became of it
    state = reduce(state, CallsSettled(()), 50.0).state

    assert state.withdrawn == ("tool0",)
    state, _ = next_turn(state, [effect(0)], now=51.0)
    assert state.status is RunStatus.QUEUED and state.turn == 3  # answered without running


@pytest.mark.parametrize(
    ("finish", "text", "refusal", "status", "reason"),
    [
        ("length", "half", None, RunStatus.LIMIT_REACHED, "truncated_output"),
        ("content_filter", None, None, RunStatus.FAILED, "content_filter"),
        ("refusal", None, "no", RunStatus.FAILED, "refusal"),
    ],
)
def test_final_states_of_a_reply_run_no_call(
    finish: str, text: str | None, refusal: str | None, status: RunStatus, reason: str
) -> None:
    state = reduce(submitted(), lease_decision(submitted()), 1.0).state

    step = reduce(state, replied(state, text=text, finish=finish, refusal=refusal), 2.0)

    assert (step.state.status, step.state.reason) == (status, reason)
    assert step.state.counters.tool_calls == 0


def test_an_empty_reply_is_asked_again_once() -> None:
    state = reduce(submitted(), lease_decision(submitted()), 1.0).state
    state = reduce(state, replied(state, text=" "), 2.0).state
    assert state.status is RunStatus.QUEUED and state.counters.corrections == 1

    state = reduce(state, lease_decision(state, "d2"), 3.0).state
    state = reduce(state, replied(state, text=""), 4.0).state

    assert (state.status, state.reason) == (RunStatus.FAILED, "empty_reply")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(turns_max=1), "turns_max"),
        (Limits(calls_max=1), "calls_max"),
        (Limits(active_seconds_max=5.0), "active_seconds_max"),
    ],
)
def test_a_limit_ends_the_run_with_its_partial_results(limits: Limits, reason: str) -> None:
    state, _ = with_calls([proposed(0), proposed(1)], limits)

    step = reduce(state, CallsSettled(tuple(ok(call, tool_s=6.0) for call in state.open_calls)), 3.0)

    assert (step.state.status, step.state.reason) == (RunStatus.LIMIT_REACHED, reason)
    assert len(merges([step])) == 1 and "I had to stop" in (step.state.output or "")
    assert step.state.counters.tool_calls <= limits.calls_max


def test_a_model_call_that_could_cost_too_much_is_not_made() -> None:
    state = submitted(Limits(cost_usd_max=0.10), reserve_usd=0.06)
    step = reduce(state, lease_decision(state), 1.0)
    assert step.state.counters.cost_usd == 0.06 and any(isinstance(r, OpenUsage) for r in step.records)
    state = reduce(
        step.state, replied(step.state, [proposed(0)], cost_usd=0.05, next_reserve_usd=0.06), 2.0
    ).state
    state = reduce(state, CallsSettled((ok(state.calls[0]),)), 3.0).state

    state = reduce(state, lease_decision(state, "d2"), 4.0).state

    assert (state.status, state.reason) == (RunStatus.LIMIT_REACHED, "cost_usd_max")
    assert abs(state.counters.cost_usd - 0.05) < 1e-9


def test_a_late_reply_changes_nothing_but_its_usage() -> None:
    state = reduce(submitted(), lease_decision(submitted()), 1.0).state

    step = reduce(state, replied(state, text="late", token=LeaseToken("old")), 2.0)

    assert step.missed is not None and step.state == state
    assert [type(record) for record in step.records] == [CloseUsage]


def test_a_failing_model_is_asked_as_often_as_allowed() -> None:
    state = submitted(Limits(model_attempts_max=2))
    fault = ModelFault("unavailable", "503", retryable=True, status=503)
    for number in range(2):
        lease = lease_decision(state, f"d{number}")
        state = reduce(state, lease, 10.0 * number).state
        state = reduce(
            state, ModelFailed(lease.command_id, lease.token, fault, 5.0, StepFacts()), 10.0 * number
        ).state
        assert state.status is (RunStatus.QUEUED if number == 0 else RunStatus.FAILED)

    assert state.reason == "model_error"


def test_a_decision_is_not_taken_before_its_time() -> None:
    state = submitted()
    state = replace(state, commands=(state.commands[0].due(10.0),))

    early = reduce(state, lease_decision(state), 9.9)
    late = reduce(state, DecisionLeased(state.commands[0].id, LeaseToken("d"), "me", 30.0), 10.0)

    assert early.missed == "not yet due" and late.missed is None


def test_the_reply_keeps_the_arguments_as_the_model_wrote_them() -> None:
    state = reduce(submitted(), lease_decision(submitted()), 1.0).state
    event = replied(state, [proposed(0, arguments='{"a":1}')])
    spoken = replace(event.reply.calls[0], arguments='{ "a" : 1.0 }')
    event = replace(event, reply=replace(event.reply, calls=(spoken,)))

    step = reduce(state, event, 2.0)

    (item,) = [record.item for record in step.records if isinstance(record, AppendItem)]
    assert item.kind == "assistant" and item.calls[0].arguments == '{ "a" : 1.0 }'
    assert step.state.calls[0].arguments == '{"a":1}'
