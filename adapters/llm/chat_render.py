"""ModelRequest -> the bytes of a Chat Completions request.

The same request gives the same bytes, and everything before the history (model, tools, instructions, examples) is a
prefix that never changes for a version of an agent: rendered once, kept, and cached by the provider as well. What may
differ from turn to turn (tool_choice, limits, user) stands behind the history. Adapter of one wire; no I/O.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from toolfleet.adapters.llm.profiles import GENERIC, ChatProfile
from toolfleet.adapters.llm.strict_json import dumps
from toolfleet.schemas.agents import AgentSpec, ExampleTurn
from toolfleet.schemas.conversation import AssistantItem, Item, ItemCall, MergeItem, NoticeItem, UserItem
from toolfleet.schemas.envelopes import success
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.tool_text import model_description, model_parameters
from toolfleet.schemas.tools import ToolSpec

WIRE: Final = "chat_completions"
_PREFIXES_MAX: Final = (
    64  # versions of agents one process serves at a time; more cost a new rendering, no more
)
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARS_MAX: Final = 64

Message = dict[str, Any]


class ChatRenderer:
    """Renders requests for one provider profile, with the prefixes it has rendered before at hand."""

    def __init__(self, profile: ChatProfile = GENERIC) -> None:
        self._profile = profile
        # By identity of agent and tools, which the entry keeps alive, so that no identity is used again meanwhile.
        self._prefixes: OrderedDict[tuple[int, int], tuple[AgentSpec, tuple[ToolSpec, ...], bytes]] = (
            OrderedDict()
        )

    def render(self, request: ModelRequest) -> bytes:
        """The whole body, byte for byte as it is sent."""
        prefix = self._prefix(request.agent, request.tools)
        history = dumps(list(rendered_items(request.items)))[1:-1]
        options = dumps(rendered_options(request, self._profile))
        separator = b"," if history and not prefix.endswith(b"[") else b""
        return b"".join((prefix, separator, history, b"],", options[1:]))

    def _prefix(self, agent: AgentSpec, tools: tuple[ToolSpec, ...]) -> bytes:
        key = (id(agent), id(tools))
        known = self._prefixes.get(key)
        if known is not None:
            self._prefixes.move_to_end(key)
            return known[2]
        prefix = rendered_prefix(agent, tools, self._profile)
        self._prefixes[key] = (agent, tools, prefix)
        if len(self._prefixes) > _PREFIXES_MAX:
            self._prefixes.popitem(last=False)
        return prefix


def rendered_prefix(agent: AgentSpec, tools: Sequence[ToolSpec], profile: ChatProfile) -> bytes:
    """The body up to the history: `{"model":…,"tools":[…],"messages":[…`, without a comma at its end."""
    messages: list[Message] = []
    if agent.instructions:
        messages.append({"role": profile.instructions_role, "content": agent.instructions})
    for example in agent.examples:
        messages.extend(_example(example))
    head: dict[str, Any] = {"model": agent.model}
    if tools:
        head["tools"] = [_definition(tool) for tool in tools]
    head["messages"] = messages
    return dumps(head)[:-2]


def rendered_items(items: Sequence[Item]) -> Iterator[Message]:
    """The messages of the history, oldest first; a merge gives one per result, contiguous, in call order."""
    for item in items:
        match item:
            case UserItem(text=text) | NoticeItem(text=text):
                yield {"role": "user", "content": text}
            case AssistantItem():
                yield _assistant(item)
            case MergeItem(results=results):
                for result in results:
                    yield {"role": "tool", "tool_call_id": result.wire_id, "content": result.content}
            case _:
                assert_never(item)


def rendered_options(request: ModelRequest, profile: ChatProfile) -> dict[str, Any]:
    """What stands behind the messages: sampling, limit, and what may be called in this turn."""
    agent = request.agent
    options: dict[str, Any] = {profile.output_limit: request.output_tokens_max}
    if agent.temperature is not None:
        options["temperature"] = agent.temperature
    if request.tools:
        options["tool_choice"] = _tool_choice(request, profile)
        if not agent.model.startswith(profile.not_parallel_models):
            options["parallel_tool_calls"] = request.parallel
    if request.user:
        user = request.user
        if len(user) > profile.user_chars_max:
            user = hashlib.sha256(user.encode(errors="replace")).hexdigest()
        options[profile.user] = user
    return options


def _tool_choice(request: ModelRequest, profile: ChatProfile) -> str | dict[str, Any]:
    choice, allowed = request.tool_choice, request.allowed
    if choice == "none" or (allowed is not None and not allowed):
        return "none"
    if choice not in ("auto", "required"):
        return {"type": "function", "function": {"name": choice}}
    if allowed is None or not profile.allowed_tools:
        # Where the provider cannot be told, the definitions stay (the prefix is worth more than the hint) and the
        # runtime alone refuses what is not allowed.
        return choice
    names = [tool.name for tool in request.tools if tool.name in allowed]
    chosen = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": chosen}}


def _definition(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": model_description(tool),
        "parameters": model_parameters(tool),
    }
    return {"type": "function", "function": function}


def _example(example: ExampleTurn) -> Iterator[Message]:
    yield {"role": "user", "content": example.user}
    if example.calls:
        calls = [_call(call.id, call.name, dumps(call.arguments).decode()) for call in example.calls]
        yield {"role": "assistant", "content": None, "tool_calls": calls}
        for call in example.calls:
            # In the envelope that real results come in: an example in another form would teach the wrong one.
            content = success(dumps(call.result), provenance=call.name)
            yield {"role": "tool", "tool_call_id": call.id, "content": content}
    yield {"role": "assistant", "content": example.answer}


def _call(wire_id: str, name: str, arguments: str) -> Message:
    return {"id": wire_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _assistant(item: AssistantItem) -> Message:
    if item.wire == WIRE and item.provider is not None:
        message = _replayed(item.provider, item.calls)
    else:
        message = {"role": "assistant", "content": item.text}
        if item.calls:
            message["tool_calls"] = [
                _call(call.wire_id, _legal(call.name), call.arguments) for call in item.calls
            ]
    if not item.calls and not message.get("content"):
        message["content"] = item.text or ""  # null is only taken beside calls
    return message


def _replayed(provider: Mapping[str, Any], calls: Sequence[ItemCall]) -> Message:
    """The provider's own message, for what only it understands (reasoning, signatures), made fit to be sent.

    Arguments and ids are ours: real models write texts that are no JSON, and ids that are empty or doubled, and the
    same provider answers 400 to them. Fields that say nothing are left out: `tool_calls: []` is refused as well
    ("[] is too short"), and `function_call` is the old form of what stands in tool_calls.
    """
    message = {
        key: value
        for key, value in provider.items()
        if value is not None and value != [] and key not in ("tool_calls", "function_call", "audio")
    }
    if not message.get("refusal"):
        message.pop("refusal", None)
    message["role"] = "assistant"
    message.setdefault("content", None)
    if calls:
        given = provider.get("tool_calls")
        given = given if isinstance(given, list) and len(given) == len(calls) else [None] * len(calls)
        message["tool_calls"] = [_replayed_call(old, call) for old, call in zip(given, calls, strict=True)]
    return message


def _replayed_call(old: Any, call: ItemCall) -> Message:
    new = _call(call.wire_id, _legal(call.name), call.arguments)
    if not isinstance(old, dict) or not isinstance(old.get("function"), dict):
        return new
    function = {**old["function"], **new["function"]}
    return {**{key: value for key, value in old.items() if key != "custom"}, **new, "function": function}


def _legal(name: str) -> str:
    """A name a model made up, in the letters providers take back in a history (400 for others: `^[a-zA-Z0-9_-]+$`)."""
    return _NOT_IN_NAMES.sub("_", name)[:_NAME_CHARS_MAX] or "unnamed"
