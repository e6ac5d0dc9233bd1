"""Schemas as strangers write them, for hypothesis: every keyword of a draft, wherever it may stand.

`documents(draft)` makes whole documents whose meaning a validator of that draft knows (`validator`): it is asked about the
schema as it was written, and nothing of ours comes between.
"""

from __future__ import annotations

import functools
import json
from typing import Any, Final
from urllib.parse import quote

import jsonschema_rs
from hypothesis import strategies as st

DRAFT_4: Final = "http://json-schema.org/draft-04/schema#"
DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
DRAFT_2019: Final = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020: Final = "https://json-schema.org/draft/2020-12/schema"
DRAFTS: Final = {
    DRAFT_4: jsonschema_rs.Draft4Validator,
    DRAFT_7: jsonschema_rs.Draft7Validator,
    DRAFT_2019: jsonschema_rs.Draft201909Validator,
    DRAFT_2020: jsonschema_rs.Draft202012Validator,
}
OLD: Final = (DRAFT_4, DRAFT_7)

PROPERTIES: Final = st.sampled_from(["a", "b", "c", "a/b", "x-y", "ü", "$ref", "enum", "properties"])
DEFINED: Final = ("one", "a/b", "c~d", "50%", "e f", "%20", "größe", "$id")  # what pointers have to escape
SCALARS: Final = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from(["", "x", "null", "true", 1.5, -0.5])
)
VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
TYPES: Final = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])


def validator(document: dict[str, Any], draft: str) -> Any:
    """The validator of that draft, of the schema as it is. Raises what it raises for a broken one."""
    return DRAFTS[draft](document, offline=True, validate_formats=False)


@functools.cache
def documents(draft: str) -> st.SearchStrategy[dict[str, Any]]:
    """Whole documents: an object at the root, definitions that lead anywhere, and names only pointers escape."""
    return _documents(draft)


@st.composite
def _documents(draw: st.DrawFn, draft: str) -> dict[str, Any]:
    inner = _schemas(draft)
    names = draw(st.lists(st.sampled_from(DEFINED), min_size=1, max_size=4, unique=True))
    place = "definitions" if draft in OLD else draw(st.sampled_from(["$defs", "definitions"]))
    defined = {name: draw(inner) for name in names}
    root: dict[str, Any] = draw(_objects(draft, inner))
    root = {"type": "object", **root}
    if draw(st.booleans()):
        root["$schema"] = draft
    elif draft in OLD:
        root["$schema"] = draft  # without it nobody can know
    root[place] = defined
    if draw(st.integers(0, 3)) == 0:
        root["id" if draft == DRAFT_4 else "$id"] = "https://example.org/root.json"
    anchors = _anchored(defined, draft, draw)
    targets = [f"#/{place}/{draw(_escaped(name))}" for name in names]
    targets += [f"#{one}" for one in anchors] + ["#"]
    targets += [f"#/properties/{draw(_escaped(name))}" for name in root.get("properties", {})]
    if "$id" in root or "id" in root:
        targets += [f"https://example.org/root.json{one}" for one in targets[:1]]
    return _aimed(root, targets, draw)  # type: ignore[no-any-return]


def _anchored(defined: dict[str, Any], draft: str, draw: st.DrawFn) -> list[str]:
    """Gives some definitions a name of their own, in the words of the draft."""
    found = []
    for number, one in enumerate(defined.values()):
        if isinstance(one, dict) and draw(st.integers(0, 3)) == 0 and not (draft in OLD and "$ref" in one):
            name = f"here{number}"
            key = {DRAFT_4: "id", DRAFT_7: "$id"}.get(draft, "$anchor")
            one[key] = f"#{name}" if draft in OLD else name
            found.append(name)
    return found


@st.composite
def _escaped(draw: st.DrawFn, name: str) -> str:
    """A name as a part of a pointer in a fragment: what has to be is escaped, and some of what may be."""
    part = name.replace("~", "~0").replace("/", "~1")
    return quote(part, safe=draw(st.sampled_from(["~$-", "~$-ü ", "$-"])).replace(" ", ""))


