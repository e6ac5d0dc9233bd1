"""Argument texts of models -> checked JSON objects: strict JSON, recorded lossless repairs, then the tool's schema.

Pure. What is accepted here is exact: no NaN, no duplicate keys, no lone surrogates, integers as they were written,
and no key the tool did not declare.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn

import jsonschema_rs
import rfc8785

from toolfleet.schemas.dialects import SchemaRefused, plain
from toolfleet.schemas.limits import ARGUMENTS_BYTES_MAX
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.tools import ToolSpec
from toolfleet.schemas.unfolding import UNFOLDED_MAX, unfolded_size
from toolfleet.workers.decision.effort import is_listable

DEPTH_MAX: Final = 64  # deeper than any real schema, and far from Python's recursion limit
FIELD_ERRORS_MAX: Final = 10
EVALUATIONS_MAX: Final = 5_000  # of schemas and places, for a list of what is wrong: some 10 ms
FIELD_ERROR_CHARS_MAX: Final = 300
_REPAIRED_TIERS: Final = (Tier.LOW, Tier.MEDIUM)  # above, what is not clean is asked for again
_MASK: Final = "the value"  # stands for the value in messages: no payload in them, however large it is
_BRANCHES_SHOWN_MAX: Final = 4
_VALIDATORS_MAX: Final = 1024  # schemas in use at a time; more cost a new compilation, nothing else


@dataclass(frozen=True, slots=True)
class Valid:
    """Arguments a tool may be given. `text` is their canonical JSON; `repaired` says it took a lossless repair."""

    text: str
    repaired: bool


@dataclass(frozen=True, slots=True)
class Invalid:
    """Why arguments were refused, for the model: a sentence, and what is wrong where."""

    message: str
    field_errors: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Unusable:
    """The tool's own schema cannot be compiled: no arguments can be right."""

    message: str


class _Refused(Exception):
    """Carries the sentence from where the text is found wrong; never leaves this module."""


def read_arguments(text: str | None, spec: ToolSpec) -> Valid | Invalid | Unusable:
    """The arguments of one call, checked against everything that can be known without running it.

    Repairs are lossless and recorded, and not made for tools above tier medium: nothing at all for a tool that
    requires nothing (B011), an object encoded twice (B013), raw control characters inside a text (B017).
    """
    try:
        value, repaired = _object(text)
    except _Refused as refusal:
        return Invalid(f"The arguments of {spec.name} are refused: {refusal}")
    validator = _validator(_schema_bytes(spec.parameters))
    if validator is None:
        return Unusable(f"The definition of {spec.name} is broken, so it cannot be called.")
    if not validator.is_valid(value):
        errors = _listed_errors(validator, spec.parameters, value)
        named = (
            "Correct the fields named" if errors else "Read its parameters again, write simpler arguments,"
        )
        return Invalid(
            f"The arguments of {spec.name} do not fit its parameters. {named} and call again.", errors
        )
    if repaired and spec.tier not in _REPAIRED_TIERS:
        return Invalid(
            f"The arguments of {spec.name} are refused: a tool of tier {spec.tier.value} takes nothing but a "
            "cleanly written JSON object, encoded once."
        )
    return Valid(canonical(value), repaired)


def strict_value(text: str) -> tuple[Any, str | None]:
    """The JSON value of the text, read as strictly as arguments are and without a repair; or None and a sentence."""
    try:
        value, lenient = _parsed(text)
        _check_texts(value, 1)
    except _Refused as refusal:
        return None, f"{refusal}".replace("they are", "it is").replace("they have", "it has")
    return (None, "a text in it holds a raw control character.") if lenient else (value, None)


def field_errors(value: dict[str, Any], schema: Mapping[str, Any]) -> tuple[Mapping[str, str], ...] | None:
    """What is wrong where, the schema's root closed as for arguments; None: the schema itself is broken."""
    validator = _validator(_schema_bytes(schema))
    return None if validator is None else tuple(_field_errors(validator, value))


