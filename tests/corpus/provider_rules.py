"""Whether a provider would take a schema in strict mode, judged by what the provider says about it.

Imports nothing of the converter, and shares nothing with it: the rules are written down here a second time.

OpenAI: https://developers.openai.com/api/docs/guides/structured-outputs#supported-schemas, read 2026-11-30.
    Types: string, number, boolean, integer, object, array, enum, anyOf. Strings: pattern and nine formats. Numbers:
    multipleOf, maximum, exclusiveMaximum, minimum, exclusiveMinimum. Arrays: minItems, maxItems. The root is an object
    and no anyOf. All fields required. additionalProperties: false always. 5,000 properties, 10 levels, 120,000
    characters, 1,000 enum values, 15,000 characters for one enum of more than 250. Definitions and recursion are
    supported. Not supported: allOf, not, dependentRequired, dependentSchemas, if, then, else.
    Look-around in patterns is answered with 400: https://github.com/vercel/ai/pull/21037 (2026-09).
    "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level":
    https://github.com/cecli-dev/cecli/issues/281 (2025-12).
Anthropic: https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations, read
    2026-11-30. All basic types; enum of strings, numbers, bools or nulls; const; anyOf and allOf with limitations;
    $ref and definitions, not external; default; required; additionalProperties false; ten formats; minItems 0 and 1.
    Not: recursion, numerical, length and other array constraints. 24 optional parameters and 16 parameters with
    union types over all strict tools of a request. Names of properties: '^[a-zA-Z0-9_.-]{1,64}$' (400 otherwise:
    https://github.com/beautyfree/appstore-connect-mcp/issues/2, 2026-04).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_BASIC = {"type", "description", "properties", "required", "additionalProperties", "items", "enum", "const"}
_BASIC |= {"anyOf", "$ref", "$defs"}
_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}
_KEYWORDS = {
    "openai": _BASIC
    | {"pattern", "format", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"}
    | {"minItems", "maxItems"},
    "anthropic": _BASIC | {"pattern", "format", "minItems", "default"},
}
_FORMATS = {
    "openai": {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"},
}
_FORMATS["anthropic"] = _FORMATS["openai"] | {"uri"}
_ABOUT = {
    "string": {"pattern", "format"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "number": {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"},
}


def problems(schema: Any, provider: str) -> list[str]:
    """What the provider would refuse, each with its place. Empty: it takes the schema."""
    if not isinstance(schema, dict):
        return ["the root is no schema"]
    found = [f"root: {key}" for key in ("anyOf", "oneOf", "allOf", "enum", "not", "const") if key in schema]
    if schema.get("type") != "object":
        found.append("root: no object")
    for path, node in _walk(schema, "#"):
        found += [f"{path}: {problem}" for problem in _node(node, schema, provider)]
    if not found:
        found += _sizes(schema, provider)
        if provider == "anthropic" and _recursive(schema):
            found.append("it is recursive")
    return found


def _walk(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, node
    if not isinstance(node, dict):
        return
    for key in ("properties", "$defs"):
        if isinstance(node.get(key), dict):
            for name, inner in node[key].items():
                yield from _walk(inner, f"{path}/{key}/{name}")
    if "items" in node:
        yield from _walk(node["items"], f"{path}/items")
    if isinstance(node.get("anyOf"), list):
        for place, inner in enumerate(node["anyOf"]):
            yield from _walk(inner, f"{path}/anyOf/{place}")


def _node(node: Any, root: Mapping[str, Any], provider: str) -> Iterator[str]:
    if not isinstance(node, dict):
        yield "no schema object"
        return
    for key in node.keys() - _KEYWORDS[provider]:
        yield f"keyword {key}"
    if "$defs" in node and node is not root:
        yield "definitions that are not at the root"
    if "$ref" in node:
        if node.keys() != {"$ref"}:
            yield "keywords beside $ref"
        if _target(node["$ref"], root) is None:
            yield f"$ref leads nowhere: {node['$ref']}"
        return
    if "anyOf" in node:
        if not isinstance(node["anyOf"], list) or not node["anyOf"]:
            yield "anyOf without branches"
        if "type" in node:
            yield "anyOf and type"
        return
    yield from _typed(node, provider)


def _typed(node: dict[str, Any], provider: str) -> Iterator[str]:
    types = node.get("type")
    listed = types if isinstance(types, list) else [types]
    if not listed or any(one not in _TYPES for one in listed) or len(set(listed)) != len(listed):
        yield f"type {types}"
        return
    for kind, keywords in _ABOUT.items():
        if kind not in listed and not (kind == "number" and "integer" in listed):
            for key in keywords & node.keys():
                yield f"{key} without type {kind}"
    if "object" in listed:
        yield from _object(node, provider)
    if "array" in listed and not isinstance(node.get("items"), dict):
        yield "array without items"
    if "enum" in node:
        yield from _enum(node["enum"], listed)
    if "const" in node and not _is(node["const"], listed):
        yield "const of another type"
    if "format" in node and node["format"] not in _FORMATS[provider]:
        yield f"format {node['format']}"
    if "pattern" in node:
        yield from _pattern(node["pattern"])
    if provider == "anthropic" and node.get("minItems", 0) not in (0, 1):
        yield "minItems above 1"
    if not isinstance(node.get("description", ""), str):
        yield "description is no text"


def _object(node: dict[str, Any], provider: str) -> Iterator[str]:
    properties, required = node.get("properties"), node.get("required")
    if node.get("additionalProperties") is not False:
        yield "additionalProperties is not false"
    if not isinstance(properties, dict) or not isinstance(required, list):
        yield "object without properties or required"
        return
    if len(set(required)) != len(required) or not set(required) <= set(properties):
        yield "required names what is no property"
    if provider == "openai" and set(required) != set(properties):
        yield f"not required: {sorted(set(properties) - set(required))}"
    if provider == "anthropic":
        for name in properties:
            if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name):
                yield f"property name {name!r}"


def _enum(values: Any, listed: list[str]) -> Iterator[str]:
    if not isinstance(values, list) or not values:
        yield "enum without values"
        return
    for value in values:
        if isinstance(value, (dict, list)):
            yield "enum value made of parts"
        elif not _is(value, listed):
            yield f"enum value of another type: {value!r}"


def _is(value: Any, listed: list[str]) -> bool:
    if value is None:
        return "null" in listed
    if isinstance(value, bool):
        return "boolean" in listed
    if isinstance(value, str):
        return "string" in listed
    if isinstance(value, (int, float)):
        return "number" in listed or ("integer" in listed and float(value).is_integer())
    return False


def _pattern(pattern: Any) -> Iterator[str]:
    try:
        re.compile(pattern)
    except (re.error, TypeError):
        yield "pattern that is none"
        return
    if re.search(r"\(\?[=!<]", pattern):
        yield "pattern with look-around"
    if re.search(r"\\[1-9bB]", pattern):
        yield "pattern with back-reference or word boundary"


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
        return None
    return root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))


def _sizes(schema: dict[str, Any], provider: str) -> Iterator[str]:
    nodes = [node for _, node in _walk(schema, "#")]
    enums = [node["enum"] for node in nodes if "enum" in node]
    objects = [node for node in nodes if "properties" in node]
    if provider == "anthropic":
        optional = sum(len(node["properties"]) - len(node["required"]) for node in objects)
        unions = sum("anyOf" in node or isinstance(node.get("type"), list) for node in nodes)
        if optional > 24:
            yield f"{optional} optional parameters"
        if unions > 16:
            yield f"{unions} parameters with union types"
        return
    if sum(len(node["properties"]) for node in objects) > 5000:
        yield "too many properties"
    if sum(map(len, enums)) > 1000:
        yield "too many enum values"
    if _levels(schema, schema, ()) > 10:
        yield "too many levels"
    texts = [name for node in objects for name in node["properties"]] + list(schema.get("$defs", {}))
    texts += [value for enum in enums for value in enum if isinstance(value, str)]
    texts += [node["const"] for node in nodes if isinstance(node.get("const"), str)]
    if sum(map(len, texts)) > 120_000:
        yield "too many characters"
    for enum in enums:
        if len(enum) > 250 and sum(len(one) for one in enum if isinstance(one, str)) > 15_000:
            yield "an enum that is too long"


def _levels(node: dict[str, Any], root: dict[str, Any], above: tuple[str, ...]) -> int:
    """Objects inside objects, through definitions, each of which is gone into once."""
    if "$ref" in node:
        return (
            0 if node["$ref"] in above else _levels(_target(node["$ref"], root), root, (*above, node["$ref"]))
        )
    inside = list(node.get("properties", {}).values()) + list(node.get("anyOf", []))
    inside += [node["items"]] if "items" in node else []
    return ("properties" in node) + max((_levels(one, root, above) for one in inside), default=0)


def _recursive(schema: dict[str, Any]) -> bool:
    leads = {
        name: {
            inner["$ref"].removeprefix("#/$defs/") for _, inner in _walk(definition, "") if "$ref" in inner
        }
        for name, definition in schema.get("$defs", {}).items()
    }
    for start, first in leads.items():
        reached, waiting = set(), list(first)
        while waiting:
            name = waiting.pop()
            if name == start:
                return True
            if name not in reached:
                reached.add(name)
                waiting += leads.get(name, ())
    return False
