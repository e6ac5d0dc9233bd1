"""Foreign JSON Schema -> JSON Schema 2020-12: drafts 3 to 2019-09, OpenAPI 2 and 3.0, and type names of languages.

Pure. Only the spelling changes: what a schema accepts afterwards is what its author wrote down, never more. What
cannot be read for certain is refused with its path. Repeating it changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolfleet.schemas.references import (
    SCHEMA_KEYS,
    SCHEMA_LIST_KEYS,
    SCHEMA_MAP_KEYS,
    localized,
    parts_of,
)

Schema = dict[str, Any]

DEPTH_MAX: Final = (
    64  # of schemas inside schemas; deeper than any real one, and far from Python's recursion limit
)

# Names of types that are not JSON Schema's. The left ones are compared in lower case. Sources: the definitions of the
# Berkeley function calling leaderboard (Python, Java and JavaScript), Swagger 2.0 (`file`), and MongoDB's bsonType.
TYPE_NAMES: Final[Mapping[str, str]] = {
    "dict": "object",
    "map": "object",
    "hashmap": "object",
    "object": "object",
    "list": "array",
    "arraylist": "array",
    "tuple": "array",
    "set": "array",
    "array": "array",
    "str": "string",
    "char": "string",
    "file": "string",
    "string": "string",
    "int": "integer",
    "long": "integer",
    "short": "integer",
    "bigint": "integer",
    "integer": "integer",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
    "none": "null",
    "nil": "null",
    "null": "null",
}
ANY_NAMES: Final = frozenset({"any", "anything", ""})


@dataclass(frozen=True, slots=True)
class Note:
    """Something a reader of a schema has to know. `rule` is for programs, `path` is where, `text` is for people."""

    path: str
    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class PlainSchema:
    """A schema in the words of 2020-12, without `$schema`; `notes` say what was spelled differently."""

    schema: Schema
    notes: tuple[Note, ...] = ()


class SchemaRefused(ValueError):
    """A schema that cannot be used as it is written. `path` is where (the root is empty), `rule` is for programs."""

    def __init__(self, path: str, rule: str, reason: str) -> None:
        super().__init__(f"{path or 'the root'}: {reason} ({rule})")
        self.path = path
        self.rule = rule
        self.reason = reason


def plain(schema: Mapping[str, Any]) -> PlainSchema:
    """The schema in the words of JSON Schema 2020-12. Does not change what it is given. Raises SchemaRefused."""
    if not isinstance(schema, Mapping):
        raise SchemaRefused("", "no_schema", f"a schema has to be an object, not {type(schema).__name__}")
    reader = _Reader(old=_is_old(schema))
    read = reader.schema(localized(schema), "", 1)
    assert isinstance(read, dict), "a mapping is read as an object"
    return PlainSchema(read, tuple(reader.notes))


def joined(path: str, *parts: str | int) -> str:
    """The path of a place further in: `properties.points.items`."""
    return ".".join([path, *map(str, parts)]) if path else ".".join(map(str, parts))


def _is_old(schema: Mapping[str, Any]) -> bool:
    """Of a draft in which nothing beside a reference says anything."""
    named = schema.get("$schema")
    return isinstance(named, str) and any(f"draft-0{number}" in named for number in (3, 4, 6, 7))


class _Reader:
    """Reads one document, and collects what it spelled differently."""

    def __init__(self, *, old: bool) -> None:
        self.old = old
        self.notes: list[Note] = []

    def schema(self, given: Any, path: str, depth: int) -> Schema | bool:
        """The schema of that place, read. Boolean schemas are schemas."""
        if isinstance(given, bool):
            return given
        if not isinstance(given, Mapping):
            raise SchemaRefused(
                path, "no_schema", f"a schema has to be an object, not {type(given).__name__}"
            )
        if depth > DEPTH_MAX:
            raise SchemaRefused(path, "too_deep", f"schemas are nested deeper than {DEPTH_MAX} levels")
        read: Schema = {}
        for key, value in given.items():
            if not isinstance(key, str):
                raise SchemaRefused(path, "no_schema", "a keyword has to be a text")
            if key == "required" and isinstance(value, bool):
                continue  # draft 3: whoever holds the property lists it
            read[key] = self._value(key, value, path, depth)
        self._list_required(given, read, path)
        for step in _STEPS:
            step(self, read, path)
        return read

    def _list_required(self, given: Mapping[str, Any], read: Schema, path: str) -> None:
        """Draft 3 and OpenAPI parameters: `required: true` stands at the property itself."""
        properties = given.get("properties")
        flagged = [
            str(name)
            for name, one in (properties.items() if isinstance(properties, Mapping) else ())
            if isinstance(one, Mapping) and one.get("required") is True
        ]
        if flagged:
            self.note(joined(path, "required"), "draft_3", "required: true at a property is listed")
            listed = read.get("required", [])
            read["required"] = [*listed, *flagged] if isinstance(listed, list) else listed

    def note(self, path: str, rule: str, text: str) -> None:
        self.notes.append(Note(path, rule, text))

    def _value(self, key: str, value: Any, path: str, depth: int) -> Any:
        here = joined(path, key)
        if key in SCHEMA_LIST_KEYS or (key == "items" and isinstance(value, (list, tuple))):
            if not isinstance(value, (list, tuple)):
                raise SchemaRefused(here, "bad_keyword", f"{key} has to be a list of schemas")
            return [self.schema(one, joined(here, place), depth + 1) for place, one in enumerate(value)]
        if key in SCHEMA_KEYS:
            return self.schema(value, here, depth + 1)
        if key in SCHEMA_MAP_KEYS:
            return self._map(key, value, here, depth)
        if key == "dependencies" and isinstance(value, Mapping):
            return {
                name: list(one) if isinstance(one, list) else self.schema(one, joined(here, name), depth + 1)
                for name, one in value.items()
            }
        if key == "components" and isinstance(value, Mapping) and isinstance(value.get("schemas"), Mapping):
            return {"schemas": self._map("schemas", value["schemas"], joined(here, "schemas"), depth)}
        return _copied(value, here)

    def _map(self, key: str, value: Any, here: str, depth: int) -> dict[str, Schema | bool]:
        if not isinstance(value, Mapping):
            raise SchemaRefused(here, "bad_keyword", f"{key} has to be an object of schemas")
        return {str(name): self.schema(one, joined(here, name), depth + 1) for name, one in value.items()}


def _copied(value: Any, path: str) -> Any:
    """A value of its own (the input stays untouched), as strict JSON."""
    match value:
        case Mapping():
            return {str(key): _copied(inner, path) for key, inner in value.items()}
        case list() | tuple():
            return [_copied(inner, path) for inner in value]
        case float() if not math.isfinite(value):
            raise SchemaRefused(path, "no_json", f"{value} is not a JSON value")
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise SchemaRefused(path, "no_json", f"{type(value).__name__} is not a JSON value")


def _drop_identity(reader: _Reader, read: Schema, path: str) -> None:
    """Names of the document say nothing about arguments, and would change where references lead."""
    for key in ("$schema", "$id", "$comment", "$vocabulary"):
        read.pop(key, None)
    if isinstance(read.get("id"), str):
        read.pop("id")


def _references(reader: _Reader, read: Schema, path: str) -> None:
    for key in ("$dynamicRef", "$recursiveRef"):
        if key in read:
            raise SchemaRefused(
                joined(path, key), "dynamic_ref", f"where {key} leads depends on the way to it; use $ref"
            )
    reference = read.get("$ref")
    if reference is None:
        return
    if not isinstance(reference, str):
        raise SchemaRefused(joined(path, "$ref"), "bad_keyword", "$ref has to be a text")
    if not reference.startswith("#"):
        raise SchemaRefused(
            joined(path, "$ref"),
            "external_ref",
            "a reference to another document is not followed; put it into $defs",
        )
    beside = [key for key in read if key not in _BESIDE_A_REFERENCE and not key.startswith("x-")]
    if reader.old and beside:
        for key in beside:
            read.pop(key)
        reader.note(path, "beside_ref", f"its draft does not look at {', '.join(beside)} beside a reference")


_BESIDE_A_REFERENCE: Final = frozenset(
    {
        *("$ref", "$defs", "definitions", "components", "nullable", "title", "description", "default"),
        *("examples", "example", "deprecated", "readOnly", "writeOnly"),
    }
)


def _types(reader: _Reader, read: Schema, path: str) -> None:
    """Names of other languages become JSON Schema's."""
    given = read.get("type")
    if given is None and "type" not in read:
        return
    names = given if isinstance(given, list) else [given]
    types: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise SchemaRefused(
                joined(path, "type"), "bad_keyword", "type has to be a name or a list of names"
            )
        if name.lower() in ANY_NAMES:
            reader.note(joined(path, "type"), "type_name", f"{name!r} is no type of JSON Schema: any value")
            read.pop("type")
            return
        known = TYPE_NAMES.get(name.lower())
        if known is None:
            raise SchemaRefused(
                joined(path, "type"),
                "unknown_type",
                f"{name!r} is no type of JSON Schema; use one of its seven",
            )
        if known != name:
            reader.note(joined(path, "type"), "type_name", f"{name!r} is read as {known!r}")
        if known not in types:
            types.append(known)
    if not types:
        raise SchemaRefused(joined(path, "type"), "bad_keyword", "type is an empty list")
    read["type"] = types if len(types) > 1 else types[0]


