"""ModelRequest -> the bytes of an Anthropic Messages request.

All results of a turn stand in one user message, directly behind the calls and before any text; roles alternate;
thinking goes back with its signatures exactly as it came. Adapter of one wire; no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

import orjson

from toolfleet.adapters.llm.profiles import ANTHROPIC, Profile
from toolfleet.adapters.llm.rendering import (
    Message,
    Renderer,
    legal_name,
    model_name,
    sent_arguments,
    user_of,
    wire_ids,
)
from toolfleet.adapters.llm.strict_json import dumps
from toolfleet.schemas.agents import AgentSpec, ExampleTurn
from toolfleet.schemas.conversation import AssistantItem, Item, ItemCall, MergeItem, NoticeItem, UserItem
from toolfleet.schemas.envelopes import success
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.tool_text import model_description, model_parameters
from toolfleet.schemas.tools import ToolSpec

WIRE: Final = "messages"
_NO_ERROR: Final = frozenset({CallOutcome.OK, CallOutcome.NEEDS_HUMAN})  # the second is pending
_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "required": "any", "none": "none"}

Block = dict[str, Any]


class MessagesRenderer(Renderer):
    """Renders requests for one provider profile, with the prefixes it has rendered before at hand."""

    def __init__(self, profile: Profile = ANTHROPIC) -> None:
        super().__init__(profile)

    def prefix(self, agent: AgentSpec, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        head: dict[str, Any] = {"model": model_name(agent, self.profile)}
        if tools:
            head["tools"] = [_definition(tool) for tool in tools]
        if agent.instructions:
            head["system"] = [{"type": "text", "text": agent.instructions}]
        head["messages"] = [
            message for example in agent.examples for message in _example(example, self.profile)
        ]
        return head

    def history(self, request: ModelRequest) -> list[Message]:
        return list(rendered_items(request.items, self.profile))

    def options(self, request: ModelRequest) -> dict[str, Any]:
        return rendered_options(request, self.profile)


def rendered_items(items: Sequence[Item], profile: Profile = ANTHROPIC) -> Iterator[Message]:
    """The messages of the history, oldest first, roles in turn. What says nothing is left out: empty text is refused."""
    role, blocks = "user", list[Block]()
    new: list[Block]
    ids: dict[str, str] = {}
    for item in items:
        match item:
            case UserItem(text=text) | NoticeItem(text=text):
                new_role, new = "user", [{"type": "text", "text": text}] if text.strip() else []
            case AssistantItem():
                ids = wire_ids(item.calls, profile)
                new_role, new = "assistant", _assistant(item, ids, profile)
            case MergeItem(results=results):
                new_role = "user"
                new = [
                    {
                        "type": "tool_result",
                        "tool_use_id": ids.get(result.wire_id, result.wire_id),
                        "content": result.content,
                        "is_error": result.outcome not in _NO_ERROR,
                    }
                    for result in results
                ]
            case _:
                assert_never(item)
        if new and new_role != role:
            if blocks:
                yield {"role": role, "content": blocks}
            role, blocks = new_role, []
        blocks.extend(new)
    if blocks:
        yield {"role": role, "content": blocks}


def rendered_options(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    """What stands behind the messages: limit, sampling, and what may be called in this turn."""
    agent = request.agent
    options: dict[str, Any] = {profile.output_limit: request.output_tokens_max}
    if profile.cache_marks:
        options["cache_control"] = {"type": "ephemeral"}  # up to the last block that can be cached
    if agent.temperature is not None:
        options["temperature"] = min(agent.temperature, 1.0)  # its scale ends there
    if request.tools:
        options["tool_choice"] = _tool_choice(request, profile)
    user = user_of(request, profile)
    if user and profile.user:
        options["metadata"] = {profile.user: user}
    return options


def _tool_choice(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    """The runtime alone refuses what is not allowed: this wire has no list of allowed tools."""
    choice, allowed = request.tool_choice, request.allowed
    if choice == "none" or (allowed is not None and not allowed):
        return {"type": "none"}
    if choice in _CHOICES:
        chosen: dict[str, Any] = {"type": _CHOICES[choice] if choice in profile.tool_choices else "auto"}
    elif "function" in profile.tool_choices:
        chosen = {"type": "tool", "name": choice}
    else:
        chosen = {"type": "auto"}
    if profile.parallel and not request.parallel:
        chosen["disable_parallel_tool_use"] = True
    return chosen


def _definition(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": model_description(tool),
        "input_schema": model_parameters(tool),
    }


def _example(example: ExampleTurn, profile: Profile) -> Iterator[Message]:
    yield {"role": "user", "content": [{"type": "text", "text": example.user}]}
    if example.calls:
        calls = [ItemCall(call.id, call.id, call.name, "{}") for call in example.calls]
        ids = wire_ids(calls, profile)
        yield {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": ids[call.id], "name": call.name, "input": call.arguments}
                for call in example.calls
            ],
        }
        yield {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": ids[call.id],
                    "content": success(dumps(call.result), provenance=call.name),
                    "is_error": False,
                }
                for call in example.calls
            ],
        }
    yield {"role": "assistant", "content": [{"type": "text", "text": example.answer}]}


def _assistant(item: AssistantItem, ids: Mapping[str, str], profile: Profile) -> list[Block]:
    content = item.provider.get("content") if item.wire == WIRE and item.provider is not None else None
    if isinstance(content, list):
        return _replayed(content, item.calls, ids, profile)
    blocks: list[Block] = [{"type": "text", "text": item.text}] if item.text and item.text.strip() else []
    return blocks + [_call(call, ids, profile) for call in item.calls]


def _call(call: ItemCall, ids: Mapping[str, str], profile: Profile) -> Block:
    return {
        "type": "tool_use",
        "id": ids[call.wire_id],
        "name": legal_name(call.name, profile),
        "input": orjson.Fragment(call.arguments),
    }


def _replayed(
    content: Sequence[Mapping[str, Any]], calls: Sequence[ItemCall], ids: Mapping[str, str], profile: Profile
) -> list[Block]:
    """The provider's blocks in their order. Calls carry our input where its own is not what was carried out."""
    waiting = list(calls)
    blocks: list[Block] = []
    for old in content:
        match old.get("type"):
            case "text":
                if str(old.get("text") or "").strip():
                    blocks.append({key: value for key, value in old.items() if value is not None})
            case "tool_use":
                if waiting:
                    call = waiting.pop(0)
                    raw = dumps(old.get("input")).decode()
                    new = _call(call, ids, profile)
                    kept = {key: value for key, value in old.items() if key in ("caller", "cache_control")}
                    blocks.append(
                        {**new, "input": orjson.Fragment(sent_arguments(raw, call.arguments)), **kept}
                    )
            case _:  # thinking, redacted_thinking, the provider's own tools: signed or paired, never touched
                blocks.append(dict(old))
    return blocks + [_call(call, ids, profile) for call in waiting]
