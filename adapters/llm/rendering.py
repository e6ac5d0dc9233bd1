"""What the renderers of all wires share: the kept prefix, what is sent back of a call, names and ids a wire takes."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from toolfleet.adapters.llm.output_form import form_of
from toolfleet.adapters.llm.profiles import Profile
from toolfleet.adapters.llm.strict_json import dumps
from toolfleet.adapters.llm.tool_forms import ToolForms, forms_of
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import ItemCall, UserItem
from toolfleet.schemas.model import ModelReply, ModelRequest
from toolfleet.schemas.tools import ToolSpec

# Versions of agents one process serves at a time; more cost a new rendering, no more.
_PREFIXES_MAX: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_SAFE_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NINE: Final = re.compile(
    r"[a-zA-Z0-9]{9}"
)  # Mistral: "Tool call id has to be defined, a-z, A-Z, 0-9, length 9"
_LONG_NUMBER: Final = re.compile(r"\d{16}")  # longer integers are not exact in every reader

Message = dict[str, Any]


class Renderer:
    """ModelRequest -> the bytes of a request: a prefix that is the same for a version, the history, then the options.

    The same request gives the same bytes. The prefix is rendered once and kept, and cached by the provider as well.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        # By identity of agent and tools, which the entry keeps alive, so that no identity is used again meanwhile.
        self._prefixes: OrderedDict[tuple[int, int], _Prefix] = OrderedDict()

    def render(self, request: ModelRequest) -> bytes:
        """The whole body, byte for byte as it is sent."""
        known = self._known(request)
        prefix, history = known.prefix, dumps(self.history(request, known.forms))[1:-1]
        options = dumps(self._all_options(request))
        separator = b"," if history and not prefix.endswith(b"[") else b""
        return b"".join((prefix, separator, history, b"],", options[1:]))

    def restored(self, reply: ModelReply, request: ModelRequest) -> ModelReply:
        """The reply to that request with names, arguments and answer as tools and agent declared them."""
        reply = self._known(request).forms.restored(reply)
        form = None if request.output is None else form_of(request.output, self.profile)
        if form is None or reply.text is None or reply.calls:
            return reply
        return replace(reply, text=form.restored(reply.text))

    @abstractmethod
    def prefix(self, agent: AgentSpec, forms: ToolForms) -> dict[str, Any]:
        """The body up to the history, whose list (with the examples in it) is its last value."""

    @abstractmethod
    def history(self, request: ModelRequest, forms: ToolForms) -> list[Message]:
        """The items, oldest first."""

    @abstractmethod
    def options(self, request: ModelRequest) -> dict[str, Any]:
        """What stands behind the history: limits, sampling, what may be called in this turn. Never empty."""

    def _all_options(self, request: ModelRequest) -> dict[str, Any]:
        """Ours, how the answer is to come, and what the agent asks for beyond it; of lists (`include`) both."""
        options = self.options(request)
        if self.profile.stream:
            options["stream"] = True
            if self.profile.wire == "chat_completions" and self.profile.stream_usage:
                options["stream_options"] = {"include_usage": True}
        for key, value in request.agent.provider_options.items():
            ours = options.get(key)
            if key == "tools":
                continue  # stand with the others, in the prefix
            options[key] = (
                [*ours, *(one for one in value if one not in ours)] if isinstance(ours, list) else value
            )
        return options

    def _known(self, request: ModelRequest) -> _Prefix:
        whole = self._whole(request)
        sent = sent_tools(request, self.profile)
        if sent is request.tools:
            return whole
        narrowed = dumps(self.prefix(request.agent, forms_of(sent, self.profile)))[:-2]
        return replace(whole, prefix=narrowed)

    def _whole(self, request: ModelRequest) -> _Prefix:
        agent, tools = request.agent, request.tools
        key = (id(agent), id(tools))
        known = self._prefixes.get(key)
        if known is not None:
            self._prefixes.move_to_end(key)
            return known
        forms = forms_of(tools, self.profile)
        made = self._prefixes[key] = _Prefix(agent, tools, forms, dumps(self.prefix(agent, forms))[:-2])
        if len(self._prefixes) > _PREFIXES_MAX:
            self._prefixes.popitem(last=False)
        return made


@dataclass(frozen=True, slots=True)
class _Prefix:
    agent: AgentSpec
    tools: tuple[ToolSpec, ...]
    forms: ToolForms
    prefix: bytes  # the body up to the history, without a comma at its end


