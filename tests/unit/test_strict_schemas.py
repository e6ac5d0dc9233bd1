"""Strict forms: what the providers take, nothing lost on the way there and back, refusals with path and rule."""

from __future__ import annotations

import copy
import json
import random
import string
import time
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel, Field

from tests.corpus.check_schemas import check_strict, check_values
from tests.corpus.provider_rules import problems
from toolfleet import tool
from toolfleet.adapters.llm.profiles import PROFILES as PROVIDER_PROFILES
from toolfleet.adapters.llm.strict.limits import size_of
from toolfleet.adapters.llm.strict.names import alias_of, wire_name, wire_names
from toolfleet.adapters.llm.strict.profiles import StrictProfile, profile_ids, strict_profile
from toolfleet.adapters.llm.strict.rules import NOTES, REFUSALS
from toolfleet.adapters.llm.strict.tool import (
    StrictRefusal,
    StrictSchema,
    StrictTool,
    strict_schema,
    strict_tool,
    strict_tools,
)
from toolfleet.adapters.llm.tool_forms import forms_of
from toolfleet.schemas.dialects import SchemaRefused, plain
from toolfleet.schemas.errors import InputError, InvalidDefinition
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.arguments import Invalid, Valid, read_arguments

OPENAI = strict_profile("openai")
ANTHROPIC = strict_profile("anthropic")
PROFILES = (OPENAI, ANTHROPIC)
EACH = pytest.mark.parametrize("profile", PROFILES, ids=[one.id for one in PROFILES])


def _with(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _optional(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _strict(schema: dict[str, Any], profile: StrictProfile = OPENAI) -> StrictSchema:
    """The strict form, with everything checked that holds for every one of them."""
    return check_strict(schema, profile.name, random.Random(7))


def _refusal(schema: dict[str, Any], profile: StrictProfile = OPENAI) -> SchemaRefused:
    with pytest.raises(SchemaRefused) as refusal:
        strict_schema(schema, profile)
    return refusal.value


def _rules(strict: StrictSchema) -> set[str]:
    return {note.rule for note in strict.notes}


def _spec(name: str, parameters: dict[str, Any]) -> ToolSpec:
    return ToolSpec(name=name, description="d", parameters=parameters)


@EACH
def test_a_tuple_is_refused_at_its_path_with_what_to_do_instead(profile: StrictProfile) -> None:  # B019
    point = {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
    }

    refusal = _refusal(_with(point=point), profile)

    assert (refusal.path, refusal.rule) == ("properties.point", "tuple")
    assert "an object with a named field" in refusal.reason


def test_a_tuple_of_one_type_is_a_list_of_that_length() -> None:
    pair = {"type": "array", "prefixItems": [{"type": "number"}] * 2, "items": False, "minItems": 2}

    strict = _strict(_with(pair=pair))

    assert strict.schema["properties"]["pair"] == {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, "object"),
        (
            {"type": ["object", "null"], "properties": {"a": {"type": "string"}}, "required": ["a"]},
            ["object", "null"],
        ),
    ],
)
@EACH
def test_an_object_by_whatever_name_is_closed(
    profile: StrictProfile, given: dict[str, Any], expected: Any
) -> None:  # B021
    before = copy.deepcopy(given)

    strict = _strict(_with(inner=given), profile)

    assert strict.schema["properties"]["inner"] == {
        "type": expected,
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert given == before


def test_the_root_is_a_plain_object_whatever_it_is_called() -> None:  # B021
    for given in ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"type": ["object", "null"]}):
        assert _strict(given).schema["type"] == "object"


@EACH
def test_a_nullable_enum_has_null_among_its_values(profile: StrictProfile) -> None:  # B023
    class Weather(BaseModel):
        unit: Literal["F", "C"] | None

    for declared in (
        _with(unit={"type": "string", "nullable": True, "enum": ["F", "C"]}),
        Weather.model_json_schema(),
    ):
        strict = _strict(declared, profile)

        unit = strict.schema["properties"]["unit"]
        assert unit == {"type": ["string", "null"], "enum": ["F", "C", None]}
        spec = _spec("weather", plain(declared).schema)
        for value, taken in (("F", True), ("C", True), (None, True), ("K", False), ("null", False)):
            assert jsonschema_rs.is_valid(unit, value) is taken
            text = json.dumps(strict.restore({"unit": value}))
            assert isinstance(read_arguments(text, spec), Valid if taken else Invalid)


