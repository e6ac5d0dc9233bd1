"""How much there would be to say about arguments that do not fit: counted before it is said. Pure.

Whether they fit is answered fast whatever the schema is. To list why they do not, a validator tries every branch of
every union at every place, and keeps all it found: for a union that leads to itself twice that doubles at each level of
the value (measured with jsonschema-rs: 14 levels, 12 s). Schemas come from strangers, and so do values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from toolfleet.schemas.dialects import SchemaRefused, resolve

_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_OF_EVERY_ITEM: Final = ("items", "contains", "unevaluatedItems")
_OF_EVERY_PROPERTY: Final = ("additionalProperties", "unevaluatedProperties")


def is_listable(schema: Mapping[str, Any], value: Any, evaluations_max: int) -> bool:
    """Whether listing what is wrong with the value holds it against at most so many schemas.

    Counts as if no branch were ever skipped, and one pair of schema and value only once however often it comes up:
    the work is at most the size of the schema times the size of the value.
    """
    try:
        return _Count(schema).of(schema, value) <= evaluations_max
    except (RecursionError, SchemaRefused):
        return False


class _Count:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[tuple[int, int], int] = {}  # by identity: both are alive as long as this is

    def of(self, schema: Any, value: Any) -> int:
        if not isinstance(schema, Mapping):
            return 1
        pair = (id(schema), id(value))
        known = self._known.get(pair)
        if known is None:
            self._known[pair] = 1  # a pair that leads to itself is not gone into again
            known = self._known[pair] = 1 + sum(self.of(*inner) for inner in self._inside(schema, value))
        return known

    def _inside(self, schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(schema.get("$ref"), str):
            yield resolve(self._root, schema["$ref"]), value
        for key in _IN_PLACE:
            if key in schema:
                yield schema[key], value
        for key in _IN_PLACE_LISTS:
            for branch in schema.get(key, ()):
                yield branch, value
        for branch in schema.get("dependentSchemas", {}).values():
            yield branch, value
        if isinstance(value, dict):
            yield from _of_object(schema, value)
        elif isinstance(value, list):
            yield from _of_list(schema, value)


def _of_object(schema: Mapping[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    properties = schema.get("properties", {})
    for name, inner in value.items():
        if name in properties:
            yield properties[name], inner
        else:
            for key in _OF_EVERY_PROPERTY:
                if key in schema:
                    yield schema[key], inner
        for pattern in schema.get("patternProperties", {}).values():
            yield pattern, inner


def _of_list(schema: Mapping[str, Any], value: list[Any]) -> Iterator[tuple[Any, Any]]:
    first = schema.get("prefixItems", ())
    yield from zip(first, value, strict=False)
    for inner in value:
        for key in _OF_EVERY_ITEM:
            if key in schema:
                yield schema[key], inner