def definitions(agent: AgentSpec, ours: list[Message]) -> list[Message]:
    """The definitions of our tools, and behind them the provider's own that the agent asks for (web_search ...)."""
    given = agent.provider_options.get("tools")
    return [*ours, *given] if isinstance(given, list) else ours


def given_message(item: UserItem, wire: str) -> Message | None:
    """What the user gave in the form of this wire, as it is; None: there is only its text."""
    return item.provider if item.wire == wire else None


def sent_tools(request: ModelRequest, profile: Profile) -> tuple[ToolSpec, ...]:
    """The definitions of the request: all of them, unless this provider is better off with those allowed now."""
    if not profile.narrowing_cheaper or request.allowed is None:
        return request.tools
    return tuple(tool for tool in request.tools if tool.name in request.allowed)


def system_text(agent: AgentSpec, profile: Profile) -> str:
    """Instructions and rules, and the shape of the answer where the API has no other place for it."""
    if agent.output is None or form_of(agent.output, profile) is not None:
        return agent.system_text
    schema = dumps(agent.output.schema_).decode()
    told = f"Give your final answer as nothing but a JSON object that fits this JSON Schema:\n{schema}"
    return f"{agent.system_text}\n\n{told}" if agent.system_text else told


def sent_arguments(raw: Any, ours: str) -> str:
    """The text of a call's arguments as it goes back: the provider's own, where it says exactly what ours says.

    Real models write texts that are no JSON, and the same provider answers 400 to them; and what a person changed
    before it ran is not what the model wrote. Ours is canonical, so equal values written otherwise keep their bytes.
    """
    if not isinstance(raw, str) or raw == ours:
        return ours
    try:
        text = _sorted(raw)
        same = (text == ours.encode() or text == _sorted(ours)) and not _LONG_NUMBER.search(raw)
    except ValueError:
        return ours
    return raw if same else ours


def sent_value(given: Any, ours: str) -> Any:
    """The same for a wire that has arguments as a value: the provider's own, or ours."""
    try:
        if isinstance(given, dict):
            text = orjson.dumps(given, option=orjson.OPT_SORT_KEYS)
            if text == ours.encode() or (text == _sorted(ours) and not _LONG_NUMBER.search(ours)):
                return given
    except (TypeError, ValueError):
        pass  # an integer orjson does not write: compared as text below
    raw = dumps(given).decode() if isinstance(given, dict) else None
    return orjson.Fragment(sent_arguments(raw, ours))


def _sorted(text: str) -> bytes:
    return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)


def legal_name(name: str, profile: Profile) -> str:
    """A name a model made up, in the letters providers take back in a history (400 for others)."""
    if _SAFE_ID.fullmatch(name) and len(name) <= profile.name_chars_max:
        return name
    return _NOT_IN_NAMES.sub("_", name)[: profile.name_chars_max] or "unnamed"


def wire_ids(calls: Sequence[ItemCall], profile: Profile) -> dict[str, str]:
    """Id in the conversation -> the id this wire pairs it by: the same wherever the profile takes it.

    Others come from another provider (an agent that changed its model); they are made over, the same every time, and
    stay distinct in their turn.
    """
    if len(calls) == 1:  # nearly every turn of a long history
        return {calls[0].wire_id: _made_over(calls[0].wire_id, profile)}
    taken: set[str] = set()
    ids: dict[str, str] = {}
    for call in calls:
        wire_id = _made_over(call.wire_id, profile)
        while wire_id in taken:
            wire_id = _digest(wire_id)[: len(wire_id)]
        taken.add(wire_id)
        ids[call.wire_id] = wire_id
    return ids


def _made_over(wire_id: str, profile: Profile) -> str:
    if profile.call_ids == "safe" and not _SAFE_ID.fullmatch(wire_id):
        return _NOT_IN_NAMES.sub("_", wire_id)[:40] + "_" + _digest(wire_id)[:9]
    if profile.call_ids == "nine" and not _NINE.fullmatch(wire_id):
        return _digest(wire_id)[:9]
    return wire_id


def user_of(request: ModelRequest, profile: Profile) -> str | None:
    """Who it is for, short enough for the provider; a longer name as its hash."""
    user = request.user
    if user and len(user) > profile.user_chars_max:
        return hashlib.sha256(user.encode(errors="replace")).hexdigest()[: profile.user_chars_max]
    return user or None


def model_name(agent: AgentSpec, profile: Profile) -> str:
    """The model as its server calls it: without the provider in front (`anthropic:claude-...`)."""
    provider, colon, name = agent.model.partition(":")
    return name if colon and provider == profile.name else agent.model


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
