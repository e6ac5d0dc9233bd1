"""Where the references of a schema lead: every one written as a pointer from the root of its document. Pure.

Identifiers (`$id`, `id`, `$anchor`, `$dynamicAnchor`) name places in a document, and what a reference means depends on
the nearest one around it. Afterwards none of them is needed: `#/a/pointer` means the same wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urldefrag, urljoin

Pointer = tuple[str, ...]

# Where schemas stand inside a schema, in all drafts.
SCHEMA_KEYS: Final = frozenset(
    {
        *("items", "additionalItems", "unevaluatedItems", "contains", "not", "if", "then", "else"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
    }
)
SCHEMA_LIST_KEYS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMA_MAP_KEYS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_LIST_KEYS: Final = SCHEMA_LIST_KEYS | {"items"}
_MAP_KEYS: Final = SCHEMA_MAP_KEYS | {"dependencies"}
_DRAFT_4: Final = re.compile(r"draft-0[34]\b")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_DEPTH_MAX: Final = 80  # beyond what is read at all
_OWN: Final = "document:/"  # the base of a document without an identifier


@dataclass(slots=True)
class _Named:
    """What a document names: `resources` by address, `anchors` by address and name, each with its place."""

    resources: dict[str, Pointer] = field(default_factory=dict)
    anchors: dict[tuple[str, str], Pointer | None] = field(default_factory=dict)  # None: named twice
    moved: dict[Pointer, dict[str, Pointer]] = field(default_factory=dict)
    plain: bool = True  # nothing but pointers from the root, and nothing is moved
    key: str = "$id"  # what an identifier is called in its draft


def localized(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document with its references as pointers from its root, to where `dialects.plain` puts what they lead to.

    `$dynamicRef` and `$recursiveRef` become the `$ref` they are in a document with one identifier; in others they stay,
    for where they lead depends on the way to them. A reference that leads to another
    document or nowhere stays as it is: whoever follows it says so. Does not change what it is given.
    """
    named = _Named(key="id" if _DRAFT_4.search(str(document.get("$schema"))) else "$id")
    _collect(document, (), _OWN, named, 0)
    if named.plain:
        return document
    found = _rewritten(document, (), _OWN, named, 0)
    assert isinstance(found, Mapping)
    return found


def pointer_text(pointer: Pointer) -> str:
    """The reference that leads there: `#/$defs/a~1b`, what a URI cannot hold percent-encoded."""
    return "#" + "".join(
        f"/{quote(part.replace('~', '~0').replace('/', '~1'), safe='~$-_.+!*(),:;@=&?')}" for part in pointer
    )


def parts_of(fragment: str) -> Pointer:
    """The names of a pointer in a fragment: RFC 6901, section 6."""
    return tuple(unquote(part).replace("~1", "/").replace("~0", "~") for part in fragment.split("/")[1:])


def _collect(schema: Any, at: Pointer, base: str, named: _Named, depth: int) -> None:
    if not isinstance(schema, Mapping) or depth > _DEPTH_MAX:
        return
    own = _identifier(schema, at, named)
    if own is not None:
        address, name = urldefrag(own)
        base = urljoin(base, address) if address else base
        if address:
            named.plain = named.plain and not at
            named.resources.setdefault(base, at)
        if name:
            _anchor(named, base, unquote(name), at)
            named.plain = False
    if not at:
        named.resources.setdefault(base, at)
    for key in ("$anchor", "$dynamicAnchor"):
        if isinstance(schema.get(key), str):
            _anchor(named, base, schema[key], at)
            named.plain = named.plain and key == "$anchor"
    if moved := _moves(schema):
        named.moved[at] = moved
        named.plain = False
    for key in _REFERENCES:
        reference = schema.get(key)
        if isinstance(reference, str) and (key != "$ref" or not reference.startswith("#")):
            named.plain = False
    for inner, where in _inside(schema, at):
        _collect(inner, where, base, named, depth + 1)