def _aimed(schema: Any, targets: list[str], draw: st.DrawFn) -> Any:
    """Every reference leads to one of the targets; names of properties and listed values are left alone."""
    match schema:
        case dict():
            made = {}
            for key, value in schema.items():
                if key == "$ref" and value == "?":
                    made[key] = draw(st.sampled_from(targets))
                elif key in ("enum", "const", "default", "examples", "required", "x-made-up"):
                    made[key] = value
                elif key in ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas"):
                    made[key] = {name: _aimed(one, targets, draw) for name, one in value.items()}
                else:
                    made[key] = _aimed(value, targets, draw)
            return made
        case list():
            return [_aimed(one, targets, draw) for one in schema]
        case _:
            return schema


@functools.cache  # made anew for every document, most of the time would go into checking it
def _schemas(draft: str) -> st.SearchStrategy[Any]:
    booleans = st.nothing() if draft == DRAFT_4 else st.booleans()
    leaves = st.one_of(_texts(), _numbers(draft), _listed(draft), _references(), st.just({}), booleans)
    return st.recursive(leaves, lambda inner: _made_of(draft, inner), max_leaves=5)


def _annotated(made: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """With what says nothing about values: it must be kept out of the way, not stumbled over."""
    said = st.fixed_dictionaries(
        {},
        optional={
            "title": st.just("T"),
            "description": st.sampled_from(["Says something.", ""]),
            "default": VALUES,
            "examples": st.just([{"$ref": "#/nowhere"}]),
            "deprecated": st.booleans(),
            "$comment": st.just("not for readers"),
            "x-made-up": st.sampled_from([{"$ref": "#/nowhere", "type": "wibble"}, ["x"], None]),
            "unknownWord": st.just({"type": 7}),
        },
    )
    return st.builds(lambda one, two: {**two, **one}, made, st.one_of(st.just({}), st.just({}), said))


def _texts() -> st.SearchStrategy[dict[str, Any]]:
    return _annotated(
        st.fixed_dictionaries(
            {"type": st.just("string")},
            optional={
                "minLength": st.integers(0, 2),
                "maxLength": st.integers(0, 4),
                "pattern": st.sampled_from(["^x?$", "a", "^[a-z]*$", "(?=x)", "^(a|b)$", "\\d"]),
                "format": st.sampled_from(["date", "email", "uri", "uuid", "made-up", "regex"]),
                "contentEncoding": st.just("base64"),
            },
        )
    )


@st.composite
def _numbers(draw: st.DrawFn, draft: str) -> dict[str, Any]:
    made: dict[str, Any] = {"type": draw(st.sampled_from(["number", "integer", ["integer", "null"]]))}
    if draw(st.booleans()):
        made["minimum"] = draw(st.integers(-2, 1))
    if draw(st.booleans()):
        made["maximum"] = draw(st.integers(0, 3))
    if draw(st.integers(0, 3)) == 0:
        made["multipleOf"] = draw(st.sampled_from([1, 2, 0.5]))
    for limit in ("minimum", "maximum"):
        if draw(st.integers(0, 2)) == 0:
            key = f"exclusive{limit.capitalize()}"
            if draft == DRAFT_4:
                if limit in made:  # draft 4: it says how the other limit is meant
                    made[key] = draw(st.booleans())
            else:
                made[key] = draw(st.integers(-2, 3))
    return made


def _listed(draft: str) -> st.SearchStrategy[dict[str, Any]]:
    enums = st.lists(VALUES, min_size=1, max_size=4, unique_by=_same).map(lambda values: {"enum": values})
    typed = st.builds(
        lambda one, kind: {**one, "type": kind}, enums, st.lists(TYPES, min_size=1, unique=True)
    )
    if draft == DRAFT_4:
        return _annotated(st.one_of(enums, typed))
    return _annotated(st.one_of(enums, typed, VALUES.map(lambda value: {"const": value})))


def _same(value: Any) -> str:
    return json.dumps(value, sort_keys=True).replace(".0", "")


def _references() -> st.SearchStrategy[dict[str, Any]]:
    """Alone, or with constraints beside it: drafts up to 7 do not look at those."""
    beside = st.sampled_from(
        [{}, {}, {"description": "D"}, {"minLength": 1}, {"type": "object"}, {"minimum": 1}]
    )
    return st.builds(lambda rest: {"$ref": "?", **rest}, beside)


def _made_of(draft: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _objects(draft, inner),
        _arrays(draft, inner),
        _combined(draft, inner),
        st.builds(lambda one, kinds: {**one, "type": kinds}, _objects(draft, inner), _kinds()),
    )


def _kinds() -> st.SearchStrategy[Any]:
    return st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True))


