"""Several schemas that all have to hold -> one schema, as far as the structure goes.

Pure. Types, values, properties and limits are brought together exactly; of two constraints that cannot be written as
one (two patterns) the first is kept. That makes the merged form no narrower than its parts, and the declared schema
is checked afterwards in any case. What no value can satisfy raises Unsatisfiable.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolfleet.schemas.dialects import Schema, SchemaRefused, resolve

NEVER: Final[Schema] = {"not": {}}
_UNIONS_MAX: Final = 64  # branches of two unions multiplied
_CHAIN_MAX: Final = 64  # references that lead to references


class Unsatisfiable(Exception):
    """No value fits, at that path. `forbidden`: its author said so, by a schema that takes nothing."""

    def __init__(self, reason: str, *, path: str = "", forbidden: bool = False) -> None:
        super().__init__(reason)
        self.path = path
        self.forbidden = forbidden


def flattened(node: Schema, root: Mapping[str, Any], path: str) -> Schema:
    """The node without allOf, and without a reference that has constraints beside it. Raises Unsatisfiable."""
    return _flat(node, root, path, 0)


def merged(first: Schema | bool, second: Schema | bool, root: Mapping[str, Any], path: str) -> Schema:
    """One schema that takes what both take. Raises Unsatisfiable, SchemaRefused."""
    return _merged(first, second, root, path, 0)


def _flat(node: Schema, root: Mapping[str, Any], path: str, depth: int) -> Schema:
    if depth > _CHAIN_MAX:
        raise SchemaRefused(path, "endless_ref", "its references lead to each other without end")
    if "allOf" not in node and (
        "$ref" not in node or not node.keys() - ANNOTATIONS - {"$ref", "$defs", "definitions"}
    ):
        return node
    rest = {key: value for key, value in node.items() if key not in ("allOf", "$ref")}
    parts = list(node.get("allOf", ()))
    if "$ref" in node:
        parts.insert(0, _resolved(node["$ref"], root, path))
    for part in parts:
        rest = _merged(rest, part, root, path, depth + 1)
    return rest


def _resolved(reference: str, root: Mapping[str, Any], path: str) -> Schema | bool:
    try:
        return resolve(root, reference)
    except SchemaRefused as refusal:
        raise SchemaRefused(path, refusal.rule, refusal.reason) from None


ANNOTATIONS: Final = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("discriminator", "externalDocs", "xml", "optional", "$anchor"),
    }
)


def _merged(
    first: Schema | bool, second: Schema | bool, root: Mapping[str, Any], path: str, depth: int
) -> Schema:
    if first is False or second is False:
        raise Unsatisfiable("nothing is allowed here", forbidden=True)
    a: Schema = {} if first is True else first
    b: Schema = {} if second is True else second
    for part in (a, b):
        if "$ref" in part or "allOf" in part:
            break
    else:
        return _brought_together(a, b, path)
    return _brought_together(_whole(a, root, path, depth), _whole(b, root, path, depth), path)


def _whole(node: Schema, root: Mapping[str, Any], path: str, depth: int) -> Schema:
    """Without any reference at its top."""
    flat = _flat(node, root, path, depth + 1)
    if "$ref" not in flat:
        return flat
    rest = {key: value for key, value in flat.items() if key != "$ref"}
    return _merged(_resolved(flat["$ref"], root, path), rest, root, path, depth + 1)


def _brought_together(a: Schema, b: Schema, path: str) -> Schema:
    result = dict(a)
    for key, value in b.items():
        if key not in a:
            result[key] = value
        elif key in _BOTH:
            result[key] = _BOTH[key](a[key], value)
    _values(a, b, result)
    _objects(a, b, result)
    _unions(a, b, result)
    if "prefixItems" in a and "prefixItems" in b and a["prefixItems"] != b["prefixItems"]:
        raise SchemaRefused(path, "all_of", "two lists of prefixItems cannot be written as one")
    return result


def _both(a: Any, b: Any) -> Any:
    """A schema that is the other two, left for whoever reads it."""
    return a if a == b else {"allOf": [a, b]}


def _types(a: Any, b: Any) -> Any:
    left, right = (value if isinstance(value, list) else [value] for value in (a, b))
    found = [kind for kind in left if kind in right or (kind == "integer" and "number" in right)]
    found += [kind for kind in right if kind == "integer" and "number" in left and kind not in found]
    if not found:
        raise Unsatisfiable(f"the types {a} and {b} have no value in common")
    return found if len(found) > 1 else found[0]


def _maps(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {**a, **{key: _both(a[key], value) if key in a else value for key, value in b.items()}}


def _lists(a: list[Any], b: list[Any]) -> list[Any]:
    return [*a, *(value for value in b if value not in a)]


_BOTH: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "type": _types,
    "properties": _maps,
    "patternProperties": _maps,
    "required": _lists,
    "items": _both,
    "contains": _both,
    "propertyNames": _both,
    "minimum": max,
    "exclusiveMinimum": max,
    "minLength": max,
    "minItems": max,
    "minProperties": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "maxLength": min,
    "maxItems": min,
    "maxProperties": min,
    "uniqueItems": lambda a, b: a or b,
}


def _values(a: Schema, b: Schema, result: Schema) -> None:
    """enum and const: the values both take, told apart as JSON does (1 is not true)."""
    lists = [_allowed(part) for part in (a, b)]
    if None in lists or not any("enum" in part or "const" in part for part in (a, b)):
        return
    left, right = lists
    assert left is not None and right is not None
    texts = {same_text(value) for value in right}
    found = [value for value in left if same_text(value) in texts]
    if not found:
        raise Unsatisfiable("the values allowed by its parts have none in common")
    result.pop("const", None)
    result.pop("enum", None)
    if len(found) == 1 and "const" in (*a, *b):
        result["const"] = found[0]
    else:
        result["enum"] = found


def _allowed(part: Schema) -> list[Any] | None:
    if "const" in part:
        return [part["const"]]
    values = part.get("enum")
    return list(values) if values is not None else None


def same_text(value: Any) -> str:
    """Equal JSON values have equal texts, whatever the order of their keys; 1 and 1.0 are one value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _objects(a: Schema, b: Schema, result: Schema) -> None:
    """A part that is closed, or types what it does not name, does so for the properties of the other part as well."""
    for one, other in ((a, b), (b, a)):
        rest = one.get("additionalProperties")
        if rest is None or rest is True or "patternProperties" in one:
            continue
        for name in other.get("properties", {}):
            if name not in one.get("properties", {}):
                result["properties"] = {**result["properties"], name: _both(rest, result["properties"][name])}
    if "additionalProperties" in a and "additionalProperties" in b:
        rests = (a["additionalProperties"], b["additionalProperties"])
        result["additionalProperties"] = False if False in rests else _both(*rests)


