"""Any schema at all: its strict form is one the provider takes, keeps what was declared, and comes back to it.

The schemas are made up by hypothesis in the words of all drafts, the values by `tests.corpus.instances`. Both
directions are checked in `check_strict`: what is declared has a strict form and comes back from it, and what the strict
form takes is declared or noted as checked locally.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.corpus.check_schemas import PROVIDERS, check_strict
from toolfleet.adapters.llm.strict.codec import read_json, rewritten_json, write_json
from toolfleet.adapters.llm.strict.profiles import strict_profile
from toolfleet.adapters.llm.strict.rules import REFUSALS, rule_of
from toolfleet.adapters.llm.strict.tool import StrictTool, strict_tool
from toolfleet.schemas.dialects import SchemaRefused
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.arguments import Valid, read_arguments

NAMES = st.sampled_from(
    ["a", "b", "c", "key", "entries", "a.b", "b[]", "other_properties", "arguments", "größe"]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "x", "null", 1.5]))
TEXTS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(3, 50),
        "format": st.sampled_from(["date", "email", "hostname", "iri", "uri", "uuid"]),
        "pattern": st.sampled_from(["^x?$", "a", "^[a-z]*$"]),
        "description": st.just("A text."),
        "default": st.sampled_from(["x", None]),
        "nullable": st.booleans(),
    },
)
NUMBERS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["number", "integer", "float", "int", ["integer", "null"], ["string", "number"]]
        )
    },
    optional={
        "minimum": st.integers(-9, 0),
        "maximum": st.integers(1, 9),
        "exclusiveMinimum": st.booleans(),
        "default": st.none(),
    },
)
LISTED = st.one_of(
    st.builds(
        lambda values: {"enum": values}, st.lists(SCALARS, min_size=1, max_size=4, unique_by=json.dumps)
    ),
    st.builds(lambda value: {"const": value}, SCALARS),
    st.just({"enum": [{"a": 1}, [1, 2], "x"]}),
)
ANYTHING = st.sampled_from([{}, True, {"type": "any"}, {"description": "Whatever."}, {"type": "boolean"}])
REFERENCES = st.builds(lambda name: {"$ref": f"#/$defs/{name}"}, st.sampled_from(["one", "two"]))


def _made_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(NAMES, inner, max_size=3)
    objects = st.builds(
        _object, properties, st.randoms(use_true_random=False), st.sampled_from([None, False, True, 0]), inner
    )
    lists = st.fixed_dictionaries(
        {"type": st.sampled_from(["array", "list"])},
        optional={"items": inner, "minItems": st.integers(0, 2), "maxItems": st.integers(2, 4)},
    )
    tuples = st.builds(lambda item: {"type": "array", "items": [item, item], "maxItems": 2}, inner)
    unions = st.builds(
        lambda key, branches: {key: branches},
        st.sampled_from(["anyOf", "oneOf"]),
        st.lists(inner, min_size=1, max_size=3),
    )
    parts = st.builds(lambda one, two: {"allOf": [one, two]}, objects, objects)
    return st.one_of(objects, objects, lists, unions, parts, tuples)


CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"minProperties": 1},
    {"maxProperties": 2},
    {"not": {"required": ["a", "b"]}},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"dependentRequired": {"a": ["b"]}},
    {"dependencies": {"a": {"required": ["c"]}}},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"patternProperties": {"^x-": {"type": "string"}}},
    {"propertyNames": {"maxLength": 5}},
)


def _object(properties: dict[str, Any], source: random.Random, rest: Any, inner: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": source.choice(["object", "dict"]), "properties": properties}
    if source.random() < 0.3:
        schema |= source.choice(CONSTRAINTS)
    required = [name for name in properties if source.random() < 0.5]
    if required:
        schema["required"] = required
    if rest is not None:
        schema["additionalProperties"] = inner if rest == 0 and rest is not False else rest
    return schema


SCHEMAS = st.recursive(st.one_of(TEXTS, NUMBERS, LISTED, ANYTHING, REFERENCES), _made_of, max_leaves=6)
ROOTS = st.builds(
    lambda properties, one, two, source: {
        **_object(properties, source, None, None),
        "$defs": {"one": one, "two": two},
    },
    st.dictionaries(NAMES, SCHEMAS, min_size=1, max_size=4),
    SCHEMAS,
    SCHEMAS,
    st.randoms(use_true_random=False),
)


# The same examples each time: one recursive schema in some thousands is boxed otherwise when it is converted again.
@settings(
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(ROOTS, st.integers())
def test_a_strict_form_is_taken_and_loses_nothing(declared: dict[str, Any], seed: int) -> None:
    for provider in PROVIDERS:
        try:
            strict = check_strict(declared, provider, random.Random(seed))
        except SchemaRefused as refusal:
            assert refusal.rule in REFUSALS
            assert refusal.reason
            continue
        assert all(rule_of(note.rule).about for note in strict.notes)


INSIDE_ITSELF: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"anyOf": [{"const": False}, {"$ref": "#/$defs/two"}, {"const": None}]}},
    "additionalProperties": {"type": "array"},
}
FROM_ELSEWHERE: dict[str, Any] = {  # what is led to first is not what is made first
    "type": "object",
    "properties": {"a": {"anyOf": [{"$ref": "#/$defs/two"}, {"type": "string"}]}, "b": {}},
    "required": ["a", "b"],
    "$defs": {"two": {"type": "object", "additionalProperties": {"type": "array"}}},
}


@pytest.mark.parametrize(
    "declared",
    [
        {
            "type": "object",
            "properties": {"x": INSIDE_ITSELF},
            "required": ["x"],
            "$defs": {"two": INSIDE_ITSELF},
        },
        FROM_ELSEWHERE,
    ],
)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_schema_inside_itself_converts_to_the_same_again(declared: dict[str, Any], provider: str) -> None:
    for seed in range(20):
        try:
            check_strict(declared, provider, random.Random(seed))
        except SchemaRefused as refusal:
            assert refusal.reason and provider == "anthropic"


def test_an_object_whose_other_properties_cannot_be_is_closed_and_not_lost() -> None:
    never = {"allOf": [{"type": "string"}, {"type": "integer"}]}
    closed = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    declared = {
        "type": "object",
        "properties": {"x": {"anyOf": [{"type": "array"}, {**closed, "additionalProperties": never}]}},
        "required": ["x"],
    }
    for provider in PROVIDERS:
        strict = check_strict(declared, provider, random.Random(0))

        assert jsonschema_rs.is_valid(strict.schema, strict.encode({"x": {"a": 1}}))
        assert strict.restore(strict.encode({"x": {"a": 1}})) == {"x": {"a": 1}}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab\u20ac"'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)
FREE = ToolSpec(
    name="free",
    description="d",
    parameters={
        "type": "object",
        "properties": {
            "any": {},
            "map": {"type": "object"},
            "either": {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}]},
        },
        "required": ["any"],
        "additionalProperties": True,
    },
)


@given(st.dictionaries(st.text("ab"), JSON, max_size=3), JSON)
def test_free_values_come_back_as_they_were_to_the_last_key(more: dict[str, Any], value: Any) -> None:
    arguments = {"any": value, "map": more, "either": more, **{f"x{name}": one for name, one in more.items()}}
    for provider in PROVIDERS:
        tool = strict_tool(FREE, strict_profile(provider))
        assert isinstance(tool, StrictTool)

        wire = tool.encode_text(json.dumps(arguments))

        assert jsonschema_rs.is_valid(tool.parameters, json.loads(wire))
        back, direct = (
            read_arguments(text, FREE) for text in (tool.restore_text(wire), json.dumps(arguments))
        )
        assert isinstance(back, Valid)
        assert back == direct


@given(JSON)
def test_whatever_a_model_writes_the_way_back_raises_nothing(written: Any) -> None:
    for provider in PROVIDERS:
        tool = strict_tool(FREE, strict_profile(provider))
        assert isinstance(tool, StrictTool)

        text = json.dumps({"any": written, "map": written, "either": written, "other_properties": written})

        json.loads(tool.restore_text(text))
        tool.restore_text(json.dumps(written))


TEXT_CHARS = st.characters(exclude_categories=["Cs"])
PLAIN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(TEXT_CHARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(TEXT_CHARS), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(TEXT_CHARS), PLAIN_JSON, max_size=3), st.booleans())
def test_the_fast_way_to_write_an_old_call_gives_the_same_bytes_as_the_exact_one(
    arguments: dict[str, Any], escaped: bool
) -> None:
    text = json.dumps(arguments, ensure_ascii=escaped)
    try:
        exact = write_json(read_json(text))
    except ValueError:  # a number no float holds
        exact = text

    assert rewritten_json(text, lambda value: value) == exact
