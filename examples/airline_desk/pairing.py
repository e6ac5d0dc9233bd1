"""What a Chat Completions request must look like before anything is answered: roles, texts, and calls with results.

As the real API: each assistant turn with calls is followed by exactly one tool message for each of them, and by
nothing else before the last. One thing is stricter, because this server is a test: the results stand in the order of
the calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


class BadRequest(Exception):
    """A request the real API would answer with 400; `param` is where, in its way of writing."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error as the API sends it."""
        return {
            "error": {
                "message": self.message,
                "type": "invalid_request_error",
                "param": self.param,
                "code": self.code,
            }
        }


def checked_messages(body: object) -> list[dict[str, Any]]:
    """The messages of a request, once everything about them but their content is right. Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("We could not parse the JSON body of your request: it is not an object.")
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise BadRequest("you must provide a model parameter", param="model")
    if body.get("stream"):
        raise BadRequest("This scripted server does not stream: leave 'stream' out.", param="stream")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("Invalid 'messages': expected an array with at least one message.", param="messages")
    for index, message in enumerate(messages):
        _check_message(index, message)
    _check_pairing(messages)
    return messages


def text_of(content: object) -> str | None:
    """The text of a content, given as one text or as parts of type text; None where it is neither."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        return "".join(part["text"] for part in content)
    return None


def _check_message(index: int, message: object) -> None:
    place = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise BadRequest(
            f"Invalid '{place}.role': expected one of {', '.join(_ROLES)}.", param=f"{place}.role"
        )
    calls = message.get("tool_calls")
    if message["role"] == "assistant" and calls is not None:
        if not isinstance(calls, list) or not calls:
            raise BadRequest(
                f"Invalid '{place}.tool_calls': expected an array with at least one call.",
                param=f"{place}.tool_calls",
            )
        for position, call in enumerate(calls):
            _check_call(f"{place}.tool_calls[{position}]", call)
    if text_of(message.get("content")) is None and not (calls and message.get("content") is None):
        raise BadRequest(
            f"Invalid value for 'content' of '{place}': expected a string or text parts.",
            param=f"{place}.content",
        )
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise BadRequest(
            f"Missing required parameter: '{place}.tool_call_id'.", param=f"{place}.tool_call_id"
        )


def _check_call(place: str, call: object) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not (
        isinstance(call, dict)
        and call.get("type") == "function"
        and isinstance(call.get("id"), str)
        and isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
    ):
        raise BadRequest(
            f"Invalid '{place}': expected id, type 'function', function.name and function.arguments.",
            param=place,
        )


def _check_pairing(messages: Sequence[Mapping[str, Any]]) -> None:
    index = 0
    while index < len(messages):
        message = messages[index]
        if message["role"] == "tool":
            raise BadRequest(
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'.",
                param=f"messages.[{index}].role",
            )
        index += 1
        ids = (
            [call["id"] for call in message.get("tool_calls") or ()] if message["role"] == "assistant" else []
        )
        if ids:
            _check_results(ids, messages, index)
            index += len(ids)


def _check_results(ids: Sequence[str], messages: Sequence[Mapping[str, Any]], start: int) -> None:
    """The tool messages from `start` on, up to the first other one, answer `ids`: all, once each, in order."""
    answered: list[str] = []
    for message in messages[start:]:
        if message["role"] != "tool":
            break
        answered.append(message["tool_call_id"])
    missing = [call_id for call_id in ids if call_id not in answered]
    if missing:
        raise BadRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
            + ", ".join(missing),
            param=f"messages.[{start - 1}].role",
        )
    for offset, call_id in enumerate(answered):
        if call_id not in ids or call_id in answered[:offset]:
            raise BadRequest(
                f"Invalid parameter: 'tool_call_id' of '{call_id}' not found in 'tool_calls' of previous message, "
                "or answered already.",
                param=f"messages.[{start + offset}].tool_call_id",
            )
    if answered != list(ids):
        raise BadRequest(
            f"The results stand in another order than the calls: expected {', '.join(ids)}, got "
            f"{', '.join(answered)}.",
            param=f"messages.[{start}].tool_call_id",
        )