def _nullable(reader: _Reader, read: Schema, path: str) -> None:
    """OpenAPI 3.0 `nullable: true`: null is taken as well, in the type, the enum and beside a reference."""
    nullable = read.pop("nullable", read.pop("x-nullable", None))
    if nullable is not True:
        return
    reader.note(joined(path, "nullable"), "nullable", "nullable: true is written as the type null")
    if read.get("enum") is not None and isinstance(read["enum"], list) and None not in read["enum"]:
        read["enum"] = [*read["enum"], None]
    if "const" in read:
        read["enum"] = [read.pop("const"), None]
    types = read.get("type")
    if types is not None:
        listed = types if isinstance(types, list) else [types]
        if "null" not in listed:
            read["type"] = [*listed, "null"]
    put_together: Schema = {key: read.pop(key) for key in ("$ref", "allOf", "anyOf", "oneOf") if key in read}
    if put_together:
        # Beside these, a null in `type` would still have to fit them.
        if types is not None and not {"properties", "items", "enum"} & read.keys():
            put_together["type"] = types
            read.pop("type")
        read["anyOf"] = [put_together, {"type": "null"}]


def _bounds(reader: _Reader, read: Schema, path: str) -> None:
    """Draft 4: `exclusiveMinimum: true` beside `minimum`."""
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = read.get(exclusive)
        if not isinstance(flag, bool):
            continue
        read.pop(exclusive)
        if flag and limit in read:
            read[exclusive] = read.pop(limit)
            reader.note(joined(path, exclusive), "draft_4", f"{exclusive}: true is written as its own limit")


