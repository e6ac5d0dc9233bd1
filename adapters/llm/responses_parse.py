"""The body of a Responses answer -> ModelReply. What stands in `output` decides, in its order; nothing is repaired.

Raises ModelError where there is no finished reply: an error, a failed or cancelled response, one still being made.
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
from toolfleet.adapters.llm.responses_stream import ResponseStream
from toolfleet.adapters.llm.strict_json import storable
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import Finish, ModelFault, ModelReply, RawCall, Usage

WIRE: Final = "responses"
_UNFINISHED: Final = frozenset({"queued", "in_progress"})


def parse_response(answer: Answer) -> ModelReply:
    """The reply in the answer. Raises ModelError where it holds none."""
    body = _streamed(answer) if answer.streamed else body_of(answer)
    request_id = request_id_of(answer.headers, body)
    status = str(body.get("status") or "")
    if status == "failed":
        raise ModelError(fault_of_error(body, answer.headers, answer.host))
    output = body.get("output")
    fault = None if isinstance(output, list) else fault_in_body(body, answer.headers, answer.host)
    if fault is not None:
        raise ModelError(fault)
    if not isinstance(output, list):
        raise ModelError(bad_reply(answer.host, "an answer without output", request_id))
    if status in _UNFINISHED:
        raise ModelError(bad_reply(answer.host, f"an answer that is not finished ({status})", request_id))
    if status == "cancelled":
        what = f"{answer.host} cancelled its reply."
        raise ModelError(ModelFault("unavailable", what, retryable=True, request_id=request_id))
    items = [item for item in output if isinstance(item, dict)]
    calls = tuple(call for call in (_call(item) for item in items) if call is not None)
    text, refusal = _texts(items)
    model = body.get("model")
    return ModelReply(
        text=storable(text),
        calls=calls,
        finish=_finish(body, status, calls, refusal, cut=any(_cut(item) for item in items)),
        wire=WIRE,
        provider=storable({"id": body.get("id"), "output": items}),
        model=model if isinstance(model, str) and model else answer.model,
        usage=_usage(body.get("usage"), answer, text, calls),
        refusal=storable(refusal),
        request_id=request_id or text_or_none(body.get("id")),
    )


def _streamed(answer: Answer) -> dict[str, Any]:
    stream = ResponseStream(answer.host, answer.headers)
    stream.feed(answer.body)
    return stream.body()


def _call(item: Mapping[str, Any]) -> RawCall | None:
    match item.get("type"):
        case "function_call":
            return raw_call(item.get("call_id") or item.get("id"), item.get("name"), item.get("arguments"))
        case "custom_tool_call":
            return raw_call(item.get("call_id") or item.get("id"), item.get("name"), item.get("input"))
        case _:
            return None  # what the provider runs itself, and reasoning


def _cut(item: Mapping[str, Any]) -> bool:
    """Whether the server says of a call that it is not all there."""
    return item.get("status") == "incomplete" and item.get("type") in ("function_call", "custom_tool_call")


def _texts(items: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    texts: list[str] = []
    refusals: list[str] = []
    for item in items:
        content = item.get("content")
        if item.get("type", "message") != "message":
            continue
        if isinstance(content, str):  # servers that know no parts
            texts.append(content)
        if not isinstance(content, list):
            continue
        for part in content:
            if isinstance(part, dict):
                (refusals if part.get("type") == "refusal" else texts).append(
                    part_text(part, "refusal" if part.get("type") == "refusal" else "text")
                )
    return "".join(texts) or None, "".join(refusals) or None


def _finish(
    body: Mapping[str, Any], status: str, calls: tuple[RawCall, ...], refusal: str | None, *, cut: bool
) -> Finish:
    details = body.get("incomplete_details")
    reason = str(details.get("reason") or "") if isinstance(details, dict) else ""
    if reason == "content_filter":
        return "content_filter"
    if refusal:
        return "refusal"
    if status == "incomplete" or reason or cut:
        return "length"
    return "tool_calls" if calls else "stop"


def _usage(usage: Any, answer: Answer, text: str | None, calls: tuple[RawCall, ...]) -> Usage:
    given = usage if isinstance(usage, dict) else {}
    read, written = count_of(given, "input_tokens"), count_of(given, "output_tokens")
    if read == 0 and written == 0:
        return estimated_usage(answer, text, calls)
    cached = count_of(details_of(given, "input_tokens_details"), "cached_tokens")
    reasoning = count_of(details_of(given, "output_tokens_details"), "reasoning_tokens")
    return Usage(read, written, min(cached, read), min(reasoning, written))
