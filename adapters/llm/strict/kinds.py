"""Small pieces of strict schemas: what a keyword is about, how null is added, how a value is boxed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolfleet.adapters.llm.strict.codec import SAME, Codec, NullOr
from toolfleet.schemas.dialects import Schema

SCALARS: Final = ("string", "integer", "number", "boolean", "null")
_CONSTRAINTS: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset(
        {
            *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
            *(
                "minProperties",
                "maxProperties",
                "dependentRequired",
                "dependentSchemas",
                "unevaluatedProperties",
            ),
        }
    ),
    "array": frozenset(
        {
            *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains"),
            *("maxContains", "unevaluatedItems"),
        }
    ),
    "string": frozenset(
        {
            *("minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"),
            "contentSchema",
        }
    ),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
_ANY_KIND: Final = frozenset({"not", "if", "then", "else"})
_SHOWN_CHARS_MAX: Final = 120
_COUNTING: Final = frozenset(
    {
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "not", "if", "anyOf"),
        "oneOf",
    }
)
PRESENCE: Final = (
    "x-presence-matters"  # of our own: set where a node's constraints look at which properties are there
)


@dataclass(frozen=True, slots=True)
class Part:
    """The strict form of one place, and how its values get there and back."""

    schema: Schema
    codec: Codec = SAME


def constraints_of(kind: str) -> frozenset[str]:
    """The keywords that are about values of that kind."""
    return _CONSTRAINTS.get("number" if kind == "integer" else kind, frozenset())


def without_unions(flat: Schema) -> Schema:
    """A node whose unions are constraints only, without them; that they are about presence is kept in mind."""
    rest = {key: value for key, value in flat.items() if key not in ("anyOf", "oneOf")}
    return {**rest, PRESENCE: True} if _COUNTING & flat.keys() else rest


def kept_keywords(flat: Mapping[str, Any], kinds: Iterable[str], written: Iterable[str]) -> list[str]:
    """The constraints of a node that are not written into its strict form, in the node's order."""
    relevant = _ANY_KIND.union(*map(constraints_of, kinds))
    return [key for key in flat if key in relevant and key not in written]


def kinds_by_constraints(flat: Mapping[str, Any]) -> list[str]:
    """What a node without `type` is about, told by its keywords."""
    return [kind for kind in _CONSTRAINTS if _CONSTRAINTS[kind] & flat.keys()]


def kind_of(value: Any) -> str:
    """The JSON Schema type of a value; a number without fraction is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def fits_kind(value: Any, kinds: Iterable[str]) -> bool:
    kind = kind_of(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def with_null(schema: Schema) -> Schema:
    """The same schema that takes null as well, with as few unions as possible."""
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        rest = {key: value for key, value in schema.items() if key not in ("const", "enum", "type")}
        types = _listed(schema["type"])
        return {
            "type": types if "null" in types else [*types, "null"],
            **rest,
            "enum": values if None in values else [*values, None],
        }
    if "type" in schema:
        types = _listed(schema["type"])
        return schema if "null" in types else {**schema, "type": [*types, "null"]}
    if "anyOf" in schema:
        branches = schema["anyOf"]
        return schema if {"type": "null"} in branches else {**schema, "anyOf": [*branches, {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


def is_union(schema: Schema) -> bool:
    return "anyOf" in schema or isinstance(schema.get("type"), list)


def nullable(part: Part) -> Part:
    """The part that takes null as well, as null on both sides."""
    return Part(with_null(part.schema), SAME if part.codec is SAME else NullOr(part.codec))


def boxed(schema: Schema, name: str) -> Schema:
    """An object whose one property is that schema."""
    return {
        "type": "object",
        "properties": {name: schema},
        "required": [name],
        "additionalProperties": False,
    }


def with_description(part: Part, description: Any) -> Part:
    """The part with that description; a reference gets it from around, since nothing may stand beside one."""
    if not isinstance(description, str) or not description or part.schema.get("description") == description:
        return part
    schema = {"anyOf": [part.schema]} if "$ref" in part.schema else part.schema
    rest = {key: value for key, value in schema.items() if key not in ("type", "description")}
    head = {"type": schema["type"]} if "type" in schema else {}
    return Part({**head, "description": description, **rest}, part.codec)


def described(flat: Mapping[str, Any], kept: Iterable[str]) -> str | None:
    """The description, with what the strict form cannot say in words behind it, so that the model knows."""
    shown = [f"{key}: {_shown(flat[key])}" for key in (*kept, "default") if _shown(flat.get(key))]
    given = flat.get("description")
    text = given if isinstance(given, str) else ""
    told = f"({'; '.join(shown)})" if shown else ""
    return " ".join(part for part in (text, told) if part) or None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value) if isinstance(value, (int, float, str)) else ""
    return text if len(text) <= _SHOWN_CHARS_MAX else ""


def _listed(types: Any) -> list[str]:
    return list(types) if isinstance(types, list) else [types]
