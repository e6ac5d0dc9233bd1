"""The body of an Anthropic Messages answer -> ModelReply. Raises ModelError where there is no finished reply.

Blocks of tools the provider runs itself (server_tool_use and their results), thinking and its signatures are no calls
and no text; they stay in `provider` and go back as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolfleet.adapters.llm.answers import (
    Answer,
    body_of,
    count_of,
    details_of,
    estimated_usage,
    part_text,
    raw_call,
    text_or_none,
)
from toolfleet.adapters.llm.faults import bad_reply, fault_in_body, fault_of_error, request_id_of
from toolfleet.adapters.llm.messages_stream import MessageStream
from toolfleet.adapters.llm.strict_json import storable
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import Finish, ModelReply, RawCall, Usage

WIRE: Final = "messages"
PAUSED: Final = (
    "pause_turn"  # a long turn of the provider's own tools: to be sent back as it is, and gone on with
)
_LENGTH: Final = frozenset({"max_tokens", "model_context_window_exceeded"})
REFUSED: Final = "The model declined to answer."


def parse_message(answer: Answer) -> ModelReply:
    """The reply in the answer. A paused turn is one without calls; who asks goes on with it (`paused`)."""
    body = _streamed(answer) if answer.streamed else body_of(answer)
    request_id = request_id_of(answer.headers, body)
    if body.get("type") == "error":
        raise ModelError(
            fault_in_body(body, answer.headers, answer.host)
            or fault_of_error(body, answer.headers, answer.host)
        )
    content = body.get("content")
    if not isinstance(content, list) or (body.get("type") != "message" and "stop_reason" not in body):
        raise ModelError(bad_reply(answer.host, "an answer that is no message", request_id))
    blocks = [block for block in content if isinstance(block, dict)]
    calls = tuple(
        raw_call(block.get("id"), block.get("name"), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    )
    text = "".join(part_text(block, "text") for block in blocks if block.get("type") == "text") or None
    finish = _finish(str(body.get("stop_reason") or ""), calls)
    model = body.get("model")
    return ModelReply(
        text=storable(text),
        calls=calls,
        finish=finish,
        wire=WIRE,
        provider=storable({"role": "assistant", "content": blocks, "stop_reason": body.get("stop_reason")}),
        model=model if isinstance(model, str) and model else answer.model,
        usage=_usage(body.get("usage"), answer, text, calls),
        refusal=storable(_refusal(body)) if finish == "refusal" else None,
        request_id=request_id or text_or_none(body.get("id")),
    )


def paused(reply: ModelReply) -> bool:
    """Whether the turn is to be gone on with."""
    return reply.provider.get("stop_reason") == PAUSED


def _streamed(answer: Answer) -> dict[str, Any]:
    stream = MessageStream(answer.host, answer.headers)
    stream.feed(answer.body)
    return stream.body()


def _finish(reason: str, calls: tuple[RawCall, ...]) -> Finish:
    if reason == "refusal":
        return "refusal"
    if reason in _LENGTH:
        return "length"
    return "tool_calls" if calls else "stop"


def _refusal(body: Mapping[str, Any]) -> str:
    details = body.get("stop_details")
    said = (
        part_text(details, "explanation") or part_text(details, "category")
        if isinstance(details, dict)
        else ""
    )
    return said or REFUSED


def _usage(usage: Any, answer: Answer, text: str | None, calls: tuple[RawCall, ...]) -> Usage:
    """Anthropic counts what was read from and written to its cache beside `input_tokens`, not in it."""
    given = usage if isinstance(usage, dict) else {}
    fresh, written = count_of(given, "input_tokens"), count_of(given, "output_tokens")
    cached, stored = (
        count_of(given, "cache_read_input_tokens"),
        count_of(given, "cache_creation_input_tokens"),
    )
    read = fresh + cached + stored
    if read == 0 and written == 0:
        return estimated_usage(answer, text, calls)
    reasoning = count_of(details_of(given, "output_tokens_details"), "thinking_tokens", "reasoning_tokens")
    return Usage(read, written, cached, min(reasoning, written), cache_written_tokens=stored)
