"""The deadline of a call over all its attempts: when it begins, what does not count, and what is over with it."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from tests.unit.machine_builders import (
    answer,
    ask,
    came_to,
    claim,
    decide,
    effect,
    ended,
    gated,
    proposed,
    question,
    timed,
    with_calls,
)
from tests.unit.machine_invariants import check_invariants
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.effects import EffectState, Holder
from toolfleet.schemas.envelopes import error
from toolfleet.schemas.events import (
    CallDeferred,
    CallLeased,
    CallRefused,
    CallRetry,
    Event,
    LeaseExpired,
    ProposedCall,
    TierRaised,
)
from toolfleet.schemas.ids import CallId, LeaseToken, RunId
from toolfleet.schemas.outcomes import CallOutcome, Tier
from toolfleet.schemas.records import Step, StoreResult
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import deadline, reduce

TAKEN_AT = 100.0
ENDS_AT = 120.0  # builders.timed: 20 s
KEYED = effect(0, idempotent=True)
ASKED_FOR = effect(0, reconciles=True)
FINAL = effect(0, reconciles=True, reconcile_is_final=True)


def _feed(state: RunState, event: Event, now_s: float) -> Step:
    step = reduce(state, event, now_s)
    check_invariants(state, event, step, now_s)
    return step


def _begun(made: ProposedCall, *, effect_: bool = False) -> tuple[RunState, CallState, CommandRow]:
    """The call, taken by an executor at TAKEN_AT; an effect is out."""
    state, _ = with_calls([timed(made)])
    taken = CallLeased(state.commands[0].id, LeaseToken("c"), "me", 30.0)
    event = claim(state.calls[0]) if effect_ else taken
    return _now(_feed(state, event, TAKEN_AT).state)


def _now(state: RunState) -> tuple[RunState, CallState, CommandRow]:
    return state, state.calls[0], state.commands[0]


def _retry(call: CallState, delay_s: float, *, token: str | None = "c", **fields: object) -> CallRetry:
    failed = CallResult(
        call.call_id,
        0,
        CallOutcome.FAILED,
        error(outcome=CallOutcome.FAILED, reason="timeout", message="it broke.", retryable=True),
        "timeout",
        attempt=call.attempt,
        tool_s=1.5,
    )
    held = None if token is None else LeaseToken(token)
    return CallRetry(call.call_id, held, call.attempt, delay_s, False, failed, **fields)  # type: ignore[arg-type]


def _said(step: Step) -> dict[str, object]:
    """The one result of a step, as the model reads it."""
    (stored,) = [record for record in step.records if isinstance(record, StoreResult)]
    said: dict[str, object] = orjson.loads(stored.result.content)
    assert (stored.result.outcome, said["error_type"]) == (CallOutcome.FAILED, "failed")
    assert stored.result.reason == said["reason_code"]
    return said


def _timed_out(call: CallState) -> CallRefused:
    return CallRefused(call.call_id, None, call.attempt, deadline.timed_out(call))


def test_the_time_begins_with_whatever_an_executor_does_first() -> None:
    for made, event in (
        (proposed(0), lambda call: CallLeased(call.call_id, LeaseToken("c"), "me", 30.0)),
        (proposed(0), lambda call: _retry(call, 1.0, token=None)),
        (proposed(0), lambda call: CallDeferred(call.call_id, None, 1, 1.0, "rate")),
        (effect(0), lambda call: claim(call)),
        (effect(0), lambda call: TierRaised(call.call_id, None, Tier.HIGH, True)),
        (gated(0), lambda call: question(call)),
    ):
        state, _ = with_calls([timed(made)])
        assert state.calls[0].deadline_at is None

        after = _feed(state, event(state.calls[0]), TAKEN_AT).state

        assert after.calls[0].deadline_at == ENDS_AT


def test_a_call_without_a_declared_time_has_none() -> None:
    state, _ = with_calls([proposed(0)])

    state = _feed(state, CallDeferred(state.calls[0].call_id, None, 1, 9_999.0, "rate"), 100.0).state

    assert state.calls[0].deadline_at is None and state.calls[0].open


def test_a_first_try_without_a_lease_counts_from_when_it_was_read() -> None:
    state, _ = with_calls([timed(proposed(0))])
    call = state.calls[0]

    after = _feed(state, _retry(call, 1.0, token=None, taken_at=TAKEN_AT - 8.0), TAKEN_AT).state
    ahead = _feed(state, _retry(call, 1.0, token=None, taken_at=TAKEN_AT + 8.0), TAKEN_AT).state

    assert after.calls[0].deadline_at == ENDS_AT - 8.0
    assert ahead.calls[0].deadline_at == ENDS_AT, "nobody is given more time than there is"


def test_a_lease_that_is_taken_again_begins_no_new_time() -> None:
    state, call, row = _begun(proposed(0))

    state = _feed(state, LeaseExpired(row.id, LeaseToken("c")), TAKEN_AT + 31.0).state
    state = _feed(state, CallLeased(row.id, LeaseToken("c2"), "me", 30.0), TAKEN_AT + 32.0).state

    assert state.calls[0].deadline_at == call.deadline_at == ENDS_AT


def test_a_backoff_that_would_end_after_it_ends_the_call_at_once() -> None:
    state, call, _ = _begun(proposed(0))

    again = _feed(state, _retry(call, 9.9), TAKEN_AT + 10.0)
    late = _feed(state, _retry(call, 10.0), TAKEN_AT + 10.0)

    assert again.state.calls[0].open and again.state.calls[0].attempt == 2
    said = _said(late)
    assert said["reason_code"] == "call_timeout" and said["retryable"] is True
    assert (
        said["message"] == "it broke. It is not tried again: the 20 s it has for all its attempts are over."
    )
    (stored,) = [record for record in late.records if isinstance(record, StoreResult)]
    assert (stored.result.tool_s, stored.result.attempt) == (1.5, 1)


def test_the_last_attempt_says_what_failed_not_that_its_time_is_over() -> None:
    state, call, _ = _begun(proposed(0, attempts_max=1))

    assert _said(_feed(state, _retry(call, 60.0), TAKEN_AT))["reason_code"] == "timeout"


def test_a_wait_for_its_turn_that_would_end_after_it_ends_the_call_at_once() -> None:
    state, call, _ = _begun(proposed(0))
    held = LeaseToken("c")

    waits = _feed(state, CallDeferred(call.call_id, held, 1, 19.9, "rate"), TAKEN_AT)
    late = _feed(state, CallDeferred(call.call_id, held, 1, 20.0, "rate"), TAKEN_AT)

    assert waits.state.calls[0].open
    said = _said(late)
    assert (said["reason_code"], said["retry_after_s"]) == ("call_timeout", 20.0)
    assert "waited for its turn: rate" in str(said["message"])


def test_a_gate_may_say_that_the_time_is_over_when_it_is() -> None:
    state, call, row = _begun(effect(0))
    state = _feed(state, LeaseExpired(row.id, LeaseToken("c")), TAKEN_AT + 31.0).state
    early, _ = with_calls([timed(proposed(0))])

    late = _feed(state, _timed_out(call), TAKEN_AT + 31.0)

    assert _said(late)["reason_code"] == "call_timeout"
    assert _feed(early, _timed_out(early.calls[0]), 9_999.0).missed == "there is time left"


def test_a_gate_may_not_say_so_before() -> None:
    state, _ = with_calls([timed(proposed(0))])
    state = _feed(state, CallDeferred(state.calls[0].call_id, None, 1, 1.0, "rate"), TAKEN_AT).state

    early = _feed(state, _timed_out(state.calls[0]), ENDS_AT - 0.1)
    late = _feed(state, _timed_out(state.calls[0]), ENDS_AT)

    assert early.missed == "there is time left"
    assert late.missed is None and not late.state.calls[0].open


def test_an_effect_is_not_claimed_after_it() -> None:
    state, _, row = _begun(effect(0))
    state = _feed(state, LeaseExpired(row.id, LeaseToken("c")), TAKEN_AT + 31.0).state

    step = _feed(state, claim(state.calls[0], "c2"), TAKEN_AT + 32.0)

    assert _said(step)["reason_code"] == "call_timeout"
    assert step.state.calls[0].entry is None


@pytest.mark.parametrize("made", [effect(0), KEYED, ASKED_FOR])
def test_an_effect_that_is_out_outlives_it(made: ProposedCall) -> None:
    """Its sender may still say that it happened, and nobody says that it failed."""
    state, call, _ = _begun(made, effect_=True)
    late = ENDS_AT + 5.0

    unknown = _feed(state, ended(call, EffectState.RECONCILING, CallOutcome.FAILED), late).state
    refused = _feed(unknown, _timed_out(unknown.calls[0]), late)
    happened = _feed(state, ended(call), late).state

    assert unknown.calls[0].open and refused.missed == "its effect has begun"
    assert happened.calls[0].outcome is CallOutcome.OK


def test_what_became_of_an_effect_is_asked_for_after_it_as_well() -> None:
    state, call, _ = _begun(ASKED_FOR, effect_=True)
    state = _feed(state, ended(call, EffectState.RECONCILING, CallOutcome.FAILED), ENDS_AT).state

    state = _feed(state, ask(call), ENDS_AT + 200.0).state
    told = _feed(state, answer(call, EffectState.HAPPENED), ENDS_AT + 201.0).state
    unsure = _feed(state, answer(call, EffectState.DID_NOT_HAPPEN), ENDS_AT + 201.0).state

    assert told.calls[0].outcome is CallOutcome.OK
    assert unsure.calls[0].outcome is CallOutcome.NEEDS_HUMAN


def test_an_effect_that_did_not_happen_is_not_tried_after_it() -> None:
    state, call, _ = _begun(FINAL, effect_=True)
    state = _feed(state, ended(call, EffectState.RECONCILING, CallOutcome.FAILED), ENDS_AT).state
    state = _feed(state, ask(call), ENDS_AT + 200.0).state

    step = _feed(state, answer(call, EffectState.DID_NOT_HAPPEN, outcome=CallOutcome.FAILED), ENDS_AT + 201.0)

    (closed,) = step.state.calls
    assert (closed.outcome, closed.attempt) == (CallOutcome.FAILED, 1)
    assert closed.entry is not None and closed.entry.state is EffectState.DID_NOT_HAPPEN


def test_an_effect_that_was_not_sent_is_not_tried_after_it() -> None:
    state, call, _ = _begun(effect(0), effect_=True)
    not_sent = ended(call, EffectState.NOT_SENT, CallOutcome.FAILED, again=True, delay_s=5.0)

    again = _feed(state, not_sent, ENDS_AT - 6.0).state
    late = _feed(state, not_sent, ENDS_AT - 5.0).state

    assert again.calls[0].attempt == 2 and again.calls[0].open
    assert late.calls[0].outcome is CallOutcome.FAILED


def test_the_same_request_is_not_sent_again_after_it_a_human_answers() -> None:
    state, call, _ = _begun(KEYED, effect_=True)
    state = _feed(state, ended(call, EffectState.RECONCILING, CallOutcome.FAILED), ENDS_AT - 2.0).state

    in_time = _feed(state, ask(call), ENDS_AT - 1.0).state
    late = _feed(state, ask(call), ENDS_AT).state

    assert in_time.calls[0].attempt == 2
    assert late.calls[0].outcome is CallOutcome.NEEDS_HUMAN


@pytest.mark.parametrize("said", ["approve", "reject", "edit"])
def test_what_people_take_does_not_count(said: str) -> None:
    state, _ = with_calls([timed(gated(0))])
    state = _feed(state, question(state.calls[0], expires_s=9_000.0), TAKEN_AT).state
    assert deadline.ends_at(state.calls[0]) is None, "it stands still"

    arguments = '{"n":7}' if said == "edit" else None
    state = _feed(state, decide(state.calls[0], said, arguments=arguments), TAKEN_AT + 3_600.0).state

    assert deadline.ends_at(state.calls[0]) == pytest.approx(ENDS_AT + 3_600.0)
    assert state.calls[0].deadline_at == ENDS_AT


def test_two_questions_take_two_times() -> None:
    """Asked, granted, raised to another tier, and asked again: only what was no waiting counts."""
    state, _ = with_calls([timed(gated(0))])
    call = state.calls[0]
    state = _feed(state, CallDeferred(call.call_id, None, 1, 2.0, "rate"), TAKEN_AT).state
    state = _feed(state, question(state.calls[0], expires_s=9_000.0), TAKEN_AT + 2.0).state
    state = _feed(state, decide(state.calls[0]), TAKEN_AT + 1_002.0).state
    state = _feed(state, TierRaised(call.call_id, None, Tier.IRREVERSIBLE, True), TAKEN_AT + 1_003.0).state
    assert deadline.ends_at(state.calls[0]) == pytest.approx(ENDS_AT + 1_000.0)

    state = _feed(state, question(state.calls[0], expires_s=9_000.0), TAKEN_AT + 1_004.0).state
    state = _feed(state, decide(state.calls[0]), TAKEN_AT + 1_504.0).state

    assert deadline.ends_at(state.calls[0]) == pytest.approx(ENDS_AT + 1_500.0)


def test_a_question_that_is_withdrawn_for_a_higher_tier_took_its_time_as_well() -> None:
    state, _ = with_calls([timed(gated(0))])
    state = _feed(state, question(state.calls[0], expires_s=500.0), TAKEN_AT).state

    raised = TierRaised(state.calls[0].call_id, None, Tier.IRREVERSIBLE, True)
    state = _feed(state, raised, TAKEN_AT + 500.0).state

    assert deadline.ends_at(state.calls[0]) == pytest.approx(ENDS_AT + 500.0)


def test_a_standing_approval_takes_no_time() -> None:
    state, _ = with_calls([timed(gated(0))])

    state = _feed(state, replace(question(state.calls[0]), standing="std_1"), TAKEN_AT).state

    assert deadline.ends_at(state.calls[0]) == ENDS_AT


def test_a_question_from_before_it_began_takes_nothing_of_it() -> None:
    """As where a release before this one asked, and did not count."""
    state, _ = with_calls([timed(gated(0))])
    state = _feed(state, question(state.calls[0], expires_s=9_000.0), 10.0).state
    state = _feed(state, decide(state.calls[0]), 90.0).state
    state = replace(state, calls=(replace(state.calls[0], deadline_at=None),))

    state = _feed(state, CallDeferred(state.calls[0].call_id, None, 1, 1.0, "rate"), TAKEN_AT).state

    assert deadline.ends_at(state.calls[0]) == ENDS_AT


def test_it_stands_still_while_an_equal_effect_is_out() -> None:
    """ "Failed" would be a guess: what the other came to is shared."""
    state, _ = with_calls([timed(effect(0))])
    call = state.calls[0]
    other = CallId("call_0_1_0")
    out = Holder(RunId("run_0"), other, EffectState.DISPATCHED)
    state = _feed(state, CallDeferred(call.call_id, None, 1, 1.0, "rate"), TAKEN_AT).state

    waiting = _feed(state, claim(call, "c", out), TAKEN_AT + 5.0).state
    shared = CallResult(other, 0, CallOutcome.OK, "{}")
    happened = Holder(RunId("run_0"), other, EffectState.HAPPENED, shared)
    done = _feed(waiting, claim(call, "c", happened), TAKEN_AT + 900.0).state
    free = _feed(waiting, claim(call, "c"), TAKEN_AT + 900.0).state

    assert waiting.calls[0].deadline_at is None
    assert done.calls[0].outcome is CallOutcome.OK
    assert free.calls[0].dispatched and free.calls[0].deadline_at == ENDS_AT + 900.0


def test_what_an_equal_effect_came_to_is_shared_even_when_the_time_is_over() -> None:
    state, _ = with_calls([timed(effect(0))])
    call = state.calls[0]
    state = _feed(state, CallDeferred(call.call_id, None, 1, 1.0, "rate"), TAKEN_AT).state
    shared = CallResult(CallId("call_0_1_0"), 0, CallOutcome.OK, "{}")
    happened = Holder(RunId("run_0"), CallId("call_0_1_0"), EffectState.HAPPENED, shared)

    state = _feed(state, claim(call, "c", happened), ENDS_AT + 5.0).state

    assert state.calls[0].outcome is CallOutcome.OK


def test_a_death_is_counted_before_the_time() -> None:
    state, call, _ = _begun(proposed(0))
    state = replace(state, commands=tuple(replace(row, deaths=2) for row in state.commands))

    died = replace(_retry(call, 900.0), died=True, result=came_to(call, CallOutcome.FAILED))
    step = _feed(state, died, TAKEN_AT + 1.0)

    assert [r.result.reason for r in step.records if isinstance(r, StoreResult)] == ["worker_lost"]