@pytest.mark.parametrize(
    "value", [{"type": "number"}, {}, True, {"type": "array", "items": {"type": "integer"}}]
)
@EACH
def test_a_map_keeps_its_entries(profile: StrictProfile, value: Any) -> None:  # B025
    declared = _with(rates={"type": "object", "additionalProperties": value})

    strict = _strict(declared, profile)

    assert strict.schema["properties"]["rates"]["type"] == "array"
    for rates in ({"a": 1.5, "b": 2}, {}, {"a": [1, 2]}, {"": {"x": [None, {"y": True}]}}):
        assert strict.restore(strict.encode({"rates": rates})) == {"rates": rates}


def test_a_map_with_a_name_given_twice_is_no_map() -> None:
    strict = _strict(_with(rates={"type": "object", "additionalProperties": {"type": "number"}}))
    twice = [{"key": "a", "value": 1}, {"key": "a", "value": 2}]

    restored = strict.restore({"rates": twice})

    assert restored == {"rates": twice}
    spec = _spec("t", _with(rates={"type": "object", "additionalProperties": {"type": "number"}}))
    assert isinstance(read_arguments(json.dumps(restored), spec), Invalid)


def test_what_is_declared_beside_an_open_end_and_what_is_not_are_one_object_again() -> None:
    declared = _with(
        point={"type": "object", "properties": {"x": {"type": "number"}}, "additionalProperties": True}
    )

    strict = _strict(declared)

    value = {"point": {"x": 1, "label": "here", "more": {"a": [1]}}}
    encoded = strict.encode(value)
    assert [entry["key"] for entry in encoded["point"]["other_properties"]] == ["label", "more"]
    assert strict.restore(encoded) == value
    assert strict.restore(strict.encode({"point": {}})) == {"point": {}}


def _enums(count: int, fields: int) -> dict[str, Any]:
    names = [f"V{number:04}" for number in range(1, count + 1)]
    share = count // fields
    return _with(
        **{f"f{n}": {"type": "string", "enum": names[n * share : (n + 1) * share]} for n in range(fields)}
    )


def test_the_limits_of_a_date_are_data_and_the_counts_exact() -> None:  # B027
    declared = _enums(520, 4)

    old = _refusal(declared, strict_profile("openai", "2024-08"))
    new = _strict(declared)

    assert (old.rule, old.reason) == (
        "limit.enum_values",
        "520 enum values; openai-2024-08 takes at most 500",
    )
    assert size_of(new.schema).enum_values == 520


def _deep(levels: int) -> dict[str, Any]:
    node: dict[str, Any] = _with(a={"type": "string"})
    for _ in range(levels - 1):
        node = _with(a=node)
    return node


@pytest.mark.parametrize(
    ("within", "beyond", "rule"),
    [
        (_deep(5), _deep(6), "limit.depth"),
        (
            _with(**{f"p{n}": {"type": "null"} for n in range(100)}),
            _with(**{f"p{n}": {"type": "null"} for n in range(101)}),
            "limit.properties",
        ),
        (_with(a={"const": "x" * 14_999}), _with(a={"const": "x" * 15_000}), "limit.string_chars"),
        (_enums(500, 1), _enums(501, 1), "limit.enum_values"),
        (
            _with(a={"enum": [f"{n:030}" for n in range(250)]}),
            _with(a={"enum": [f"{n:030}" for n in range(251)]}),
            "limit.long_enum",
        ),
    ],
)
def test_each_limit_is_kept_to_the_last_one(
    within: dict[str, Any], beyond: dict[str, Any], rule: str
) -> None:
    profile = strict_profile("openai", "2024-08")

    strict_schema(within, profile)

    assert _refusal(beyond, profile).rule == rule


NAMES = [
    *("calendar.respond", "calendar_respond", "Dockerfile scan", "a/b", "", "ß", "a b", "a  b"),
    *("x" * 64 + "_one", "x" * 64 + "_two"),
]


