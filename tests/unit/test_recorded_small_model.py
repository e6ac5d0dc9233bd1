"""The rules against what a real small model did with them: it ignored `required`, and `parallel_tool_calls: false`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.corpus.cases import OWN_FOLDER, Case, read
from tests.unit.machine_builders import RUN, lease_decision, replied, submitted
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.control import Control
from toolfleet.schemas.events import ModelReplied
from toolfleet.schemas.model import ModelReply, RawCall
from toolfleet.schemas.outcomes import CallOutcome, RunStatus
from toolfleet.schemas.run import RunState
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.reply import propose
from toolfleet.workers.machine import reduce

NAMES = ("get_weather", "get_order", "refund_order", "send_email")
RECORDED = [case for case in read("llm/local_gemma.jsonl", OWN_FOLDER) if "message" in case]
CALLING = [case for case in RECORDED if case["message"].get("tool_calls")]
SEVERAL = [case for case in CALLING if len(case["message"]["tool_calls"]) > 1]
SILENT = [case for case in RECORDED if not case["message"].get("tool_calls")]


def _agent() -> AgentSpec:
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return AgentSpec(
        name="desk",
        model="gemma",
        tools=tuple(ToolSpec(name=name, description="", parameters=texts) for name in NAMES),
    )


def _id(case: Case) -> str:
    return str(case["id"])


def _replied(case: Case, control: Control, **fields: Any) -> tuple[RunState, ModelReplied]:
    """The recorded reply, as it comes to a run under these rules."""
    state = submitted()
    state = reduce(state, lease_decision(state), 1.0).state
    message = case["message"]
    made = message.get("tool_calls") or []
    raw = tuple(RawCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in made)
    finish = fields.get("finish", case["finish_reason"])
    reply = ModelReply(message["content"], raw, finish, "chat_completions", message, "gemma")
    calls = propose(reply, _agent(), RUN, state.turn, control.callable, excluded=dict(control.excluded))
    event = replace(replied(state), reply=reply, calls=calls, parallel=control.parallel, control=control)
    return state, event


def test_the_recordings_hold_what_these_tests_are_about() -> None:
    assert len(SEVERAL) >= 5 and len(SILENT) >= 5
    assert any("parallel_tool_calls=false" in case["label"] for case in SEVERAL)


@pytest.mark.parametrize("case", SEVERAL, ids=_id)
def test_of_the_calls_it_makes_although_one_was_asked_for_the_first_usable_runs(case: Case) -> None:
    state, event = _replied(case, Control(parallel=False), finish="tool_calls")

    after = reduce(state, event, 2.0).state

    outcomes = [call.outcome for call in after.calls]
    usable = [at for at, call in enumerate(event.calls) if call.answer is None]
    assert [at for at, outcome in enumerate(outcomes) if outcome is None] == usable[:1]
    assert all(outcomes[at] is CallOutcome.NOT_RUN for at in usable[1:])


@pytest.mark.parametrize("case", [c for c in SEVERAL if c["finish_reason"] == "length"], ids=_id)
def test_of_a_reply_that_was_cut_off_nothing_runs(case: Case) -> None:
    # B009: it says that the reply was too long, and nothing of a schema.
    state, event = _replied(case, Control(parallel=False))

    after = reduce(state, event, 2.0).state

    assert after.counters.tool_calls == 0 and after.turn == 2
    assert all(
        call.answer is not None
        and call.answer.reason == "truncated_output"
        and "limit" in call.answer.content
        for call in event.calls
    )


@pytest.mark.parametrize("case", SILENT, ids=_id)
@pytest.mark.parametrize("control", [Control(choice="required"), Control(missing=("get_order",))])
def test_an_answer_instead_of_the_demanded_call_is_not_accepted(case: Case, control: Control) -> None:
    state, event = _replied(case, control)

    after = reduce(state, event, 2.0).state

    assert after.status is RunStatus.QUEUED and after.turn == 2 and after.counters.corrections == 1


@pytest.mark.parametrize("case", CALLING, ids=_id)
@pytest.mark.parametrize("allowed", [(), ("get_weather",)])
def test_it_may_call_what_it_likes_and_only_what_is_allowed_runs(
    case: Case, allowed: tuple[str, ...]
) -> None:
    out = tuple((name, "stage") for name in NAMES if name not in allowed)
    state, event = _replied(case, Control(allowed=allowed, excluded=out), finish="tool_calls")

    after = reduce(state, event, 2.0).state

    running = {call.tool for call in after.calls if call.open}
    assert running <= set(allowed)
    refused = {call.tool for call in after.calls if call.outcome is CallOutcome.NOT_AVAILABLE}
    assert after.turn == 2 or refused == {call.tool for call in after.calls} - set(allowed)
