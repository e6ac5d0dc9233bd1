"""A Chat Completions stream -> the body the same answer would have had without streaming.

Written anew because the helpers of the SDKs join calls that share an index, fail on gaps between indexes, and take what
was cut off for whole. Here a call begins where an id or a name says so, order is order of arrival, and nothing is a
reply before the server's own end mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from toolfleet.adapters.llm.faults import bad_reply, broken_stream, fault_in_stream
from toolfleet.adapters.llm.sse import Event, EventReader
from toolfleet.adapters.llm.strict_json import loads, written
from toolfleet.schemas.errors import ModelError

DONE: Final = "[DONE]"
_WHOLE: Final = frozenset(
    {"role", "id", "type", "name", "index", "format", "object", "signature"}
)  # sent once
_ENDS: Final = frozenset({"length", "content_filter", "error", "insufficient_system_resource", "abort"})


class ChatStream:
    """Takes the bytes of a stream in any pieces; `body()` is the answer, once it is whole.

    `done_mark`: the server ends its streams with `[DONE]`, as OpenAI does. Without it a finish reason has to do.
    """

    def __init__(
        self, host: str, headers: Mapping[str, str] | None = None, *, done_mark: bool = True
    ) -> None:
        self._host = host
        self._headers = headers or {}
        self._done_mark = done_mark
        self._events = EventReader()
        self._done = False
        self._body: dict[str, Any] = {}
        self._message: dict[str, Any] = {}
        self._calls = _Calls()
        self._finish: str | None = None
        self._choices = False

    def feed(self, data: bytes) -> None:
        """Raises ModelError: an error inside the stream, or a piece of it that is no JSON."""
        for event in self._events.feed(data):
            self._take(event)

    @property
    def whole(self) -> bool:
        """Whether the end of the reply was read."""
        return self._done or (not self._done_mark and self._finish is not None)

    def body(self) -> dict[str, Any]:
        """The whole answer. Raises ModelError where the stream ended before it was."""
        for event in self._events.end():
            self._take(event)
        if not self.whole or (self._choices and self._finish is None and not self._body.get("usage")):
            # A proxy whose own server broke off ends its stream as if it were whole. Who gives no reason for the end
            # (Snowflake) counts what it sent, and so came to it.
            raise ModelError(broken_stream(self._host, self._headers))
        body = dict(self._body)
        if not self._choices:
            return {**body, "choices": []}
        message = {"role": "assistant", "content": None, **self._message}
        calls = self._calls.all()
        if calls:
            message["tool_calls"] = calls
        return {**body, "choices": [{"index": 0, "message": message, "finish_reason": self._finish}]}

    def _take(self, event: Event) -> None:
        if self._done:
            return
        if event.data.strip() == DONE:
            self._done = True
            return
        chunk = _chunk(event)
        fault = fault_in_stream(event.name, chunk, self._headers, self._host)
        if fault is not None:
            raise ModelError(fault)
        assert chunk is not None, "what is no JSON is a fault"
        for key, value in chunk.items():
            if key != "choices" and value is not None and (value or key not in self._body):
                self._body[key] = value  # usage, id, model: the last one that says something
        groq = chunk.get("x_groq")
        if isinstance(groq, dict) and isinstance(groq.get("usage"), dict):
            self._body.setdefault("usage", groq["usage"])
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) in (0, None):
                self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> None:
        self._choices = True
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish and (self._finish is None or finish.lower() in _ENDS):
            self._finish = finish
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else choice.get("message")
        if not isinstance(delta, dict):
            return
        for call in call_list(delta.get("tool_calls"), self._host):
            self._calls.take(call if isinstance(call, dict) else {})
        _merge(self._message, {key: value for key, value in delta.items() if key != "tool_calls"})


def call_list(calls: Any, host: str) -> list[Any]:
    """The calls of a message or of a piece of one. Raises ModelError where something else stands in their place."""
    if isinstance(calls, dict) and calls:
        calls = [calls]  # servers that unpack a list of one
    if not calls:
        return []
    if not isinstance(calls, list):
        raise ModelError(bad_reply(host, "tool_calls that are no list", None))
    return calls


class _Calls:
    """The calls of one message, in the order they began."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._at: dict[int, int] = {}  # index of the wire -> place of the call that is being written there

    def take(self, piece: Mapping[str, Any]) -> None:
        place = self._place(piece)
        if place is None:
            place = len(self._calls)
            self._calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
        index = _index(piece)
        if index is not None:
            self._at[index] = place
        self._add(self._calls[place], piece)

    def all(self) -> list[dict[str, Any]]:
        return self._calls

    def _place(self, piece: Mapping[str, Any]) -> int | None:
        """The call this piece goes on with; None where it begins one."""
        given, name, index = piece.get("id"), _function(piece).get("name"), _index(piece)
        there = self._at.get(index) if index is not None else None
        if given and there is not None and self._calls[there].get("id") == given:
            return None if self._another(there, piece) else there
        if given and (index is None or there is not None or not name):
            known = next((i for i, call in enumerate(self._calls) if call.get("id") == given), None)
            if known is not None and not self._another(known, piece):
                return known
        place = there if index is not None else len(self._calls) - 1
        if place is None or place < 0:
            return None
        if given and self._calls[place].get("id") not in (None, "", given):
            # Another id is another call; some servers make up an id for every piece, and then no name comes with it.
            return None if name or self._finished(place) else place
        return None if self._another(place, piece) else place

    def _another(self, place: int, piece: Mapping[str, Any]) -> bool:
        """Whether a piece without an id of its own begins another call than the one at its place."""
        name, function = _function(piece).get("name"), self._calls[place]["function"]
        if not name or not function["name"]:
            return False
        if name == function["name"] and not _function(piece).get("arguments"):
            return False  # servers that repeat the name in every piece
        return self._finished(place) or (name != function["name"] and not function["arguments"])

    def _finished(self, place: int) -> bool:
        """Whether the arguments of that call are a whole object already."""
        function = self._calls[place]["function"]
        try:
            return isinstance(orjson.loads(function["arguments"]), dict)
        except ValueError:
            return False

    def _add(self, call: dict[str, Any], piece: Mapping[str, Any]) -> None:
        function = _function(piece)
        name, arguments = function.get("name"), function.get("arguments", function.get("input"))
        if isinstance(name, str) and name:
            call["function"]["name"] = name
        if arguments is not None:
            text = arguments if isinstance(arguments, str) else written(arguments)
            call["function"]["arguments"] += text
        if piece.get("id") and not call.get("id"):
            call["id"] = piece["id"]
        for key, value in piece.items():
            if key not in ("index", "id", "function", "custom", "type") and value is not None:
                _merge(call, {key: value})


