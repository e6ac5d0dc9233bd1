"""Schemas of strangers, every keyword wherever it may stand: each is converted or refused, and nothing gets through that
its author ruled out. What a schema means is asked of a validator of its own draft, with nothing of ours in between.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.corpus.check_schemas import PROVIDERS, check_strict
from tests.corpus.instances import Instances, NoInstance
from tests.unit.foreign_schemas import DRAFT_4, DRAFT_7, DRAFT_2019, DRAFT_2020, DRAFTS, documents, validator
from toolfleet.adapters.llm.strict.profiles import strict_profile
from toolfleet.adapters.llm.strict.rules import REFUSALS, rule_of
from toolfleet.adapters.llm.strict.tool import StrictTool, strict_schema, strict_tool
from toolfleet.schemas.dialects import SchemaRefused, plain
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.arguments import Unusable, Valid, read_arguments

ROOT = Path(__file__).parents[2]
VALUES = 8
ANY_DRAFT = st.sampled_from(list(DRAFTS)).flatmap(lambda draft: st.tuples(st.just(draft), documents(draft)))
PHASES = (
    Phase.explicit,
    Phase.generate,
    Phase.shrink,
)  # to explain, every line would be traced: ten times as slow
SLOW_TO_MAKE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check(document: dict[str, Any], draft: str, seed: int) -> None:
    """Everything that is promised of one foreign schema."""
    means = validator(document, draft).is_valid
    before = copy.deepcopy(document)
    try:
        read = plain(document).schema
    except SchemaRefused as refusal:
        assert refusal.rule in REFUSALS and refusal.reason
        return
    assert document == before, "the input was changed"
    assert json.dumps(plain(read).schema) == json.dumps(read), "reading it again changes it"
    _means_the_same(means, read, random.Random(seed))
    for provider in PROVIDERS:
        try:
            strict = check_strict(document, provider, random.Random(seed))
        except SchemaRefused as refusal:
            assert refusal.rule in REFUSALS and refusal.reason
            continue
        assert all(rule_of(note.rule).about for note in strict.notes)
        _nothing_gets_through(document, means, provider, random.Random(seed))


def _means_the_same(means: Any, read: dict[str, Any], source: random.Random) -> None:
    """The schema as it is read takes exactly what the one that was written takes."""
    reads = validator(read, DRAFT_2020).is_valid
    made = Instances(read, source)
    for number in range(2 * VALUES):
        try:
            value = made.anything() if number % 2 else made.make(read)
        except NoInstance:
            continue
        assert means(value) == reads(value), f"{value}: declared {means(value)}, read {reads(value)}"


def _nothing_gets_through(document: dict[str, Any], means: Any, provider: str, source: random.Random) -> None:
    """What a model may write in the strict form, once it has come back and was checked, is what was declared."""
    spec = ToolSpec(name="t", description="d", parameters=document)
    tool = strict_tool(spec, strict_profile(provider))
    assert isinstance(tool, StrictTool)
    for _ in range(VALUES):
        try:
            written = Instances(tool.parameters, source).make(tool.parameters)
        except NoInstance:
            continue
        found = read_arguments(tool.restore_text(json.dumps(written)), spec)
        assert not isinstance(found, Unusable)
        if isinstance(found, Valid):
            assert means(json.loads(found.text)), f"{written} gets through as {found.text}"


@pytest.mark.timeout(600)  # some seconds, where nobody else wants the cores
@settings(max_examples=40, derandomize=True, deadline=None, phases=PHASES, suppress_health_check=SLOW_TO_MAKE)
@given(ANY_DRAFT, st.integers(0, 2**16))
def test_a_foreign_schema_is_converted_or_refused_and_nothing_gets_through(
    made: tuple[str, dict[str, Any]], seed: int
) -> None:
    check(made[1], made[0], seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=5_000, deadline=None, phases=PHASES, suppress_health_check=SLOW_TO_MAKE)
@given(ANY_DRAFT, st.integers(0, 2**16))
def test_many_foreign_schemas_are_converted_or_refused(made: tuple[str, dict[str, Any]], seed: int) -> None:
    check(made[1], made[0], seed)


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
LEADS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {  # schema, what it takes, what it does not
    "percent-encoded, and escaped twice": (
        _object(
            {
                "a": {"$ref": "#/$defs/e%20f"},
                "b": {"$ref": "#/$defs/50%25"},
                "c": {"$ref": "#/$defs/a~1b~0c"},
                "d": {"$ref": "#/$defs/%2520"},
            },
            **{"$defs": {"e f": TEXT, "50%": NUMBER, "a/b~c": NUMBER, "%20": TEXT}},
        ),
        [{"a": "x", "b": 1, "c": 2, "d": "y"}],
        [{"a": 1, "b": 1, "c": 2, "d": "y"}, {"a": "x", "b": 1, "c": 2, "d": 1}],
    ),
    "an identifier inside, and what it means for those around": (
        _object(
            {"a": {"$ref": "item"}, "b": {"$ref": "item#/$defs/n"}, "c": {"$ref": "#/$defs/n"}},
            **{
                "$id": "https://example.org/root",
                "$defs": {
                    "n": NUMBER,
                    "i": {
                        "$id": "item",
                        **_object({"n": {"$ref": "#/$defs/n"}}),
                        "$defs": {"n": TEXT},
                    },
                },
            },
        ),
        [{"a": {"n": "x"}, "b": "x", "c": 1}],
        [{"a": {"n": 1}, "b": "x", "c": 1}, {"a": {"n": "x"}, "b": 1, "c": 1}],
    ),
    "an anchor": (
        _object({"a": {"$ref": "#text"}}, **{"$defs": {"t": {"$anchor": "text", **TEXT}}}),
        [{"a": "x"}],
        [{"a": 1}],
    ),
    "an anchor in the words of draft 7": (
        _object(
            {"a": {"$ref": "#text"}}, **{"$schema": DRAFT_7, "definitions": {"t": {"$id": "#text", **TEXT}}}
        ),
        [{"a": "x"}],
        [{"a": 1}],
    ),
    "a dynamic reference": (
        _object({"a": {"$dynamicRef": "#text"}}, **{"$defs": {"t": {"$dynamicAnchor": "text", **TEXT}}}),
        [{"a": "x"}],
        [{"a": 1}],
    ),
    "a place that is written elsewhere": (
        _object(
            {
                "a": {"type": "array", "items": [TEXT, TEXT], "additionalItems": False},
                "b": {"$ref": "#/properties/a/items/0"},
            },
            **{"$schema": DRAFT_7},
        ),
        [{"a": ["x"], "b": "x"}],
        [{"a": ["x"], "b": 1}, {"a": ["x", "y", "z"], "b": "x"}],
    ),
    "constraints beside a reference, which count": (
        _object({"a": {"$ref": "#/$defs/t", "minLength": 2}}, **{"$defs": {"t": TEXT}}),
        [{"a": "xx"}],
        [{"a": "x"}],
    ),
    "constraints beside a reference, which do not in draft 7": (
        _object(
            {"a": {"$ref": "#/definitions/t", "minLength": 2}},
            **{"$schema": DRAFT_7, "definitions": {"t": TEXT}},
        ),
        [{"a": "xx"}, {"a": "x"}],
        [{"a": 1}],
    ),
    "a boolean limit of draft 4": (
        _object({"a": {"type": "integer", "minimum": 1, "exclusiveMinimum": True}}, **{"$schema": DRAFT_4}),
        [{"a": 2}],
        [{"a": 1}],
    ),
    "a recursive reference of 2019-09": (
        {
            "$schema": DRAFT_2019,
            "type": "object",
            "properties": {"a": {"$recursiveRef": "#"}},
            "additionalProperties": False,
        },
        [{}, {"a": {"a": {}}}],
        [{"a": {"b": {}}}, {"a": 1}],
    ),
}


@pytest.mark.parametrize("name", LEADS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_references_and_drafts_mean_what_their_words_say(name: str, provider: str) -> None:
    document, taken, refused = LEADS[name]
    spec = ToolSpec(name="t", description="d", parameters=document)
    read = validator(plain(document).schema, DRAFT_2020).is_valid

    tool = strict_tool(spec, strict_profile(provider))

    assert isinstance(tool, StrictTool), tool
    check(document, document.get("$schema", DRAFT_2020), 7)
    for value in taken:
        assert read(value)
        back = read_arguments(tool.restore_text(tool.encode_text(json.dumps(value))), spec)
        assert isinstance(back, Valid) and json.loads(back.text) == value
    for value in refused:
        assert not read(value)
        assert not isinstance(read_arguments(json.dumps(value), spec), Valid)


NULLABLE_PARTS = {"nullable": True, "anyOf": [{"type": "string", "minLength": 2}, {"type": "boolean"}]}


def test_a_pointer_into_what_null_was_added_to_still_leads_to_the_same() -> None:
    document = _object({"a": NULLABLE_PARTS, "b": {"$ref": "#/properties/a/anyOf/0"}})

    read = validator(plain(document).schema, DRAFT_2020).is_valid

    assert read({"a": None, "b": "xx"}) and read({"a": True, "b": "xx"})
    assert not read({"a": True, "b": True}) and not read({"a": True, "b": None})


@pytest.mark.parametrize(
    ("declared", "taken", "refused"),
    [
        ({"type": "string", "nullable": True}, [None, "x"], [1]),
        ({"type": "String"}, ["x"], [None, 1]),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, [1], [0]),
        ({"type": "string", "enum": ["a", "b"], "nullable": True}, [None, "a"], ["c"]),
    ],
    ids=["nullable", "a type of another language", "draft 4 without its name", "nullable enum"],
)
def test_what_comes_back_is_checked_as_the_strict_form_was_meant(
    declared: dict[str, Any], taken: list[Any], refused: list[Any]
) -> None:
    spec = ToolSpec(name="t", description="d", parameters=_object({"a": declared}))

    assert all(isinstance(read_arguments(json.dumps({"a": one}), spec), Valid) for one in taken)
    assert not any(isinstance(read_arguments(json.dumps({"a": one}), spec), Valid) for one in refused)


ENDLESS: list[dict[str, Any]] = [
    _object({"a": {"type": "string", "anyOf": [{"$ref": "#/properties/a", "minimum": 1}, NUMBER]}}),
    _object({"a": {"allOf": [{"$ref": "#/properties/a"}]}}),
    _object(
        {"a": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}}
    ),
    _object(
        {"a": {"$ref": "#/$defs/x"}},
        **{
            "$defs": {
                "x": {"oneOf": [{"allOf": [{"$ref": "#/$defs/y"}]}, {"minLength": 1, "$ref": "#/$defs/y"}]},
                "y": {"oneOf": [{"allOf": [{"$ref": "#/$defs/x"}]}, {"minLength": 2, "$ref": "#/$defs/x"}]},
            }
        },
    ),
]


@pytest.mark.parametrize("document", ENDLESS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_leads_to_itself_without_a_value_is_refused_at_its_place(
    document: dict[str, Any], provider: str
) -> None:
    with pytest.raises(SchemaRefused) as refusal:
        strict_schema(document, strict_profile(provider))

    assert refusal.value.rule in ("endless_ref", "too_deep", "broken_schema", "unsatisfiable")
    assert refusal.value.reason


def test_a_dynamic_reference_with_two_places_to_lead_to_is_refused() -> None:
    named = {"$dynamicAnchor": "x", **TEXT}
    document = _object(
        {"a": {"$dynamicRef": "#x"}},
        **{
            "$id": "https://example.org/r",
            "$defs": {"t": named, "u": {"$id": "other", "$defs": {"t": named}}},
        },
    )

    with pytest.raises(SchemaRefused) as refusal:
        plain(document)

    assert (refusal.value.path, refusal.value.rule) == ("properties.a.$dynamicRef", "dynamic_ref")


SAME_BYTES = """
import hashlib, json, sys
from tests.corpus.cases import read
from tests.corpus.check_schemas import PROVIDERS, parameters_of
from tests.unit.test_strict_foreign import LEADS
from toolfleet.adapters.llm.strict.profiles import strict_profile
from toolfleet.adapters.llm.strict.tool import strict_schema
from toolfleet.schemas.dialects import SchemaRefused

made = hashlib.sha256()
for document in [one[0] for one in LEADS.values()] + [parameters_of(one) for one in read("schemas/mcp_tools.jsonl")][:40]:
    for provider in PROVIDERS:
        try:
            found = strict_schema(document, strict_profile(provider))
            text = json.dumps([found.schema, [str(note) for note in found.notes]])
        except SchemaRefused as refusal:
            text = str(refusal)
        made.update(text.encode())
print(made.hexdigest())
"""


@pytest.mark.timeout(600)
def test_every_process_writes_the_same_bytes() -> None:
    """Whatever order its sets have."""
    said = [
        subprocess.run(
            [sys.executable, "-c", SAME_BYTES],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert said[0] == said[1] and len(said[0].strip()) == 64
