"""ModelRequest -> the bytes of a Responses request: items in, the provider's own output items back in their places.

Reasoning belongs to the calls behind it. Where the provider keeps nothing, it goes back in its encrypted form; without
one it is left out, together with the ids of what it stood before, which would ask for it (B113).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from toolfleet.adapters.llm.output_form import OutputForm, form_of
from toolfleet.adapters.llm.profiles import OPENAI_RESPONSES, Profile
from toolfleet.adapters.llm.rendering import (
    Message,
    Renderer,
    definitions,
    given_message,
    legal_name,
    model_name,
    sent_arguments,
    sent_tools,
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
from toolfleet.schemas.output import OutputSpec

WIRE: Final = "responses"
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_ENCRYPTED: Final = "reasoning.encrypted_content"
_OUTPUT_ONLY: Final = frozenset({"parsed_arguments", "created_by"})


class ResponsesRenderer(Renderer):
    """Renders requests for one provider profile, with the prefixes it has rendered before at hand."""

    def __init__(self, profile: Profile = OPENAI_RESPONSES) -> None:
        super().__init__(profile)

    def prefix(self, agent: AgentSpec, forms: ToolForms) -> dict[str, Any]:
        head: dict[str, Any] = {"model": model_name(agent, self.profile)}
        if system := system_text(agent, self.profile):
            head["instructions"] = system
        defined = definitions(agent, [_definition(form) for form in forms.forms])
        if defined:
            head["tools"] = defined
        head["input"] = [
            item for example in agent.examples for item in _example(example, self.profile, forms)
        ]
        return head

    def history(self, request: ModelRequest, forms: ToolForms) -> list[Message]:
        items = request.items
        start = _known_to_server(items) if self.profile.by_previous_id else None
        ids: dict[str, str] = {}
        if start is not None:
            known = items[start]
            assert isinstance(known, AssistantItem), "what the server has a name for"
            ids = wire_ids(known.calls, self.profile)
            items = items[start + 1 :]
        return list(rendered_items(items, self.profile, forms, ids))

    def options(self, request: ModelRequest) -> dict[str, Any]:
        return rendered_options(request, self.profile)


def rendered_items(
    items: Sequence[Item],
    profile: Profile = OPENAI_RESPONSES,
    forms: ToolForms = PLAIN,
    ids: Mapping[str, str] | None = None,
) -> Iterator[Message]:
    """The input items of the history, oldest first; one function_call_output per call, in call order."""
    ids = ids or {}
    for item in items:
        match item:
            case UserItem(text=text):
                yield given_message(item, WIRE) or {"role": "user", "content": text}
            case NoticeItem(text=text):
                yield {"role": "user", "content": text}
            case AssistantItem():
                ids = wire_ids(item.calls, profile)
                yield from _assistant(item, ids, profile, forms)
            case MergeItem(results=results):
                for result in results:
                    call_id = ids.get(result.wire_id, result.wire_id)
                    yield {"type": "function_call_output", "call_id": call_id, "output": result.content}
            case _:
                assert_never(item)


def rendered_options(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    """What stands behind the input: limit, sampling, what may be called in this turn, what is kept."""
    agent, model = request.agent, model_name(request.agent, profile)
    options: dict[str, Any] = {profile.output_limit: request.output_tokens_max}
    if not profile.stored:
        options["store"] = False
    if profile.encrypted_reasoning:
        options["include"] = [_ENCRYPTED]
    start = _known_to_server(request.items) if profile.by_previous_id else None
    if start is not None:
        known = request.items[start]
        assert isinstance(known, AssistantItem) and known.provider is not None, "found by its id"
        options["previous_response_id"] = known.provider["id"]
    if agent.temperature is not None and not model.startswith(profile.no_sampling_models or "\0"):
        options["temperature"] = agent.temperature
    if agent.top_p is not None and not model.startswith(profile.no_sampling_models or "\0"):
        options["top_p"] = agent.top_p
    form = None if request.output is None else form_of(request.output, profile)
    if request.output is not None and form is not None:
        options["text"] = {"format": _format(request.output, form)}
    if request.cache_key and profile.cache_key:
        options["prompt_cache_key"] = request.cache_key
    if sent_tools(request, profile) or agent.provider_options.get("tools"):
        options["tool_choice"] = _tool_choice(request, profile)
        if profile.parallel:
            options["parallel_tool_calls"] = request.parallel
    user = user_of(request, profile)
    if user and profile.user:
        options[profile.user] = user
    return options


def _format(output: OutputSpec, form: OutputForm) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": "json_schema", "name": output.name, "schema": form.schema}
    shape["strict"] = form.strict
    if output.description:
        shape["description"] = output.description
    return shape


def _tool_choice(request: ModelRequest, profile: Profile) -> str | dict[str, Any]:
    choice, allowed = request.tool_choice, request.allowed
    if choice == "none" or (allowed is not None and not allowed):
        return "none"
    if choice not in ("auto", "required"):
        return {"type": "function", "name": choice} if "function" in profile.tool_choices else "auto"
    if choice not in profile.tool_choices:
        return "auto"
    if allowed is None or profile.narrowing_cheaper or not profile.allowed_tools:
        return choice
    names = [tool.name for tool in request.tools if tool.name in allowed]
    return {
        "type": "allowed_tools",
        "mode": choice,
        "tools": [{"type": "function", "name": name} for name in names],
    }


def _definition(form: Form) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "function", "name": form.name, "description": form.description}
    # Without `strict` this API makes a schema strict itself, which would change what the tool takes.
    return {**made, "parameters": form.parameters, "strict": form.strict}


def _example(example: ExampleTurn, profile: Profile, forms: ToolForms) -> Iterator[Message]:
    yield {"role": "user", "content": example.user}
    calls = [ItemCall(call.id, call.id, call.name, dumps(call.arguments).decode()) for call in example.calls]
    ids = wire_ids(calls, profile)
    for call in calls:
        yield _ours(call, ids, profile, forms)
    for example_call in example.calls:
        content = success(dumps(example_call.result), provenance=example_call.name)
        yield {"type": "function_call_output", "call_id": ids[example_call.id], "output": content}
    yield {"role": "assistant", "content": example.answer}


def _ours(call: ItemCall, ids: Mapping[str, str], profile: Profile, forms: ToolForms) -> Message:
    return {
        "type": "function_call",
        "call_id": ids[call.wire_id],
        "name": legal_name(forms.sent_name(call.name), profile),
        "arguments": forms.sent_arguments(call.name, call.arguments),
    }


def _assistant(
    item: AssistantItem, ids: Mapping[str, str], profile: Profile, forms: ToolForms
) -> Iterator[Message]:
    output = item.provider.get("output") if item.wire == WIRE and item.provider is not None else None
    if isinstance(output, list) and output:
        yield from _replayed(output, item.calls, ids, profile, forms)
        return
    if item.text or not item.calls:
        yield {"role": "assistant", "content": item.text or ""}
    for call in item.calls:
        yield _ours(call, ids, profile, forms)


def _replayed(
    output: Sequence[Mapping[str, Any]],
    calls: Sequence[ItemCall],
    ids: Mapping[str, str],
    profile: Profile,
    forms: ToolForms,
) -> Iterator[Message]:
    """The provider's items in their order. Calls carry our arguments where its own are not what was carried out."""
    keeps_ids = True
    waiting = list(calls)
    for old in output:
        kind = old.get("type", "message")
        if kind == "reasoning" and not (profile.stored or old.get("encrypted_content")):
            keeps_ids = False
            continue
        item = {
            key: value
            for key, value in old.items()
            if value is not None
            and key not in _OUTPUT_ONLY
            and not (kind == "reasoning" and key == "content" and not value)
        }
        if not keeps_ids:
            item.pop("id", None)
        if kind in _CALLS:
            if not waiting:
                continue
            ours = _ours(waiting.pop(0), ids, profile, forms)
            text = sent_arguments(item.pop("input", None) or item.get("arguments"), ours["arguments"])
            item = {**item, **ours, "arguments": text}
            if kind == "custom_tool_call":
                item.pop("id", None)  # of an item of another type
        yield item
    for call in waiting:
        yield _ours(call, ids, profile, forms)


def _known_to_server(items: Sequence[Item]) -> int | None:
    """Place of the last reply the server has a name for; None where it knows nothing of this conversation."""
    for place in range(len(items) - 1, -1, -1):
        item = items[place]
        if isinstance(item, AssistantItem) and item.wire == WIRE and (item.provider or {}).get("id"):
            return place
    return None