def _index(piece: Mapping[str, Any]) -> int | None:
    """The index of the wire, also where it is written as text; -1 and null say nothing."""
    index = piece.get("index")
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 9:
        return int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else None


def _function(piece: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("function", "custom"):
        value = piece.get(key)
        if isinstance(value, dict):
            return value
    return {}


def _chunk(event: Event) -> dict[str, Any] | None:
    try:
        chunk = loads(event.data.encode(errors="replace"))
    except ValueError:
        return None
    return chunk if isinstance(chunk, dict) else None


def _merge(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Texts grow, lists and objects join, everything else is replaced; null says nothing."""
    for key, value in delta.items():
        old = into.get(key)
        match value:
            case None:
                into.setdefault(key, None)
            case str() if isinstance(old, str) and key not in _WHOLE:
                into[key] = old + value
            case str() if old is not None and key in _WHOLE and not value:
                pass
            case str() if isinstance(old, list):  # Mistral changes from parts to text within a message
                into[key] = _joined(old, [{"type": "text", "text": value}] if value else [])
            case list() if isinstance(old, list):
                into[key] = _joined(old, value)
            case list() if isinstance(old, str) and old:
                into[key] = _joined([{"type": "text", "text": old}], value)
            case dict() if isinstance(old, dict):
                _merge(old, value)
            case list():
                into[key] = list(value)
            case dict():
                into[key] = dict(value)
            case _:
                into[key] = value


def _joined(old: list[Any], new: list[Any]) -> list[Any]:
    """Pieces of the same part (same type, same index) grow into one; the others follow in their order."""
    parts = list(old)
    for piece in new:
        last = parts[-1] if parts else None
        if (
            isinstance(piece, dict)
            and isinstance(last, dict)
            and piece.get("type") == last.get("type")
            and piece.get("index") == last.get("index")
            and ("index" in piece or piece.get("type") in ("text", "thinking"))
        ):
            grown = dict(last)
            _merge(grown, {key: value for key, value in piece.items() if key != "type"})
            parts[-1] = grown
        else:
            parts.append(piece)
    return parts
