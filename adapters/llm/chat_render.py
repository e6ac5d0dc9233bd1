"""ModelRequest -> the bytes of a Chat Completions request.

The same request gives the same bytes, and everything before the history (model, tools, instructions, examples) is a
prefix that never changes for a version of an agent: rendered once, kept, and cached by the provider as well. What may
differ from turn to turn (tool_choice, limits, user) stands behind the history. Adapter of one wire; no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from toolfleet.adapters.llm.output_form import OutputForm, form_of
from toolfleet.adapters.llm.profiles import GENERIC, Profile
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

WIRE: Final = "chat_completions"
_REASONING: Final = frozenset({"reasoning_content", "reasoning", "reasoning_details"})
_REWRITTEN: Final = frozenset(
    {"role", "tool_calls", "function_call"}
)  # function_call: the old form, never written


class ChatRenderer(Renderer):
    """Renders requests for one provider profile, with the prefixes it has rendered before at hand."""

    def __init__(self, profile: Profile = GENERIC) -> None:
        super().__init__(profile)

    def prefix(self, agent: AgentSpec, forms: ToolForms) -> dict[str, Any]:
        messages: list[Message] = []
        if system := system_text(agent, self.profile):
            messages.append({"role": self.profile.instructions_role, "content": system})
        for example in agent.examples:
            messages.extend(_example(example, self.profile, forms))
        head: dict[str, Any] = {"model": model_name(agent, self.profile)}
        defined = definitions(agent, [_definition(form) for form in forms.forms])
        if defined:
            head["tools"] = defined
        head["messages"] = messages
        return head

    def history(self, request: ModelRequest, forms: ToolForms) -> list[Message]:
        return list(rendered_items(request.items, self.profile, forms))

    def options(self, request: ModelRequest) -> dict[str, Any]:
        return rendered_options(request, self.profile)


def rendered_items(
    items: Sequence[Item], profile: Profile = GENERIC, forms: ToolForms = PLAIN
) -> Iterator[Message]:
    """The messages of the history, oldest first; a merge gives one per result, contiguous, in call order."""
    ids: dict[str, str] = {}
    for item in items:
        match item:
            case UserItem(text=text):
                yield given_message(item, WIRE) or {"role": "user", "content": text}
            case NoticeItem(text=text):
                yield {"role": "user", "content": text}
            case AssistantItem():
                ids = wire_ids(item.calls, profile)
                yield _assistant(item, ids, profile, forms)
            case MergeItem(results=results):
                for result in results:
                    wire_id = ids.get(result.wire_id, result.wire_id)
                    yield {"role": "tool", "tool_call_id": wire_id, "content": result.content}
            case _:
                assert_never(item)


def rendered_options(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    """What stands behind the messages: sampling, limit, and what may be called in this turn."""
    agent, model = request.agent, model_name(request.agent, profile)
    options: dict[str, Any] = {profile.output_limit: request.output_tokens_max}
    if agent.temperature is not None and not model.startswith(profile.no_sampling_models or "\0"):
        options["temperature"] = agent.temperature
    if agent.top_p is not None and not model.startswith(profile.no_sampling_models or "\0"):
        options["top_p"] = agent.top_p
    form = None if request.output is None else form_of(request.output, profile)
    if request.output is not None and form is not None:
        options["response_format"] = _response_format(request.output, form)
    if request.cache_key and profile.cache_key:
        options["prompt_cache_key"] = request.cache_key
    if sent_tools(request, profile) or agent.provider_options.get("tools"):
        options["tool_choice"] = _tool_choice(request, profile)
        if profile.parallel and not model.startswith(profile.not_parallel_models or "\0"):
            options["parallel_tool_calls"] = request.parallel
    user = user_of(request, profile)
    if user and profile.user:
        options[profile.user] = user
    return options


def _response_format(output: OutputSpec, form: OutputForm) -> dict[str, Any]:
    shape: dict[str, Any] = {"name": output.name, "schema": form.schema}
    shape["strict"] = form.strict
    if output.description:
        shape["description"] = output.description
    return {"type": "json_schema", "json_schema": shape}


def _tool_choice(request: ModelRequest, profile: Profile) -> str | dict[str, Any]:
    choice, allowed = request.tool_choice, request.allowed
    if choice == "none" or (allowed is not None and not allowed):
        return "none"
    if choice not in ("auto", "required"):
        if "function" not in profile.tool_choices:
            return "auto"
        return {"type": "function", "function": {"name": choice}}
    if choice not in profile.tool_choices:
        return "auto"
    if allowed is None or profile.narrowing_cheaper or not profile.allowed_tools:
        # Where the provider cannot be told, the definitions stay (the prefix is worth more than the hint) and the
        # runtime alone refuses what is not allowed.
        return choice
    names = [tool.name for tool in request.tools if tool.name in allowed]
    chosen = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": chosen}}


def _definition(form: Form) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": form.name,
        "description": form.description,
        "parameters": form.parameters,
    }
    if form.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _example(example: ExampleTurn, profile: Profile, forms: ToolForms) -> Iterator[Message]:
    yield {"role": "user", "content": example.user}
    if example.calls:
        calls = [
            ItemCall(call.id, call.id, call.name, dumps(call.arguments).decode()) for call in example.calls
        ]
        ids = wire_ids(calls, profile)
        yield {
            "role": "assistant",
            "content": None,
            "tool_calls": [_ours(call, ids, profile, forms) for call in calls],
        }
        for call in example.calls:
            # In the envelope that real results come in: an example in another form would teach the wrong one.
            content = success(dumps(call.result), provenance=call.name)
            yield {"role": "tool", "tool_call_id": ids[call.id], "content": content}
    yield {"role": "assistant", "content": example.answer}


def _call(wire_id: str, name: str, arguments: str) -> Message:
    return {"id": wire_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _ours(call: ItemCall, ids: Mapping[str, str], profile: Profile, forms: ToolForms) -> Message:
    name = legal_name(forms.sent_name(call.name), profile)
    return _call(ids[call.wire_id], name, forms.sent_arguments(call.name, call.arguments))


def _assistant(item: AssistantItem, ids: Mapping[str, str], profile: Profile, forms: ToolForms) -> Message:
    if item.wire == WIRE and item.provider is not None:
        message = _replayed(item.provider, item.calls, ids, profile, forms)
    else:
        message = {"role": "assistant", "content": item.text}
        if item.calls:
            message |= dict.fromkeys(profile.reasoning_demanded, profile.reasoning_filler)
            message["tool_calls"] = [_ours(call, ids, profile, forms) for call in item.calls]
    if not item.calls and not message.get("content"):
        message["content"] = item.text or ""  # null is only taken beside calls
    return message


def _replayed(
    provider: Mapping[str, Any],
    calls: Sequence[ItemCall],
    ids: Mapping[str, str],
    profile: Profile,
    forms: ToolForms,
) -> Message:
    """The provider's own message, for what only it understands (reasoning, signatures), made fit to be sent.

    Arguments and ids are ours where its own are no JSON, empty or doubled: the same provider answers 400 to them.
    Fields that say nothing are left out (`tool_calls: []` is "too short"), and so is reasoning the profile does not
    want back. It is stored all the same.
    """
    message: Message = {"role": "assistant"}
    for key, value in provider.items():
        if key in _REWRITTEN or key in profile.unsent or value is None or value == []:
            continue
        if key in _REASONING and (key not in profile.reasoning_sent or not calls):
            continue
        if key == "refusal" and not value:
            continue
        message[key] = value
    message.setdefault("content", None)
    if calls:
        for key in profile.reasoning_demanded:
            message[key] = message.get(key) or profile.reasoning_filler
        given = provider.get("tool_calls")
        given = given if isinstance(given, list) and len(given) == len(calls) else [None] * len(calls)
        message["tool_calls"] = [
            _replayed_call(old, _ours(call, ids, profile, forms))
            for old, call in zip(given, calls, strict=True)
        ]
    return message


def _replayed_call(old: Any, ours: Message) -> Message:
    if not isinstance(old, dict) or not isinstance(old.get("function"), dict):
        return ours
    function = {**old["function"], **ours["function"]}
    function["arguments"] = sent_arguments(old["function"].get("arguments"), function["arguments"])
    kept = {key: value for key, value in old.items() if key not in ("custom", "index")}  # index: of a stream
    return {**kept, **ours, "function": function}
