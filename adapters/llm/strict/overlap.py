"""Whether a value can fit two strict schemas at once: then only a box tells their ways back apart. Pure.

May say yes for two that never meet; never says no for two that do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from toolfleet.adapters.llm.strict.merge import same_text
from toolfleet.schemas.dialects import Schema

Resolve = Callable[[str], Schema]
_DEPTH_MAX: Final = 12  # deeper, two schemas are taken to meet


def may_overlap(first: Schema, second: Schema, resolve: Resolve) -> bool:
    """Whether some value other than an empty list may fit both."""
    return _meet(first, second, resolve, 0)


def _meet(first: Schema, second: Schema, resolve: Resolve, depth: int) -> bool:
    if depth > _DEPTH_MAX:
        return True
    return any(
        _branches_meet(one, other, resolve, depth)
        for one in _branches(first, resolve, 0)
        for other in _branches(second, resolve, 0)
    )


def _branches(schema: Schema, resolve: Resolve, depth: int) -> Iterator[Schema]:
    """The schema without unions and references; one that has no end stands for any value."""
    if depth > _DEPTH_MAX:
        yield {}
    elif "$ref" in schema:
        yield from _branches(resolve(schema["$ref"]), resolve, depth + 1)
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _branches(one, resolve, depth + 1)
    else:
        yield schema


def _branches_meet(first: Schema, second: Schema, resolve: Resolve, depth: int) -> bool:
    if not first or not second:
        return True
    values = [_values(one) for one in (first, second)]
    if values[0] is not None and values[1] is not None:
        return bool(values[0] & values[1])
    shared = _kinds(first) & _kinds(second)
    if "number" in _kinds(first) | _kinds(second):
        shared |= {"number"} if _numeric(first) and _numeric(second) else set()
    if shared - {"object", "array"}:
        return True
    if "array" in shared and _meet(first.get("items", {}), second.get("items", {}), resolve, depth + 1):
        return True
    return "object" in shared and _objects_meet(first, second, resolve, depth)


def _objects_meet(first: Schema, second: Schema, resolve: Resolve, depth: int) -> bool:
    ours, theirs = first.get("properties"), second.get("properties")
    if ours is None or theirs is None:
        return True
    required = set(first.get("required", ())), set(second.get("required", ()))
    if not required[0] <= theirs.keys() or not required[1] <= ours.keys():
        return False
    return all(_meet(ours[name], theirs[name], resolve, depth + 1) for name in required[0] & required[1])


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    if "const" in schema:
        return {same_text(schema["const"])}
    return {same_text(value) for value in schema["enum"]} if "enum" in schema else None


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    types = schema.get("type", [])
    return set(types) if isinstance(types, list) else {types}


def _numeric(schema: Mapping[str, Any]) -> bool:
    return bool(_kinds(schema) & {"integer", "number"})
