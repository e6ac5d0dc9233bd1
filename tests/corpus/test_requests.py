"""Every request an adapter builds is one its server's own description allows, and the types of its own client."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic.types as anthropic_types
import jsonschema_rs
import openai.types.chat.completion_create_params as chat_params
import openai.types.responses.response_create_params as response_params
import pytest
from pydantic import TypeAdapter, ValidationError

from tests.corpus import cases, golden
from tests.unit.test_wires_render import (
    AGENT,
    EXAMPLE,
    PROFILES,
    REASONED,
    TOOLS,
    message,
    renderer,
    reply_of,
    tool_use,
    turn,
)
from toolfleet.adapters.llm.profiles import ANTHROPIC, OPENAI, OPENAI_RESPONSES, Profile
from toolfleet.schemas.conversation import Item, NoticeItem, UserItem
from toolfleet.schemas.model import ModelRequest

SPEC = Path(__file__).parents[1] / "data" / "cases" / "spec" / "openai_schemas.json.gz"
NAMES = {"chat_completions": "CreateChatCompletionRequest", "responses": "CreateResponse"}


@functools.cache
def _described() -> Any:
    with gzip.open(SPEC, "rt", encoding="utf-8") as lines:
        return _plain(json.load(lines)["components"]["schemas"])


def _plain(schema: Any) -> Any:
    """OpenAPI's nullable as JSON Schema says it."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = ("nullable", "discriminator", "$recursiveAnchor", "$recursiveRef")
    made = {key: _plain(value) for key, value in schema.items() if key not in left_out}
    if "$ref" in made:
        made["$ref"] = made["$ref"].replace("#/components/schemas/", "#/$defs/")
    return {"anyOf": [made, {"type": "null"}]} if schema.get("nullable") is True else made


@functools.cache
def _validator(wire: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        {"$ref": f"#/$defs/{NAMES[wire]}", "$defs": _described()}, offline=True
    )


@functools.cache
def _typed(wire: str) -> TypeAdapter[Any]:
    kinds: dict[str, Any] = {
        "chat_completions": chat_params.CompletionCreateParamsNonStreaming,
        "responses": response_params.ResponseCreateParamsNonStreaming,
        "messages": anthropic_types.message_create_params.MessageCreateParamsNonStreaming,
    }
    return TypeAdapter(kinds[wire])


def problems(wire: str, body: dict[str, Any]) -> list[str]:
    found = []
    if wire in NAMES:
        found += [
            f"{list(error.instance_path)}: {error.message:.200}"
            for error in _validator(wire).iter_errors(body)
        ]
    try:
        _exhausted(_typed(wire).validate_python(body))
    except ValidationError as exc:
        found += [f"{error['loc']}: {error['msg']}" for error in exc.errors()[:5]]
    return found


def _exhausted(value: Any) -> None:
    """Iterables of the types are only checked while somebody walks over them."""
    if isinstance(value, dict):
        for inner in value.values():
            _exhausted(inner)
    elif isinstance(value, (list, Iterator)):
        for inner in value:
            _exhausted(inner)


CHAT_ANSWER = {
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {"id": f"call_{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                    for n in range(2)
                ],
            }
        }
    ]
}
ANSWERS: list[tuple[Profile, Any]] = [
    (OPENAI, CHAT_ANSWER),
    (
        OPENAI_RESPONSES,
        {**REASONED, "output": [{**REASONED["output"][0], "encrypted_content": "g"}, REASONED["output"][1]]},
    ),  # type: ignore[index]
    (ANTHROPIC, message({"type": "thinking", "thinking": "hm", "signature": "s"}, tool_use(0), tool_use(1))),
]


@pytest.mark.parametrize(("profile", "answer"), ANSWERS, ids=lambda value: getattr(value, "wire", ""))
@pytest.mark.parametrize("choice", ["auto", "required", "none", "look"])
@pytest.mark.parametrize("allowed", [None, ("look",)])
def test_a_whole_conversation_is_a_request_its_server_takes(
    profile: Profile, answer: Any, choice: str, allowed: tuple[str, ...] | None
) -> None:
    agent = AGENT.model_copy(update={"examples": (EXAMPLE,), "temperature": 0.5, "model": "gpt-4o"})
    items: list[Item] = [
        UserItem("Go"),
        *turn(reply_of(profile, answer)),
        NoticeItem("Go on."),
        UserItem("And?"),
    ]
    request = ModelRequest(
        agent, tuple(items), TOOLS, allowed=allowed, tool_choice=choice, parallel=False, user="u" * 600
    )

    body = json.loads(renderer(profile).render(request))

    assert problems(profile.wire, body) == []
    assert set(PROFILES) >= {profile.name}


def test_what_the_server_would_refuse_is_seen() -> None:
    body = json.loads(renderer(OPENAI).render(ModelRequest(AGENT, (UserItem("Go"),), TOOLS)))
    body["messages"].append({"role": "tool", "content": "no id"})

    assert problems("chat_completions", body)
    claude = json.loads(renderer(ANTHROPIC).render(ModelRequest(AGENT, (UserItem("Go"),), TOOLS)))
    assert problems("messages", {key: value for key, value in claude.items() if key != "max_tokens"})


HOSTS = ("api.openai.com", "api.anthropic.com")


def test_every_request_of_the_golden_replay_is_one_its_server_takes() -> None:
    checked = 0
    for case in cases.read("llm/sequences.jsonl", cases.OWN_FOLDER):
        if case["hosts"][0] not in HOSTS:
            continue
        for _, ours, recorded in golden.replayed(case):
            body = {key: value for key, value in ours.items() if key not in ("stream", "stream_options")}
            theirs = {
                key: value for key, value in recorded.items() if key not in ("stream", "stream_options")
            }
            # What the recorded client sent and the server took may be newer than its description.
            new = set(problems(case["api"], body)) - set(problems(case["api"], theirs))
            assert not new, (golden.file_of(case), sorted(new)[:3])
            checked += 1

    assert checked > 100
