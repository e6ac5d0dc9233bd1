"""What a tool is: the one declaration from which schema, queue, pool, retry and effect rules follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from toolfleet.schemas.limits import (
    RESULT_BYTES_STORED,
    RESULT_BYTES_TO_MODEL,
    TOOL_ATTEMPTS_MAX,
    TOOL_TIMEOUT_S,
)
from toolfleet.schemas.outcomes import Tier

TOOL_NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"
Runner = Literal["loop", "child"]


class ToolSpec(BaseModel):
    """The contract of a tool, as data. `parameters` is the JSON Schema of the object the model sends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=TOOL_NAME_PATTERN)
    description: str
    parameters: dict[str, Any]
    tier: Tier = Tier.LOW
    effect: bool = False  # changes the world outside; False = read-only
    idempotent: bool = False  # takes our idempotency key and does nothing twice under it
    repeatable: bool = False  # asking again is meaningful: results are never reused
    timeout_s: float = Field(default=TOOL_TIMEOUT_S, gt=0, le=86_400)
    attempts_max: int = Field(default=TOOL_ATTEMPTS_MAX, ge=1, le=100)
    runner: Runner = "child"
    result_bytes_to_model: int = Field(default=RESULT_BYTES_TO_MODEL, ge=256)
    result_bytes_stored: int = Field(default=RESULT_BYTES_STORED, ge=256)
    context_parameter: str | None = None  # the parameter that takes the ToolContext; never in the schema
    on_denied: Literal["end_run", "tell_model"] = "end_run"

    @field_validator("parameters")
    @classmethod
    def _object_at_the_root(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("type") != "object":
            raise ValueError("the root of a tool's parameters must be an object schema; give it type: object")
        return value

    @model_validator(mode="after")
    def _tier_fits_effect(self) -> ToolSpec:
        if self.effect and self.tier is Tier.LOW:
            raise ValueError("it has an effect and cannot be of tier low; declare tier='medium' or above")
        return self


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What the runtime tells a tool beside the model's arguments; injected, never in schema or transcript.

    `idempotency_key` is equal for all attempts of this call. `context` is what the submitter gave the run.
    `deadline_at` is seconds since the epoch, on this machine's clock.
    """

    run_id: str
    turn: int
    call_id: str
    attempt: int
    idempotency_key: str
    tenant: str
    agent: str
    correlation_id: str
    deadline_at: float
    context: Mapping[str, Any] = field(default_factory=dict)
