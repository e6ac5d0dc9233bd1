"""What is asked of a model and what it answers, provider-neutral."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import Item
from toolfleet.schemas.output import OutputSpec
from toolfleet.schemas.pace import RateHint
from toolfleet.schemas.tools import ToolSpec

Finish = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. Equal requests render to equal bytes, on every machine and in every process.

    For adapters: the system text is `agent.system_text`. `allowed` goes into the API's own list of allowed tools where
    it has one, else the definitions stay and the runtime refuses; where the profile says that narrowing is cheaper,
    only the allowed definitions are sent. `output` is the shape of a final answer (response_format, text.format).
    `cache_key` goes into prompt_cache_key where the profile knows it. None of the last five may stand before the history.
    """

    agent: AgentSpec
    items: tuple[Item, ...]
    tools: tuple[ToolSpec, ...]  # in their fixed order; definitions stay even where a tool is withdrawn
    allowed: tuple[str, ...] | None = None  # names that may be called now; None = all of them
    tool_choice: str = "auto"  # auto | required | none | a tool's name
    parallel: bool = True
    output_tokens_max: int = 4096
    timeout_s: float = 120.0
    user: str | None = None  # who it is for, as the provider's abuse checks want it; from the run's metadata
    output: OutputSpec | None = None  # the shape the final answer must have; validated by us as well
    cache_key: str | None = None  # equal for all requests with the same prefix


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as the provider sent it. `arguments` is its raw text, or None where there was none."""

    provider_id: str | None
    name: str
    arguments: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, as the provider counted them. `known` is False where it sent none."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    known: bool = True
    cache_written_tokens: int = 0  # of the input, what the provider put into its cache and charges more for


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One complete reply. A cut-off stream is never one."""

    text: str | None
    calls: tuple[RawCall, ...]
    finish: Finish
    wire: str
    provider: dict[str, Any]
    model: str
    usage: Usage = field(default_factory=Usage)
    refusal: str | None = None
    request_id: str | None = None
    rate: RateHint | None = None  # what the provider said of its limits


@dataclass(frozen=True, slots=True)
class ModelFault:
    """A model call that gave no reply. `kind` is for programs and logs, `message` for people; no payloads in it."""

    kind: Literal[
        "rate_limited",
        "quota",  # nothing left of what the account may use: waiting does not help
        "unavailable",
        "timeout",
        "connection",
        "bad_request",
        "context_length",
        "content_filter",
        "auth",
        "bad_reply",
        "not_found",
    ]
    message: str
    retryable: bool
    retry_after_s: float | None = None
    status: int | None = None
    request_id: str | None = None
    rate: RateHint | None = None
