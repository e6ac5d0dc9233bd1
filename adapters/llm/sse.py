"""Server-sent events from bytes, in whatever pieces they come (WHATWG HTML, 9.2.6).

An event exists once its blank line is there. What stands behind the last blank line is no event: a stream that was cut
off leaves such a rest, and nothing of it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name (empty where it has none) and its data, lines joined by a line feed."""

    name: str
    data: str


class EventReader:
    """Takes bytes, gives the events that are whole. The same bytes give the same events, however they are cut."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0  # of the rest, what holds no line end
        self._began = False
        self._name = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[Event]:
        self._rest += data
        if not self._began:
            if len(self._rest) < len(BOM) and BOM.startswith(self._rest):
                return
            self._began = True
            if self._rest.startswith(BOM):
                del self._rest[: len(BOM)]
        for line in self._lines():
            event = self._take(line)
            if event is not None:
                yield event

    def end(self) -> Iterator[Event]:
        """No more bytes: a CR that waited for its LF ends its line after all."""
        if self._rest.endswith(b"\r"):
            yield from self.feed(b"\n")

    def _lines(self) -> Iterator[str]:
        """Whole lines, ended by CR, LF or both. A CR at the very end waits: its LF may be in the next piece."""
        start, rest = 0, self._rest
        for found in _LINE_END.finditer(rest, self._searched):
            if found[0] == b"\r" and found.end() == len(rest):
                break
            yield rest[start : found.start()].decode(errors="replace")
            start = found.end()
        if start:
            del rest[:start]
        self._searched = max(0, len(rest) - 1)  # again from its last byte, which may be a CR

    def _take(self, line: str) -> Event | None:
        if not line:
            event = Event(self._name, "\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            return event
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None
