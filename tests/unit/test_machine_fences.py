"""Fences: what an old token, an old attempt, a repetition or a sender that nobody asked can not bring about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.machine_builders import (
    STALE,
    ask,
    awaiting,
    begin,
    came_to,
    effect,
    finish,
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
    CallAnswered,
    CallRetry,
    CallsSettled,
    CancelRequested,
    DeadlineReached,
    Event,
    HandedBack,
    LeaseExpired,
    ModelFailed,
    RunUnworkable,
    StepFacts,
    Submitted,
)
from toolfleet.schemas.ids import CommandId, LeaseToken
from toolfleet.schemas.limits import DEATHS_MAX, Limits
from toolfleet.schemas.model import ModelFault
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, Lane, RunStatus
from toolfleet.schemas.records import AppendDead, AppendEvent, Step
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.workers.machine import reduce

PASSING = ModelFault("unavailable", "503", retryable=True, status=503)
TOOK = StepFacts(model_s=4.0)


def _feed(state: RunState, event: Event, now_s: float = 5.0) -> Step:
    step = reduce(state, event, now_s)
    check_invariants(state, event, step, now_s)
    return step


def _lease(call: CallState, token: str = "c") -> Event:
    return begin(call, token)


def _finish(call: CallState, token: str | None = "c", outcome: CallOutcome = CallOutcome.OK) -> Event:
    return finish(call, token, outcome)


def _retry(
    call: CallState, token: str | None = None, *, died: bool = False, delay_s: float = 0.0
) -> CallRetry:
    held = None if token is None else LeaseToken(token)
    failed = came_to(call, CallOutcome.FAILED)
    return CallRetry(CommandId(call.call_id), held, call.attempt, delay_s, died, failed)


def _expire(call: CallState, token: str = "c", *, death: bool = True) -> LeaseExpired:
    return LeaseExpired(CommandId(call.call_id), LeaseToken(token), death=death)


def _deciding(limits: Limits | None = None, *, reserve_usd: float = 0.0) -> RunState:
    state = submitted(limits, reserve_usd=reserve_usd)
    return _feed(state, lease_decision(state)).state


def test_a_run_is_accepted_once() -> None:
    new = NewRun(submitted().run_id, "a", "v", "p", "t", "again", Lane.BATCH, Limits())

    assert reduce(submitted(), Submitted(new), 9.0).missed == "run exists"


def test_every_commit_of_a_decision_under_an_old_token_is_a_miss() -> None:
    state = _deciding()
    row = state.commands[0].id

    for event in (
        replied(state, text="late", token=STALE),
        ModelFailed(row, STALE, PASSING, 1.0, StepFacts()),
        RunUnworkable(row, STALE, "agent_not_loaded", "gone"),
        HandedBack(row, STALE),
        LeaseExpired(row, STALE),
    ):
        assert _feed(state, event, 500.0).missed is not None


def test_asking_again_for_a_lease_that_one_has_is_no_second_lease() -> None:
    state = _deciding(reserve_usd=0.25)
    again = _feed(state, lease_decision(state), 6.0)
    assert again.missed is None and again.state == state and not again.records

    waiting, _ = with_calls([effect(0)])
    begun = _feed(waiting, _lease(waiting.calls[0])).state
    again = _feed(begun, _lease(waiting.calls[0]), 6.0)
    assert again.missed is None and again.state == begun and not again.records


def test_a_row_that_is_not_due_is_not_leased() -> None:
    state, _ = with_calls([proposed(0)])
    state = _feed(state, _retry(state.calls[0], delay_s=7.0)).state

    assert _feed(state, _lease(state.calls[0]), 11.9).missed == "not yet due"
    assert _feed(state, _lease(state.calls[0]), 12.0).missed is None


def test_a_doubled_retry_counts_one_attempt() -> None:
    state, _ = with_calls([proposed(0)])
    first = state.calls[0]
    state = _feed(state, _retry(first)).state

    assert _feed(state, _retry(first)).missed is not None
    assert (state.calls[0].attempt, state.calls[0].waiting) == (2, CallWaiting.RETRY_DUE)


@pytest.mark.parametrize("event", [_retry, _finish])
def test_a_sender_without_the_lease_changes_no_read_that_is_leased(event: object) -> None:
    state, _ = with_calls([proposed(0)])
    state = _feed(state, _lease(state.calls[0])).state

    for token in (None, "other"):
        assert _feed(state, event(state.calls[0], token)).missed is not None  # type: ignore[operator]


def test_an_outcome_of_an_old_attempt_does_not_finish_a_leased_read() -> None:
    state, _ = with_calls([proposed(0)])
    first = state.calls[0]
    state = _feed(state, _retry(first)).state
    state = _feed(state, _lease(first), 6.0).state

    assert _feed(state, _finish(first), 7.0).missed is not None
    assert _feed(state, _finish(state.calls[0]), 7.0).state.calls[0].outcome is CallOutcome.OK


def test_the_last_attempt_of_a_read_stores_its_failure() -> None:
    state, _ = with_calls([proposed(0, attempts_max=2)])
    state = _feed(state, _retry(state.calls[0])).state

    state = _feed(state, _retry(state.calls[0])).state

    assert state.calls[0].outcome is CallOutcome.FAILED and state.commands[0].queue == "results"
    assert _feed(state, CallsSettled(())).state.turn == 2


@pytest.mark.parametrize("leased", [True, False])
def test_the_third_child_that_dies_of_a_read_gives_it_up(leased: bool) -> None:
    state, _ = with_calls([proposed(0, attempts_max=9)])
    for number in range(DEATHS_MAX):
        token = f"c{number}" if leased else None
        if token is not None:
            state = _feed(state, _lease(state.calls[0], token)).state
        step = _feed(state, _retry(state.calls[0], token, died=True))
        state = step.state

    (letter,) = [record for record in step.records if isinstance(record, AppendDead)]
    assert (letter.deaths, letter.reason) == (DEATHS_MAX, "worker_lost")
    assert [call.outcome for call in merges([step])[0].calls] == [CallOutcome.FAILED]


def test_the_third_worker_that_dies_of_a_read_gives_it_up_and_the_other_call_goes_on() -> None:
    state, _ = with_calls([proposed(0), proposed(1)])
    for number in range(DEATHS_MAX):
        state = _feed(state, _lease(state.calls[0], f"c{number}"), 50.0 * number + 5).state
        step = _feed(state, _expire(state.calls[0], f"c{number}"), 50.0 * number + 45)
        state = step.state

    assert not merges([step]) and [call.index for call in state.open_calls] == [1]
    assert _feed(state, CallsSettled((ok(state.calls[1]),)), 200.0).state.turn == 2


def test_an_idempotent_effect_that_kills_its_workers_needs_a_human() -> None:
    state, _ = with_calls([replace(effect(0, idempotent=True), attempts_max=5)])
    for number in range(DEATHS_MAX):
        event = ask(state.calls[0], f"c{number}") if number else _lease(state.calls[0], "c0")
        state = _feed(state, event, 50.0 * number + 5).state
        assert state.calls[0].attempt == number + 1
        step = _feed(state, _expire(state.calls[0], f"c{number}"), 50.0 * number + 45)
        state = step.state

    assert merges([step])[0].calls[0].outcome is CallOutcome.NEEDS_HUMAN
    assert state.withdrawn == ("tool0",)


def test_an_idempotent_effect_out_of_attempts_needs_a_human() -> None:
    state, _ = with_calls([replace(effect(0, idempotent=True), attempts_max=1)])
    state = _feed(state, _lease(state.calls[0])).state
    state = _feed(state, _expire(state.calls[0]), 50.0).state

    state = _feed(state, ask(state.calls[0], "c2"), 51.0).state

    assert state.calls[0].outcome is CallOutcome.NEEDS_HUMAN


@pytest.mark.parametrize("stop", [CancelRequested("me"), DeadlineReached()])
def test_a_lost_effect_does_not_begin_again_in_a_run_that_stops(stop: Event) -> None:
    state, _ = with_calls([effect(0, idempotent=True)])
    state = replace(state, deadline_at=20.0)
    state = _feed(state, _lease(state.calls[0])).state
    state = _feed(state, stop, 30.0).state
    assert [call.call_id for call in state.open_calls if call.dispatched] == ["call_1_1_0"]
    state = _feed(state, _expire(state.calls[0]), 50.0).state

    state = _feed(state, ask(state.calls[0], "c2"), 51.0).state

    assert state.calls[0].outcome is CallOutcome.NEEDS_HUMAN
    ended = _feed(state, CallsSettled(()), 52.0).state
    cancelled = isinstance(stop, CancelRequested)
    assert ended.status is (RunStatus.CANCELLED if cancelled else RunStatus.LIMIT_REACHED)


def test_an_effect_that_has_not_begun_never_begins_once_the_run_stops() -> None:
    """A cancel settles such a call itself; this is the second lock on the same door."""
    state, _ = with_calls([effect(0)])

    for stopping in (replace(state, status=RunStatus.CANCELLING), replace(state, ending="deadline")):
        assert reduce(stopping, _lease(state.calls[0]), 5.0).missed == "run is stopping"


def test_a_message_settles_no_effect() -> None:
    state, _ = with_calls([effect(0), proposed(1)])

    state = _feed(state, CallsSettled(tuple(ok(call) for call in state.calls))).state
    assert [call.open for call in state.calls] == [True, False]

    begun = _feed(state, _lease(state.calls[0])).state
    assert _feed(begun, CallsSettled((ok(begun.calls[0]),))).missed is not None


def test_an_effect_that_nobody_began_has_no_outcome_to_store() -> None:
    state, _ = with_calls([effect(0)])

    assert _feed(state, _finish(state.calls[0])).missed is not None


def test_a_late_outcome_of_an_effect_is_kept_as_evidence_and_changes_no_result() -> None:
    state, _ = with_calls([effect(0), proposed(1)])
    first = state.calls[0]
    state = _feed(state, _lease(first)).state
    state = _feed(state, _expire(first), 50.0).state
    state = _feed(state, ask(first, "c2"), 51.0).state

    step = _feed(state, _finish(first), 52.0)

    (told,) = [record for record in step.records if isinstance(record, AppendEvent)]
    assert (told.data["outcome"], told.data["known"]) == ("ok", "needs_human")
    assert step.state.calls[0].outcome is CallOutcome.NEEDS_HUMAN


def test_a_result_that_comes_again_after_the_turn_or_the_run_changes_nothing() -> None:
    state, _ = with_calls([proposed(0)], Limits(turns_max=2))
    again = CallsSettled((ok(state.calls[0]),))
    state = _feed(state, again).state

    assert _feed(state, again).missed is not None and _feed(state, CallsSettled(())).missed is not None
    state = _feed(state, lease_decision(state, "d2")).state
    assert _feed(state, again).missed is not None
    state = _feed(state, replied(state, text="done")).state
    assert state.status is RunStatus.COMPLETED and _feed(state, again).missed == "run ended"


def test_only_a_call_that_waits_for_an_answer_is_answered_and_only_once() -> None:
    state, _ = with_calls([proposed(0), proposed(1)])
    answer = CallAnswered(state.calls[0].call_id, ok(state.calls[0]))

    for why in CallWaiting:
        step = _feed(awaiting(state, why), answer)
        asked = why in (CallWaiting.AWAITING_CLIENT, CallWaiting.AWAITING_CALLBACK)
        assert (step.missed is None) == asked
        if asked:
            assert _feed(step.state, answer).missed is not None
            done = _feed(step.state, CallsSettled((ok(state.calls[1]),)))
            assert len(merges([done])) == 1 and done.state.turn == 2


def test_a_lease_expires_only_after_its_time_or_its_owner() -> None:
    state, _ = with_calls([proposed(0)])
    state = _feed(state, _lease(state.calls[0])).state
    assert _feed(state, _expire(state.calls[0]), 35.0).missed == "lease renewed"

    gone = _feed(state, replace(_expire(state.calls[0], death=False), owner_gone=True), 6.0).state

    assert (gone.commands[0].deaths, gone.commands[0].token) == (0, None)
    assert _feed(state, _expire(state.calls[0]), 35.1).state.commands[0].deaths == 1


def test_a_read_in_flight_is_handed_back_without_a_death() -> None:
    state, _ = with_calls([proposed(0)])
    for number in range(5):
        state = _feed(state, _lease(state.calls[0], f"c{number}")).state
        state = _feed(state, HandedBack(state.commands[0].id, LeaseToken(f"c{number}"))).state

    assert (state.commands[0].deaths, state.calls[0].attempt) == (0, 1)


def test_a_deadline_that_is_not_there_yet_stops_nothing() -> None:
    assert _feed(submitted(), DeadlineReached(), 1e9).missed == "not overdue"
    assert _feed(submitted(deadline_s=10.0), DeadlineReached(), 9.9).missed == "not overdue"


def test_a_second_cancel_is_a_miss() -> None:
    state, _ = with_calls([effect(0)])
    state = _feed(state, _lease(state.calls[0])).state
    state = _feed(state, CancelRequested("me")).state

    assert _feed(state, CancelRequested("you")).missed == "run is being cancelled"
    assert _feed(replace(state, deadline_at=4.0), DeadlineReached()).missed == "stopping already"
