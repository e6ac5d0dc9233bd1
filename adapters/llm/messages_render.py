"""ModelRequest -> the bytes of an Anthropic Messages request.

All results of a turn stand in one user message, directly behind the calls and before any text; roles alternate;
thinking goes back with its signatures exactly as it came. Adapter of one wire; no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from toolfleet.adapters.llm.output_form import form_of
from toolfleet.adapters.llm.profiles import ANTHROPIC, Profile
from toolfleet.adapters.llm.rendering import (
    Message,
    Renderer,
    definitions,
    given_message,
    legal_name,
    model_name,
    sent_tools,
    sent_value,
    system_text,
    user_of,
    wire_ids,
)
from toolfleet.adapters.llm.strict_json import dumps
from toolfleet.adapters.llm.tool_forms import PLAIN, Form, ToolForms
from toolfleet.schemas.agents import AgentSpec, ExampleTurn
from toolfleet.schemas.conversation import AssistantItem, Item, ItemCall, MergeItem, NoticeItem, UserItem
from toolfleet.schemas.envelopes import success
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.outcomes import CallOutcome

WIRE: Final = "messages"
_NO_ERROR: Final = frozenset({CallOutcome.OK, CallOutcome.NEEDS_HUMAN})  # the second is pending
_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "required": "any", "none": "none"}

Block = dict[str, Any]


class MessagesRenderer(Renderer):
    """Renders requests for one provider profile, with the prefixes it has rendered before at hand."""

    def __init__(self, profile: Profile = ANTHROPIC) -> None:
        super().__init__(profile)

    def prefix(self, agent: AgentSpec, forms: ToolForms) -> dict[str, Any]:
        head: dict[str, Any] = {"model": model_name(agent, self.profile)}
        defined = definitions(agent, [_definition(form) for form in forms.forms])
        if defined:
            head["tools"] = defined
        if system := system_text(agent, self.profile):
            head["system"] = [{"type": "text", "text": system}]
        head["messages"] = [
            message for example in agent.examples for message in _example(example, self.profile, forms)
        ]
        return head

    def history(self, request: ModelRequest, forms: ToolForms) -> list[Message]:
        return list(rendered_items(request.items, self.profile, forms))

    def options(self, request: ModelRequest) -> dict[str, Any]:
        return rendered_options(request, self.profile)


def rendered_items(
    items: Sequence[Item], profile: Profile = ANTHROPIC, forms: ToolForms = PLAIN
) -> Iterator[Message]:
    """The messages of the history, oldest first, roles in turn. What says nothing is left out: empty text is refused."""
    role, blocks = "user", list[Block]()
    new: list[Block]
    ids: dict[str, str] = {}
    for item in items:
        match item:
            case UserItem(text=text):
                given = given_message(item, WIRE)
                new_role, new = _given(given) if given is not None else ("user", _text(text))
            case NoticeItem(text=text):
                new_role, new = "user", _text(text)
            case AssistantItem():
                ids = wire_ids(item.calls, profile)
                new_role, new = "assistant", _assistant(item, ids, profile, forms)
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


def _text(text: str) -> list[Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _given(message: Message) -> tuple[str, list[Block]]:
    content = message.get("content")
    return str(message.get("role", "user")), list(content) if isinstance(content, list) else _text(
        str(content or "")
    )


def rendered_options(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    """What stands behind the messages: limit, sampling, and what may be called in this turn."""
    agent = request.agent
    options: dict[str, Any] = {profile.output_limit: request.output_tokens_max}
    if profile.cache_marks:
        options["cache_control"] = {"type": "ephemeral"}  # up to the last block that can be cached
    if agent.temperature is not None:
        options["temperature"] = min(agent.temperature, 1.0)  # its scale ends there
    if agent.top_p is not None:
        options["top_p"] = agent.top_p
    form = None if request.output is None else form_of(request.output, profile)
    if request.output is not None and form is not None:
        options["output_config"] = {"format": {"type": "json_schema", "schema": form.schema}}
    if sent_tools(request, profile) or agent.provider_options.get("tools"):
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


def _definition(form: Form) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": form.name,
        "description": form.description,
        "input_schema": form.parameters,
    }
    if form.strict:
        made["strict"] = True
    return made


def _example(example: ExampleTurn, profile: Profile, forms: ToolForms) -> Iterator[Message]:
    yield {"role": "user", "content": [{"type": "text", "text": example.user}]}
    if example.calls:
        calls = [
            ItemCall(call.id, call.id, call.name, dumps(call.arguments).decode()) for call in example.calls
        ]
        ids = wire_ids(calls, profile)
        yield {
            "role": "assistant",
            "content": [_call(call, ids, profile, forms) for call in calls],
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


def _assistant(
    item: AssistantItem, ids: Mapping[str, str], profile: Profile, forms: ToolForms
) -> list[Block]:
    content = item.provider.get("content") if item.wire == WIRE and item.provider is not None else None
    if isinstance(content, list):
        return _replayed(content, item.calls, ids, profile, forms)
    return _text(item.text or "") + [_call(call, ids, profile, forms) for call in item.calls]


def _call(
    call: ItemCall, ids: Mapping[str, str], profile: Profile, forms: ToolForms, given: Any = None
) -> Block:
    return {
        "type": "tool_use",
        "id": ids[call.wire_id],
        "name": legal_name(forms.sent_name(call.name), profile),
        "input": sent_value(given, forms.sent_arguments(call.name, call.arguments)),
    }


def _replayed(
    content: Sequence[Mapping[str, Any]],
    calls: Sequence[ItemCall],
    ids: Mapping[str, str],
    profile: Profile,
    forms: ToolForms,
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
                    caller = old.get("caller")
                    kept = (
                        {"caller": caller}
                        if isinstance(caller, dict) and caller.get("type") != "direct"
                        else {}
                    )
                    blocks.append({**_call(call, ids, profile, forms, old.get("input")), **kept})
            case _:  # thinking, redacted_thinking, the provider's own tools: signed or paired, never touched
                blocks.append(dict(old))
    return blocks + [_call(call, ids, profile, forms) for call in waiting]
