"""Values that fit a schema, made from a random source: for declared schemas and for strict ones alike."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from toolfleet.schemas.dialects import resolve

DEPTH_MAX = 6
_TEXTS = ("", "a", "Zürich", "null", "true", "1", '{"a": 1}', "[1]", "2026-11-30", "line\nbreak", "x" * 40)
_NUMBERS = (0, 1, -1, 7, 2**53 + 1, 1.5, -0.25, 1e-9)


class NoInstance(Exception):
    """None was found; another try may find one."""


class Instances:
    """Makes values for one document. They fit most of the time: whoever needs to be sure validates them."""

    def __init__(self, root: Mapping[str, Any], source: random.Random) -> None:
        self._root = root
        self._source = source

    def make(self, node: Any, depth: int = 0) -> Any:
        if node is True:
            return self.anything(depth)
        if node is False or depth > 4 * DEPTH_MAX:
            raise NoInstance
        if "$ref" in node:
            return self.make(resolve(self._root, node["$ref"]), depth + 1)
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return self._source.choice(node["enum"])
        for key in ("anyOf", "oneOf"):
            if key in node and not self._constrains_only(node[key]):
                rest = {name: value for name, value in node.items() if name not in (key, "$defs")}
                return self._joined(rest, self._source.choice(node[key]), depth)
        if "allOf" in node:
            rest = {name: value for name, value in node.items() if name not in ("allOf", "$defs")}
            for part in node["allOf"]:
                if part is False:
                    raise NoInstance
                if part is True:
                    continue
                rest = {
                    **rest,
                    **part,
                    "properties": {**rest.get("properties", {}), **part.get("properties", {})},
                }
            return self.make(rest, depth + 1)
        return self._of_kind(node, depth)

    def anything(self, depth: int = 0) -> Any:
        """Any JSON value."""
        kind = self._source.randrange(7 if depth < 3 else 4)
        match kind:
            case 0:
                return self._source.choice(_TEXTS)
            case 1:
                return self._source.choice(_NUMBERS)
            case 2:
                return self._source.random() < 0.5
            case 3:
                return None
            case 4:
                return [self.anything(depth + 1) for _ in range(self._source.randrange(3))]
            case _:
                names = self._source.sample(
                    ("a", "b", "entries", "key", "left_out", "0"), self._source.randrange(3)
                )
                return {name: self.anything(depth + 1) for name in names}

    def _constrains_only(self, branches: Any) -> bool:
        return all(
            isinstance(one, dict) and one.keys() <= {"required", "not", "description"} for one in branches
        )

    def _joined(self, rest: dict[str, Any], branch: Any, depth: int) -> Any:
        if isinstance(branch, dict) and "$ref" in branch and set(rest) - {"description", "default", "title"}:
            branch = resolve(self._root, branch["$ref"])
        if not isinstance(branch, dict) or not set(rest) - {"description", "default", "title"}:
            return self.make(branch, depth + 1)
        properties = {**rest.get("properties", {}), **branch.get("properties", {})}
        both = {**rest, **branch, "required": [*rest.get("required", ()), *branch.get("required", ())]}
        return self.make({**both, "properties": properties} if properties else both, depth + 1)

    def _of_kind(self, node: Mapping[str, Any], depth: int) -> Any:
        types = node.get("type")
        if types is None:
            if {"properties", "required", "additionalProperties", "patternProperties"} & node.keys():
                types = "object"
            elif {"items", "prefixItems"} & node.keys():
                types = "array"
            else:
                return self.anything(depth)
        match self._source.choice(types) if isinstance(types, list) else types:
            case "object":
                return self._object(node, depth)
            case "array":
                return self._array(node, depth)
            case "string":
                return self._text(node)
            case "integer":
                return self._number(node, whole=True)
            case "number":
                return self._number(node, whole=self._source.random() < 0.5)
            case "boolean":
                return self._source.random() < 0.5
            case _:
                return None

    def _text(self, node: Mapping[str, Any]) -> str:
        least, most = node.get("minLength", 0), node.get("maxLength", 60)
        text = {
            "date": "2026-11-30",
            "date-time": "2026-11-30T12:00:00Z",
            "uri": "https://example.org/a",
            "email": "a@example.org",
            "uuid": "3e4666bf-d5e5-4aa7-b8ce-cefe41c7568a",
        }.get(node.get("format", ""), self._source.choice(_TEXTS))
        return text[:most] if len(text) >= least else text.ljust(least, "z")

    def _number(self, node: Mapping[str, Any], *, whole: bool) -> int | float:
        least = node.get("minimum", node.get("exclusiveMinimum", -(10**6)) + ("exclusiveMinimum" in node))
        most = node.get(
            "maximum", node.get("exclusiveMaximum", max(10**6, least)) - ("exclusiveMaximum" in node)
        )
        if "multipleOf" in node:
            return node["multipleOf"] * self._source.randint(1, 3)
        if whole:
            return self._source.randint(int(least), int(most)) if least <= most else int(least)
        return round(self._source.uniform(least, most), 3)

    def _array(self, node: Mapping[str, Any], depth: int) -> list[Any]:
        first = node.get("prefixItems", [])
        least = node.get("minItems", 0)
        most = node.get("maxItems", max(least, 0 if depth > DEPTH_MAX else 3))
        count = max(least, min(most, self._source.randrange(least, max(least, min(most, least + 3)) + 1)))
        items = node.get("items", True)
        count = min(count, len(first)) if items is False else count
        return [self.make(first[place] if place < len(first) else items, depth + 1) for place in range(count)]

    def _object(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = node.get("required", [])
        value = {}
        for name, inner in node.get("properties", {}).items():
            if name in required or (
                inner is not False and self._source.random() < (0.6 if depth < DEPTH_MAX else 0)
            ):
                value[name] = self.make(inner, depth + 1)
        rest = node.get("additionalProperties")
        for name in required:
            if name not in value:
                value[name] = self.make(True if rest is None else rest, depth + 1)
        empty = not node.get("properties") and rest is None and depth > 0
        if (rest not in (None, False) or empty) and depth < DEPTH_MAX:
            for name in self._source.sample(("other", "key", "", "a b"), self._source.randrange(3)):
                if name not in node.get("properties", {}):
                    value[name] = self.make(True if rest in (None, True) else rest, depth + 1)
        return value
