"""What the parsers of all wires share: the answer of a server, its JSON, and counts and calls read without trust."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toolfleet.adapters.llm.faults import bad_reply, request_id_of
from toolfleet.adapters.llm.sse import BOM
from toolfleet.adapters.llm.strict_json import loads, written
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import RawCall, Usage

BYTES_PER_TOKEN: Final = 4  # OpenAI's rule of thumb, for servers that count nothing


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer of status 200, and what of its request is needed to read it."""

    body: bytes
    host: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    request_bytes: int = 0
    output_tokens_max: int | None = None

    @property
    def streamed(self) -> bool:
        """Whether the body is a stream of events, whatever was asked for."""
        head = self.body[:64].removeprefix(BOM).lstrip()
        if str(self.headers.get("content-type", "")).partition(";")[0].strip().lower() == "text/event-stream":
            return not head.startswith(b"{")  # a plain answer under the header of a stream
        return head.startswith((b"data:", b"event:", b":", b"id:", b"retry:"))


def body_of(answer: Answer) -> dict[str, Any]:
    """The JSON object of the answer. Raises ModelError (`bad_reply`) where there is none."""
    body: Any = None
    with contextlib.suppress(ValueError):
        body = loads(answer.body.removeprefix(BOM))
    # Raised outside an `except`: a parser's exception holds the whole text it could not read.
    if isinstance(body, dict):
        return body
    raise ModelError(bad_reply(answer.host, _kind_of(answer), request_id_of(answer.headers)))


def _kind_of(answer: Answer) -> str:
    head = answer.body[:64].removeprefix(BOM).lstrip().lower()
    if not head:
        return "an empty answer"
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page instead of an answer (is the base URL right, and does it end in /v1?)"
    return "an answer that is no JSON object, or is cut off"


def raw_call(provider_id: Any, name: Any, arguments: Any) -> RawCall:
    """A call as it came; what is missing stays missing, so that none is lost and their order holds."""
    if arguments is not None and not isinstance(arguments, str):
        arguments = written(arguments)  # servers that send the object itself
    return RawCall(text_or_none(provider_id), name if isinstance(name, str) else "", arguments)


def estimated_usage(answer: Answer, text: str | None, calls: tuple[RawCall, ...]) -> Usage:
    """Tokens from the bytes, marked as not known."""
    size = len(text or "") + sum(len(call.name) + len(call.arguments or "") for call in calls)
    return Usage(1 + answer.request_bytes // BYTES_PER_TOKEN, 1 + size // BYTES_PER_TOKEN, 0, 0, known=False)


def details_of(usage: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    details = usage.get(key)
    return details if isinstance(details, dict) else {}


def count_of(usage: Mapping[str, Any], *keys: str) -> int:
    """The first of these counts that is a positive number, else 0."""
    for key in keys:
        value = usage.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return int(value)
    return 0


def part_text(part: Mapping[str, Any], key: str) -> str:
    value = part.get(key)
    return value if isinstance(value, str) else ""


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
