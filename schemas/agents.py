"""What an agent is: a versioned definition, pinned by its content hash for every run."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Any, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from toolfleet.schemas.limits import DEFAULT_LIMITS, Limits
from toolfleet.schemas.outcomes import Lane
from toolfleet.schemas.tools import ToolSpec

# Fields of a request that decide what the model may do and what it is told; one way to set each of them.
_OURS = frozenset(
    {
        "model",
        "messages",
        "input",
        "system",
        "instructions",
        "tool_choice",
        "parallel_tool_calls",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "temperature",
        "stream",
        "stream_options",
        "store",
        "background",
        "previous_response_id",
        "conversation",
        "n",
    }
)
AGENT_NAME_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$"


class Price(BaseModel):
    """US dollars for a million tokens. Without a price, the price table decides; unknown models cost 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd: float = Field(ge=0)
    output_usd: float = Field(ge=0)
    cached_input_usd: float | None = Field(default=None, ge=0)


class ExampleCall(BaseModel):
    """A call in a few-shot turn, with its result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    arguments: dict[str, Any]
    result: Any


class ExampleTurn(BaseModel):
    """One few-shot example as a real chain: user, calls with results, answer. Ids are static."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str
    calls: tuple[ExampleCall, ...] = ()
    answer: str


class AgentSpec(BaseModel):
    """The definition of an agent, as data: what a run is pinned to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=AGENT_NAME_PATTERN)
    model: str
    instructions: str = ""
    examples: tuple[ExampleTurn, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    limits: Limits = DEFAULT_LIMITS
    lane: Lane = Lane.INTERACTIVE
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    tool_choice: Literal["auto", "required", "none"] = "auto"
    parallel_tool_calls: Literal["auto", "on", "off"] = (
        "auto"  # auto: off when a tool with an effect is among them
    )
    price: Price | None = None  # of `model`; fallback models have those of the table
    fallback_models: tuple[
        str, ...
    ] = ()  # asked in this order where the one before fails or has no quota left
    # More of the request, as the provider names it: {"reasoning": {"effort": "low"}}, {"tools": [{"type": "web_search"}]}.
    provider_options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("fallback_models")
    @classmethod
    def _each_once(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        names = (info.data.get("model"), *value)
        if len(set(names)) != len(names):
            raise ValueError("a model stands twice in the chain of model and fallback_models")
        return value

    @property
    def parallel(self) -> bool:
        """Whether several calls of one turn may run."""
        if self.parallel_tool_calls == "auto":
            return not any(tool.effect for tool in self.tools)
        return self.parallel_tool_calls == "on"

    @field_validator("provider_options")
    @classmethod
    def _only_what_is_not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(value.keys() & _OURS)
        if taken:
            raise ValueError(
                f"provider_options cannot set {', '.join(taken)}: the runtime does, from the agent's own fields"
            )
        return value

    @cached_property
    def version(self) -> str:
        """Hash of the whole definition, 16 hex digits."""
        return _digest(self.model_dump(mode="json"))

    @cached_property
    def prompt_version(self) -> str:
        """Hash of what the model reads beside the tools: instructions, examples, sampling, model."""
        return _digest(
            self.model_dump(
                mode="json", include={"model", "instructions", "examples", "temperature", "provider_options"}
            )
        )

    @cached_property
    def toolset_version(self) -> str:
        """Hash of the tool definitions, in their order."""
        return _digest(self.model_dump(mode="json", include={"tools", "tool_choice", "parallel_tool_calls"}))

    def tool(self, name: str) -> ToolSpec | None:
        """The tool of that name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)


def _digest(value: Any) -> str:
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()[:16]
