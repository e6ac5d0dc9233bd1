"""cases/calls: what a user asked for, and the calls that are right for it.

The recorded arguments go the whole way for both providers: into the strict form of their tool, which has to take them,
back out of it, and through our reading of arguments, whose answer has to be that of an independent validator on the
schema as it was published: right ones are taken, and ones that contradict their own schema refused. A recorded null for
an argument that may be left out and takes no null is read as left out, as strict mode means it. Then each is spoiled in several ways, and nothing
spoiled is taken.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jsonschema
import jsonschema_rs

from tests.corpus import cases
from tests.corpus.cases import Case
from tests.corpus.check_schemas import PROVIDERS
from tests.corpus.registry import PASSED, Verdict, checker, failed, refused
from toolfleet.adapters.llm.strict.profiles import strict_profile
from toolfleet.adapters.llm.strict.tool import StrictRefusal, strict_tool
from toolfleet.schemas.dialects import SchemaRefused, plain
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.arguments import Valid, closed, read_arguments

COMBINATIONS_MAX = 32  # of accepted values a call; each value is in one of them
TOOLS = "calls/bfcl_multi_turn_tools.jsonl"
ABSENT = object()


@checker("calls/bfcl_parallel.jsonl", "calls/bfcl_single.jsonl", "calls/bfcl_no_call.jsonl")
def check_calls(case: Case) -> Verdict:
    specs = {function["name"]: _spec(function) for function in case["functions"]}
    found = set()
    for call in case["expected_calls"]:
        spec = specs[call["name"]]
        outcomes = {_outcome(spec, arguments) for arguments in right_arguments(call["arguments_any_of"])}
        found |= set() if "taken" in outcomes else outcomes
    return refused(*sorted(found)) if found else PASSED


@checker(TOOLS)
def check_tool(case: Case) -> Verdict:
    try:
        _spec(case["function"])
    except SchemaRefused as refusal:
        return refused(refusal.rule)
    return PASSED


@checker("calls/bfcl_multi_turn.jsonl")
def check_conversation(case: Case) -> Verdict:
    if cases.path_of(TOOLS) is None:
        return refused("no-file-of-its-tools")
    known = _tools()
    found = set()
    for expression in (one for turn in case["expected_calls_per_turn"] for one in turn):
        name, arguments = _read_call(expression, known)
        if name not in known:
            return failed(f"no tool {name}")
        found |= {_outcome(known[name], arguments)} - {"taken"}
    return refused(*sorted(found)) if found else PASSED


@functools.cache
def _tools() -> dict[str, ToolSpec]:
    return {case["function"]["name"]: _spec(case["function"]) for case in cases.read(TOOLS)}


def _spec(function: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(name="tool", description="", parameters=plain(function["parameters"]).schema)


Outcome = Literal["taken", "contradicts_schema", "undeclared_inside"]


def _outcome(spec: ToolSpec, recorded: Mapping[str, Any]) -> Outcome:
    """What comes of recorded arguments; asserts that every way says the same, and that spoiling is noticed."""
    judge = jsonschema.Draft202012Validator(closed(spec.parameters))
    arguments = _meant(recorded, spec, judge)
    taken = _read(spec, arguments, judge)
    outcomes = set[Outcome]()
    for provider in PROVIDERS:
        tool = strict_tool(spec, strict_profile(provider))
        for spoiled in _spoiled(arguments):
            _read(spec, spoiled if isinstance(tool, StrictRefusal) else tool.restore(spoiled), judge)
        if isinstance(tool, StrictRefusal) or not taken:
            continue
        text = tool.encode_text(json.dumps(arguments))
        assert read_arguments(tool.restore_text(text), spec) == read_arguments(json.dumps(arguments), spec)
        if jsonschema_rs.is_valid(tool.parameters, json.loads(text)):
            outcomes.add("taken")
        else:  # JSON Schema leaves an object open that says nothing about it; no strict form can
            assert any(note.rule == "closed_object" for note in tool.notes), f"not taken on the wire: {text}"
            outcomes.add("undeclared_inside")
    assert len(outcomes) < 2, f"the providers differ about {arguments}"
    return "contradicts_schema" if not taken else next(iter(outcomes), "taken")


def _meant(
    recorded: Mapping[str, Any], spec: ToolSpec, judge: jsonschema.Draft202012Validator
) -> dict[str, Any]:
    required = spec.parameters.get("required", ())
    properties = spec.parameters.get("properties", {})
    return {
        name: value
        for name, value in recorded.items()
        if value is not None
        or name in required
        or judge.evolve(schema=properties.get(name, True)).is_valid(None)
    }


def _read(spec: ToolSpec, arguments: Any, judge: jsonschema.Draft202012Validator) -> bool:
    taken = isinstance(read_arguments(json.dumps(arguments), spec), Valid)
    assert taken == judge.is_valid(arguments), f"taken: {taken}, the schema says otherwise: {arguments}"
    return taken


def _spoiled(arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One required argument gone, one that nobody declared, and values of another type."""
    for name in arguments:
        yield {other: value for other, value in arguments.items() if other != name}
        for wrong in ({"not": "this"}, [[]], "not this", -1.5):
            yield {**arguments, name: wrong}
    yield {**arguments, "nobody declared this": 1}


def right_arguments(accepted: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Arguments the recording takes for right: every accepted value is in one of them ("": left out)."""
    choices = {name: list(_values(values)) for name, values in accepted.items()}
    longest = min(max(map(len, choices.values()), default=1), COMBINATIONS_MAX)
    for place in range(longest):
        chosen = {name: values[place % len(values)] for name, values in choices.items()}
        yield {name: value for name, value in chosen.items() if value is not ABSENT}


def _values(accepted: list[Any]) -> Iterator[Any]:
    if not accepted:
        yield ABSENT
    for value in accepted:
        match value:
            case "":
                yield ABSENT
            case dict():
                yield _members(value)
            case [dict(), *_]:
                yield [_members(one) if isinstance(one, dict) else one for one in value]
            case _:
                yield value


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    """Inside an object every member has its own list of accepted values."""
    first = {
        name: next(_values(values)) if isinstance(values, list) else values for name, values in value.items()
    }
    return {name: one for name, one in first.items() if one is not ABSENT}


def _read_call(expression: str, known: Mapping[str, ToolSpec]) -> tuple[str, dict[str, Any]]:
    """`mv('a', destination='b')` -> the tool's name and its arguments by name."""
    call = ast.parse(expression, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), f"no call: {expression}"
    name = call.func.id
    declared = list(known[name].parameters.get("properties", ())) if name in known else []
    by_place = dict(zip(declared, (ast.literal_eval(one) for one in call.args), strict=False))
    return name, by_place | {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
