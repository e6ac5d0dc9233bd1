"""Does a result fit the model its tool declares? Types and required fields, by the JSON Schema of the contract. Pure.

A wrong result is a fault of the tool. What is said of it names places, never values: both may be text from outside.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import jsonschema_rs

PLACES_MAX: Final = 5  # named; the rest is the same fault, or the next one
WHERE_CHARS_MAX: Final = 120
WHY_CHARS_MAX: Final = 160
_MASK: Final = "the value"
_SCHEMAS_MAX: Final = 1024  # compiled at a time; more cost a new compilation, nothing else
_ALTERNATIVES: Final = (
    jsonschema_rs.ValidationErrorKind.AnyOf,
    jsonschema_rs.ValidationErrorKind.OneOfNotValid,
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NULLED: Final = "not a finite number"  # how the note begins that says which NaN became null


def unfit(value: Any, schema: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """What is wrong where (`lines[0].price: is not of type "number"; order_id: is required`); empty where it fits.

    `value` is parsed JSON, `notes` those of the answer: null is a number where a NaN became it.
    """
    validator = _validator(json.dumps(schema, separators=(",", ":")))
    if validator.is_valid(value):
        return ""
    nulled = any(note.startswith(_NULLED) for note in notes)
    said: list[str] = []
    for error in chain.from_iterable(map(_meant, validator.iter_errors(value))):
        if nulled and error.instance is None and _wants_number(error):
            continue
        one = f"{_where(error)}: {_why(error)}"
        if one not in said:
            said.append(one)
        if len(said) == PLACES_MAX:
            break
    return "; ".join(said)


def broken(schema: Mapping[str, Any]) -> str:
    """Why nothing can be checked by this schema; empty where it can be."""
    try:
        _validator(json.dumps(schema, separators=(",", ":")))
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        return str(exc)[:WHY_CHARS_MAX]
    return ""


@functools.lru_cache(maxsize=_SCHEMAS_MAX)
def _validator(schema_text: str) -> jsonschema_rs.Validator:
    """Looks nothing up outside (`offline`)."""
    return jsonschema_rs.validator_for(json.loads(schema_text), mask=_MASK, offline=True)


def _meant(error: jsonschema_rs.ValidationError) -> Iterator[jsonschema_rs.ValidationError]:
    """Of alternatives, what is wrong with the one that was meant: the value is of its kind, and least of it is wrong."""
    branches: list[list[jsonschema_rs.ValidationError]] = []
    if isinstance(error.kind, _ALTERNATIVES):
        own = list(error.instance_path)
        branches = [one for one in error.kind.context if one and not _of_another_kind(one[0], own)]
    if not branches:
        yield error
        return
    for inner in min(branches, key=len):
        yield from _meant(inner)


def _of_another_kind(error: jsonschema_rs.ValidationError, path: list[str | int]) -> bool:
    return (
        isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Type) and list(error.instance_path) == path
    )


def _wants_number(error: jsonschema_rs.ValidationError) -> bool:
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Type(types=types):
            return "number" in types
        case jsonschema_rs.ValidationErrorKind.AnyOf(context=branches):
            return any(_wants_number(one) for branch in branches for one in branch)
        case _:
            return False


def _where(error: jsonschema_rs.ValidationError) -> str:
    path = list(error.instance_path)
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Required):
        path.append(error.kind.property)
    steps = (f"[{one}]" if isinstance(one, int) else f".{_name(one)}" for one in path)
    return "".join(steps).removeprefix(".")[:WHERE_CHARS_MAX] or "the result"


def _name(text: str) -> str:
    """A key of a map may be text from outside; a field is called like a name."""
    return text if _NAME.fullmatch(text) else "*"


def _why(error: jsonschema_rs.ValidationError) -> str:
    match error.kind:
        case jsonschema_rs.ValidationErrorKind.Required():
            return "is required"
        case jsonschema_rs.ValidationErrorKind.AdditionalProperties():
            return "has a field that is not declared"
        case jsonschema_rs.ValidationErrorKind.AnyOf() | jsonschema_rs.ValidationErrorKind.OneOfNotValid():
            return "fits none of its alternatives"
        case _:
            return str(error.message).removeprefix(f"{_MASK} ")[:WHY_CHARS_MAX]