def _anchor(named: _Named, base: str, name: str, at: Pointer) -> None:
    known = named.anchors.get((base, name), at)
    named.anchors[base, name] = at if known == at else None


def _identifier(schema: Mapping[str, Any], at: Pointer, named: _Named) -> str | None:
    own = schema.get(named.key) if at else schema.get("$id", schema.get("id"))
    return own if isinstance(own, str) else None


def _moves(schema: Mapping[str, Any]) -> dict[str, Pointer]:
    """Keywords of this place that `dialects.plain` writes under another name."""
    moved: dict[str, Pointer] = {}
    if isinstance(schema.get("items"), (list, tuple)):
        moved |= {"items": ("prefixItems",), "additionalItems": ("items",)}
    if isinstance(schema.get("dependencies"), Mapping):
        moved["dependencies"] = ("dependentSchemas",)
    if schema.get("nullable", schema.get("x-nullable")) is True:
        moved |= {key: ("anyOf", "0", key) for key in ("allOf", "anyOf", "oneOf") if key in schema}
    return moved


def _inside(schema: Mapping[str, Any], at: Pointer) -> Iterator[tuple[Any, Pointer]]:
    """Every schema right inside this one, and its place."""
    for key, value in schema.items():
        if key in _LIST_KEYS and isinstance(value, (list, tuple)):
            for number, one in enumerate(value):
                yield one, (*at, key, str(number))
        elif key in SCHEMA_KEYS:
            yield value, (*at, key)
        elif key in _MAP_KEYS and isinstance(value, Mapping):
            for name, one in value.items():
                yield one, (*at, key, str(name))
        elif key == "components" and isinstance(value, Mapping) and isinstance(value.get("schemas"), Mapping):
            for name, one in value["schemas"].items():
                yield one, (*at, key, "schemas", str(name))


def _rewritten(schema: Any, at: Pointer, base: str, named: _Named, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _DEPTH_MAX:
        return schema
    own = _identifier(schema, at, named)
    if own is not None and (address := urldefrag(own)[0]):
        base = urljoin(base, address)
    inner = {where: _rewritten(one, where, base, named, depth + 1) for one, where in _inside(schema, at)}
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _REFERENCES and isinstance(value, str) and (key == "$ref" or len(named.resources) == 1):
            made["$ref"] = _leads_to(value, base, named)
        elif key not in ("$dynamicAnchor", "$recursiveAnchor"):
            made[key] = _put(key, value, at, inner)
    return made


def _put(key: Any, value: Any, at: Pointer, inner: Mapping[Pointer, Any]) -> Any:
    """The value of a keyword with the schemas in it as they were rewritten."""
    if (*at, key) in inner:
        return inner[*at, key]
    if isinstance(value, (list, tuple)) and key in _LIST_KEYS:
        return [inner[*at, key, str(number)] for number in range(len(value))]
    if isinstance(value, Mapping) and key in _MAP_KEYS:
        return {name: inner[*at, key, str(name)] for name in value}
    if (key == "components" and isinstance(value, Mapping)) and isinstance(value.get("schemas"), Mapping):
        return {
            **value,
            "schemas": {name: inner[*at, key, "schemas", str(name)] for name in value["schemas"]},
        }
    return value


def _leads_to(reference: str, base: str, named: _Named) -> str:
    """The pointer from the root, or the reference as it was where it leads to nothing this document names."""
    address, fragment = urldefrag(reference)
    base = urljoin(base, address) if address else base
    start = named.resources.get(base)
    if start is None:
        return reference
    if fragment and not fragment.startswith("/"):
        found = named.anchors.get((base, unquote(fragment)))
        return reference if found is None else pointer_text(_now(found, named))
    return pointer_text(_now((*start, *parts_of(fragment)), named))


def _now(pointer: Pointer, named: _Named) -> Pointer:
    """Where a place of the document as it was written is once it is read."""
    found: list[str] = []
    for number, part in enumerate(pointer):
        found += named.moved.get(pointer[:number], {}).get(part, (part,))
    return tuple(found)
