"""How large a schema is once its references are followed: what a stranger's schema costs is known before it is used.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from toolfleet.schemas.dialects import SchemaRefused, resolve
from toolfleet.schemas.references import SCHEMA_KEYS, SCHEMA_LIST_KEYS, SCHEMA_MAP_KEYS

UNFOLDED_MAX: Final = (
    20_000  # of `unfolded_size`: 200 times the largest real schema, and a value is judged in 10 ms
)
_CHAIN_MAX: Final = 200  # of references and schemas inside each other


def unfolded_size(root: Mapping[str, Any]) -> int:
    """How many schemas it is once every reference is written out; one that leads back to itself counts once.

    A validator does as much work for one value: thirty definitions of two references each make 2^30 (measured with
    jsonschema-rs: seconds at 2^24). Linear in the size of the schema.
    """
    return _Unfolding(root).size(root, 0)


class _Unfolding:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._sizes: dict[str, int] = {}  # by reference; 1 while it is being counted

    def size(self, schema: Any, depth: int) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if depth > _CHAIN_MAX:
            return UNFOLDED_MAX + 1  # no real schema's references lead on so often
        found = 1
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            found += self._leads_to(reference, depth)
        for inner in _inside(schema):
            found += self.size(inner, depth + 1)
        return found

    def _leads_to(self, reference: str, depth: int) -> int:
        if reference not in self._sizes:
            self._sizes[reference] = 1
            try:
                self._sizes[reference] = self.size(resolve(self._root, reference), depth + 1)
            except SchemaRefused:
                return 1  # whoever uses it says so
        return self._sizes[reference]


def _inside(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas a value of this one is held against: all but those that only a reference leads to."""
    for key, value in schema.items():
        if key in SCHEMA_KEYS:
            yield value
        elif key in SCHEMA_LIST_KEYS and isinstance(value, list):
            yield from value
        elif key in SCHEMA_MAP_KEYS - {"$defs", "definitions"} and isinstance(value, Mapping):
            yield from value.values()
