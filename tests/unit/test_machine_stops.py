"""What stops a run or a worker: cancel, deadline, lost workers and hand-backs, at every point of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.machine_builders import (
    ask,
    begin,
    check_invariants,
    effect,
    events_for,
    finish,
    invalid,
    lease_decision,
    merges,
    ok,
    proposed,
    replied,
    submitted,
    with_calls,
)
from toolfleet.schemas.events import (
    CallsSettled,
    CancelRequested,
    DeadlineReached,
    Event,
    HandedBack,
    LeaseExpired,
)
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.outcomes import CallOutcome, RunStatus
from toolfleet.schemas.records import AppendDead, Step
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import reduce

C = LeaseToken("c")


def _lease(call: CallState, token: LeaseToken = C) -> Event:
    return begin(call, token)


def _finish(call: CallState, token: LeaseToken = C, outcome: CallOutcome = CallOutcome.OK) -> Event:
    return finish(call, token, outcome)


def _script() -> list[Callable[[RunState], Event]]:
    """A run of two turns, event by event: reads and an effect, a merge, and an answer."""
    return [
        lambda s: lease_decision(s, "d1"),
        lambda s: replied(s, [proposed(0), effect(1)]),
        lambda s: CallsSettled((ok(s.calls[0]),)),
        lambda s: _lease(s.calls[1]),
        lambda s: _finish(s.calls[1]),
        lambda s: CallsSettled(()),
        lambda s: lease_decision(s, "d2"),
        lambda s: replied(s, text="done"),
    ]


def _at(point: int, *, deadline_s: float | None = None) -> RunState:
    state = submitted(deadline_s=deadline_s)
    for number, event in enumerate(_script()[:point]):
        step = reduce(state, event(state), 1.0 + number)
        assert step.missed is None
        state = step.state
    return state


POINTS = range(len(_script()) + 1)


@pytest.mark.parametrize("point", POINTS)
def test_a_cancel_at_any_point_stops_the_run_and_begins_nothing(point: int) -> None:
    state = _at(point)

    step = reduce(state, CancelRequested("me"), 20.0)
    check_invariants(state, step, 20.0)

    if state.terminal:
        assert step.missed is not None
        return
    begun = [call for call in state.open_calls if call.dispatched]
    assert [call.call_id for call in step.state.open_calls] == [call.call_id for call in begun]
    assert step.state.status is (RunStatus.CANCELLING if begun else RunStatus.CANCELLED)
    for call in step.state.calls:
        assert reduce(step.state, _lease(call, LeaseToken("x")), 21.0).missed is not None


def test_an_effect_that_has_begun_runs_to_its_outcome_under_a_cancel() -> None:
    state = reduce(_at(4), CancelRequested("me"), 20.0).state
    done = reduce(state, _finish(state.calls[1]), 21.0)
    settled = reduce(done.state, CallsSettled(()), 22.0)

    assert [call.outcome for call in merges([settled])[0].calls] == [CallOutcome.OK, CallOutcome.OK]
    assert settled.state.status is RunStatus.CANCELLED


@pytest.mark.parametrize("point", POINTS)
def test_a_deadline_at_any_point_ends_in_limit_reached(point: int) -> None:
    state = _at(point, deadline_s=10.0)

    step = reduce(state, DeadlineReached(), 20.0)
    check_invariants(state, step, 20.0)

    if state.terminal:
        assert step.missed is not None
    elif any(call.dispatched for call in state.open_calls):
        assert step.state.ending == "deadline" and step.state.status is RunStatus.WAITING
    else:
        assert (step.state.status, step.state.reason) == (RunStatus.LIMIT_REACHED, "deadline")


@pytest.mark.parametrize("stop", [CancelRequested("me"), DeadlineReached()], ids=["cancel", "deadline"])
def test_a_run_that_waits_for_its_last_effect_is_not_overdue_again(stop: Event) -> None:
    state = reduce(_at(4, deadline_s=10.0), stop, 20.0).state

    assert state.open_calls and state.deadline_at is None
    assert reduce(state, DeadlineReached(), 30.0).missed == "not overdue"


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_lost_three_times_at_any_point_gives_the_step_up(point: int) -> None:
    state = _at(point)
    leased = [row for row in state.commands if row.token is not None]
    if not leased:
        return
    row = leased[0]
    state = replace(state, commands=tuple(replace(r, deaths=2) if r is row else r for r in state.commands))
    assert row.token is not None

    step = reduce(state, LeaseExpired(row.id, row.token), 200.0)
    check_invariants(state, step, 200.0)

    assert [record.deaths for record in step.records if isinstance(record, AppendDead)] == [3]
    if row.is_decide:
        assert (step.state.status, step.state.reason) == (RunStatus.FAILED, "worker_lost")
    else:
        merged = merges([step])[0].calls
        assert merged[1].outcome is CallOutcome.NEEDS_HUMAN


def test_deaths_count_only_leases_that_ended_without_their_holder() -> None:
    state = _at(1)
    row = state.commands[0]
    assert row.token is not None

    handed = reduce(state, HandedBack(row.id, row.token), 5.0).state
    early = reduce(state, LeaseExpired(row.id, row.token), 5.0)
    expired = reduce(state, LeaseExpired(row.id, row.token), 100.0).state
    taken = reduce(state, LeaseExpired(row.id, row.token, owner_gone=True, death=False), 5.0).state

    assert early.missed is not None
    assert [s.commands[0].deaths for s in (handed, expired, taken)] == [0, 1, 0]
    assert all(s.status is RunStatus.QUEUED and s.commands[0].token is None for s in (handed, expired, taken))


@pytest.mark.parametrize(("idempotent", "begins_again"), [(False, False), (True, True)])
def test_an_effect_whose_worker_was_lost_is_begun_again_only_if_it_is_idempotent(
    idempotent: bool, begins_again: bool
) -> None:
    state, _ = with_calls([effect(0, idempotent=idempotent)])
    state = reduce(state, _lease(state.calls[0]), 3.0).state
    state = reduce(state, LeaseExpired(state.commands[0].id, C), 100.0).state

    assert reduce(state, _lease(state.calls[0], LeaseToken("c2")), 101.0).missed is not None
    step = reduce(state, ask(state.calls[0], "c2"), 101.0)

    call = step.state.calls[0]
    assert (call.dispatched, call.attempt) == ((True, 2) if begins_again else (False, 1))
    assert call.outcome is (None if begins_again else CallOutcome.NEEDS_HUMAN)
    late = reduce(step.state, _finish(state.calls[0]), 102.0)
    assert late.state.calls[0].outcome == call.outcome, "the outcome of an old attempt counts no more"


def test_an_effect_in_flight_is_not_handed_back() -> None:
    state, _ = with_calls([effect(0)])
    state = reduce(state, _lease(state.calls[0]), 3.0).state

    assert reduce(state, HandedBack(state.commands[0].id, C), 4.0).missed is not None


def test_the_outcome_of_an_effect_counts_after_its_lease_was_lost() -> None:
    state, _ = with_calls([effect(0)])
    state = reduce(state, _lease(state.calls[0]), 3.0).state
    state = reduce(state, LeaseExpired(state.commands[0].id, C), 100.0).state

    step = reduce(state, _finish(state.calls[0]), 101.0)

    assert step.missed is None and step.state.calls[0].outcome is CallOutcome.OK


def test_a_read_that_somebody_else_holds_takes_no_other_result() -> None:
    state, _ = with_calls([proposed(0)])
    state = reduce(state, _lease(state.calls[0]), 3.0).state

    assert reduce(state, _finish(state.calls[0], LeaseToken("other")), 4.0).missed is not None
    assert reduce(state, _lease(state.calls[0], LeaseToken("other")), 4.0).missed == "leased"


class AnyOrder(RuleBasedStateMachine):
    """Events of every kind in any order, old ones too: P1 (a row while open), P2, P3, P6, P7 hold throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(turns_max=3, calls_max=6)
        self.state = submitted(self.limits, deadline_s=500.0)
        self.now = 1.0
        self.steps: list[Step] = []
        self.past: list[Event] = []
        self.cancelled_at: RunState | None = None

    def _feed(self, event: Event) -> None:
        before = self.state
        step = reduce(before, event, self.now)
        check_invariants(before, step, self.now)
        self.steps.append(step)
        self.past.append(event)
        self.state = step.state
        if isinstance(event, CancelRequested) and step.missed is None:
            self.cancelled_at = step.state

    @rule(seconds=st.sampled_from([0.0, 1.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        events = [
            e
            for e in events_for(self.state, self.now)
            if not isinstance(e, (CancelRequested, DeadlineReached))
        ]
        self._feed(data.draw(st.sampled_from(events)))

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def something_old_comes_again(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.past))
        call_id = getattr(getattr(event, "result", None), "call_id", None)
        self._feed(event)
        assert call_id is None or self.state.call(call_id) is None or len(self.state.calls) < 65

    @precondition(lambda self: len(self.steps) > 8)
    @rule()
    def somebody_cancels(self) -> None:
        self._feed(CancelRequested("me"))

    @precondition(lambda self: len(self.steps) > 8)
    @rule()
    def the_deadline_is_looked_at(self) -> None:
        self._feed(DeadlineReached())

    @rule()
    def the_model_is_asked_and_calls(self) -> None:
        if self.state.status is RunStatus.QUEUED and self.state.commands[0].due_at <= self.now:
            self._feed(lease_decision(self.state, f"d{len(self.steps)}"))
            if self.state.status is RunStatus.DECIDING:
                self._feed(replied(self.state, [proposed(0), effect(1), invalid(2)]))

    @invariant()
    def each_turn_was_merged_once(self) -> None:
        merged = [merge.turn for merge in merges(self.steps)]
        assert len(merged) == len(set(merged))

    @invariant()
    def nothing_begins_after_a_cancel(self) -> None:
        if self.cancelled_at is not None:
            begun = {call.call_id for call in self.cancelled_at.calls if call.dispatched}
            assert {call.call_id for call in self.state.calls if call.dispatched} <= begun


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
