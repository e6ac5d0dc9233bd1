"""The three wires in one table: where a request goes, how it is rendered, how its answer is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.chat_parse import parse_reply
from toolfleet.adapters.llm.chat_render import ChatRenderer
from toolfleet.adapters.llm.messages_parse import parse_message
from toolfleet.adapters.llm.messages_render import MessagesRenderer
from toolfleet.adapters.llm.profiles import Profile, Wire
from toolfleet.adapters.llm.rendering import Renderer
from toolfleet.adapters.llm.responses_parse import parse_response
from toolfleet.adapters.llm.responses_render import ResponsesRenderer
from toolfleet.schemas.model import ModelReply


@dataclass(frozen=True, slots=True)
class WireForm:
    """One wire. `path` is relative to the base URL; `parse` raises ModelError and nothing else."""

    path: str
    renderer: Callable[[Profile], Renderer]
    parse: Callable[[Answer], ModelReply]


WIRES: Final[Mapping[Wire, WireForm]] = {
    "chat_completions": WireForm("/chat/completions", ChatRenderer, parse_reply),
    "responses": WireForm("/responses", ResponsesRenderer, parse_response),
    "messages": WireForm("/messages", MessagesRenderer, parse_message),
}
