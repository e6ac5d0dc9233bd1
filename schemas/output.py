"""The shape of an agent's final answer, where it has one: an object schema, enforced by the API where it can and
validated by us always."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

OUTPUT_NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"
WRAPPED = "value"  # the one property of the object a root that is no object is put into


class OutputSpec(BaseModel):
    """`schema_` is the JSON Schema the model is held to, an object at its root; `wrapped`: the value the user asked
    for stands in its property `value`, because providers take no union, list or text at the root."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="answer", pattern=OUTPUT_NAME_PATTERN)
    description: str = ""
    schema_: dict[str, Any]
    wrapped: bool = False

    @model_validator(mode="after")
    def _object_at_the_root(self) -> OutputSpec:
        if self.schema_.get("type") != "object" or {"anyOf", "oneOf", "allOf"} & self.schema_.keys():
            raise ValueError("the root of an output schema must be one object; other roots are wrapped")
        return self

    @property
    def constants(self) -> frozenset[str]:
        """Every text the schema lets a value be by const or enum."""
        return frozenset(_constants(self.schema_))


@dataclass(frozen=True, slots=True)
class OutputRead:
    """A final answer held against its schema. `text` is the canonical JSON of the value; None: it does not fit, and
    `message` says why, for the model. `repaired`: a fence of Markdown was taken off."""

    text: str | None
    message: str = ""
    repaired: bool = False


def _constants(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("const"), str):
            yield schema["const"]
        values = schema.get("enum")
        if isinstance(values, list):
            yield from (value for value in values if isinstance(value, str))
        for value in schema.values():
            yield from _constants(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _constants(value)
