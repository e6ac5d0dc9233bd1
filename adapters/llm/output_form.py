"""The shape of a final answer in the form of one provider, and the way back of what the model writes in it.

Where a profile has strict schemas the shape is sent in its strict form; one that has none is sent as it was declared,
not strict, or told in the system text where the server takes closed schemas only. Outside this module an answer is
always of the declared shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolfleet.adapters.llm.profiles import Profile
from toolfleet.adapters.llm.strict.codec import read_json, write_json
from toolfleet.adapters.llm.strict.profiles import strict_profile
from toolfleet.adapters.llm.strict.tool import StrictSchema, strict_schema
from toolfleet.schemas.dialects import SchemaRefused
from toolfleet.schemas.output import OutputSpec


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The schema as it is sent. `way_back` is there where it is not the declared one."""

    schema: dict[str, Any]
    strict: bool
    way_back: StrictSchema | None = None

    def restored(self, text: str) -> str:
        """The answer as the declared schema has it; what cannot be read stays, for the local check says what is wrong."""
        if self.way_back is None:
            return text
        try:
            return write_json(self.way_back.restore(read_json(text)))
        except (ValueError, TypeError, KeyError, RecursionError):
            return text


def form_of(output: OutputSpec, profile: Profile) -> OutputForm | None:
    """How that server is told the shape in a field of the request; None where it has to be told in words."""
    if not profile.output_schema:
        return None
    if profile.strict is None:
        return OutputForm(output.schema_, strict=False)
    try:
        found = strict_schema(output.schema_, strict_profile(profile.strict))
    except SchemaRefused:
        # Anthropic answers 400 to a schema that is not within its subset; the others take it without enforcing it.
        return None if profile.wire == "messages" else OutputForm(output.schema_, strict=False)
    return OutputForm(dict(found.schema), strict=True, way_back=found)
