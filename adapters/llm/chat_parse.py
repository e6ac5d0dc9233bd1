"""The body of a Chat Completions answer -> ModelReply, whatever compatible servers make of that form.

What the body holds decides, not what it says about itself: calls that are there are calls, whatever finish_reason is
given. Nothing is repaired here: argument texts go on as they came. Raises ModelError where there is no reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

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
from toolfleet.adapters.llm.chat_render import WIRE
from toolfleet.adapters.llm.chat_stream import ChatStream, call_list
from toolfleet.adapters.llm.faults import bad_reply, fault_in_body, request_id_of
from toolfleet.adapters.llm.strict_json import storable
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import Finish, ModelFault, ModelReply, RawCall, Usage

_LENGTH: Final = frozenset({"length", "max_tokens", "model_length"})
_FILTERED: Final = frozenset({"content_filter", "safety", "recitation", "sensitive", "prohibited_content"})
# The server gave up in the middle: DeepSeek, OpenRouter, SGLang and vLLM, Zhipu, Gemini.
_BROKEN_OFF: Final = frozenset(
    {"insufficient_system_resource", "error", "abort", "network_error", "malformed_function_call"}
)


def parse_reply(answer: Answer) -> ModelReply:
    """The reply in the answer. Raises ModelError: no JSON, an error, no choices, no message, broken off."""
    body = _streamed(answer) if answer.streamed else body_of(answer)
    request_id = request_id_of(answer.headers)
    fault = fault_in_body(body, answer.headers, answer.host)
    if fault is not None:
        raise ModelError(fault)
    choice = _first_choice(body.get("choices"))
    if choice is None:
        raise ModelError(bad_reply(answer.host, "an answer without choices", request_id))
    reason = str(choice.get("finish_reason") or "").lower()
    message = choice.get("message")
    if reason in _FILTERED and not isinstance(message, dict):
        message = {"role": "assistant", "content": None}  # Azure sends none with what it filtered
    if not isinstance(message, dict):
        raise ModelError(bad_reply(answer.host, "a choice without a message", request_id))
    if reason in _BROKEN_OFF:
        what = f"a reply its server broke off ({reason})"
        raise ModelError(
            ModelFault("unavailable", f"{answer.host} sent {what}.", retryable=True, request_id=request_id)
        )
    calls = tuple(_calls(message, answer.host))
    text, refusal = _texts(message)
    usage = _usage(body.get("usage"), answer, text, calls)
    model = body.get("model")
    return ModelReply(
        text=storable(text),
        calls=calls,
        finish=_finish(reason, calls, refusal, usage, answer.output_tokens_max),
        wire=WIRE,
        provider=storable(message),
        model=model if isinstance(model, str) and model else answer.model,
        usage=usage,
        refusal=storable(refusal),
        request_id=request_id or text_or_none(body.get("id")),
    )


def _streamed(answer: Answer) -> dict[str, Any]:
    stream = ChatStream(answer.host, answer.headers)
    stream.feed(answer.body)
    return stream.body()


def _first_choice(choices: Any) -> dict[str, Any] | None:
    if not isinstance(choices, list):
        return None
    return next((choice for choice in choices if isinstance(choice, dict)), None)


def _calls(message: Mapping[str, Any], host: str) -> Iterable[RawCall]:
    calls = call_list(message.get("tool_calls"), host)
    if calls:
        return [_call(call) for call in calls]
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and legacy.get("name"):  # Snowflake sends an empty one beside everything
        return [_call({"function": legacy})]
    return []


def _call(call: Any) -> RawCall:
    """One call; what is missing stays missing, so that none of them is lost and the order holds."""
    call = call if isinstance(call, dict) else {}
    function = call.get("function")
    if not isinstance(function, dict) or not function.get("name"):
        custom = call.get("custom")
        if isinstance(custom, dict) and custom.get("name"):
            function = {"name": custom["name"], "arguments": custom.get("input")}
    function = function if isinstance(function, dict) else {}
    return raw_call(call.get("id"), function.get("name"), function.get("arguments"))


def _texts(message: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Text and refusal. Content may be a list of parts (Mistral); only text counts, not thinking or references."""
    content = message.get("content")
    refusal = text_or_none(message.get("refusal"))
    if not isinstance(content, list):
        return (content if isinstance(content, str) else None), refusal
    parts = [part for part in content if isinstance(part, dict)]
    refused = "".join(part_text(part, "refusal") for part in parts if part.get("type") == "refusal")
    text = "".join(
        part_text(part, "text") for part in parts if part.get("type", "text") in ("text", "output_text")
    )
    return text or None, refusal or refused or None


def _finish(
    reason: str,
    calls: tuple[RawCall, ...],
    refusal: str | None,
    usage: Usage,
    output_tokens_max: int | None,
) -> Finish:
    if reason in _FILTERED:
        return "content_filter"
    if refusal:
        return "refusal"
    if reason in _LENGTH:
        return "length"
    if calls:
        # Some servers say tool_calls although the limit cut the last one off; its arguments then end in the middle.
        at_limit = output_tokens_max is not None and usage.known and usage.output_tokens >= output_tokens_max
        return "length" if at_limit and any(_cut_off(call) for call in calls) else "tool_calls"
    return "stop"


def _cut_off(call: RawCall) -> bool:
    try:
        orjson.loads(call.arguments or "{}")
    except ValueError:
        return True
    return False


def _usage(usage: Any, answer: Answer, text: str | None, calls: tuple[RawCall, ...]) -> Usage:
    """Tokens as the server counted them; an estimate from the bytes, marked as such, where it counted none."""
    given = usage if isinstance(usage, dict) else {}
    read, written = (
        count_of(given, "prompt_tokens", "input_tokens"),
        count_of(given, "completion_tokens", "output_tokens"),
    )
    if read == 0 and written == 0:
        return estimated_usage(answer, text, calls)
    reading, writing = (
        details_of(given, "prompt_tokens_details"),
        details_of(given, "completion_tokens_details"),
    )
    cached = count_of(reading, "cached_tokens") or count_of(given, "prompt_cache_hit_tokens", "cached_tokens")
    reasoning = count_of(writing, "reasoning_tokens") or count_of(given, "reasoning_tokens")
    hidden = count_of(given, "total_tokens") - read - written
    if hidden > 0:  # xAI and Gemini count reasoning in the total only, and charge it as output
        written += hidden
        reasoning = max(reasoning, hidden)
    return Usage(read, written, min(cached, read), min(reasoning, written))
