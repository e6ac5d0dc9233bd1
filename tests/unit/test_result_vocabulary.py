"""The written rules of results against the code: what ends a run, what is tried again, how every envelope looks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit import machine_builders as build
from toolfleet.schemas.envelopes import error, omitted, success, with_cause
from toolfleet.schemas.events import CallsSettled
from toolfleet.schemas.outcomes import CallOutcome, RunStatus
from toolfleet.schemas.records import StoreResult
from toolfleet.schemas.vocabulary import OUTCOME_RULES, ResultEnvelope
from toolfleet.workers.machine.reduce import reduce

NAMES = list(ResultEnvelope.model_fields)


def test_every_outcome_has_its_rule() -> None:
    assert list(OUTCOME_RULES) == list(CallOutcome)


@pytest.mark.parametrize(
    "outcome", [one for one in CallOutcome if not OUTCOME_RULES[one].ends_run.startswith("when")]
)
@pytest.mark.parametrize("tells", [False, True])
def test_a_turn_with_this_outcome_ends_the_run_or_goes_on_as_it_is_written(
    outcome: CallOutcome, tells: bool
) -> None:
    state, _ = build.with_calls([build.proposed(0, tell_on_denied=tells)])
    (call,) = state.calls

    step = reduce(state, CallsSettled((build.came_to(call, outcome),)), 20.0)

    ends = {"no": False, "yes": True, "unless on_denied=tell_model": not tells}[
        OUTCOME_RULES[outcome].ends_run
    ]
    assert step.state.terminal == ends
    assert step.state.status is (RunStatus.DENIED if ends else RunStatus.QUEUED)


@pytest.mark.parametrize("outcome", [CallOutcome.INVALID_ARGUMENTS, CallOutcome.UNKNOWN_TOOL])
def test_what_the_model_may_correct_ends_the_run_when_its_corrections_are_used_up(
    outcome: CallOutcome,
) -> None:
    assert OUTCOME_RULES[outcome].ends_run == "when corrections are used up"
    assert OUTCOME_RULES[outcome].retried == "by the model"
    state, step = build.with_calls([build.invalid(0)])
    statuses = [state.status]

    while not state.terminal:
        state, step = build.next_turn(state, [build.invalid(0)])
        statuses.append(state.status)

    assert statuses == [RunStatus.QUEUED, RunStatus.LIMIT_REACHED]
    assert any(isinstance(record, StoreResult) for record in step.records)


@pytest.mark.parametrize("outcome", [one for one in CallOutcome if one is not CallOutcome.OK])
def test_an_envelope_has_the_status_of_its_rule_and_the_fields_of_the_vocabulary(
    outcome: CallOutcome,
) -> None:
    told = json.loads(
        error(
            outcome=outcome,
            message="m",
            reason="r",
            field_errors=[{"path": "a", "message": "b"}],
            retryable=True,
            retryable_by_model=True,
            retry_after_s=1.5,
            suggested_action="s",
            user_action_required=True,
            operation_id="o",
            next_actions=["n"],
            notice="w",
        )
    )

    assert ResultEnvelope.model_validate(told).status == OUTCOME_RULES[outcome].status
    assert set(told) <= set(NAMES)


def test_a_failure_with_another_reason_keeps_the_order_and_everything_else() -> None:
    whole = error(
        outcome=CallOutcome.FAILED,
        message="it broke.",
        reason="timeout",
        retryable=True,
        retry_after_s=1.5,
        suggested_action="s",
    )

    told = json.loads(with_cause(whole, reason="call_timeout", more="No time is left."))

    assert list(told) == list(json.loads(whole))
    assert (told["reason_code"], told["message"]) == ("call_timeout", "it broke. No time is left.")
    assert {**json.loads(whole), "reason_code": 0, "message": 0} == {**told, "reason_code": 0, "message": 0}
    ResultEnvelope.model_validate(told)


def test_a_success_has_the_fields_of_the_vocabulary_in_their_order() -> None:
    told = json.loads(
        success(
            b"[1]",
            provenance="p",
            notes=["n"],
            notice="w",
            truncated=True,
            reference="r",
            untrusted_text_omitted=True,
            next_actions=["a"],
        )
    )

    assert ResultEnvelope.model_validate(told).data == [1]
    assert list(told) == [name for name in NAMES if name in told]
    assert OUTCOME_RULES[CallOutcome.OK].status == told["status"]


def test_every_field_is_used_by_one_of_the_two() -> None:
    made: dict[str, Any] = json.loads(
        success(
            b"1",
            provenance="p",
            notes=["n"],
            notice="w",
            truncated=True,
            reference="r",
            untrusted_text_omitted=True,
            next_actions=["a"],
        )
    )
    made |= json.loads(
        error(
            outcome=CallOutcome.FAILED,
            message="m",
            reason="r",
            field_errors=[{"path": "", "message": ""}],
            retry_after_s=1,
            suggested_action="s",
            user_action_required=True,
            operation_id="o",
        )
    )

    made |= json.loads(omitted(success(b"1"), reference="r"))

    assert set(made) == set(NAMES)
    assert ResultEnvelope.model_validate_json(omitted(success(b"1"), reference="r")).data_omitted
