"""How large a strict schema is, in the providers' units, and whether that is within a profile's limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toolfleet.adapters.llm.strict.profiles import StrictProfile
from toolfleet.schemas.dialects import Schema, SchemaRefused


@dataclass(frozen=True, slots=True)
class Size:
    """Counts of one strict schema. `long_enums`: (values, characters) of each enum of texts."""

    properties: int
    depth: int
    enum_values: int
    string_chars: int
    long_enums: tuple[tuple[int, int], ...]
    optional: int
    unions: int


def size_of(schema: Schema) -> Size:
    """All counts of a strict schema; each definition counts once, and nesting follows references."""
    nodes = list(_nodes(schema))
    enums = [node["enum"] for node in nodes if "enum" in node]
    texts = [[value for value in enum if isinstance(value, str)] for enum in enums]
    properties = [node.get("properties", {}) for node in nodes]
    names = [*schema.get("$defs", {}), *(name for one in properties for name in one)]
    constants = [node["const"] for node in nodes if isinstance(node.get("const"), str)]
    return Size(
        properties=sum(map(len, properties)),
        depth=_depth(schema, schema, frozenset()),
        enum_values=sum(map(len, enums)),
        string_chars=sum(map(len, [*names, *constants, *(value for one in texts for value in one)])),
        long_enums=tuple((len(enum), sum(map(len, text))) for enum, text in zip(enums, texts, strict=True)),
        optional=sum(len(one.get("properties", {})) - len(one.get("required", [])) for one in nodes),
        unions=union_count(schema),
    )


def union_count(schema: Schema) -> int:
    """Places that are a union: anyOf, or more than one type."""
    return sum("anyOf" in node or isinstance(node.get("type"), list) for node in _nodes(schema))


def check_limits(schema: Schema, profile: StrictProfile) -> None:
    """Raises SchemaRefused with the first limit that is passed, the count and the limit."""
    size, limits = size_of(schema), profile.limits
    counts = {
        "properties": (size.properties, limits.properties, "properties"),
        "depth": (size.depth, limits.depth, "levels of objects"),
        "enum_values": (size.enum_values, limits.enum_values, "enum values"),
        "string_chars": (size.string_chars, limits.string_chars, "characters in names and listed values"),
        "optional": (size.optional, limits.optional, "properties that may be left out"),
        "unions": (size.unions, limits.unions, "unions of types"),
    }
    for rule, (count, limit, what) in counts.items():
        if limit is not None and count > limit:
            raise SchemaRefused("", f"limit.{rule}", f"{count} {what}; {profile.id} takes at most {limit}")
    if limits.long_enum_values is None or limits.long_enum_chars is None:
        return
    for values, characters in size.long_enums:
        if values > limits.long_enum_values and characters > limits.long_enum_chars:
            raise SchemaRefused(
                "",
                "limit.long_enum",
                f"an enum of {values} values has {characters} characters; {profile.id} takes at most "
                f"{limits.long_enum_chars} above {limits.long_enum_values} values",
            )


def _nodes(schema: Any) -> Iterator[Schema]:
    if not isinstance(schema, dict):
        return
    yield schema
    for key in ("properties", "$defs"):
        for one in schema.get(key, {}).values():
            yield from _nodes(one)
    yield from _nodes(schema.get("items"))
    for one in schema.get("anyOf", ()):
        yield from _nodes(one)


def _depth(node: Schema, root: Schema, seen: frozenset[str]) -> int:
    reference = node.get("$ref")
    if reference is not None:
        if reference in seen:
            return 0
        return _depth(root["$defs"][reference.removeprefix("#/$defs/")], root, seen | {reference})
    inner = [*node.get("properties", {}).values(), *node.get("anyOf", ())]
    if isinstance(node.get("items"), dict):
        inner.append(node["items"])
    deepest = max((_depth(one, root, seen) for one in inner), default=0)
    return deepest + ("properties" in node)
