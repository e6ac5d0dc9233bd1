"""An Anthropic Messages stream -> the body of the same answer. Whole is what `message_stop` ended.

The official helper takes a tool_use block for complete when its stream ends in the middle of the input: here an input
counts only after the stop of its block, and the reply only after its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolfleet.adapters.llm.faults import bad_reply, broken_stream, fault_in_stream, request_id_of
from toolfleet.adapters.llm.sse import Event, EventReader
from toolfleet.adapters.llm.strict_json import exact, loads, written
from toolfleet.schemas.errors import ModelError


class MessageStream:
    """Takes the bytes of a stream in any pieces; `body()` is the message, once it is whole."""

    def __init__(self, host: str, headers: Mapping[str, str] | None = None) -> None:
        self._host = host
        self._headers = headers or {}
        self._events = EventReader()
        self._message: dict[str, Any] | None = None
        self._blocks: list[dict[str, Any]] = []  # in the order they began
        self._at: dict[int, int] = {}  # index of the wire -> place of the block that is being written there
        self._inputs: dict[int, str] = {}  # by place: JSON of inputs that are being written
        self._stopped = False

    def feed(self, data: bytes) -> None:
        """Raises ModelError: an error inside the stream, or a piece of it that is no JSON."""
        for event in self._events.feed(data):
            self._take(event)

    @property
    def whole(self) -> bool:
        """Whether the end of the reply was read."""
        return self._message is not None and self._stopped

    def body(self) -> dict[str, Any]:
        """The whole answer. Raises ModelError where the stream ended before it was."""
        for event in self._events.end():
            self._take(event)
        if self._message is None or not self.whole:
            raise ModelError(broken_stream(self._host, self._headers))
        return {**self._message, "content": self._blocks}

    def _take(self, event: Event) -> None:
        if self._stopped:
            return
        chunk = _object(event.data)
        fault = fault_in_stream(event.name, chunk, self._headers, self._host)
        if fault is not None:
            raise ModelError(fault)
        assert chunk is not None, "what is no JSON is a fault"
        index = chunk.get("index")
        index = index if isinstance(index, int) else -1
        match chunk.get("type"):
            case "message_start":
                self._start(chunk.get("message"))
            case "content_block_start" if isinstance(chunk.get("content_block"), dict):
                self._begin(index, chunk["content_block"])
            case "content_block_delta" if isinstance(chunk.get("delta"), dict):
                self._delta(index, chunk["delta"])
            case "content_block_stop":
                self._close(self._at.get(index, -1))
            case "message_delta":
                self._end(chunk)
            case "message_stop":
                for place in tuple(self._inputs):
                    self._close(place)
                self._stopped = True
            case _:
                pass  # ping, and what is not known yet

    def _start(self, message: Any) -> None:
        if not isinstance(message, dict) or self._message is not None:
            return  # proxies repeat it
        self._message = dict(message)
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, dict):
                self._begin(index, block)

    def _begin(self, index: int, block: Mapping[str, Any]) -> None:
        """A block begins, also at an index another one has already: proxies number all of them 0."""
        place = self._at.get(index)
        if place is not None and block.get("id") and self._blocks[place].get("id") == block["id"]:
            return  # said twice
        if place is not None:
            self._close(place)
        self._at[index] = len(self._blocks)
        self._blocks.append(dict(block))

    def _delta(self, index: int, delta: Mapping[str, Any]) -> None:
        if index not in self._at:
            if "partial_json" in delta:
                what = "the arguments of a call that never began"
                raise ModelError(bad_reply(self._host, what, request_id_of(self._headers)))
            self._begin(index, {"type": "text", "text": ""})
        place = self._at[index]
        block = self._blocks[place]
        for key, value in delta.items():
            if key == "type":
                continue
            if key == "partial_json":
                text = value if isinstance(value, str) else written(value)
                self._inputs[place] = self._inputs.get(place, "") + text
            elif key == "citation":
                block["citations"] = [*(block.get("citations") or ()), value]
            elif isinstance(value, str) and isinstance(block.get(key), str):
                block[key] += value
            else:
                block[key] = value

    def _close(self, place: int) -> None:
        text = self._inputs.pop(place, None)
        if text is None or not text.strip():
            return
        # Cut off by the output limit inside a block, or not exact: the text stays as it came and is no object.
        self._blocks[place]["input"] = exact(text)

    def _end(self, chunk: Mapping[str, Any]) -> None:
        if self._message is None:
            raise ModelError(
                bad_reply(self._host, "the end of a message that never began", request_id_of(self._headers))
            )
        delta, usage = chunk.get("delta"), chunk.get("usage")
        if isinstance(delta, dict):
            self._message.update(delta)
        if isinstance(usage, dict):
            begun = self._message.get("usage")
            known = {key: value for key, value in usage.items() if value is not None}
            self._message["usage"] = {**(begun if isinstance(begun, dict) else {}), **known}


def _object(data: str) -> dict[str, Any] | None:
    try:
        value = loads(data.encode(errors="replace"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