@st.composite
def _objects(draw: st.DrawFn, draft: str, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(PROPERTIES, inner, max_size=3))
    made: dict[str, Any] = {"properties": properties}
    if draw(st.booleans()):
        made["type"] = "object"
    names = [*properties, "a", "zz"]
    required = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    if draw(st.booleans()):
        made["required"] = required
    rest = draw(st.integers(0, 4))
    if rest < 3:
        made["additionalProperties"] = [False, True, None][rest] if rest < 2 else draw(inner)
    more = draw(st.lists(st.sampled_from(_OBJECT_WORDS[draft]), max_size=2, unique=True))
    for word in more:
        made[word] = draw(_OBJECT_VALUES(word, inner, required))
    return draw(_annotated(st.just(made)))


_OBJECT_WORDS: Final = {
    DRAFT_4: ("minProperties", "maxProperties", "patternProperties", "dependencies", "not"),
    DRAFT_7: (
        *(
            "minProperties",
            "maxProperties",
            "patternProperties",
            "propertyNames",
            "dependencies",
            "not",
            "if",
        ),
    ),
    DRAFT_2019: (
        *("minProperties", "maxProperties", "patternProperties", "propertyNames", "dependentRequired", "not"),
        *("dependentSchemas", "unevaluatedProperties", "if"),
    ),
}
_OBJECT_WORDS[DRAFT_2020] = _OBJECT_WORDS[DRAFT_2019]


def _OBJECT_VALUES(word: str, inner: st.SearchStrategy[Any], required: list[str]) -> st.SearchStrategy[Any]:
    match word:
        case "minProperties":
            return st.integers(0, 2)
        case "maxProperties":
            return st.integers(1, 3)
        case "patternProperties":
            return st.dictionaries(st.sampled_from(["^x-", "^a$", "."]), inner, min_size=1, max_size=2)
        case "propertyNames":
            return st.sampled_from([{"maxLength": 3}, {"pattern": "^[a-z]"}, {"enum": ["a", "b", "zz"]}])
        case "dependencies":
            return st.one_of(st.just({"a": required}), st.builds(lambda one: {"a": one}, inner))
        case "dependentRequired":
            return st.just({"a": required})
        case "dependentSchemas":
            return st.builds(lambda one: {"a": one}, inner)
        case _:
            return inner


@st.composite
def _arrays(draw: st.DrawFn, draft: str, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array"}
    tuples = draw(st.integers(0, 2)) == 0
    if tuples:
        one = draw(inner)
        first = [one] * draw(st.integers(1, 2)) if draw(st.booleans()) else [one, draw(inner)]
        rest = draw(st.sampled_from([None, False])) if draw(st.booleans()) else draw(inner)
        made["prefixItems" if draft == DRAFT_2020 else "items"] = first
        if rest is not None:
            made["items" if draft == DRAFT_2020 else "additionalItems"] = rest
    elif draw(st.booleans()):
        made["items"] = draw(inner)
    for word, values in (
        ("minItems", st.integers(0, 2)),
        ("maxItems", st.integers(1, 3)),
        ("uniqueItems", st.booleans()),
    ):
        if draw(st.integers(0, 2)) == 0:
            made[word] = draw(values)
    if draft != DRAFT_4 and draw(st.integers(0, 5)) == 0:
        made["contains"] = draw(inner)
    return draw(_annotated(st.just(made)))


@st.composite
def _combined(draw: st.DrawFn, draft: str, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    word = draw(st.sampled_from(["allOf", "anyOf", "oneOf", "anyOf", "not", "if"]))
    made: dict[str, Any]
    if word == "not" or (word == "if" and draft == DRAFT_4):
        made = {"not": draw(inner)}
    elif word == "if":
        made = {"if": draw(inner), "then": draw(inner), "else": draw(inner)}
    else:
        made = {word: draw(st.lists(inner, min_size=1, max_size=3))}
    if draw(st.booleans()):
        beside = draw(st.one_of(_objects(draft, inner), _texts(), _arrays(draft, inner)))
        made = {**beside, **made}
    return draw(_annotated(st.just(made)))