def canonical(value: Mapping[str, Any]) -> str:
    """The one text of these arguments: RFC 8785, or sorted keys where it has no form (integers beyond 2^53)."""
    try:
        return rfc8785.dumps(dict(value)).decode()
    except rfc8785.CanonicalizationError:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema whose root refuses keys it does not declare, unless it says otherwise itself.

    A tool is a function: an argument it does not have is an error. Objects inside the arguments are as open or closed
    as their schema says (JSON Schema: open unless closed).
    """
    root = dict(schema)
    if not root.keys() & _OPEN_BY_CHOICE:
        # Where the root is put together of parts, only the later keyword sees the properties of all of them; before
        # draft 2019-09 it does not exist, and such a root stays open.
        together = root.keys() & _PUT_TOGETHER
        root["unevaluatedProperties" if together else "additionalProperties"] = False
    return root


def _object(text: str | None) -> tuple[dict[str, Any], bool]:
    """The object in the text, and whether a repair was needed. Raises _Refused."""
    if text is None or text.strip() in ("", "null"):
        return {}, True
    if len(text) > ARGUMENTS_BYTES_MAX or len(text.encode(errors="replace")) > ARGUMENTS_BYTES_MAX:
        raise _Refused(f"they are longer than {ARGUMENTS_BYTES_MAX} bytes. Send less.")
    value, repaired = _parsed(text)
    if isinstance(value, str):
        value, repaired = _parsed(value)[0], True
        if not isinstance(value, dict):
            raise _Refused("they have to be a JSON object, not a text that holds something else.")
    if not isinstance(value, dict):
        raise _Refused(f"they have to be a JSON object, not {_KINDS.get(type(value), 'a number')}.")
    _check_texts(value, 1)
    return value, repaired


_KINDS: Final[Mapping[type, str]] = {list: "an array", bool: "true or false", type(None): "null"}


def _parsed(text: str) -> tuple[Any, bool]:
    """The JSON value, and whether raw control characters had to be let through."""
    try:
        try:
            return _STRICT.decode(text), False
        except json.JSONDecodeError as exc:
            if not exc.msg.startswith("Invalid control character"):
                raise
            return _LENIENT.decode(text), True
    except json.JSONDecodeError as exc:
        raise _Refused(f"they are not valid JSON: {exc.msg} at character {exc.pos}.") from None
    except RecursionError:
        raise _Refused(f"they are nested deeper than {DEPTH_MAX} levels.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("a key appears twice in one object.")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # CPython reads no integer of more than 4,300 digits
        raise _Refused("a number has too many digits.") from None


def _number(text: str) -> int | float:
    """1.0 and 1e3 are integers and stay exact; everything else is the nearest float."""
    value = float(text)
    if not math.isfinite(value):
        raise _Refused("a number is too large.")
    if value.is_integer():
        exact = Decimal(text)
        if exact == exact.to_integral_value():
            return int(exact)
    return value


def _not_finite(token: str) -> NoReturn:
    raise _Refused(f"{token} is not a JSON value.")


def _decoder(*, strict: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        strict=strict,
        object_pairs_hook=_unique,
        parse_int=_integer,
        parse_float=_number,
        parse_constant=_not_finite,
    )


_STRICT: Final = _decoder(strict=True)
_LENIENT: Final = _decoder(strict=False)


def _check_texts(value: Any, depth: int) -> None:
    """Refuses what databases and other JSON readers refuse: NUL, lone surrogates, endless nesting."""
    if depth > DEPTH_MAX:
        raise _Refused(f"they are nested deeper than {DEPTH_MAX} levels.")
    match value:
        case str():
            if "\x00" in value:
                raise _Refused("a text holds the character NUL (U+0000).")
            if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
                raise _Refused("a text holds half a surrogate pair, which is no character.")
        case dict():
            for key, inner in value.items():
                _check_texts(key, depth + 1)
                _check_texts(inner, depth + 1)
        case list():
            for inner in value:
                _check_texts(inner, depth + 1)
        case _:
            pass


def _schema_bytes(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"))


@functools.lru_cache(maxsize=_VALIDATORS_MAX)
def _validator(schema_text: str) -> jsonschema_rs.Validator | None:
    """The compiled validator, or None where the schema is broken. Looks nothing up outside (`offline`).

    A schema is taken as it is. One in words that no draft has (`nullable`, the types of other languages), or that is
    broken as it is, is taken as `dialects.plain` reads it, which is what its strict forms are made from.
    """
    schema = json.loads(schema_text)
    try:
        read = plain(schema)
    except SchemaRefused:
        return _compiled(schema)
    if any(note.rule in _WORDS_OF_NO_DRAFT for note in read.notes):
        return _compiled(read.schema)
    return _compiled(schema) or _compiled(read.schema)


def _compiled(schema: dict[str, Any]) -> jsonschema_rs.Validator | None:
    try:
        if unfolded_size(schema) > UNFOLDED_MAX:
            return None
        return jsonschema_rs.validator_for(closed(schema), mask=_MASK, offline=True)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None


def _listed_errors(
    validator: jsonschema_rs.Validator, schema: Mapping[str, Any], value: dict[str, Any]
) -> tuple[Mapping[str, str], ...]:
    """What is wrong where; nothing where that would be without measure."""
    if not is_listable(schema, value, EVALUATIONS_MAX):
        return ()
    return tuple(_field_errors(validator, value))


def _field_errors(validator: jsonschema_rs.Validator, value: dict[str, Any]) -> Iterator[dict[str, str]]:
    for position, error in enumerate(validator.iter_errors(value)):
        if position == FIELD_ERRORS_MAX:
            return
        path, message = list(error.instance_path), error.message
        match error.kind:
            case jsonschema_rs.ValidationErrorKind.Required(property=missing):
                path, message = [*path, missing], "is required"
            case (
                jsonschema_rs.ValidationErrorKind.AnyOf(context=branches)
                | jsonschema_rs.ValidationErrorKind.OneOfNotValid(context=branches)
            ):
                reasons = [branch[0].message for branch in branches if branch]
                message = "fits none of its alternatives: " + "; ".join(reasons[:_BRANCHES_SHOWN_MAX])
            case _:
                pass
        yield {"path": _path(path)[:FIELD_ERROR_CHARS_MAX], "message": message[:FIELD_ERROR_CHARS_MAX]}


def _path(parts: list[str | int]) -> str:
    """`passengers[0].last_name`; the root is empty."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


_WORDS_OF_NO_DRAFT: Final = frozenset({"type_name", "nullable", "draft_3"})
_OPEN_BY_CHOICE: Final = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_PUT_TOGETHER: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas"})
