"""A request as bytes: the same for the same state, an unchanging prefix, and nothing a provider refuses."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.chat_parse import parse_reply
from toolfleet.adapters.llm.chat_render import ChatRenderer
from toolfleet.adapters.llm.profiles import GENERIC, OPENAI, Profile, profile_for
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
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.tools import ToolSpec

PARAMETERS = {"type": "object", "required": ["b", "a"], "properties": {"b": {"type": "string"}, "a": {}}}
EXAMPLE = ExampleTurn(
    user="Where is A?",
    calls=(ExampleCall(id="example_1", name="look", arguments={"b": "x", "a": 1}, result={"at": "home"}),),
    answer="At home.",
)


def _agent(**more: Any) -> AgentSpec:
    tools = tuple(
        ToolSpec(name=name, description=f"{name}s", parameters=PARAMETERS) for name in ("look", "act")
    )
    fields: dict[str, Any] = {"name": "desk", "model": "m", "instructions": "Be kind.", "tools": tools}
    return AgentSpec(**{**fields, **more})


def _result(wire_id: str, content: str = "{}") -> ItemResult:
    return ItemResult(f"our_{wire_id}", wire_id, CallOutcome.OK, content)


def _call(wire_id: str, name: str = "look", arguments: str = "{}") -> ItemCall:
    return ItemCall(f"our_{wire_id}", wire_id, name, arguments)


def _request(*items: Item, agent: AgentSpec | None = None, **more: Any) -> ModelRequest:
    agent = agent or _agent()
    return ModelRequest(agent, items or (UserItem("Hello"),), more.pop("tools", agent.tools), **more)


def _body(request: ModelRequest, profile: Profile = GENERIC) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(ChatRenderer(profile).render(request))
    return body


def _messages(*items: Item) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = _body(_request(*items))["messages"][1:]
    return messages


def test_a_request_stands_in_the_order_that_keeps_its_beginning_the_same() -> None:
    agent = _agent(examples=(EXAMPLE,), temperature=0.5)

    rendered = ChatRenderer().render(_request(agent=agent, output_tokens_max=7, user="u1"))

    body = json.loads(rendered)
    assert list(body) == [
        "model",
        "tools",
        "messages",
        "max_tokens",
        "temperature",
        "tool_choice",
        "parallel_tool_calls",
        "user",
    ]
    assert [message["role"] for message in body["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert body["messages"][2]["tool_calls"][0]["id"] == body["messages"][3]["tool_call_id"] == "example_1"
    assert json.loads(body["messages"][3]["content"]) == {
        "status": "success",
        "data": {"at": "home"},
        "provenance": "look",
    }


def test_equal_requests_have_equal_bytes_and_schemas_keep_the_order_of_their_keys() -> None:
    item = AssistantItem(None, (_call("a", arguments='{"b":1,"a":2}'),))
    items = (UserItem("Hi"), item, MergeItem((_result("a"),)))

    first = ChatRenderer().render(_request(*items))
    renderer = ChatRenderer()
    again = [renderer.render(_request(*items)), renderer.render(_request(*items))]

    assert again == [first, first]
    assert (
        b'"parameters":{"type":"object","required":["b","a"],"properties":{"b":{"type":"string"},"a":{}}}'
        in first
    )


def test_the_beginning_of_a_request_is_the_same_bytes_in_every_turn() -> None:
    agent = _agent(examples=(EXAMPLE,))
    renderer = ChatRenderer()
    first = renderer.render(_request(UserItem("Hello"), agent=agent))
    turn = AssistantItem(None, (_call("a"),))

    second = renderer.render(
        _request(
            UserItem("Hello"),
            turn,
            MergeItem((_result("a"),)),
            agent=agent,
            allowed=("act",),
            tool_choice="required",
            output_tokens_max=3,
        )
    )

    assert second.startswith(first[: first.index(b"Hello") + len(b'Hello"}')])


def test_another_version_of_an_agent_has_another_beginning_however_often_rendered() -> None:
    renderer = ChatRenderer()

    for number in range(200):  # more than are kept; identities are used again by Python meanwhile
        agent = _agent(instructions=f"version {number}")
        assert (
            orjson.loads(renderer.render(_request(agent=agent)))["messages"][0]["content"]
            == f"version {number}"
        )


def test_an_agent_may_have_no_instructions_and_no_tools() -> None:
    body = _body(_request(UserItem("Hi"), agent=_agent(instructions="", tools=())))

    assert body == {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4096}


def test_a_merge_is_one_tool_message_for_each_call_contiguous_and_in_call_order() -> None:
    calls = tuple(_call(wire_id) for wire_id in ("a", "b", "c"))
    merge = MergeItem(tuple(_result(wire_id, f'"{wire_id}"') for wire_id in ("a", "b", "c")))

    messages = _messages(UserItem("Hi"), AssistantItem(None, calls), merge, NoticeItem("Careful."))

    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert [(m["tool_call_id"], m["content"]) for m in messages[2:5]] == [
        ("a", '"a"'),
        ("b", '"b"'),
        ("c", '"c"'),
    ]
    assert messages[-1] == {"role": "user", "content": "Careful."}


def test_a_message_of_this_wire_is_replayed_with_our_ids_and_valid_arguments() -> None:
    signature = {"google": {"thought_signature": "s"}}
    raw = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "index": 0,
                "id": "",
                "type": "function",
                "extra_content": signature,
                "function": {"name": "look", "arguments": '{"a": "cut o'},
            }
        ],
    }
    provider = parse_reply(Answer(orjson.dumps({"choices": [{"message": raw}]}), "h", "m"))

    (message,) = _messages(
        AssistantItem(None, (_call("ours"),), wire=provider.wire, provider=provider.provider)
    )

    assert message == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "ours",
                "type": "function",
                "extra_content": signature,
                "function": {"name": "look", "arguments": "{}"},
            }
        ],
    }


@pytest.mark.parametrize(
    "provider",
    [
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": ""}},
        {"role": "assistant", "content": None, "tool_calls": [None]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "x", "type": "custom", "custom": {"name": "look", "input": ""}}],
        },
        {"content": None, "tool_calls": [{}, {}]},
    ],
)
def test_calls_in_any_other_form_are_replayed_as_calls(provider: dict[str, Any]) -> None:
    (message,) = _messages(AssistantItem(None, (_call("w"),), wire="chat_completions", provider=provider))

    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "w", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }


def test_a_message_of_another_wire_or_of_the_runtime_is_written_anew() -> None:
    foreign = AssistantItem(
        "Hm.", (_call("w"),), wire="anthropic_messages", provider={"content": [{"type": "x"}]}
    )

    spoken, closing, empty = _messages(
        foreign, AssistantItem("Stopped.", by_runtime=True), AssistantItem(None)
    )

    assert spoken["content"] == "Hm." and spoken["tool_calls"][0]["id"] == "w"
    assert closing == {"role": "assistant", "content": "Stopped."}
    assert empty == {"role": "assistant", "content": ""}, "null is only taken beside calls"


def test_a_name_a_model_made_up_is_sent_back_in_letters_the_provider_takes() -> None:
    calls = (_call("a", "multi_tool_use.parallel"), _call("b", ""), _call("c", "x" * 100))

    (message,) = _messages(AssistantItem(None, calls))

    names = [call["function"]["name"] for call in message["tool_calls"]]
    assert names == ["multi_tool_use_parallel", "unnamed", "x" * 64]


def test_the_choice_of_tools_is_said_in_the_provider_s_way_or_left_to_the_runtime() -> None:
    def choice(profile: Profile = GENERIC, **more: Any) -> Any:
        return _body(_request(**more), profile)["tool_choice"]

    assert [choice(tool_choice=mode) for mode in ("auto", "required", "none")] == ["auto", "required", "none"]
    assert choice(tool_choice="act") == {"type": "function", "function": {"name": "act"}}
    assert choice(allowed=("act",)) == "auto", "the definitions stay and the runtime refuses"
    assert choice(allowed=()) == "none"
    assert choice(OPENAI, allowed=("look", "act"), tool_choice="required") == {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": name}} for name in ("look", "act")],
        },
    }


def test_parallel_calls_are_only_spoken_of_where_there_are_tools_and_a_model_that_knows_the_word() -> None:
    assert _body(_request(parallel=False))["parallel_tool_calls"] is False
    assert _body(_request(parallel=True))["parallel_tool_calls"] is True
    assert "parallel_tool_calls" not in _body(_request(tools=()))
    assert "parallel_tool_calls" not in _body(_request(agent=_agent(model="o3-mini")), OPENAI)


def test_a_provider_gets_its_own_names_for_limit_and_user() -> None:
    long = "u" * 65

    generic, openai = (
        _body(_request(user=long, output_tokens_max=9), profile) for profile in (GENERIC, OPENAI)
    )

    assert (generic["max_tokens"], generic["user"]) == (9, long)
    assert openai["max_completion_tokens"] == 9 and len(openai["safety_identifier"]) == 64
    assert "max_tokens" not in openai and "user" not in openai


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://x.openai.azure.com/openai/v1", "azure"),
        ("http://127.0.0.1:8000/v1", "generic"),
        ("https://notapi.openai.com.example/v1", "generic"),
    ],
)
def test_the_host_chooses_the_profile(url: str, name: str) -> None:
    assert profile_for(url).name == name


def test_nothing_but_strict_json_is_sent() -> None:
    schema = {"type": "object", "properties": {"n": {"maximum": 2**70, "default": float("nan")}}}
    agent = _agent(tools=(ToolSpec(name="look", description="d", parameters=schema),))

    rendered = ChatRenderer().render(_request(UserItem("half \ud83d pair"), agent=agent))

    body = json.loads(rendered.decode(), parse_constant=lambda token: pytest.fail(token))
    assert body["messages"][-1]["content"] == "half ? pair"
    limits = body["tools"][0]["function"]["parameters"]["properties"]["n"]
    assert limits == {"maximum": 2**70, "default": None}