def _unions(a: Schema, b: Schema, result: Schema) -> None:
    """Two unions become one of every pair of their branches."""
    for key in ("anyOf", "oneOf"):
        if key in a and key in b and a[key] != b[key]:
            pairs = list(itertools.islice(itertools.product(a[key], b[key]), _UNIONS_MAX + 1))
            if len(pairs) > _UNIONS_MAX:
                raise SchemaRefused("", "all_of", f"two unions have more than {_UNIONS_MAX} combinations")
            result[key] = [_both(*pair) for pair in pairs]


def accepts_null(node: Schema | bool, root: Mapping[str, Any]) -> bool:
    """Whether null fits. Exact: every keyword that is not looked at is about values of another type."""
    return _accepts_null(node, root, frozenset())


def _accepts_null(node: Schema | bool, root: Mapping[str, Any], seen: frozenset[str]) -> bool:
    if isinstance(node, bool):
        return node

    def fits(part: Schema | bool) -> bool:
        return _accepts_null(part, root, seen)

    reference = node.get("$ref")
    if reference is not None and (
        reference in seen or not _accepts_null(resolve(root, reference), root, seen | {reference})
    ):
        return False
    types = node.get("type", "null")
    values = _allowed(node)
    return (
        "null" in (types if isinstance(types, list) else [types])
        and (values is None or None in values)
        and all(map(fits, node.get("allOf", ())))
        and ("anyOf" not in node or any(map(fits, node["anyOf"])))
        and ("oneOf" not in node or sum(map(fits, node["oneOf"])) == 1)
        and ("not" not in node or not fits(node["not"]))
        and ("if" not in node or fits(node.get("then" if fits(node["if"]) else "else", True)))
    )
