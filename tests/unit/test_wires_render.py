"""Requests of the Responses and the Messages wire: what is sent back, in which order, and what never is."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import orjson
import pytest

from toolfleet import Fleet
from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.chat_render import ChatRenderer
from toolfleet.adapters.llm.profiles import (
    ANTHROPIC,
    GENERIC,
    MISTRAL,
    OPENAI,
    OPENAI_RESPONSES,
    PROFILES,
    Profile,
    profile_for,
)
from toolfleet.adapters.llm.rendering import Renderer, wire_ids
from toolfleet.adapters.llm.wires import WIRES
from toolfleet.schemas.agents import AgentSpec, ExampleCall, ExampleTurn
from toolfleet.schemas.conversation import (
    AssistantItem,
    Item,
    ItemCall,
    ItemResult,
    MergeItem,
    NoticeItem,
    UserItem,
)
from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.model import ModelReply, ModelRequest
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.reply import item_calls, propose

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = tuple(ToolSpec(name=name, description=f"{name}s", parameters=PARAMETERS) for name in ("read", "look"))
EXAMPLE = ExampleTurn(
    user="Where?",
    calls=(ExampleCall(id="example_1", name="look", arguments={"path": "x"}, result={"at": "home"}),),
    answer="At home.",
)
AGENT = AgentSpec(name="desk", model="m", instructions="Be kind.", tools=TOOLS)
RUN = RunId("run_1")


def renderer(profile: Profile) -> Renderer:
    return WIRES[profile.wire].renderer(profile)


def body(profile: Profile, *items: Item, agent: AgentSpec = AGENT, **more: Any) -> dict[str, Any]:
    request = ModelRequest(agent, items or (UserItem("Hello"),), more.pop("tools", agent.tools), **more)
    found: dict[str, Any] = orjson.loads(renderer(profile).render(request))
    return found


def reply_of(profile: Profile, answer: Any) -> ModelReply:
    return WIRES[profile.wire].parse(Answer(json.dumps(answer).encode(), "h", "m"))


def turn(reply: ModelReply, order: list[int] | None = None) -> list[Item]:
    """The two items of a turn, its results made in any order and merged in call order."""
    calls = item_calls(propose(reply, AGENT, RUN, 1, None), RUN, 1)
    done: dict[int, ItemResult] = {}
    for place in order or range(len(calls)):
        call = calls[place]
        done[place] = ItemResult(call.call_id, call.wire_id, CallOutcome.OK, f'{{"n":{place}}}')
    merged = MergeItem(tuple(done[place] for place in sorted(done)))
    return [AssistantItem(reply.text, calls, wire=reply.wire, provider=reply.provider), merged]


def message(*blocks: dict[str, Any], stop: str = "tool_use") -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 2}
    return {
        "type": "message",
        "role": "assistant",
        "content": list(blocks),
        "stop_reason": stop,
        "usage": usage,
    }


def tool_use(number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"path": f"f{number}.txt"}}


def test_all_results_of_a_turn_stand_in_one_user_message_before_any_text() -> None:  # B003
    reply = reply_of(ANTHROPIC, message({"type": "text", "text": "reading"}, *map(tool_use, range(5))))

    sent = body(ANTHROPIC, UserItem("Go"), *turn(reply, [3, 0, 4, 1, 2]), NoticeItem("Go on."))["messages"]

    assert [one["role"] for one in sent] == ["user", "assistant", "user"]
    kinds = [block["type"] for block in sent[2]["content"]]
    assert kinds == ["tool_result"] * 5 + ["text"]
    assert [block["tool_use_id"] for block in sent[2]["content"][:5]] == [f"toolu_{n}" for n in range(5)]


@pytest.mark.parametrize("profile", [OPENAI, OPENAI_RESPONSES, ANTHROPIC], ids=lambda profile: profile.wire)
def test_the_bytes_do_not_depend_on_the_order_in_which_calls_end(profile: Profile) -> None:  # B005
    answers: dict[str, Any] = {
        "messages": message(*map(tool_use, range(3))),
        "responses": {
            "object": "response",
            "status": "completed",
            "output": [
                {
                    "type": "function_call",
                    "id": f"fc_{n}",
                    "call_id": f"c{n}",
                    "name": "read",
                    "arguments": "{}",
                }
                for n in range(3)
            ],
        },
        "chat_completions": {
            "choices": [
                {
                    "message": {
                        "tool_calls": [
                            {
                                "id": f"c{n}",
                                "type": "function",
                                "function": {"name": "read", "arguments": "{}"},
                            }
                            for n in range(3)
                        ]
                    }
                }
            ]
        },
    }
    reply = reply_of(profile, answers[profile.wire])

    rendered = {
        renderer(profile).render(ModelRequest(AGENT, (UserItem("Go"), *turn(reply, list(order))), TOOLS))
        for order in itertools.permutations(range(3))
    }

    assert len(rendered) == 1


def test_thinking_goes_back_with_its_signature_as_it_came() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    hidden = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
    reply = reply_of(ANTHROPIC, message(thought, hidden, {"type": "text", "text": " "}, tool_use(0)))

    sent = body(ANTHROPIC, UserItem("Go"), *turn(reply))["messages"]

    assert sent[1]["content"] == [thought, hidden, tool_use(0)]


def test_a_failed_call_is_marked_as_an_error_and_a_pending_one_is_not() -> None:
    calls = tuple(ItemCall(f"k{n}", f"w{n}", "read", "{}") for n in range(3))
    outcomes = (CallOutcome.OK, CallOutcome.FAILED, CallOutcome.NEEDS_HUMAN)
    results = tuple(
        ItemResult(call.call_id, call.wire_id, outcome, "{}")
        for call, outcome in zip(calls, outcomes, strict=True)
    )

    sent = body(ANTHROPIC, UserItem("Go"), AssistantItem(None, calls), MergeItem(results))["messages"]

    assert [block["is_error"] for block in sent[2]["content"]] == [False, True, False]


def test_texts_that_say_nothing_are_not_sent_to_a_wire_that_refuses_them() -> None:
    sent = body(ANTHROPIC, UserItem("Go"), AssistantItem(""), NoticeItem("Your last reply was empty."))[
        "messages"
    ]

    assert [one["role"] for one in sent] == ["user"]
    assert [block["text"] for block in sent[0]["content"]] == ["Go", "Your last reply was empty."]


REASONED = {
    "object": "response",
    "id": "resp_1",
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "look",
            "arguments": '{"path": "x"}',
        },
    ],
}


def test_reasoning_and_the_call_behind_it_go_back_together_or_neither_with_its_id() -> None:  # B113
    stored = replace(OPENAI_RESPONSES, stored=True)
    by_id = replace(stored, by_previous_id=True)
    plain = turn(reply_of(OPENAI_RESPONSES, REASONED))
    encrypted = json.loads(json.dumps(REASONED))
    encrypted["output"][0]["encrypted_content"] = "gAAA"
    secret = turn(reply_of(OPENAI_RESPONSES, encrypted))

    def sent(profile: Profile, items: list[Item]) -> list[tuple[Any, Any]]:
        return [
            (item.get("id"), item.get("call_id")) for item in body(profile, UserItem("Go"), *items)["input"]
        ]

    assert sent(OPENAI_RESPONSES, plain) == [(None, None), (None, "call_1"), (None, "call_1")]
    assert sent(OPENAI_RESPONSES, secret) == [
        (None, None),
        ("rs_1", None),
        ("fc_1", "call_1"),
        (None, "call_1"),
    ]
    assert sent(stored, plain) == [(None, None), ("rs_1", None), ("fc_1", "call_1"), (None, "call_1")]
    assert sent(by_id, plain) == [(None, "call_1")]
    assert body(by_id, UserItem("Go"), *plain)["previous_response_id"] == "resp_1"
    assert body(OPENAI_RESPONSES)["store"] is False
    assert body(OPENAI_RESPONSES)["include"] == ["reasoning.encrypted_content"]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_reasoning_is_always_kept_and_sent_where_the_profile_says_so(profile: Profile) -> None:  # B115
    if profile.wire != "chat_completions":
        return
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "think"}
    reply = reply_of(profile, {"choices": [{"message": said}]})

    sent = body(profile, UserItem("Go"), *turn(reply))["messages"][2]

    assert reply.provider["reasoning_content"] == "think"
    assert reply.text is None
    assert ("reasoning_content" in sent) == ("reasoning_content" in profile.reasoning_sent)


def test_an_empty_reasoning_goes_back_too_where_it_is_demanded() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": ""}
    reply = reply_of(PROFILES["deepseek"], {"choices": [{"message": said}]})

    sent = body(PROFILES["deepseek"], UserItem("Go"), *turn(reply))["messages"][2]

    assert sent["reasoning_content"] == ""


@pytest.mark.parametrize("thought", [None, ""])
def test_a_server_that_takes_empty_for_missing_gets_a_blank_in_its_place(thought: str | None) -> None:
    moonshot = PROFILES["moonshot"]
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": thought}
    own = turn(reply_of(moonshot, {"choices": [{"message": said}]}))
    foreign = AssistantItem(
        None, (ItemCall("k", "c", "look", "{}"),), wire="messages", provider={"content": []}
    )

    for item in (own[0], foreign):
        assert body(moonshot, UserItem("Go"), item)["messages"][2]["reasoning_content"] == " "


def test_sampling_is_not_sent_to_models_that_refuse_it() -> None:
    agent = AGENT.model_copy(update={"temperature": 0.5, "top_p": 0.9})

    kimi = body(PROFILES["moonshot"], agent=agent.model_copy(update={"model": "moonshot:kimi-k2.6"}))
    older = body(PROFILES["moonshot"], agent=agent.model_copy(update={"model": "moonshot:moonshot-v1-8k"}))

    assert not {"temperature", "top_p"} & kimi.keys()
    assert older["temperature"] == 0.5 and older["top_p"] == 0.9


def test_arguments_go_back_as_they_were_written_unless_something_else_was_carried_out() -> None:
    def sent(raw: str, ours: str) -> str:
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": raw}}
        provider = {"role": "assistant", "content": None, "tool_calls": [call]}
        item = AssistantItem(
            None, (ItemCall("k", "c", "look", ours),), wire="chat_completions", provider=provider
        )
        text: str = body(GENERIC, UserItem("Go"), item)["messages"][2]["tool_calls"][0]["function"][
            "arguments"
        ]
        return text

    assert sent('{"b": 1, "a": "x"}', '{"a":"x","b":1}') == '{"b": 1, "a": "x"}'
    assert sent('{"a": tru', "{}") == "{}"
    assert sent('{"a": true}', '{"a":1}') == '{"a":1}'  # changed by a person before it ran
    assert sent('{"a": 1, "a": 2}', "{}") == "{}"
    assert sent('{"n": 12345678901234567890123}', '{"n":12345678901234567890124}').endswith("124}")


def test_ids_of_another_provider_are_made_over_for_one_that_refuses_them() -> None:
    calls = [
        ItemCall(f"k{n}", wire_id, "read", "{}")
        for n, wire_id in enumerate(("functions.read:0", "abcDEF123"))
    ]

    nine, safe = wire_ids(calls, MISTRAL), wire_ids(calls, ANTHROPIC)

    assert nine["abcDEF123"] == safe["abcDEF123"] == "abcDEF123"
    assert len(nine["functions.read:0"]) == 9 and nine["functions.read:0"].isalnum()
    assert ":" not in safe["functions.read:0"] and "." not in safe["functions.read:0"]
    assert wire_ids(calls, GENERIC) == {call.wire_id: call.wire_id for call in calls}
    item, merged = (
        AssistantItem(None, tuple(calls)),
        MergeItem(tuple(ItemResult(call.call_id, call.wire_id, CallOutcome.OK, "{}") for call in calls)),
    )
    sent = body(MISTRAL, UserItem("Go"), item, merged)["messages"]
    assert [call["id"] for call in sent[2]["tool_calls"]] == [one["tool_call_id"] for one in sent[3:]]


def test_what_a_server_cannot_be_told_is_left_to_the_runtime() -> None:
    told = {"tool_choice": "required", "allowed": ("look",), "parallel": False}

    assert body(OPENAI_RESPONSES, **told)["tool_choice"] == {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "look"}],
    }
    assert body(ANTHROPIC, **told)["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert body(PROFILES["moonshot"], **told)["tool_choice"] == "auto"
    assert "parallel_tool_calls" not in body(PROFILES["ollama"], **told)
    assert body(ANTHROPIC, tool_choice="look")["tool_choice"] == {"type": "tool", "name": "look"}
    assert body(ANTHROPIC, tool_choice="none")["tool_choice"] == {"type": "none"}
    assert len(body(ANTHROPIC, **told)["tools"]) == len(TOOLS)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_request_has_an_output_limit_and_a_prefix_that_stays(profile: Profile) -> None:
    agent = AGENT.model_copy(update={"examples": (EXAMPLE,), "model": f"{profile.name}:some-model"})
    made = renderer(profile)
    first = made.render(ModelRequest(agent, (UserItem("a"),), agent.tools, output_tokens_max=7))
    second = made.render(
        ModelRequest(
            agent, (UserItem("a"), AssistantItem("b"), UserItem("c")), agent.tools, output_tokens_max=9
        )
    )

    assert json.loads(first)[profile.output_limit] == 7
    assert json.loads(first)["model"] == "some-model"
    start = first.index(b'"a"')
    assert first[:start] == second[:start]
    assert b"At home." in first[:start] and b"Be kind." in first[:start]


def test_a_server_is_known_by_its_host_and_every_profile_says_where_it_is_from() -> None:
    assert profile_for("https://api.deepseek.com/v1").name == "deepseek"
    assert profile_for("https://x.openai.azure.com/openai/v1").name == "azure"
    assert profile_for("https://evil-api.openai.com.example/v1") == GENERIC
    for profile in PROFILES.values():
        assert profile is GENERIC or (profile.source and profile.checked != "not looked up")


def test_a_chat_renderer_needs_no_profile() -> None:
    assert ChatRenderer().profile is GENERIC


def test_options_of_the_provider_are_declared_with_the_agent_and_sent_as_they_are() -> None:
    fleet = Fleet()
    given = {"reasoning_effort": "low", "metadata": {"team": "desk"}}
    agent = fleet.agent("desk", model="m", provider_options=given)

    body = orjson.loads(ChatRenderer(OPENAI).render(ModelRequest(agent, (UserItem("hello"),), ())))

    assert {key: body[key] for key in given} == given
    assert agent.prompt_version != fleet.agent("plain", model="m").prompt_version
    with pytest.raises(InvalidDefinition, match="provider_options cannot set messages"):
        fleet.agent("odd", model="m", provider_options={"messages": []})
