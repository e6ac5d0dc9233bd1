"""Foreign JSON Schema is read as 2020-12: only its spelling changes, and what cannot be read is refused with its path."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from toolfleet.schemas.dialects import SchemaRefused, plain, resolve

READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Python names": (
        {
            "type": "dict",
            "properties": {"a": {"type": "float"}, "b": {"type": "tuple", "items": {"type": "str"}}},
        },
        {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "array", "items": {"type": "string"}}},
        },
    ),
    "Java names": (
        {
            "type": "HashMap",
            "properties": {"a": {"type": "ArrayList"}, "b": {"type": "long"}, "c": {"type": "String"}},
        },
        {
            "type": "object",
            "properties": {"a": {"type": "array"}, "b": {"type": "integer"}, "c": {"type": "string"}},
        },
    ),
    "any": (
        {"type": "object", "properties": {"a": {"type": "any"}}},
        {"type": "object", "properties": {"a": {}}},
    ),
    "OpenAPI 3.0 nullable": (
        {"type": "string", "nullable": True, "enum": ["F", "C"]},
        {"type": ["string", "null"], "enum": ["F", "C", None]},
    ),
    "nullable reference": (
        {"$ref": "#/$defs/A", "nullable": True, "$defs": {"A": {"type": "string"}}},
        {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": "string"}}},
    ),
    "draft 4 limits": (
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 9},
    ),
    "draft 7 tuple": (
        {"type": "array", "items": [{"type": "int"}, {"type": "string"}], "additionalItems": False},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    ),
    "draft 7 dependencies": (
        {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
    ),
    "draft 3 required": (
        {
            "type": "object",
            "properties": {"a": {"type": "string", "required": True}, "b": {"required": False}},
        },
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]},
    ),
    "draft 3 required inside a required one": (
        {"properties": {"a": {"required": True, "properties": {"b": {"required": True}}}}, "required": ["c"]},
        {"properties": {"a": {"properties": {"b": {}}, "required": ["b"]}}, "required": ["c", "a"]},
    ),
    "a property that is called required": (
        {"type": "object", "properties": {"required": {"type": "boolean"}, "type": {"type": "string"}}},
        {"type": "object", "properties": {"required": {"type": "boolean"}, "type": {"type": "string"}}},
    ),
    "own address": (
        {
            "$id": "https://example.org/a.json",
            "$schema": "x",
            "items": {"$ref": "https://example.org/a.json#/$defs/A"},
        },
        {"items": {"$ref": "#/$defs/A"}},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_only_the_spelling_changes(name: str) -> None:
    given, expected = READ[name]
    before = copy.deepcopy(given)

    read = plain(given)

    assert read.schema == expected
    assert json.dumps(read.schema) == json.dumps(plain(read.schema).schema), "reading it again changes it"
    assert given == before


@pytest.mark.parametrize(
    ("schema", "path", "rule"),
    [
        ({"properties": {"a": {"type": "wibble"}}}, "properties.a.type", "unknown_type"),
        ({"properties": {"a": {"$ref": "http://example.org/x.json"}}}, "properties.a.$ref", "external_ref"),
        ({"properties": {"a": 7}}, "properties.a", "no_schema"),
        ({"properties": []}, "properties", "bad_keyword"),
        ({"required": "a"}, "required", "bad_keyword"),
        ({"items": {"enum": []}}, "items.enum", "bad_keyword"),
        ({"anyOf": {}}, "anyOf", "bad_keyword"),
        ({"default": float("nan")}, "default", "no_json"),
        ([], "", "no_schema"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_path(schema: Any, path: str, rule: str) -> None:
    with pytest.raises(SchemaRefused) as refusal:
        plain(schema)

    assert (refusal.value.path, refusal.value.rule) == (path, rule)
    assert refusal.value.reason


def test_a_schema_without_end_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}

    with pytest.raises(SchemaRefused, match="too_deep"):
        plain(schema)


def test_references_lead_to_pointers_and_anchors() -> None:
    root = {"$defs": {"a/b": {"$anchor": "here", "type": "string"}}, "anyOf": [{"type": "null"}]}

    assert resolve(root, "#/$defs/a~1b") == resolve(root, "#here") == {"$anchor": "here", "type": "string"}
    assert resolve(root, "#/anyOf/0") == {"type": "null"}
    assert resolve(root, "#") == root
    for nowhere in ("#/anyOf/1", "#/x", "#x", "#/$defs"):
        with pytest.raises(SchemaRefused):
            resolve({"$defs": 1, **root} if nowhere == "#/$defs" else root, nowhere + "/x/y")