@EACH
def test_names_on_the_wire_are_legal_distinct_and_the_same_in_any_order(
    profile: StrictProfile,
) -> None:  # B029
    wire = wire_names(NAMES, profile)

    assert sorted(wire.values()) == sorted(NAMES)
    assert all(set(name) <= {*string.ascii_letters, *string.digits, "_", "-"} for name in wire)
    assert all(0 < len(name) <= 64 for name in wire)
    assert wire == wire_names(reversed(NAMES), profile)
    assert wire_name("calendar_respond", profile) == "calendar_respond"
    assert wire_name("calendar.respond", profile) == "calendar_respond_0f3e1526"


def test_two_tools_with_one_name_on_the_wire_are_an_error() -> None:  # B029
    with pytest.raises(SchemaRefused, match="alias_collision"):
        wire_names(["a.b", alias_of("a.b")], OPENAI)


CARD = _with(kind={"const": "card"}, no={"type": "string"})
BANK = _with(kind={"const": "bank"}, iban={"type": "string"})
PAY: dict[str, Any] = {
    "type": "object",
    "properties": {"pay": {"oneOf": [{"$ref": "#/$defs/Card"}, {"$ref": "#/$defs/Bank"}]}},
    "required": ["pay"],
    "$defs": {"Card": CARD, "Bank": BANK},
}


@EACH
def test_a_union_of_references_is_sent_as_anyof_and_checked_for_exactly_one(
    profile: StrictProfile,
) -> None:  # B031
    strict = _strict(PAY, profile)

    assert list(strict.schema["properties"]["pay"]) == ["anyOf"]
    assert "one_of" in _rules(strict)
    either = {"oneOf": [_optional(a={"type": "string"}), _optional(b={"type": "string"})]}
    spec = _spec("t", _with(x=either))
    assert isinstance(read_arguments('{"x": {"a": 1}}', spec), Valid)
    assert isinstance(read_arguments('{"x": {"a": "both"}}', spec), Invalid)


@EACH
def test_a_union_at_the_root_is_wrapped_and_unwrapped(profile: StrictProfile) -> None:  # B031
    declared = {"type": "object", "anyOf": PAY["properties"]["pay"]["oneOf"], "$defs": PAY["$defs"]}

    strict = _strict(declared, profile)

    assert "anyOf" not in strict.schema
    assert list(strict.schema["properties"]) == ["arguments"]
    assert strict.restore({"arguments": {"kind": "card", "no": "1"}}) == {"kind": "card", "no": "1"}


def test_an_optional_property_is_null_on_the_wire_and_absent_for_the_tool() -> None:
    strict = _strict(
        _optional(a={"type": "string"}, b={"type": "object", "properties": {"c": {"type": "integer"}}})
    )

    assert strict.schema["required"] == ["a", "b"]
    assert strict.restore({"a": None, "b": {"c": None}}) == {"b": {}}
    assert strict.encode({}) == {"a": None, "b": None}


def test_null_and_absent_stay_apart_where_they_differ() -> None:
    """ "Omit it to keep the filter, or pass null to clear it" is a real tool's description."""
    declared = _optional(filter={"anyOf": [{"type": "string"}, {"type": "null"}]})

    openai, anthropic = (_strict(declared, profile) for profile in PROFILES)

    assert openai.encode({}) == {"filter": {"left_out": True}}
    assert anthropic.encode({}) == {}
    for strict in (openai, anthropic):
        for value in ({}, {"filter": None}, {"filter": "x"}):
            assert strict.restore(strict.encode(value)) == value


