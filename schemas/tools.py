"""What a tool is: the one declaration from which schema, queue, pool, retry and effect rules follow."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from toolfleet.schemas.contract import (
    INJECTED_PATTERN,
    TOOL_NAME_PATTERN,
    Prerequisite,
    ResultField,
    Source,
    ToolExample,
)
from toolfleet.schemas.limits import (
    APPROVAL_EXPIRES_S,
    RESULT_BYTES_STORED,
    RESULT_BYTES_TO_MODEL,
    RETRY_SHARE,
    TOOL_ATTEMPTS_MAX,
    TOOL_TIMEOUT_S,
)
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.pace import Rate

Runner = Literal["loop", "child"]
Strict = Literal["when_possible", "required", "never"]
_OF_ONE_CALL = ("run_id", "call_id", "correlation_id", "idempotency_key")


class ToolSpec(BaseModel):
    """The contract of a tool, as data. `parameters` is the JSON Schema of the object the model sends.

    The fields from `use_when` to `returns_not` are for the model (`tool_text` renders them); `sources`, `requires`,
    `stages` and `injected` are held by the runtime whatever the model was told.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=TOOL_NAME_PATTERN)
    description: str
    parameters: dict[str, Any]
    tier: Tier = Tier.LOW
    raised_from: Tier | None = None  # the declared tier, where configuration raised it
    effect: bool = False  # changes the world outside; False = read-only
    idempotent: bool = False  # takes our idempotency key and does nothing twice under it
    repeatable: bool = False  # asking again is meaningful: results are never reused
    timeout_s: float = Field(default=TOOL_TIMEOUT_S, gt=0, le=86_400)
    # For all attempts together. Not written where it is not declared, so that versions from before it stay what they are.
    call_timeout_s: float | None = Field(
        default=None, gt=0, le=30 * 86_400, exclude_if=lambda value: value is None
    )
    attempts_max: int = Field(default=TOOL_ATTEMPTS_MAX, ge=1, le=100)
    runner: Runner = "child"
    rate_limit: str | None = None  # "10/s", "100/min", "5/10s": starts of the tool in the whole fleet
    concurrent_max: int | None = Field(default=None, ge=1, le=10_000)  # attempts at a time in the whole fleet
    serial_key: str | None = Field(
        default=None, min_length=1, max_length=200
    )  # "order:{order_id}": one at a time
    retry_share: float | None = Field(
        default=RETRY_SHARE, ge=0, le=1
    )  # of its attempts may be retries; None: all
    result_bytes_to_model: int = Field(default=RESULT_BYTES_TO_MODEL, ge=256)
    result_bytes_stored: int = Field(default=RESULT_BYTES_STORED, ge=256)
    context_parameter: str | None = None  # the parameter that takes the ToolContext; never in the schema
    on_denied: Literal["end_run", "tell_model"] = "end_run"
    strict: Strict = "when_possible"  # whether providers are to enforce the schema while the model writes
    permissions: tuple[str, ...] = ()  # what the run's principal must have, all of them
    grantable: bool = False  # somebody may be asked to grant what is missing, for one call
    business_key: str | None = None  # template: "refund:{order_id}"; calls of one key are one effect
    parts: tuple[str, ...] = ()  # functions the declaration brings: precheck, reconcile, ...
    reconcile_is_final: bool = False  # "did not happen" cannot become "happened" any more
    two_person: bool = False
    double_confirm: bool = False
    approval_expires_s: float = Field(default=APPROVAL_EXPIRES_S, gt=0, le=366 * 86_400)

    use_when: tuple[str, ...] = ()
    not_when: tuple[str, ...] = ()
    edge_cases: tuple[str, ...] = ()  # what comes of an unknown id, an empty answer, a value at its limit
    returns: str = ""
    returns_not: str = ""
    examples: tuple[ToolExample, ...] = ()  # valid under `parameters`
    sources: dict[str, tuple[Source, ...]] = Field(default_factory=dict)  # by argument
    injected: dict[str, str] = Field(default_factory=dict)  # by argument, what the runtime fills in
    requires: tuple[Prerequisite, ...] = ()  # all of them
    stages: tuple[str, ...] = ()  # of a run, in which it may be called; none: in every one
    enters_stage: str | None = None  # where the run is after it has succeeded
    result_fields: tuple[ResultField, ...] = ()  # what the model may see of a result; none: all of it
    result_schema: dict[str, Any] | None = None  # every result is checked against it
    cache_ttl_s: float = Field(default=0.0, ge=0, le=86_400)  # a read's result serves other runs for so long

    @field_validator("parameters")
    @classmethod
    def _object_at_the_root(cls, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("type") != "object":
            raise ValueError("the root of a tool's parameters must be an object schema; give it type: object")
        return value

    @field_validator("rate_limit")
    @classmethod
    def _is_a_rate(cls, value: str | None) -> str | None:
        if value is not None:
            Rate.parse(value)
        return value

    @model_validator(mode="after")
    def _serial_key_names_arguments(self) -> ToolSpec:
        known = set(self.parameters.get("properties", {}))
        for name in re.findall(r"\{(\w*)\}", self.serial_key or ""):
            if name not in known:
                raise ValueError(f"serial_key names the argument {name!r}, which its parameters do not have")
        return self

    @model_validator(mode="after")
    def _tier_fits_effect(self) -> ToolSpec:
        if self.effect and self.tier is Tier.LOW:
            raise ValueError("it has an effect and cannot be of tier low; declare tier='medium' or above")
        return self

    @model_validator(mode="after")
    def _call_outlasts_attempt(self) -> ToolSpec:
        if self.call_timeout_s is not None and self.call_timeout_s < self.timeout_s:
            raise ValueError(
                f"call_timeout_s={self.call_timeout_s:g} is less than timeout_s={self.timeout_s:g}, so not even one "
                "attempt would have its time; raise the first or lower the second"
            )
        return self

    @model_validator(mode="after")
    def _cached_fits(self) -> ToolSpec:
        """A kept result is given to other runs: nothing of it may belong to the one it was made for."""
        if not self.cache_ttl_s:
            return self
        if self.effect:
            raise ValueError("it has an effect, and only results of reads are cached; leave out cache_ttl_s")
        if self.repeatable:
            raise ValueError("it is repeatable, so its results are never reused; leave out cache_ttl_s")
        own = [one for one in self.injected.values() if one in _OF_ONE_CALL]
        if self.context_parameter is not None or own:
            what = own[0] if own else "ToolContext"
            raise ValueError(
                f"it takes {what}, so its result may belong to one run and cannot be cached for others; inject "
                "what it needs by name (tenant, principal, context.KEY)"
            )
        return self

    @model_validator(mode="after")
    def _arguments_exist(self) -> ToolSpec:
        known = set(self.parameters.get("properties", {}))
        needed = {argument for one in self.requires for argument in one.same}
        for what, named in (("sources", set(self.sources)), ("requires", needed)):
            if unknown := sorted(named - known):
                raise ValueError(
                    f"{what} names the argument {unknown[0]!r}, which its parameters do not have"
                )
        if shown := sorted(known & set(self.injected)):
            raise ValueError(
                f"{shown[0]!r} is injected, so it cannot be among the parameters the model fills in"
            )
        for argument, source in self.injected.items():
            if not re.fullmatch(INJECTED_PATTERN, source):
                raise ValueError(
                    f"{argument!r} cannot be injected from {source!r}; use tenant, principal, run_id, call_id, agent, "
                    "correlation_id, idempotency_key, context.KEY or credential:NAME"
                )
        if any(one.tool == self.name for one in self.requires):
            raise ValueError("it requires itself, so it could never be called")
        return self

    @property
    def version(self) -> str:
        """Hash of the whole contract, 16 hex digits."""
        return digest(self.model_dump(mode="json"))

    @model_validator(mode="after")
    def _ledger_fits(self) -> ToolSpec:
        keyed = self.business_key is not None or "business_key" in self.parts
        for name, said in (
            ("business_key", keyed),
            ("reconcile", "reconcile" in self.parts),
            ("raise_tier", "raise_tier" in self.parts),
        ):
            if said and not self.effect:
                raise ValueError(f"{name} belongs to tools with an effect; declare effect=True")
        if self.reconcile_is_final and "reconcile" not in self.parts:
            raise ValueError("reconcile_is_final says something about reconcile=, which is missing")
        if self.grantable and not self.permissions:
            raise ValueError("grantable says something about permissions=, which are missing")
        if self.two_person and self.double_confirm:
            raise ValueError(
                "two_person and double_confirm exclude each other; two people are the stricter one"
            )
        if keyed and self.repeatable:
            raise ValueError(
                "a repeatable tool has no business_key: each of its calls is an effect of its own"
            )
        return self

    def lacking(self, permissions: Collection[str]) -> tuple[str, ...]:
        """What it needs and is not among these, in the order of its declaration."""
        return tuple(one for one in self.permissions if one not in permissions)

    @property
    def reconciles(self) -> bool:
        """It can be asked what became of an effect."""
        return "reconcile" in self.parts

    @cached_property
    def schema_hash(self) -> str:
        """Hash of what a call of it rests on: parameters, declared tier, effect, what is injected. Texts may change
        freely, and a tier that configuration raises is raised for calls that are out as well."""
        rests_on = {"name", "parameters", "tier", "effect", "idempotent", "injected"}
        declared = {"tier": (self.raised_from or self.tier).value}
        return digest(self.model_dump(mode="json", include=rests_on) | declared)


def digest(value: Any) -> str:
    """Hash of a JSON value, 16 hex digits: of its RFC 8785 text, or of sorted keys where it has none (integers beyond
    2^53, which limits of real schemas are)."""
    try:
        text = rfc8785.dumps(value)
    except rfc8785.CanonicalizationError:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.sha256(text).hexdigest()[:16]


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
    principal: str = ""  # on whose behalf the run works: `principal` of its context, or empty


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What the declaration says of one call, by its arguments. `business_key` None: arguments and scope make the key."""

    business_key: str | None
    tier: Tier
    summary: str = ""
