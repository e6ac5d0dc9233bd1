"""The effect ledger and approvals, transition by transition (T9, T10, T11, T13, T14, T19, T26). Every guard has a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.machine_builders import (
    LEASE_S,
    answer,
    ask,
    begin,
    came_to,
    claim,
    decide,
    effect,
    ended,
    gated,
    key_of,
    proposed,
    question,
    with_calls,
)
from tests.unit.machine_invariants import check_invariants
from toolfleet.schemas.effects import ApprovalStatus, EffectState, Entry, Holder, arguments_hash
from toolfleet.schemas.events import (
    CallDeferred,
    CallFinished,
    CallLeased,
    CallRefused,
    CallsSettled,
    CallWoken,
    CancelRequested,
    DeadlineReached,
    EffectResolved,
    Event,
    LeaseExpired,
    TierRaised,
)
from toolfleet.schemas.ids import CallId, CommandId, LeaseToken, RunId
from toolfleet.schemas.limits import KEY_WAIT_S, QUIET_S, RECONCILE_WAITS_S, SEND_BY_S
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, Tier
from toolfleet.schemas.records import AppendAudit, AppendEvent, ResolveEffect, Step
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import reduce

UNKNOWN = EffectState.RECONCILING
NOTHING = EffectState.DID_NOT_HAPPEN
OTHER = CallId("call_0_1_0")


def _feed(state: RunState, event: Event, now_s: float = 5.0) -> Step:
    step = reduce(state, event, now_s)
    check_invariants(state, event, step, now_s)
    return step


def _one(made: object) -> tuple[RunState, CallState]:
    state, _ = with_calls([made])  # type: ignore[list-item]
    return state, state.calls[0]


def _out(made: object, now_s: float = 5.0) -> RunState:
    """One effect that is out since `now_s`."""
    state, call = _one(made)
    return _feed(state, claim(call), now_s).state


def _entry(state: RunState) -> Entry:
    entry = state.calls[0].entry
    assert entry is not None
    return entry


# -- T10: the claim ------------------------------------------------------------------------------------------------------


def test_a_claim_takes_lease_and_key_and_says_until_when_it_is_sent() -> None:
    state = _out(effect(0))

    assert _entry(state) == Entry(key_of(state.calls[0]), EffectState.DISPATCHED, 1, 5.0 + SEND_BY_S)
    assert state.commands[0].token == "c" and state.commands[0].lease_until == 5.0 + LEASE_S


def test_a_claim_after_a_look_at_the_gates_keeps_its_own_lease_and_no_other() -> None:
    state, call = _one(effect(0))
    state = _feed(state, CallLeased(CommandId(call.call_id), LeaseToken("g"), "me", LEASE_S)).state

    assert _feed(state, claim(call, "other")).missed == "leased"
    assert _feed(state, claim(call, "g")).state.calls[0].dispatched


def test_what_is_out_is_neither_claimed_nor_leased_again() -> None:
    state = _out(effect(0))
    call = state.calls[0]
    assert _feed(state, claim(call), 6.0).state == state, "its own answer was lost"
    state = _feed(state, LeaseExpired(CommandId(call.call_id), LeaseToken("c")), 50.0).state

    for event in (claim(call, "d"), CallLeased(CommandId(call.call_id), LeaseToken("d"), "me", LEASE_S)):
        assert _feed(state, event, 51.0).missed == "its effect has begun"


def test_other_arguments_than_the_calls_are_not_claimed() -> None:
    state, call = _one(effect(0))

    assert (
        _feed(state, replace(claim(call), arguments_hash="other")).missed == "not the arguments of this call"
    )


def test_a_key_that_is_out_is_waited_for_and_its_end_wakes_who_waits() -> None:
    state, _ = with_calls([effect(0), replace(effect(1), tool="tool0")])
    first, second = state.calls
    state = _feed(state, claim(first)).state
    holder = Holder(state.run_id, first.call_id, EffectState.DISPATCHED)

    state = _feed(state, claim(second, "d", holder)).state

    row = state.command(second.call_id)
    assert row is not None and (row.due_at, row.token) == (5.0 + KEY_WAIT_S, None)
    assert (state.calls[1].waiting, state.calls[1].waits_key) == (CallWaiting.RETRY_DUE, key_of(second))
    woken = _feed(state, ended(first), 6.0).state.command(second.call_id)
    assert woken is not None and woken.due_at == 6.0
    other = _feed(state, CallWoken(CommandId(second.call_id), "another key"), 6.0)
    assert other.missed is not None
    by_other_run = _feed(state, CallWoken(CommandId(second.call_id), key_of(second)), 6.0).state
    assert by_other_run.command(second.call_id).due_at == 6.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("state_", "outcome", "comes_to"),
    [
        (EffectState.HAPPENED, CallOutcome.OK, CallOutcome.OK),
        (EffectState.NEEDS_HUMAN, CallOutcome.NEEDS_HUMAN, CallOutcome.NEEDS_HUMAN),
        (EffectState.HAPPENED, CallOutcome.NEEDS_HUMAN, CallOutcome.OK),  # an operator said so
    ],
)
def test_what_the_holder_came_to_is_shared(
    state_: EffectState, outcome: CallOutcome, comes_to: CallOutcome
) -> None:
    state, call = _one(effect(0))
    held = CallResult(OTHER, 3, outcome, '{"status":"success","data":1}')

    step = _feed(state, claim(call, holder=Holder(RunId("run_0"), OTHER, state_, held, '"7"')))

    assert step.state.calls[0].outcome is comes_to and step.state.calls[0].entry is None
    (result,) = [r.result for r in step.records if hasattr(r, "result")]
    assert "It was not done again" in result.content and result.call_id == call.call_id
    assert ('"data":"7"' in result.content) == (outcome is not comes_to)


# -- T11: what the sender says -------------------------------------------------------------------------------------------


def test_nothing_sent_is_tried_again_after_its_delay_and_at_last_failed() -> None:
    state = _out(effect(0))
    for attempt in (1, 2):
        said = ended(state.calls[0], EffectState.NOT_SENT, CallOutcome.FAILED, again=True, delay_s=9.0)
        state = _feed(state, said, 6.0 + 20 * attempt).state
        assert (state.calls[0].attempt, state.commands[0].due_at) == (attempt + 1, 15.0 + 20 * attempt)
        assert _entry(state).state is EffectState.NOT_SENT
        state = _feed(state, claim(state.calls[0]), 16.0 + 20 * attempt).state
    last = ended(state.calls[0], EffectState.REFUSED, CallOutcome.FAILED, again=True)

    state = _feed(state, last, 90.0).state

    assert state.calls[0].outcome is CallOutcome.FAILED and _entry(state).state is EffectState.REFUSED


def test_nothing_sent_is_not_tried_again_in_a_run_that_stops() -> None:
    for stop, outcome in ((CancelRequested("me"), "cancelled"), (DeadlineReached(), "not_run")):
        state = replace(_out(effect(0)), deadline_at=4.0)
        state = _feed(state, stop, 6.0).state
        said = ended(state.calls[0], EffectState.NOT_SENT, CallOutcome.FAILED, again=True)

        assert str(_feed(state, said, 7.0).state.calls[0].outcome) == outcome


def test_an_unknown_outcome_is_no_outcome() -> None:
    for made, due_at in (
        (effect(0, reconciles=True), 6.0),
        (effect(0, idempotent=True), 6.0),
        (effect(0), 5.0 + SEND_BY_S + 30.0),  # nobody can be asked; its request may still be at work
    ):
        state = _out(made)
        state = _feed(state, ended(state.calls[0], UNKNOWN, CallOutcome.FAILED), 6.0).state

        assert state.calls[0].open and state.calls[0].waiting is CallWaiting.RECONCILING
        assert (state.commands[0].due_at, state.commands[0].token) == (due_at, None)


def test_an_old_attempt_ends_no_effect() -> None:
    state = _out(effect(0, idempotent=True))
    old = state.calls[0]
    state = _feed(state, LeaseExpired(CommandId(old.call_id), LeaseToken("c")), 50.0).state
    state = _feed(state, ask(old, "d"), 51.0).state
    assert (_entry(state).attempt, _entry(state).doubt, _entry(state).send_by) == (2, True, 51.0 + SEND_BY_S)

    step = _feed(state, ended(old, EffectState.BUSINESS_ERROR, CallOutcome.BUSINESS_ERROR), 52.0)

    assert step.state.calls[0].open
    assert [r.type for r in step.records if isinstance(r, AppendEvent)] == ["call.late_result"]


def test_a_refusal_of_a_second_attempt_is_believed_only_where_it_answers_for_the_first() -> None:
    state = _out(effect(0, idempotent=True))
    state = _feed(state, ended(state.calls[0], UNKNOWN, CallOutcome.FAILED), 6.0).state
    state = _feed(state, ask(state.calls[0], "d"), 7.0).state
    said = ended(state.calls[0], EffectState.BUSINESS_ERROR, CallOutcome.BUSINESS_ERROR)

    doubted = _feed(state, said, 8.0).state
    believed = _feed(state, replace(said, no_effect=True), 8.0).state

    assert doubted.calls[0].open and doubted.commands[0].due_at == 8.0 + RECONCILE_WAITS_S[0]
    assert believed.calls[0].outcome is CallOutcome.BUSINESS_ERROR


def test_a_word_that_comes_after_the_turn_is_kept_as_evidence() -> None:
    state = _out(effect(0))
    call = state.calls[0]
    state = _feed(state, LeaseExpired(CommandId(call.call_id), LeaseToken("c")), 50.0).state
    state = _feed(state, ask(call, "d"), 51.0).state
    kept = state.calls[0].entry
    state = _feed(state, CallsSettled(()), 52.0).state
    assert state.turn == 2

    step = _feed(state, replace(ended(call), found=kept), 53.0)

    assert [r.data["effect"] for r in step.records if isinstance(r, AppendEvent)] == ["happened"]
    assert _feed(state, replace(ended(call, EffectState.NOT_SENT), found=kept), 53.0).missed is not None


# -- T13, T14: what became of it -------------------------------------------------------------------------------------------


def _asked(made: object, asked_at: float) -> RunState:
    """One effect nobody knows of, and a question that was begun then. It was to be sent by 10, and may take 30 s."""
    state = _out(made)
    state = _feed(state, ended(state.calls[0], UNKNOWN, CallOutcome.FAILED), 6.0).state
    return _feed(state, ask(state.calls[0]), asked_at).state


QUIET_AT = 5.0 + SEND_BY_S + 30.0 + QUIET_S


def test_happened_counts_at_once() -> None:
    state = _asked(effect(0, reconciles=True), 7.0)

    state = _feed(state, answer(state.calls[0], EffectState.HAPPENED), 8.0).state

    assert state.calls[0].outcome is CallOutcome.OK and _entry(state).state is EffectState.HAPPENED


@pytest.mark.parametrize(
    "made", [effect(0, reconciles=True), effect(0, reconciles=True, reconcile_is_final=True)]
)
def test_did_not_happen_is_not_believed_while_the_request_may_be_on_its_way(made: object) -> None:
    for asked_at in (7.0, QUIET_AT):
        state = _asked(made, asked_at)

        state = _feed(state, answer(state.calls[0], NOTHING), asked_at + 500.0).state

        assert state.calls[0].open and state.calls[0].attempt == 1
        assert state.commands[0].due_at > QUIET_AT and state.commands[0].token is None


def test_did_not_happen_leads_to_another_attempt_only_where_it_is_final() -> None:
    late = QUIET_AT + 1.0
    final = _asked(effect(0, reconciles=True, reconcile_is_final=True), late)
    unsure = _asked(effect(0, reconciles=True), late)

    again = _feed(final, answer(final.calls[0], NOTHING), late + 1.0).state
    human = _feed(unsure, answer(unsure.calls[0], NOTHING), late + 1.0).state

    assert (again.calls[0].attempt, _entry(again).state) == (2, NOTHING)
    assert (
        human.calls[0].outcome is CallOutcome.NEEDS_HUMAN and _entry(human).state is EffectState.NEEDS_HUMAN
    )


def test_without_an_answer_it_is_asked_by_the_timetable_and_then_a_human_is() -> None:
    now, state = 7.0, _asked(effect(0, reconciles=True), 7.0)
    for wait_s in RECONCILE_WAITS_S:
        state = _feed(state, answer(state.calls[0], UNKNOWN), now).state
        assert state.commands[0].due_at == now + wait_s
        now += wait_s
        state = _feed(state, ask(state.calls[0]), now).state

    state = _feed(state, answer(state.calls[0], UNKNOWN), now).state

    assert state.calls[0].outcome is CallOutcome.NEEDS_HUMAN


def test_an_answer_under_another_lease_or_attempt_is_not_taken() -> None:
    state = _asked(effect(0, reconciles=True), 7.0)
    call = state.calls[0]

    assert _feed(state, answer(call, EffectState.HAPPENED, "other"), 8.0).missed == "lease lost"
    assert (
        _feed(state, replace(answer(call, EffectState.HAPPENED), attempt=2), 8.0).missed == "another attempt"
    )


def test_an_effect_nobody_can_be_asked_about_waits_until_its_attempt_is_over() -> None:
    state = _out(effect(0))
    state = _feed(
        state, LeaseExpired(CommandId(state.calls[0].call_id), LeaseToken("c"), owner_gone=True), 6.0
    ).state

    early = _feed(state, ask(state.calls[0]), 7.0).state
    late = _feed(early, ask(state.calls[0]), 40.0).state

    assert early.calls[0].open and early.commands[0].due_at == 5.0 + SEND_BY_S + 30.0
    assert late.calls[0].outcome is CallOutcome.NEEDS_HUMAN


def test_the_same_request_is_not_sent_again_without_a_live_approval() -> None:
    made = replace(gated(0), idempotent=True)
    state, _ = _one(made)
    state = _feed(state, question(state.calls[0], expires_s=40.0), 3.0).state
    state = _feed(state, decide(state.calls[0], by="bob"), 4.0).state
    state = _feed(state, claim(state.calls[0]), 5.0).state
    state = _feed(state, LeaseExpired(CommandId(state.calls[0].call_id), LeaseToken("c")), 42.0).state

    assert _feed(state, ask(state.calls[0], "d"), 42.5).state.calls[0].attempt == 2
    assert _feed(state, ask(state.calls[0], "d"), 43.0).state.calls[0].outcome is CallOutcome.NEEDS_HUMAN


# -- T26 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("happened", [True, False])
def test_an_operator_answers_once_for_an_effect_that_waits_for_a_human(happened: bool) -> None:
    state, _ = _one(effect(0))
    waits = Entry("k", EffectState.NEEDS_HUMAN, 1, 0.0)
    said = EffectResolved(CallId("call_of_an_earlier_turn"), happened, "op", "saw it", '"7"', found=waits)

    step = _feed(state, said)

    (record,) = [r for r in step.records if isinstance(r, ResolveEffect)]
    assert record.state is (EffectState.HAPPENED if happened else NOTHING) and record.answer == '"7"'
    assert [r.audit.by for r in step.records if isinstance(r, AppendAudit)] == ["op"]
    assert step.state.calls == state.calls, "the turn is not reopened"
    for found in (None, replace(waits, state=EffectState.HAPPENED)):
        assert _feed(state, replace(said, found=found)).missed is not None


# -- T9: gates of the present ----------------------------------------------------------------------------------------------


def test_a_gate_that_says_no_is_the_outcome_and_one_that_says_later_uses_no_attempt() -> None:
    state, call = _one(effect(0))
    refused = CallRefused(CommandId(call.call_id), None, 1, came_to(call, CallOutcome.DENIED))
    deferred = CallDeferred(CommandId(call.call_id), None, 1, 8.0, "rate")

    no, later = _feed(state, refused).state, _feed(state, deferred).state

    assert no.calls[0].outcome is CallOutcome.DENIED and no.commands[0].queue == "results"
    assert (later.calls[0].attempt, later.commands[0].due_at) == (1, 13.0)
    for event in (refused, deferred):
        assert _feed(state, replace(event, attempt=2)).missed == "tried by somebody else"
        assert _feed(later, event).missed == "not yet due"
        assert _feed(_out(effect(0)), event).missed == "leased"


def test_a_tier_is_raised_and_never_lowered() -> None:
    state, call = _one(gated(0))
    state = _feed(state, question(call)).state
    raised = TierRaised(CommandId(call.call_id), None, Tier.IRREVERSIBLE, asks=True)

    assert _feed(state, raised).missed == "not yet due"
    up = _feed(state, raised, 200.0).state
    assert (up.calls[0].tier, up.commands[0].queue) == (Tier.IRREVERSIBLE, "exec.irreversible")
    assert up.calls[0].approval.status is ApprovalStatus.WITHDRAWN  # type: ignore[union-attr]
    for lower in (Tier.MEDIUM, Tier.HIGH):
        event = TierRaised(CommandId(call.call_id), None, lower, asks=False)
        assert _feed(_one(gated(0))[0], event).missed == "not a higher tier"


# -- T9, T19, T20: approvals ---------------------------------------------------------------------------------------------


def _question(made: object = None, *, by: str = "ann") -> RunState:
    state, call = _one(made or gated(0))
    return _feed(state, question(call, by=by)).state


def _audit(step: Step) -> tuple[bool, str]:
    (audit,) = [record.audit for record in step.records if isinstance(record, AppendAudit)]
    return audit.accepted, audit.reason


def test_a_high_effect_is_claimed_only_with_a_live_approval_of_its_arguments() -> None:
    state = _question()
    call = state.calls[0]
    assert (call.waiting, state.commands[0].due_at) == (CallWaiting.AWAITING_APPROVAL, 105.0)
    granted = _feed(state, decide(call, by="bob"), 6.0).state

    assert _feed(_one(gated(0))[0], claim(call)).missed == "not approved"
    assert _feed(state, claim(call), 104.0).missed == "not yet due"
    assert _feed(granted, claim(call), 105.0).missed == "not approved", "too late"
    assert _feed(granted, claim(call), 104.9).state.calls[0].dispatched
    for change in ({"tier": Tier.HIGH, "arguments_hash": "x"}, {"status": ApprovalStatus.REJECTED}):
        asked = replace(granted.calls[0].approval, **change)  # type: ignore[type-var]
        forged = replace(granted, calls=(replace(granted.calls[0], approval=asked),))
        assert reduce(forged, claim(call), 6.0).missed == "not approved"
    upgraded = replace(granted, calls=(replace(granted.calls[0], tier=Tier.IRREVERSIBLE),))
    assert reduce(upgraded, claim(call), 6.0).missed == "not approved"


def test_an_approval_covers_every_attempt_of_its_effect() -> None:
    state = _question()
    state = _feed(state, decide(state.calls[0], by="bob"), 6.0).state
    state = _feed(state, claim(state.calls[0]), 6.0).state
    assert _entry(state).approval_id == state.calls[0].approval.id  # type: ignore[union-attr]
    said = ended(state.calls[0], EffectState.NOT_SENT, CallOutcome.FAILED, again=True)
    state = _feed(state, said, 7.0).state

    assert _feed(state, claim(state.calls[0], "d"), 8.0).state.calls[0].dispatched


@pytest.mark.parametrize(
    ("change", "now_s", "reason"),
    [
        ({"approval_id": "apr_other"}, 6.0, "unknown"),
        ({"arguments_hash": "other"}, 6.0, "arguments_changed"),
        ({}, 105.0, "expired"),
    ],
)
def test_a_decision_that_does_not_count_is_written_down(
    change: dict[str, str], now_s: float, reason: str
) -> None:
    state = _question()

    step = _feed(state, replace(decide(state.calls[0], by="bob"), **change), now_s)  # type: ignore[arg-type]

    assert step.missed == reason and _audit(step) == (False, reason)


def test_a_second_click_and_a_click_after_a_cancel_do_not_count() -> None:
    state = _question()
    call = state.calls[0]
    granted = _feed(state, decide(call, by="bob"), 6.0).state
    cancelled = _feed(_question(gated(0)), CancelRequested("me"), 6.0).state

    assert _feed(granted, decide(call, by="bob"), 7.0).missed == "already_granted"
    assert _feed(granted, decide(call, "reject", by="bob"), 7.0).missed == "already_granted"
    assert _feed(cancelled, decide(call, by="bob"), 7.0).missed == "already_withdrawn"
    assert cancelled.calls[0].approval.status is ApprovalStatus.WITHDRAWN  # type: ignore[union-attr]


def test_the_requester_may_confirm_what_is_high_and_not_what_is_irreversible() -> None:
    high, irreversible = _question(), _question(gated(0, Tier.IRREVERSIBLE))

    assert _feed(high, decide(high.calls[0], by="ann"), 6.0).missed is None
    assert _feed(irreversible, decide(irreversible.calls[0], by="ann"), 6.0).missed == "requester"
    assert _feed(irreversible, decide(irreversible.calls[0], "reject", by="ann"), 6.0).missed is None
    assert _feed(irreversible, decide(irreversible.calls[0], by="bob"), 6.0).missed is None


def test_two_people_are_two_people() -> None:
    state = _question(gated(0, Tier.IRREVERSIBLE, two_person=True))
    first = _feed(state, decide(state.calls[0], by="bob"), 6.0).state
    assert first.calls[0].approval.status is ApprovalStatus.PENDING  # type: ignore[union-attr]

    assert _feed(first, decide(first.calls[0], by="bob"), 7.0).missed == "same_person"
    assert _feed(first, claim(first.calls[0]), 104.0).missed == "not yet due"
    second = _feed(first, decide(first.calls[0], by="cat"), 7.0).state
    assert _feed(second, claim(second.calls[0]), 8.0).state.calls[0].dispatched


def test_a_double_confirmation_is_one_persons() -> None:
    state = _question(gated(0, double_confirm=True))
    first = _feed(state, decide(state.calls[0], by="bob"), 6.0).state

    assert _feed(first, decide(first.calls[0], by="cat"), 7.0).missed == "another_person"
    assert _feed(first, decide(first.calls[0], by="bob"), 7.0).state.commands[0].due_at == 7.0


def test_changed_arguments_are_what_runs_and_earlier_confirmations_do_not_count_for_them() -> None:
    state = _question(gated(0, two_person=True))
    first = _feed(state, decide(state.calls[0], by="bob"), 6.0).state

    step = _feed(first, decide(first.calls[0], "edit", "cat", arguments='{"n":7}'), 7.0)

    call = step.state.calls[0]
    assert (call.arguments, call.edited, call.approval.granted_by) == ('{"n":7}', True, ("cat",))  # type: ignore[union-attr]
    assert call.approval.status is ApprovalStatus.PENDING  # type: ignore[union-attr]
    assert _feed(step.state, decide(first.calls[0], by="bob"), 8.0).missed == "arguments_changed"
    done = _feed(step.state, decide(call, by="bob"), 8.0).state
    assert _feed(done, claim(first.calls[0]), 9.0).missed == "not the arguments of this call"
    assert _feed(done, claim(done.calls[0]), 9.0).state.calls[0].dispatched


def test_rejected_and_expired_have_to_be_true() -> None:
    state = _question()
    call = state.calls[0]
    row = CommandId(call.call_id)
    rejected = CallRefused(row, None, 1, came_to(call, CallOutcome.REJECTED))
    expired = CallRefused(row, None, 1, came_to(call, CallOutcome.APPROVAL_EXPIRED))
    said_no = _feed(state, decide(call, "reject", by="bob", reason="no"), 6.0).state
    said_yes = _feed(state, decide(call, by="bob"), 6.0).state

    assert _feed(said_no, rejected, 7.0).state.calls[0].outcome is CallOutcome.REJECTED
    assert _feed(said_yes, rejected, 7.0).missed == "nobody rejected it"
    assert _feed(said_yes, expired, 104.9).missed == "the approval is alive"
    over = _feed(state, expired, 105.0).state
    assert over.calls[0].outcome is CallOutcome.APPROVAL_EXPIRED
    assert over.calls[0].approval.status is ApprovalStatus.EXPIRED  # type: ignore[union-attr]


def test_nobody_is_asked_twice_or_about_other_arguments_or_in_a_run_that_stops() -> None:
    state, call = _one(gated(0))
    asked = _feed(state, question(call)).state

    assert _feed(asked, question(call), 105.0).missed == "asked already"
    assert (
        _feed(state, replace(question(call), arguments_hash="x")).missed == "not the arguments of this call"
    )
    assert _feed(_one(effect(0))[0], question(call)).missed == "nobody has to be asked"
    assert reduce(replace(state, ending="deadline"), question(call), 5.0).missed == "run is stopping"


def test_a_standing_approval_covers_no_two_steps_and_nothing_irreversible() -> None:
    for made, covered in (
        (gated(0), True),
        (gated(0, Tier.IRREVERSIBLE), False),
        (gated(0, two_person=True), False),
    ):
        state, call = _one(made)

        step = _feed(state, replace(question(call), standing="std_1"))

        asked = step.state.calls[0].approval
        assert asked is not None and (asked.status is ApprovalStatus.GRANTED) == covered
        assert _audit(step) == (True, "standing" if covered else "asked")
        assert asked.arguments_hash == arguments_hash(call.arguments)


def test_a_read_that_was_approved_runs_as_any_other() -> None:
    state, _ = with_calls([proposed(0, tier=Tier.HIGH, terms=gated(0).terms)])
    state = _feed(state, question(state.calls[0])).state
    state = _feed(state, decide(state.calls[0], by="ann"), 6.0).state

    assert _feed(state, begin(state.calls[0]), 7.0).missed is None


def test_a_look_at_the_gates_is_had_once_and_not_in_a_run_that_stops() -> None:
    state, call = _one(effect(0))
    look = CallLeased(CommandId(call.call_id), LeaseToken("g"), "me", LEASE_S)
    looked = _feed(state, look).state

    again = _feed(looked, look, 6.0)
    assert again.missed is None and again.state == looked, "its own answer was lost"
    assert reduce(replace(state, ending="deadline"), look, 5.0).missed == "run is stopping"


def test_what_an_executor_says_of_a_read_ends_no_effect() -> None:
    state = _out(effect(0))
    call = state.calls[0]
    said = CallFinished(CommandId(call.call_id), LeaseToken("c"), 1, came_to(call, CallOutcome.OK))

    assert _feed(state, said).missed is not None


def test_what_lacks_a_permission_is_claimed_only_with_the_grant_of_somebody_else() -> None:
    state, call = _one(effect(0, grantable=True))
    assert _feed(state, question(call, by="ann")).missed == "nobody has to be asked"
    lacks = replace(question(call, by="ann"), permissions=("p",), standing="std_1")

    asked = _feed(state, lacks).state
    waiting = asked.calls[0]

    assert waiting.waiting is CallWaiting.AWAITING_APPROVAL and waiting.approval is not None
    assert waiting.approval.status is ApprovalStatus.PENDING, "no standing approval grants a permission"
    assert _feed(asked, decide(waiting, by="ann"), 6.0).missed == "requester"
    granted = _feed(asked, decide(waiting, by="bob"), 6.0).state
    assert _feed(granted, lacks, 7.0).missed == "asked already"
    assert _feed(granted, replace(lacks, permissions=("p", "q")), 7.0).missed is None, (
        "one more is missing now"
    )
    assert _feed(granted, claim(granted.calls[0]), 7.0).state.calls[0].dispatched
    assert _feed(granted, claim(granted.calls[0]), 500.0).missed == "not approved"
    due = replace(asked, commands=tuple(replace(row, due_at=0.0) for row in asked.commands))
    assert _feed(due, claim(waiting), 6.0).missed == "not approved"


def test_a_permission_is_asked_for_only_where_the_tool_says_so() -> None:
    state, call = _one(effect(0))

    assert _feed(state, replace(question(call), permissions=("p",))).missed == "nobody has to be asked"


@pytest.mark.parametrize(("made", "rows"), [(effect(0), 1), (proposed(0), 0)], ids=["medium", "low"])
def test_what_a_call_above_low_came_to_is_written_down(made: object, rows: int) -> None:
    state, call = _one(made)
    if call.effect:
        state = _feed(state, claim(call)).state
        last = ended(state.calls[0], EffectState.HAPPENED, CallOutcome.OK)
    else:
        last = CallFinished(CommandId(call.call_id), None, 1, came_to(call, CallOutcome.OK))
    found = [one.audit for one in _feed(state, last, 6.0).records if isinstance(one, AppendAudit)]

    assert len(found) == rows
    for audit in found:
        assert (audit.action, audit.accepted, audit.call_id) == ("call", True, call.call_id)
        assert audit.data["arguments_hash"] == arguments_hash(call.arguments)


def test_of_a_call_somebody_was_asked_about_the_decision_is_what_is_written_down() -> None:
    state = _feed(_question(), decide(_question().calls[0], by="bob"), 6.0).state
    state = _feed(state, claim(state.calls[0]), 7.0).state
    step = _feed(state, ended(state.calls[0], EffectState.HAPPENED, CallOutcome.OK), 8.0)

    assert step.state is not None and step.state.calls[0].outcome is CallOutcome.OK
    assert not [one for one in step.records if isinstance(one, AppendAudit)]


def test_what_granted_a_call_and_holds_no_more_is_worth_nothing_where_it_is_used() -> None:
    state, _ = with_calls([gated(0)])
    state = reduce(state, question(state.calls[0]), 3.0).state
    state = reduce(state, decide(state.calls[0]), 4.0).state

    event = replace(claim(state.calls[0]), lapsed="approver_revoked")
    step = reduce(state, event, 5.0)
    check_invariants(state, event, step, 5.0)

    (call,), (row,) = step.state.calls, step.state.commands
    assert call.entry is None and call.open and (row.token, row.due_at) == (None, 5.0)
    assert call.approval is not None and call.approval.status is ApprovalStatus.WITHDRAWN
    (audit,) = [one.audit for one in step.records if isinstance(one, AppendAudit)]
    assert (audit.action, audit.accepted, audit.reason) == ("claim", False, "approver_revoked")
    assert reduce(step.state, claim(call), 6.0).missed == "not approved"
    asked = reduce(step.state, question(call), 6.0).state.calls[0].approval
    assert asked is not None and asked.status is ApprovalStatus.PENDING and asked.id != call.approval.id
