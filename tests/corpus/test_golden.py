"""The golden replay compares everything but the order of keys, and no allowed difference is allowed for nothing."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.corpus import cases, golden
from tests.corpus.golden import ABSENT, Difference, Row


def own_cases() -> list[cases.Case]:
    return list(cases.read("llm/sequences.jsonl", cases.OWN_FOLDER))


def test_every_row_is_used_and_the_first_that_fits_is_enough() -> None:
    allowed = golden.rows()
    used: set[int] = set()
    for case in own_cases():
        file = golden.file_of(case)
        for found in golden.differences(case):
            used.update([place for place, row in enumerate(allowed) if row.allows(file, found)][:1])

    unused = [
        (row.file, row.path, row.ours, row.recorded) for place, row in enumerate(allowed) if place not in used
    ]
    assert unused == [], "take the row out"
    assert all(row.reason.endswith(".") for row in allowed)


def test_every_answer_with_calls_is_replayed() -> None:
    replayed = missed = 0
    for case in own_cases():
        steps = {step for step, _, _ in golden.replayed(case)}
        replayed += len(steps)
        for place, step in enumerate(case["steps"][:-1]):
            answer = json.dumps(step["response"])
            calls = '"tool_use"' in answer or '"function_call"' in answer or '"tool_calls": [{' in answer
            missed += calls and step["status"] == 200 and place not in steps

    assert (replayed, missed) == (161, 0)


Change = tuple[str, str, Any]


@pytest.mark.parametrize("wire", ["chat_completions", "responses", "messages"])
def test_a_result_under_another_id_or_out_of_its_place_is_seen(wire: str) -> None:
    case = next(
        case for case in own_cases() if case["api"] == wire and any(True for _ in golden.replayed(case))
    )
    file, allowed = golden.file_of(case), golden.rows()
    step, built, _ = next(golden.replayed(case))
    changed = copy.deepcopy(case)
    text = json.dumps(changed["steps"][step + 1]["request"])
    id_ = next(key for key in _ids(built) if text.count(key) >= 2)
    changed["steps"][step + 1]["request"] = json.loads(text.replace(id_, id_ + "x", 1))

    found = golden.differences(changed)

    assert any(not any(row.allows(file, one) for row in allowed) for one in found)


def _ids(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [
            value[key]
            for key in ("call_id", "tool_call_id", "tool_use_id")
            if isinstance(value.get(key), str)
        ]
        return own + [key for inner in value.values() for key in _ids(inner)]
    return [key for inner in value for key in _ids(inner)] if isinstance(value, list) else []


def test_a_row_allows_its_own_values_only() -> None:
    row = Row("chat_completions/*", "*", "/messages/*/content", None, ABSENT, "because.")

    assert row.allows("chat_completions/h/x.yaml", Difference(0, "/messages/3/content", None, ABSENT))
    assert not row.allows("chat_completions/h/x.yaml", Difference(0, "/messages/3/content", "text", ABSENT))
    assert not row.allows("chat_completions/h/x.yaml", Difference(0, "/messages/3/content", None, "text"))
    assert not row.allows("responses/h/x.yaml", Difference(0, "/messages/3/content", None, ABSENT))
    same = Row("*", "*", "*", "<same json>", "<same json>", "because.")
    assert same.allows("f", Difference(0, "/a", '{"a":1}', '{"a": 1}'))
    assert not same.allows("f", Difference(0, "/a", '{"a":1}', '{"a": 2}'))
