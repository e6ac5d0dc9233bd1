"""A final answer held against the agent's output schema. Pure; the API's own enforcement is never relied on."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from toolfleet.schemas.output import WRAPPED, OutputRead, OutputSpec
from toolfleet.workers.decision.arguments import canonical, field_errors, strict_value

TEXT_CHARS_MAX: Final = 1_000_000
_FENCED: Final = re.compile(r"\s*```(?:json|JSON)?[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)
_ASK: Final = "Answer again with nothing but a JSON object that fits the schema of the answer."


def read_output(text: str, spec: OutputSpec) -> OutputRead:
    """The value of the answer as canonical JSON, or why it does not fit. A fence of Markdown around the whole of it
    is taken off and recorded: nothing is lost by it."""
    fenced = _FENCED.fullmatch(text)
    body = text if fenced is None else fenced.group(1)
    if len(body) > TEXT_CHARS_MAX:
        return OutputRead(
            None, f"This answer was not accepted: it is longer than {TEXT_CHARS_MAX} characters."
        )
    value, why = strict_value(body)
    if why is not None:
        return OutputRead(None, f"This answer was not accepted: {why} {_ASK}")
    if not isinstance(value, dict):
        return OutputRead(None, f"This answer was not accepted: it is JSON, but no object. {_ASK}")
    errors = field_errors(value, spec.schema_)
    if errors is None:
        return OutputRead(None, "The schema of the answer is broken, so no answer can fit it.")
    if errors:
        shown = "; ".join(f"{one['path'] or 'the object'}: {one['message']}" for one in errors)
        return OutputRead(None, f"This answer was not accepted: {shown}. {_ASK}")
    return OutputRead(_text(value[WRAPPED] if spec.wrapped else value), repaired=fenced is not None)


def _text(value: Any) -> str:
    return canonical(value) if isinstance(value, dict) else orjson.dumps(value).decode()
