"""What stands in a recorded answer, read a second time and as plainly as can be: what the adapters are held against.

Nothing here is shared with them. A body is read off directly; a stream is put together by a reader that knows nothing
of cut-off or broken ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Call = tuple[str | None, str, str | None]
DATA = "data:"


@dataclass(slots=True)
class Told:
    """What an answer says: calls as (id, name, text of the arguments), text, tokens read and written, its reason."""

    calls: list[Call] = field(default_factory=list)
    text: str = ""
    read: int = 0
    written: int = 0
    reason: str = ""
    refusal: str = ""


def events(sse: str) -> Iterator[dict[str, Any]]:
    for block in sse.replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[len(DATA) :].strip() for line in block.splitlines() if line.startswith(DATA))
        if data and data != "[DONE]":
            yield json.loads(data)


def wire_of(body: Any) -> str | None:
    """Which wire a body or a list of events is of; None: none of the three."""
    first = body[0] if isinstance(body, list) and body else body
    if not isinstance(first, dict):
        return None
    if first.get("type") in ("message", "message_start"):
        return "messages" if "tool_plan" not in first else None
    if str(first.get("type", "")).startswith("response.") or first.get("object") == "response":
        return "responses"
    choices = (
        next((e.get("choices") for e in body if e.get("choices")), None) if isinstance(body, list) else None
    )
    choices = choices or first.get("choices")
    if (
        isinstance(choices, list)
        and choices
        and {"message", "delta", "content_filter_results"} & choices[0].keys()
    ):
        return "chat_completions"
    return None


def chat(body: dict[str, Any]) -> Told:
    choice = body["choices"][0]
    message = choice.get("message") or {}
    calls: list[Call] = []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        calls.append((call.get("id") or None, function["name"], _text(function.get("arguments"))))
    old = message.get("function_call")
    if not calls and old and old.get("name"):
        calls.append((None, old["name"], old["arguments"]))
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if part.get("type") == "text")
    usage = body.get("usage") or {}
    read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return Told(
        calls,
        content or "",
        read,
        max(written, (usage.get("total_tokens") or 0) - read),  # xAI and Gemini: reasoning only in the total
        choice.get("finish_reason") or "",
        message.get("refusal") or "",
    )


def chat_events(chunks: list[dict[str, Any]]) -> Told:
    told = Told()
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        usage = chunk.get("usage") or (chunk.get("x_groq") or {}).get("usage")
        if usage:
            told.read = usage["prompt_tokens"]
            told.written = max(usage["completion_tokens"], usage.get("total_tokens", 0) - told.read)
        for choice in chunk.get("choices") or []:
            told.reason = choice.get("finish_reason") or told.reason
            delta = choice.get("delta") or {}
            content = delta.get("content") or ""
            if isinstance(content, list):
                content = "".join(part.get("text", "") for part in content if part["type"] == "text")
            told.text += content
            told.refusal += delta.get("refusal") or ""
            for piece in delta.get("tool_calls") or []:
                function = piece.get("function") or {}
                if (piece.get("id") and piece["id"] not in [call["id"] for call in calls]) or not calls:
                    calls.append({"id": piece.get("id"), "name": "", "arguments": ""})
                calls[-1]["name"] = function.get("name") or calls[-1]["name"]
                calls[-1]["arguments"] += function.get("arguments") or ""
    told.calls = [(call["id"] or None, call["name"], call["arguments"]) for call in calls]
    return told


def response(body: dict[str, Any]) -> Told:
    told = Told(reason=body.get("status") or "")
    for item in body["output"]:
        if item["type"] == "function_call":
            told.calls.append((item["call_id"], item["name"], item["arguments"]))
        elif item["type"] == "custom_tool_call":
            told.calls.append((item["call_id"], item["name"], item["input"]))
        elif item["type"] == "message":
            for part in item["content"]:
                told.text += part.get("text", "")
                told.refusal += part.get("refusal", "")
    usage = body.get("usage") or {}
    told.read, told.written = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return told


def response_events(chunks: list[dict[str, Any]]) -> Told:
    last = chunks[-1]["response"]
    items = [chunk["item"] for chunk in chunks if chunk["type"] == "response.output_item.done"]
    return response({**last, "output": last.get("output") or items})


def message(body: dict[str, Any]) -> Told:
    told = Told(reason=body.get("stop_reason") or "")
    for block in body["content"]:
        if block["type"] == "text":
            told.text += block["text"]
        elif block["type"] == "tool_use":
            told.calls.append((block["id"], block["name"], _text(block["input"])))
    usage = body["usage"]
    told.read = sum(
        usage.get(key) or 0
        for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    told.written = usage["output_tokens"]
    return told


def message_events(chunks: list[dict[str, Any]]) -> Told:
    body: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        match chunk["type"]:
            case "message_start" if not body:
                body = dict(chunk["message"])
                blocks = {place: {"json": "", **block} for place, block in enumerate(body["content"])}
            case "content_block_start":
                blocks[chunk["index"]] = {**chunk["content_block"], "json": ""}
            case "content_block_delta":
                block, delta = blocks[chunk["index"]], chunk["delta"]
                block["json"] += delta.get("partial_json", "")
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
            case "message_delta":
                body |= chunk["delta"]
                body["usage"] = body["usage"] | {k: v for k, v in chunk["usage"].items() if v is not None}
            case _:
                pass
    for block in blocks.values():
        if block["json"]:
            block["input"] = json.loads(block["json"])
    return message({**body, "content": [blocks[index] for index in sorted(blocks)]})


READ = {"chat_completions": chat, "responses": response, "messages": message}
READ_EVENTS = {
    "chat_completions": chat_events,
    "responses": response_events,
    "messages": message_events,
}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
