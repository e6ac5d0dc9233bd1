"""cases/schemas: real tool schemas. Each has a strict form for both providers, or a refusal with path and reason.

The strict form is judged by rules written down independently (`provider_rules`), converted again, and tried with
values in both directions: what the published schema takes, the strict form takes and gives back unchanged; what the
strict form takes is, given back, taken by the published schema, unless a note says what is only checked locally.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import jsonschema_rs

from tests.corpus.cases import Case
from tests.corpus.instances import Instances, NoInstance
from tests.corpus.provider_rules import problems
from tests.corpus.registry import PASSED, Verdict, checker, refused
from toolfleet.adapters.llm.strict.codec import NamedTwice
from toolfleet.adapters.llm.strict.profiles import strict_profile
from toolfleet.adapters.llm.strict.tool import StrictSchema, strict_schema
from toolfleet.schemas.dialects import SchemaRefused, plain
from toolfleet.workers.decision.arguments import closed

PROVIDERS = ("openai", "anthropic")
VALUES = 5  # of each direction, a schema and provider
# Notes of what the strict form takes and the declared schema refuses: those values are caught locally.
LOOSER = (
    "kept_local.",
    "one_of",
    "json_text",
    "recursion_as_text",
    "map_as_list",
    "others_as_list",
    "free_form",
)


def parameters_of(case: Case) -> dict[str, Any]:
    """The schema of a case as its author published it."""
    found = case["function"]["parameters"] if "function" in case else case["tool"]["inputSchema"]
    assert isinstance(found, dict)
    return found


@checker("schemas/bfcl_functions.jsonl", "schemas/mcp_tools.jsonl")
def check_schema(case: Case) -> Verdict:
    declared = parameters_of(case)
    rules = []
    for provider in PROVIDERS:
        try:
            check_strict(declared, provider, random.Random(case["id"]))
        except SchemaRefused as refusal:
            assert refusal.reason
            rules.append(f"{provider}: {refusal.rule}")
    return refused(*rules) if rules else PASSED


def check_strict(declared: dict[str, Any], provider: str, source: random.Random) -> StrictSchema:
    """Everything that holds for a converted schema. Raises SchemaRefused where there is none."""
    before = copy.deepcopy(declared)
    strict = strict_schema(declared, strict_profile(provider))
    assert declared == before, "the input was changed"
    assert problems(strict.schema, provider) == []
    again = strict_schema(strict.schema, strict_profile(provider))
    assert json.dumps(again.schema) == json.dumps(strict.schema), "converting it again changes it"
    check_values(declared, strict, source)
    return strict


def check_values(declared: dict[str, Any], strict: StrictSchema, source: random.Random) -> int:
    """Values in both directions; how many could be tried."""
    read = closed(plain(declared).schema)
    is_declared = jsonschema_rs.validator_for(read).is_valid
    is_strict = jsonschema_rs.validator_for(strict.schema).is_valid
    looser = any(note.rule.startswith(LOOSER) for note in strict.notes)
    tried = 0
    for _ in range(VALUES):
        for schema, there, check in (
            (read, is_declared, _check_encoded),
            (strict.schema, is_strict, _check_restored),
        ):
            try:
                value = Instances(schema, source).make(schema)
            except NoInstance:
                continue
            if isinstance(value, dict) and there(value):  # arguments are always an object
                check(value, strict, is_declared, is_strict, looser)
                tried += 1
    return tried


def _check_encoded(value: Any, strict: StrictSchema, is_declared: Any, is_strict: Any, looser: bool) -> None:
    encoded = strict.encode(value)
    assert is_strict(encoded), f"declared and not strict: {value} as {encoded}"
    back = strict.restore(encoded)
    assert _without_default_nulls(back, value) == value, f"{value} comes back as {back}"
    assert is_declared(back)


def _check_restored(value: Any, strict: StrictSchema, is_declared: Any, is_strict: Any, looser: bool) -> None:
    try:
        back = strict.restore(value)
    except NamedTwice:
        return
    assert is_declared(back) or looser, f"strict and not declared: {value} as {back}"
    if is_declared(back):
        assert is_strict(strict.encode(back)), f"{back} has no strict form any more"


def _without_default_nulls(back: Any, value: Any) -> Any:
    """What came back, without the nulls that were not there: absent and null are the same by default."""
    match back, value:
        case dict(), dict():
            return {
                key: _without_default_nulls(inner, value.get(key))
                for key, inner in back.items()
                if inner is not None or key in value
            }
        case list(), list() if len(back) == len(value):
            return [_without_default_nulls(*pair) for pair in zip(back, value, strict=True)]
        case _:
            return back