def _tuples(reader: _Reader, read: Schema, path: str) -> None:
    """Drafts up to 2019-09: a list under `items`, and `additionalItems` for the rest."""
    if isinstance(read.get("items"), list):
        read["prefixItems"] = read.pop("items")
        if "additionalItems" in read:
            read["items"] = read.pop("additionalItems")
        reader.note(joined(path, "items"), "tuple_items", "a list under items is written as prefixItems")
    read.pop("additionalItems", None)  # says nothing beside a single schema under items


def _dependencies(reader: _Reader, read: Schema, path: str) -> None:
    """Drafts up to 7: one keyword for both kinds."""
    given = read.pop("dependencies", None)
    if not isinstance(given, dict):
        return
    for name, one in given.items():
        kind = "dependentRequired" if isinstance(one, list) else "dependentSchemas"
        read.setdefault(kind, {})[name] = one


def _required(reader: _Reader, read: Schema, path: str) -> None:
    listed = read.get("required", [])
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise SchemaRefused(joined(path, "required"), "bad_keyword", "required has to be a list of names")
    if "required" in read:
        read["required"] = list(dict.fromkeys(listed))


def _enums(reader: _Reader, read: Schema, path: str) -> None:
    values = read.get("enum")
    if "enum" in read and (not isinstance(values, list) or not values):
        raise SchemaRefused(joined(path, "enum"), "bad_keyword", "enum has to be a list with values in it")


_STEPS: Final[tuple[Callable[[_Reader, Schema, str], None], ...]] = (
    _drop_identity,
    _references,
    _types,
    _nullable,
    _bounds,
    _tuples,
    _dependencies,
    _required,
    _enums,
)


def resolve(root: Mapping[str, Any], reference: str) -> Schema | bool:
    """The schema a local reference leads to: `#`, `#/a/pointer` or `#anchor`. Raises SchemaRefused."""
    pointer = reference.removeprefix("#")
    if pointer and not pointer.startswith("/"):
        for candidate in _schemas(root):
            if candidate.get("$anchor") == pointer:
                return dict(candidate)
        raise SchemaRefused("", "dangling_ref", f"{reference} leads nowhere")
    here: Any = root
    for name in parts_of(pointer):
        if isinstance(here, Mapping) and name in here:
            here = here[name]
        elif isinstance(here, list) and name.isascii() and name.isdigit() and int(name) < len(here):
            here = here[int(name)]
        else:
            raise SchemaRefused("", "dangling_ref", f"{reference} leads nowhere")
    if not isinstance(here, (dict, bool)):
        raise SchemaRefused("", "dangling_ref", f"{reference} leads to no schema")
    return here


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """This schema and every one inside it."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key, value in schema.items():
        if key in SCHEMA_KEYS:
            yield from _schemas(value)
        elif key in SCHEMA_LIST_KEYS:
            for one in value:
                yield from _schemas(one)
        elif key in SCHEMA_MAP_KEYS:
            for one in value.values():
                yield from _schemas(one)
