"""The model side of the machine: attempts, cost and seconds of model calls, and replies that end a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.machine_builders import (
    effect,
    lease_decision,
    merges,
    ok,
    proposed,
    replied,
    submitted,
    with_calls,
)
from tests.unit.machine_invariants import check_invariants
from toolfleet.schemas.events import (
    CallsSettled,
    DecisionDeferred,
    Event,
    HandedBack,
    LeaseExpired,
    ModelFailed,
    RunUnworkable,
    StepFacts,
)
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.limits import DEATHS_MAX, Limits
from toolfleet.schemas.model import ModelFault
from toolfleet.schemas.outcomes import RunStatus
from toolfleet.schemas.records import AppendDead, AppendItem, Step
from toolfleet.schemas.run import RunState
from toolfleet.workers.machine import reduce

PASSING = ModelFault("unavailable", "503", retryable=True, status=503)
TOOK = StepFacts(model_s=4.0)


def _feed(state: RunState, event: Event, now_s: float = 5.0) -> Step:
    step = reduce(state, event, now_s)
    check_invariants(state, event, step, now_s)
    return step


def _deciding(limits: Limits | None = None, *, reserve_usd: float = 0.0) -> RunState:
    state = submitted(limits, reserve_usd=reserve_usd)
    return _feed(state, lease_decision(state)).state


def test_a_handed_back_decision_is_no_attempt_and_no_death() -> None:
    state = submitted(reserve_usd=0.01)
    for number in range(5):
        state = _feed(state, lease_decision(state, f"d{number}")).state
        state = _feed(state, HandedBack(state.commands[0].id, LeaseToken(f"d{number}"))).state

    assert (state.commands[0].deaths, state.model_attempt, state.status) == (0, 0, RunStatus.QUEUED)
    assert state.counters.reserved_usd == 0.0


def test_a_decision_that_kills_its_workers_fails_the_run_and_its_cost_stands() -> None:
    state = submitted(reserve_usd=0.25)
    for number in range(DEATHS_MAX):
        state = _feed(state, lease_decision(state, f"d{number}"), 50.0 * number + 5).state
        row = state.commands[0]
        step = _feed(state, LeaseExpired(row.id, LeaseToken(f"d{number}")), 50.0 * number + 45)
        state = step.state

    assert (state.status, state.reason) == (RunStatus.FAILED, "worker_lost")
    assert state.counters.cost_usd == pytest.approx(0.75)
    assert [record.deaths for record in step.records if isinstance(record, AppendDead)] == [DEATHS_MAX]


def test_a_refused_model_call_costs_nothing_and_a_lost_one_its_reservation() -> None:
    state = _deciding(reserve_usd=0.25)
    row = state.commands[0]
    cut = replace(PASSING, kind="connection", status=None)

    refused = _feed(state, ModelFailed(row.id, LeaseToken("d"), PASSING, 1.0, TOOK)).state
    lost = _feed(state, ModelFailed(row.id, LeaseToken("d"), cut, 1.0, TOOK)).state
    unworkable = _feed(state, RunUnworkable(row.id, LeaseToken("d"), "agent_not_loaded", "gone")).state

    assert [s.counters.cost_usd for s in (refused, lost, unworkable)] == [0.0, 0.25, 0.0]
    assert unworkable.reason == "agent_not_loaded" and unworkable.status is RunStatus.FAILED


def test_a_failing_model_uses_up_the_seconds_of_the_run() -> None:
    state = _deciding(Limits(active_seconds_max=6.0, model_attempts_max=9))
    state = _feed(state, ModelFailed(state.commands[0].id, LeaseToken("d"), PASSING, 0.0, TOOK)).state
    state = _feed(state, lease_decision(state, "d2")).state
    state = _feed(state, ModelFailed(state.commands[0].id, LeaseToken("d2"), PASSING, 0.0, TOOK)).state

    state = _feed(state, lease_decision(state, "d3")).state

    assert (state.status, state.reason) == (RunStatus.LIMIT_REACHED, "active_seconds_max")


def test_failures_of_the_model_are_counted_for_each_turn() -> None:
    state = _deciding(Limits(model_attempts_max=2))
    state = _feed(state, ModelFailed(state.commands[0].id, LeaseToken("d"), PASSING, 0.0, TOOK)).state
    state = _feed(state, lease_decision(state, "d2")).state
    state = _feed(state, replied(state, [proposed(0)])).state
    state = _feed(state, CallsSettled((ok(state.calls[0]),))).state
    state = _feed(state, lease_decision(state, "d3")).state

    state = _feed(state, ModelFailed(state.commands[0].id, LeaseToken("d3"), PASSING, 0.0, TOOK)).state

    assert state.status is RunStatus.QUEUED


def test_neither_model_nor_turn_begins_after_the_deadline() -> None:
    late = submitted(deadline_s=10.0)
    assert _feed(late, lease_decision(late), 10.0).state.reason == "deadline"

    state = _feed(late, lease_decision(late), 9.0).state
    state = _feed(state, replied(state, [proposed(0)]), 9.5).state
    step = _feed(state, CallsSettled((ok(state.calls[0]),)), 10.0)
    assert (step.state.status, step.state.reason) == (RunStatus.LIMIT_REACHED, "deadline")
    assert len(merges([step])) == 1


def test_calls_of_a_refused_or_filtered_reply_are_not_run() -> None:
    for finish in ("refusal", "content_filter"):
        state = _deciding()

        step = _feed(state, replied(state, [proposed(0), effect(1)], finish=finish))

        assert (step.state.status, step.state.reason) == (RunStatus.FAILED, finish)
        assert step.state.counters.tool_calls == 0 and not step.state.calls
        assert [r.item.kind for r in step.records if isinstance(r, AppendItem)] == ["assistant"]


def test_seconds_of_tools_that_ran_side_by_side_count_once_and_waiting_does_not() -> None:
    state, _ = with_calls([proposed(0), proposed(1), proposed(2)])

    results = tuple(ok(call, tool_s=2.0 + call.index) for call in state.calls)
    state = _feed(state, CallsSettled(results), 5000.0).state

    assert (state.counters.active_s, state.counters.tool_s) == (4.0, 9.0)


def test_a_deferred_decision_cost_nothing_and_is_due_at_its_time() -> None:
    state = submitted(reserve_usd=0.01)
    for number in range(5):
        state = replace(state, commands=tuple(replace(row, due_at=0.0) for row in state.commands))
        state = _feed(state, lease_decision(state, f"d{number}")).state
        state = _feed(
            state, DecisionDeferred(state.commands[0].id, LeaseToken(f"d{number}"), 60.0, "quota")
        ).state

    (row,) = state.commands
    assert (row.due_at, row.token, row.deaths, state.model_attempt) == (65.0, None, 0, 0)
    assert state.status is RunStatus.QUEUED
    assert (state.counters.cost_usd, state.counters.reserved_usd) == (0.0, 0.0)


def test_the_next_model_is_asked_at_once_with_all_its_attempts() -> None:
    limits = Limits(model_attempts_max=2)
    state = _deciding(limits)
    state = _feed(state, ModelFailed(state.commands[0].id, LeaseToken("d"), PASSING, 9.0, TOOK)).state
    state = replace(state, commands=tuple(replace(row, due_at=0.0) for row in state.commands))
    state = _feed(state, lease_decision(state)).state

    failed = ModelFailed(state.commands[0].id, LeaseToken("d"), PASSING, 9.0, TOOK, next_model=True)
    state = _feed(state, failed).state

    assert (state.model_index, state.model_failures, state.status) == (1, 0, RunStatus.QUEUED)
    assert state.commands[0].due_at == 5.0


def test_a_deferred_decision_may_go_to_the_next_model() -> None:
    state = _deciding()
    deferred = DecisionDeferred(state.commands[0].id, LeaseToken("d"), 0.0, "paused", next_model=True)

    state = _feed(state, deferred).state

    assert (state.model_index, state.commands[0].due_at) == (1, 5.0)
