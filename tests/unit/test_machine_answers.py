"""What the rules of a step forbid of a reply: held by the machine at the commit, whatever the provider let through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.machine_builders import (
    came_to,
    effect,
    lease_decision,
    next_turn,
    proposed,
    replied,
    submitted,
    with_calls,
)
from toolfleet.schemas.control import Control
from toolfleet.schemas.conversation import AssistantItem, NoticeItem
from toolfleet.schemas.events import CallsSettled, ModelFailed, ProposedCall, StepFacts
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.model import ModelFault
from toolfleet.schemas.outcomes import CallOutcome, RunStatus
from toolfleet.schemas.output import OutputRead
from toolfleet.schemas.records import AppendItem, Step
from toolfleet.schemas.run import RunState
from toolfleet.workers.machine import reduce

EARLY = Control(missing=("tool0",))
FORCED = Control(choice="tool0")
NEEDED = Control(choice="required")
REFUSED = OutputRead(None, "total: is required")


def _deciding(limits: Limits | None = None) -> RunState:
    state = submitted(limits)
    return reduce(state, lease_decision(state), 1.0).state


def _answered(state: RunState, **fields: Any) -> Step:
    event = replace(replied(state, text="It is done."), **fields)
    return reduce(state, event, 2.0)


def _items(step: Step) -> list[object]:
    return [record.item for record in step.records if isinstance(record, AppendItem)]


@pytest.mark.parametrize(
    ("fields", "reason", "told"),
    [
        ({"control": NEEDED}, "tool_required", "a tool has to be called"),
        ({"control": FORCED}, "tool_required", "tool0 has to be called first"),
        ({"control": EARLY}, "answered_too_early", "only be given after tool0"),
        ({"output": REFUSED}, "output_invalid", "total: is required"),
    ],
)
def test_an_answer_the_rules_forbid_is_corrected_once_and_then_fails_the_run(
    fields: dict[str, Any], reason: str, told: str
) -> None:
    first = _answered(_deciding(), **fields)
    again = reduce(first.state, lease_decision(first.state, "d2"), 3.0).state
    second = _answered(again, **fields)

    said, notice = _items(first)
    assert isinstance(said, AssistantItem) and said.text == "It is done."
    assert isinstance(notice, NoticeItem) and told in notice.text
    assert first.state.status is RunStatus.QUEUED and first.state.turn == 2
    assert first.state.counters.corrections == 1 and first.state.output is None
    assert second.state.status is RunStatus.FAILED and second.state.reason == reason
    assert second.state.output != "It is done." and not second.state.structured


@pytest.mark.parametrize("fields", [{"control": NEEDED}, {"control": EARLY}, {"output": REFUSED}])
def test_an_agent_without_corrections_gets_none(fields: dict[str, Any]) -> None:
    step = _answered(_deciding(Limits(corrections_max=0)), **fields)

    assert step.state.status is RunStatus.FAILED


def test_a_correction_in_the_last_turn_ends_by_the_limit_of_turns() -> None:
    step = _answered(_deciding(Limits(turns_max=1)), control=NEEDED)

    assert step.state.status is RunStatus.LIMIT_REACHED and step.state.reason == "turns_max"


@pytest.mark.parametrize("control", [None, Control(), Control(choice="none"), Control(allowed=())])
def test_an_answer_that_nothing_forbids_ends_the_run(control: Control | None) -> None:
    step = _answered(_deciding(), control=control)

    assert step.state.status is RunStatus.COMPLETED and step.state.output == "It is done."
    assert not step.state.structured


def test_an_answer_that_fits_its_schema_is_stored_as_its_canonical_json() -> None:
    step = _answered(_deciding(), output=OutputRead('{"total":3}'))

    assert step.state.status is RunStatus.COMPLETED
    assert step.state.output == '{"total":3}' and step.state.structured


@pytest.mark.parametrize("calls", [(), (proposed(0), effect(1))])
@pytest.mark.parametrize("finish", ["refusal", "content_filter"])
def test_a_refusal_is_final_and_runs_nothing_whatever_was_demanded(
    calls: tuple[ProposedCall, ...], finish: str
) -> None:
    # B119: the refused request is not sent again, and a call beside the refusal is not carried out.
    state = _deciding()

    event = replace(replied(state, calls, refusal="no", finish=finish), control=NEEDED, output=REFUSED)
    after = reduce(state, event, 2.0).state

    assert after.status is RunStatus.FAILED and after.reason == finish
    assert after.counters.tool_calls == 0 and after.counters.corrections == 0


@pytest.mark.parametrize(
    "control", [Control(allowed=("tool0",)), Control(choice="tool0"), Control(choice="none")]
)
def test_a_call_outside_the_allowed_tools_is_not_available(control: Control) -> None:
    state = _deciding()

    event = replace(replied(state, [proposed(0), proposed(1)]), control=control)
    calls = reduce(state, event, 2.0).state.calls or ()
    outcomes = [call.outcome for call in calls]

    if control.choice == "none":  # nothing runs, the turn is merged at once, and the model is asked again
        assert reduce(state, event, 2.0).state.counters.tool_calls == 0
    else:
        assert outcomes == [None, CallOutcome.NOT_AVAILABLE]


def test_of_several_calls_of_one_turn_the_first_runs_where_one_at_a_time_is_the_rule() -> None:
    state = _deciding()

    event = replace(replied(state, [proposed(0), effect(1), proposed(2)], parallel=False), control=Control())
    calls = reduce(state, event, 2.0).state.calls

    assert [call.outcome for call in calls] == [None, CallOutcome.NOT_RUN, CallOutcome.NOT_RUN]


def test_the_state_knows_which_tools_came_back_and_which_succeeded() -> None:
    state, _ = with_calls([proposed(0), proposed(1), proposed(2), proposed(3)])
    ends = (CallOutcome.OK, CallOutcome.BUSINESS_ERROR, CallOutcome.NOT_AVAILABLE, CallOutcome.FAILED)

    results = tuple(came_to(call, end) for call, end in zip(state.calls, ends, strict=True))
    settled = reduce(state, CallsSettled(results), 3.0).state

    assert settled.came_back == ("tool0", "tool1", "tool3")
    assert settled.succeeded == ("tool0",)


def test_what_came_back_is_kept_over_turns() -> None:
    state, _ = with_calls([proposed(0)])
    state, _ = next_turn(state, [proposed(0, tool="tool1", signature="other")])
    ended = tuple(came_to(call, CallOutcome.OK) for call in state.calls)
    settled = reduce(state, CallsSettled(ended), 7.0).state

    assert settled.came_back == settled.succeeded == ("tool0", "tool1")


def _too_long(state: RunState, token: str, *, tighter: int | None) -> Step:
    fault = ModelFault("context_length", "too long", retryable=False, status=400)
    facts = StepFacts(tighter_tokens=tighter)
    return reduce(state, ModelFailed(state.commands[0].id, LeaseToken(token), fault, 9.0, facts), 2.0)


def test_a_request_the_provider_finds_too_long_is_tried_once_more_with_less() -> None:
    first = _too_long(_deciding(), "d", tighter=500)
    again = reduce(first.state, lease_decision(first.state, "d2"), 2.0).state
    second = _too_long(again, "d2", tighter=250)

    assert first.state.status is RunStatus.QUEUED and first.state.context_tokens_max == 500
    assert first.state.commands[0].due_at == 2.0, "at once: waiting makes no request shorter"
    assert first.state.model_failures == 0, "the server did not fail"
    assert second.state.status is RunStatus.FAILED and second.state.reason == "context_length"


def test_a_request_with_nothing_to_leave_out_is_not_tried_again() -> None:
    step = _too_long(_deciding(), "d", tighter=None)

    assert step.state.status is RunStatus.FAILED and step.state.reason == "context_length"
