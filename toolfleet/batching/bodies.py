"""What the body of a batch line asks for: the request of a run. One function per url a line may name.

The agent has its own instructions, tools and sampling. What would change them is refused; what would only tune them is
left out and counted, so that whoever looks at the batch sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from toolfleet.client import RunRequest
from toolfleet.schemas.limits import DEFAULT_LIMITS, Limits

RUNS: Final = "/v1/runs"
RESPONSES: Final = "/v1/responses"
CHAT: Final = "/v1/chat/completions"
# They would give the agent other tools, instructions or shapes than its own.
REFUSED: Final = frozenset(
    {
        "tools",
        "functions",
        "tool_choice",
        "function_call",
        "instructions",
        "response_format",
        "text",
        "prompt",
    }
)
CONVERSATIONS: Final = frozenset({"previous_response_id", "conversation"})
OUTPUT_TOKENS: Final = ("max_output_tokens", "max_completion_tokens", "max_tokens")


class BodyRefused(Exception):
    """What is wrong with a body: `code`, `message`, and the field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(frozen=True, slots=True)
class Asked:
    """The request a body stands for, and the names of what was left out of it."""

    request: RunRequest
    ignored: tuple[str, ...] = ()


@dataclass(slots=True)
class _Body:
    """A body whose fields are taken one by one; what is left at the end is judged by its name."""

    fields: dict[str, Any]
    ignored: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        value = self.fields.pop(name, None)
        if not isinstance(value, str) or not value:
            raise BodyRefused("invalid_value", f"body.{name} has to be a text", f"body.{name}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.fields.pop(name, None)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise BodyRefused("invalid_value", f"body.{name} has to be an object", f"body.{name}")
        return value

    def limits(self) -> Limits | None:
        """Of the run; a body may only tighten them."""
        given = self.mapping("limits")
        for name in OUTPUT_TOKENS:
            if (most := self.fields.pop(name, None)) is not None:
                given["output_tokens_max"] = most
        if not given:
            return None
        try:
            return Limits(**{**DEFAULT_UNBOUND, **given})
        except ValidationError as exc:
            first = exc.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise BodyRefused("invalid_value", f"limit {name!r}: {first['msg']}", "body") from None

    def close(self, agent: str) -> tuple[str, ...]:
        left = {name for name, value in self.fields.items() if value is not None}
        for name in sorted(left & REFUSED):
            raise BodyRefused(
                "unsupported_parameter",
                f"body.{name} is decided by agent {agent!r}; leave it out",
                f"body.{name}",
            )
        for name in sorted(left & CONVERSATIONS):
            raise BodyRefused(
                "unsupported_parameter",
                f"body.{name}: a line of a batch begins a conversation of its own",
                f"body.{name}",
            )
        if self.fields.get("stream") is True:
            raise BodyRefused("unsupported_parameter", "a batch does not stream; leave it out", "body.stream")
        if self.fields.get("n") not in (None, 1):
            raise BodyRefused("unsupported_parameter", "body.n: one answer for each line", "body.n")
        return tuple(sorted(left - {"n"}))


# Of a field nobody named, the agent's own limit stands: the loosest one a run may ask for changes nothing.
DEFAULT_UNBOUND: Final[Mapping[str, Any]] = {
    "turns_max": 1000,
    "calls_max": 10_000,
    "calls_per_turn_max": 256,
    "corrections_max": 20,
    "active_seconds_max": 1e9,
    "cost_usd_max": 1e9,
    "model_attempts_max": 100,
    "model_timeout_s": 1e9,
    "output_tokens_max": 10**9,
}
assert set(DEFAULT_UNBOUND) == set(type(DEFAULT_LIMITS).model_fields), "every limit is named"


def _run(body: _Body) -> RunRequest:
    agent = body.fields.pop("agent", None) or body.fields.pop("model", None)
    body.fields.setdefault("agent", agent)
    return RunRequest(
        body.text("agent"),
        body.text("input"),
        context=body.mapping("context"),
        metadata=body.mapping("metadata"),
        limits=body.limits(),
    )


def _responses(body: _Body) -> RunRequest:
    given = body.fields.pop("input", None)
    if isinstance(given, list):
        text = _said(given, "body.input", ("input_text", "text"))
    else:
        text = _text_of(given, "body.input", ())
    return _of_wire(body, text)


def _chat(body: _Body) -> RunRequest:
    messages = body.fields.pop("messages", None)
    if not isinstance(messages, list):
        raise BodyRefused("invalid_value", "body.messages has to be a list", "body.messages")
    return _of_wire(body, _said(messages, "body.messages", ("text",)))


def _of_wire(body: _Body, text: str) -> RunRequest:
    body.fields.pop("user", None)
    return RunRequest(body.text("model"), text, metadata=body.mapping("metadata"), limits=body.limits())


def _said(messages: list[Any], where: str, kinds: tuple[str, ...]) -> str:
    """What the one user message says. The agent brings its own instructions, and no history is made up for it."""
    if len(messages) != 1 or not isinstance(messages[0], dict) or messages[0].get("role") != "user":
        roles = [one.get("role") if isinstance(one, dict) else None for one in messages[:5]]
        raise BodyRefused(
            "unsupported_input",
            f"{where} has to hold one message of role user, and nothing else; it holds {len(messages)} ({roles})",
            where,
        )
    return _text_of(messages[0].get("content"), f"{where}[0].content", kinds)


def _text_of(content: Any, where: str, kinds: tuple[str, ...]) -> str:
    if isinstance(content, str):
        return content
    if not kinds or not isinstance(content, list) or not content:
        raise BodyRefused("invalid_value", f"{where} has to be a text", where)
    parts = []
    for part in content:
        if (
            not isinstance(part, dict)
            or part.get("type") not in kinds
            or not isinstance(part.get("text"), str)
        ):
            raise BodyRefused("unsupported_input", f"{where}: only parts of text are accepted", where)
        parts.append(part["text"])
    return "".join(parts)


ENDPOINTS: Final[Mapping[str, Callable[[_Body], RunRequest]]] = {
    RUNS: _run,
    RESPONSES: _responses,
    CHAT: _chat,
}


def asked(url: str, body: Mapping[str, Any]) -> Asked:
    """The request of a body. Raises BodyRefused, naming the field."""
    taken = _Body(dict(body))
    request = ENDPOINTS[url](taken)
    return Asked(request, taken.close(request.agent))
