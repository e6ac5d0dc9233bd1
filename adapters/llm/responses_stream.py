"""A Responses stream -> the body of the same answer. Whole is what a terminal event ended; nothing before it counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolfleet.adapters.llm.faults import broken_stream, fault_in_stream
from toolfleet.adapters.llm.sse import Event, EventReader
from toolfleet.adapters.llm.strict_json import loads
from toolfleet.schemas.errors import ModelError

_TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
DONE: Final = "[DONE]"


class ResponseStream:
    """Takes the bytes of a stream in any pieces; `body()` is the response, once it is whole."""

    def __init__(self, host: str, headers: Mapping[str, str] | None = None) -> None:
        self._host = host
        self._headers = headers or {}
        self._events = EventReader()
        self._items: dict[int, dict[str, Any]] = {}  # finished ones by their place in the output
        self._response: dict[str, Any] | None = None

    def feed(self, data: bytes) -> None:
        """Raises ModelError: an error inside the stream, or a piece of it that is no JSON."""
        for event in self._events.feed(data):
            self._take(event)

    @property
    def whole(self) -> bool:
        """Whether the end of the reply was read."""
        return self._response is not None

    def body(self) -> dict[str, Any]:
        """The whole answer. Raises ModelError where the stream ended before it was."""
        for event in self._events.end():
            self._take(event)
        if self._response is None:
            raise ModelError(broken_stream(self._host, self._headers))
        response = dict(self._response)
        output = response.get("output")
        if not isinstance(output, list) or len(output) < len(self._items):
            # Servers whose last event repeats nothing, or not all of it.
            response["output"] = [self._items[place] for place in sorted(self._items)]
        return response

    def _take(self, event: Event) -> None:
        if self._response is not None or event.data.strip() == DONE:
            return
        chunk = _object(event.data)
        kind = str((chunk or {}).get("type") or event.name)
        if chunk is None or kind == "error" or (chunk.get("error") and not kind.startswith("response.")):
            fault = fault_in_stream(event.name or kind, chunk, self._headers, self._host)
            if fault is not None:
                raise ModelError(fault)
        assert chunk is not None, "what is no JSON is a fault"
        response, item = chunk.get("response"), chunk.get("item")
        if kind in _TERMINAL and isinstance(response, dict):
            self._response = {"status": kind.removeprefix("response."), **response}
        elif kind == "response.output_item.done" and isinstance(item, dict):
            place = chunk.get("output_index")
            place = place if isinstance(place, int) else len(self._items)
            while place in self._items and _id(self._items[place]) != _id(item):
                place += 1  # servers that number all of them 0
            self._items[place] = item


def _id(item: Mapping[str, Any]) -> Any:
    return item.get("call_id") or item.get("id") or item


def _object(data: str) -> dict[str, Any] | None:
    try:
        value = loads(data.encode(errors="replace"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