def test_null_is_absent_where_it_is_the_default_anyway() -> None:
    strict = _strict(_optional(a={"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}))

    assert strict.schema["properties"]["a"]["type"] == ["string", "null"]
    assert strict.restore({"a": None}) == {"a": None}
    assert strict.encode({}) == {"a": None}


def test_beyond_the_limit_of_unions_optional_ones_are_left_out_of_required() -> None:
    declared = _optional(**{f"p{n}": {"type": "string"} for n in range(40)})

    strict = _strict(declared, ANTHROPIC)

    size = size_of(strict.schema)
    assert (size.unions, size.optional) == (16, 24)
    assert (
        _refusal(_optional(**{f"p{n}": {"type": "string"} for n in range(41)}), ANTHROPIC).rule
        == "limit.optional"
    )


class Kind(StrEnum):
    LEAF = "leaf"
    TREE = "tree"


class Node(BaseModel):
    """A tree."""

    kind: Kind = Kind.LEAF
    label: Annotated[str, Field(min_length=1, max_length=20, description="What it is called")]
    weight: Annotated[float, Field(ge=0)] | None = None
    children: list[Node] = []
    extra: dict[str, Any] = {}
    nearest: Node | None = None


@EACH
def test_a_recursive_model_has_a_strict_form(profile: StrictProfile) -> None:
    strict = _strict(Node.model_json_schema(), profile)

    tree = Node(label="a", children=[Node(label="b", extra={"x": [1, {"y": None}]})], nearest=Node(label="c"))
    value = json.loads(tree.model_dump_json())
    assert Node.model_validate(strict.restore(strict.encode(value))) == tree
    assert ("recursion_as_text" in _rules(strict)) is (profile is ANTHROPIC)


def test_what_cannot_be_said_is_told_to_the_model_and_checked_locally() -> None:
    declared = _with(a={"type": "string", "minLength": 3, "description": "A name."})

    strict = _strict(declared)

    assert strict.schema["properties"]["a"] == {"type": "string", "description": "A name. (minLength: 3)"}
    assert _rules(strict) == {"kept_local.minLength"}
    assert isinstance(read_arguments('{"a": "ab"}', _spec("t", declared)), Invalid)


@pytest.mark.parametrize("pattern", ["^a+$", "^(?:a|b)[0-9]{2}$", "^\\d{4}-\\d{2}$"])
def test_a_plain_pattern_is_sent(pattern: str) -> None:
    for profile in PROFILES:
        schema = strict_schema(_with(a={"type": "string", "pattern": pattern}), profile).schema
        assert schema["properties"]["a"]["pattern"] == pattern


@pytest.mark.parametrize(
    "pattern", ["a", "^a|b$", "^(?=a)a$", "^(a)\\1$", "^a\\b$", "^\\p{L}+$", "^a\\$", "^(?i)a$"]
)
def test_a_pattern_that_a_provider_may_refuse_or_read_otherwise_is_kept(pattern: str) -> None:
    for profile in PROFILES:
        try:
            strict = strict_schema(_with(a={"type": "string", "pattern": pattern}), profile)
        except SchemaRefused as refusal:
            assert refusal.rule == "broken_schema"
            continue
        assert "pattern" not in strict.schema["properties"]["a"]
        assert _rules(strict) == {"kept_local.pattern"}


@pytest.mark.parametrize(
    ("declared", "path", "rule"),
    [
        (_with(a={"enum": ["x"], "type": "boolean"}), "properties.a", "unsatisfiable"),
        (_with(a={"allOf": [{"type": "string"}, {"type": "integer"}]}), "properties.a", "unsatisfiable"),
        (_with(a={"$ref": "#/$defs/nowhere"}), "properties.a", "dangling_ref"),
        (_with(a={"$ref": "https://example.org/a.json"}), "properties.a.$ref", "external_ref"),
        (_with(a={"type": "string", "pattern": "("}), "properties.a.pattern", "broken_schema"),
        (_with(a={"type": "string", "minLength": -1}), "properties.a.minLength", "broken_schema"),
        (_with(a={"type": "wibble"}), "properties.a.type", "unknown_type"),
        (_with(a=False), "properties.a", "unsatisfiable"),
        (
            {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
            "",
            "unsatisfiable",
        ),
        (_with(a={"allOf": [{"$ref": "#/properties/a"}]}), "properties.a", "endless_ref"),
    ],
)
@EACH
def test_a_refusal_names_path_and_rule(
    profile: StrictProfile, declared: dict[str, Any], path: str, rule: str
) -> None:
    refusal = _refusal(declared, profile)

    assert (refusal.path, refusal.rule) == (path, rule)
    assert refusal.reason


def test_one_tool_without_a_strict_form_costs_the_others_nothing() -> None:
    bad = _with(point={"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]})
    specs = [_spec("good", _with(a={"type": "string"})), _spec("bad", bad), _spec("fine", _optional())]

    good, refused, fine = strict_tools(specs, OPENAI)

    assert isinstance(good, StrictTool) and isinstance(fine, StrictTool)
    assert refused == StrictRefusal("bad", "properties.point", "tuple", refused.reason)  # type: ignore[union-attr]


def test_what_a_request_has_no_room_for_is_refused_by_name_and_the_later_ones_go_on() -> None:
    many = _optional(**{f"p{n}": {"type": "string"} for n in range(12)})
    specs = [_spec("a", many), _spec("b", many), _spec("c", _with(a={"type": "string"}))]

    a, b, c = strict_tools(specs, ANTHROPIC)
    twenty_one = strict_tools([_spec(f"t{n}", _optional()) for n in range(21)], ANTHROPIC)

    assert isinstance(a, StrictTool) and isinstance(c, StrictTool)
    assert isinstance(b, StrictRefusal) and b.rule == "request_limit"
    assert [isinstance(tool, StrictTool) for tool in twenty_one] == [True] * 20 + [False]


def test_texts_are_rewritten_exactly_or_left_alone() -> None:
    tool = strict_tool(_spec("t", _optional(a={"type": "integer"}, b={"type": "number"})), OPENAI)
    assert isinstance(tool, StrictTool)

    assert tool.restore_text('{"a": 123456789012345678901234567890, "b": null}') == (
        '{"a":123456789012345678901234567890}'
    )
    assert tool.encode_text('{"a":1}') == '{"a":1,"b":null}'
    for broken in (
        '{"a": 1',
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        "[1]",
        '"x"',
        "",
        '{"a": 1e999}',
        "[" * 100_000,
    ):
        assert tool.restore_text(broken) == broken


def test_a_schema_that_needs_nothing_leaves_texts_as_they_are() -> None:
    tool = strict_tool(_spec("t", _with(a={"type": "integer"})), OPENAI)
    assert isinstance(tool, StrictTool)

    assert tool.restore_text('{ "a" : 1.0 }') == '{ "a" : 1.0 }'


def test_there_is_a_dated_source_for_every_profile_and_every_rule() -> None:
    for profile_id in profile_ids():
        provider, _, dated = profile_id.partition("-")
        profile = strict_profile(provider, dated)
        assert profile.id == profile_id
        assert profile.source.startswith("https://")
        assert all(fact.text and fact.source.startswith("https://") for fact in profile.facts.values())


def test_a_profile_there_is_not_is_an_error_that_lists_those_there_are() -> None:
    for provider, dated in (("nobody", None), ("openai", "1999-01")):
        with pytest.raises(InputError, match="openai-2024-08"):
            strict_profile(provider, dated)


def test_equal_schemas_have_equal_bytes() -> None:
    schema = Node.model_json_schema()
    texts = {json.dumps(strict_schema(copy.deepcopy(schema), OPENAI).schema) for _ in range(3)}

    assert len(texts) == 1


def test_the_judge_of_the_corpus_refuses_what_the_providers_refuse() -> None:
    """The judge can say no: each planted fault is one it names."""
    good = _strict(_with(a={"type": "string"})).schema
    planted: list[tuple[str, dict[str, Any]]] = [
        ("additionalProperties", {**good, "additionalProperties": True}),
        ("not required", {**good, "required": []}),
        ("keyword oneOf", {**good, "properties": {"a": {"oneOf": [{"type": "string"}]}}}),
        ("root: anyOf", {**good, "anyOf": []}),
        ("array without items", {**good, "properties": {"a": {"type": "array"}}}),
        ("format", {**good, "properties": {"a": {"type": "string", "format": "iri"}}}),
        ("leads nowhere", {**good, "properties": {"a": {"$ref": "#/$defs/x"}}}),
        ("beside $ref", {**good, "properties": {"a": {"$ref": "#/$defs/x", "description": "d"}}}),
        ("type", {**good, "properties": {"a": {"type": "dict"}}}),
        ("look-around", {**good, "properties": {"a": {"type": "string", "pattern": "^(?=a)a$"}}}),
    ]
    assert problems(good, "openai") == []
    for words, schema in planted:
        assert words in "; ".join(problems(schema, "openai"))


def test_the_tries_of_the_corpus_find_what_a_wrong_codec_does() -> None:
    from toolfleet.adapters.llm.strict.codec import SAME

    declared = _with(rates={"type": "object", "additionalProperties": {"type": "number"}})
    strict = strict_schema(declared, OPENAI)

    assert check_values(declared, strict, random.Random(1)) > 0
    with pytest.raises(AssertionError):
        check_values(declared, StrictSchema(strict.schema, strict.notes, SAME), random.Random(1))


def test_every_rule_has_its_words_and_every_fact_it_rests_on_is_in_the_profiles() -> None:
    for rules in (NOTES, REFUSALS):
        for rule in rules.values():
            assert rule.about
            assert not rule.fact or any(rule.fact in profile.facts for profile in PROFILES), rule.fact
    for provider in PROFILES:
        limits = {f"limit.{name}" for name, value in asdict(provider.limits).items() if value is not None}
        assert limits - {"limit.long_enum_values", "limit.long_enum_chars"} <= provider.facts.keys()


def test_two_branches_that_would_be_taken_for_each_other_get_boxes() -> None:
    """[null, 1] as JSON texts looks like a list of texts; it must come back as what it was."""
    declared = _with(a={"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array"}]})

    for profile in PROFILES:
        strict = _strict(declared, profile)
        for value in (["null", "1"], [None, 1], [], [["a"]]):
            assert strict.restore(strict.encode({"a": value})) == {"a": value}


def test_a_schema_that_leads_to_itself_and_never_into_a_value_is_refused() -> None:
    endless = {**_with(a={"$ref": "#/$defs/a"}), "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}

    assert _refusal(endless).rule == "endless_ref"


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(?=a)(a+)+$", "^(\\w+\\s?)*\\1$", "^(.*a){25}$", "^(a|a)*?(?<!b)$"]
)
def test_a_hostile_pattern_costs_no_time(pattern: str) -> None:
    """Each of these keeps a backtracking engine busy for hours; a worker has to be done at once."""
    spec = _spec("t", _with(a={"type": "string", "pattern": pattern}))
    text = json.dumps({"a": "a" * 5_000 + "!"})
    started = time.process_time()

    for profile in PROFILES:
        strict_tool(spec, profile)
    read = read_arguments(text, spec)

    assert time.process_time() - started < 2.0
    assert isinstance(read, Invalid)


def test_a_schema_that_unfolds_without_measure_is_refused_at_once() -> None:
    doubling: dict[str, Any] = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(40)
    }
    doubling["a40"] = {"type": "string"}

    started = time.process_time()
    refusal = _refusal({**_with(a={"$ref": "#/$defs/a0"}), "$defs": doubling})

    assert refusal.rule == "too_large"
    assert time.process_time() - started < 1.0


def test_parts_that_lead_to_each_other_endlessly_are_refused() -> None:
    one = {"allOf": [{"type": "object"}, {"type": "object", "additionalProperties": {"$ref": "#/$defs/one"}}]}
    two = {"type": "object", "additionalProperties": {"allOf": [{"$ref": "#/$defs/one"}, {"type": "object"}]}}

    refusal = _refusal({**_with(a={"allOf": [one, two]}), "$defs": {"one": {"allOf": [one, two]}}})

    assert refusal.rule in ("too_deep", "too_large")


def test_a_tool_that_has_to_be_strict_is_refused_at_its_registration() -> None:  # B019
    async def move(point: tuple[int, str]) -> str:
        """Move a point."""
        return str(point)

    with pytest.raises(
        InvalidDefinition, match=r"properties.point: the places of this list differ.*\(tuple\)"
    ):
        tool(strict="required")(move)
    assert tool()(move).spec.strict == "when_possible"


def test_a_tool_is_sent_strict_by_choice() -> None:
    declared = _optional(a={"type": "string"})
    specs = [
        ToolSpec(name=name, description="d", parameters=declared, strict=strict)
        for name, strict in (("one", "when_possible"), ("two", "never"))
    ]

    forms = forms_of(specs, PROVIDER_PROFILES["openai"])

    assert [form.strict for form in forms.forms] == [True, False]
    assert [form.name for form in forms.forms] == ["one", "two"]
    assert forms.forms[1].parameters == declared


def test_a_name_given_twice_beside_declared_ones_is_refused_and_says_so() -> None:
    spec = _spec("t", {**_optional(x={"type": "integer"}), "additionalProperties": True})
    strict = strict_tool(spec, OPENAI)
    assert isinstance(strict, StrictTool)

    for names in (["a", "a"], ["x"]):
        others = [{"key": name, "value": 1} for name in names]
        read = read_arguments(strict.restore_text(json.dumps({"x": 1, "other_properties": others})), spec)
        assert isinstance(read, Invalid)
        assert "a key appears twice" in read.message
