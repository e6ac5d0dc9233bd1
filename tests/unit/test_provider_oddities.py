"""What odd answers of model servers come to in a run: from the answer through the adapter to the state of the machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.machine_builders import lease_decision, reduce, replied, submitted
from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.chat_render import rendered_items
from toolfleet.adapters.llm.wires import WIRES
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import AssistantItem
from toolfleet.schemas.events import ModelFailed, StepFacts
from toolfleet.schemas.ids import LeaseToken, RunId
from toolfleet.schemas.model import ModelFault, ModelReply
from toolfleet.schemas.outcomes import RunStatus
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.reply import item_calls, propose

OPEN = {"type": "object", "additionalProperties": True}
AGENT = AgentSpec(
    name="desk",
    model="m",
    tools=tuple(ToolSpec(name=name, description="d", parameters=OPEN) for name in ("web_search", "refund")),
)
RUN = RunId("run_1")
CALL = {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"order": "O1"}'}}


def read(wire: Any, body: dict[str, Any]) -> ModelReply:
    return WIRES[wire].parse(Answer(json.dumps(body).encode(), "h", "m"))


def chat(message: dict[str, Any], finish: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]}


def test_calls_under_empty_ids_run_once_each_under_ids_that_stay() -> None:  # B107
    calls = [
        {
            "id": "",
            "type": "function",
            "function": {"name": "web_search", "arguments": json.dumps({"query": query})},
        }
        for query in ("a", "b")
    ]
    reply = read("chat_completions", chat({"content": None, "tool_calls": calls}, "stop"))

    proposed = propose(reply, AGENT, RUN, 1, None)

    assert [call.answer for call in proposed] == [None, None]
    assert len({call.wire_id for call in proposed}) == 2
    assert propose(reply, AGENT, RUN, 1, None) == proposed
    items = item_calls(proposed, RUN, 1)
    (sent,) = rendered_items([AssistantItem(None, items, wire=reply.wire, provider=reply.provider)])
    assert [call["id"] for call in sent["tool_calls"]] == [call.wire_id for call in proposed]


FILTERED = [
    ("chat_completions", chat({"content": None}, "content_filter"), "content_filter"),
    ("chat_completions", chat({"content": None, "refusal": "cannot help"}, "stop"), "refusal"),
    ("messages", {"type": "message", "stop_reason": "refusal", "content": []}, "refusal"),
    ("chat_completions", chat({"content": None, "tool_calls": [CALL]}, "content_filter"), "content_filter"),
    (
        "chat_completions",
        chat({"content": None, "tool_calls": [CALL], "refusal": "no"}, "tool_calls"),
        "refusal",
    ),
    (
        "responses",
        {
            "status": "completed",
            "output": [
                {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]},
                {"type": "function_call", "call_id": "c", "name": "refund", "arguments": "{}"},
            ],
        },
        "refusal",
    ),
    (
        "responses",
        {
            "status": "incomplete",
            "incomplete_details": {"reason": "content_filter"},
            "output": [{"type": "function_call", "call_id": "c", "name": "refund", "arguments": "{}"}],
        },
        "content_filter",
    ),
    (
        "messages",
        {
            "type": "message",
            "stop_reason": "refusal",
            "content": [{"type": "tool_use", "id": "t", "name": "refund", "input": {"order": "O1"}}],
        },
        "refusal",
    ),
]


@pytest.mark.parametrize(("wire", "body", "reason"), FILTERED)
def test_a_refusal_ends_the_run_with_its_reason_and_runs_no_call(
    wire: Any, body: Any, reason: str
) -> None:  # B119
    reply = read(wire, body)
    state = reduce(submitted(), lease_decision(submitted()), 1.0).state
    calls = propose(reply, AGENT, state.run_id, 1, None)

    done = reduce(
        state, replied(state, calls, text=reply.text, finish=reply.finish, refusal=reply.refusal), 2.0
    ).state

    assert (done.status, done.reason) == (RunStatus.FAILED, reason)
    assert done.counters.model_calls == 1 and done.counters.tool_calls == 0
    assert [command for command in done.commands if command.queue.startswith("exec")] == []


def test_a_request_a_content_filter_refuses_ends_the_run_with_that_reason() -> None:  # B119
    state = reduce(submitted(), lease_decision(submitted()), 1.0).state
    row = state.commands[0]
    fault = ModelFault("content_filter", "h answered 400.", retryable=False, status=400)

    done = reduce(
        state, ModelFailed(row.id, row.token or LeaseToken("d"), fault, 1.0, StepFacts()), 2.0
    ).state

    assert (done.status, done.reason) == (RunStatus.FAILED, "content_filter")


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("chat_completions", chat({"content": None, "tool_calls": [CALL]}, "length")),
        (
            "responses",
            {
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
                "output": [
                    {"type": "function_call", "call_id": "c", "name": "refund", "arguments": '{"order": "O'}
                ],
            },
        ),
        (
            "messages",
            {
                "type": "message",
                "stop_reason": "max_tokens",
                "content": [{"type": "tool_use", "id": "t", "name": "refund", "input": {"order": "O"}}],
            },
        ),
    ],
)
def test_calls_of_a_reply_that_was_cut_off_are_too_long_and_not_wrong(wire: Any, body: Any) -> None:  # B009
    (call,) = propose(read(wire, body), AGENT, RUN, 1, None)

    assert call.answer is not None
    told = json.loads(call.answer.content)
    assert told["reason_code"] == "truncated_output" and "limit of output tokens" in told["message"]
    assert json.loads(call.arguments) == {}
