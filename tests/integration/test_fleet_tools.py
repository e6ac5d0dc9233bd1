"""Real tools in real child processes, through the whole embedded fleet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration import fleet_tools as tools
from toolfleet import CallOutcome, Fleet, RunStatus, ScriptedModel, call, calls, say
from toolfleet.client import RunResult

WAIT_S = 60.0


def _once(first: Any) -> Callable[[list[dict[str, Any]], list[dict[str, Any]]], Any]:
    """A model that makes one turn of calls, and then answers with the statuses it was told."""

    def model(messages: list[dict[str, Any]], definitions: list[dict[str, Any]]) -> Any:
        results = [json.loads(m["content"]) for m in messages if m["role"] == "tool"]
        return say(",".join(r["status"] for r in results)) if results else first

    return model


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., RunResult]:
    """Run one agent with these tools once; the ledger of the run is `ledger` in tmp_path."""

    def run(first: Any, *offered: Any) -> RunResult:
        fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(_once(first)))
        fleet.agent("desk", model="scripted", tools=offered)
        with fleet:
            context = {"ledger": str(tmp_path / "ledger")}
            return fleet.submit("desk", "go", context=context).wait(timeout_s=WAIT_S)

    return run


def _acts(tmp_path: Path) -> int:
    path = tmp_path / "ledger"
    return len(path.read_text().splitlines()) if path.exists() else 0


def _told(result: RunResult) -> dict[str, Any]:
    (only,) = result.results
    return dict(json.loads(only.content))


def test_a_plain_function_and_a_coroutine_answer_in_one_turn(ask: Callable[..., RunResult]) -> None:
    result = ask(calls(call("add", a=2, b=3), call("echo", text="hi")), tools.add, tools.echo)

    assert result.status is RunStatus.COMPLETED and result.output == "success,success"
    assert [json.loads(r.content)["data"] for r in result.results] == [5, {"text": "hi"}]


def test_an_exception_is_not_tried_again_and_its_text_stays_inside(
    ask: Callable[..., RunResult], tmp_path: Path
) -> None:
    result = ask(call("raises"), tools.raises)

    assert result.ok and result.results[0].outcome is CallOutcome.FAILED
    assert _acts(tmp_path) == 1
    assert "hunter2" not in result.results[0].content and "ValueError" in _told(result)["message"]


@pytest.mark.parametrize(
    ("declared", "attempts", "reason"),
    [(tools.hangs, 3, "timeout"), (tools.exits, 2, "child_died"), (tools.segfaults, 3, "worker_lost")],
    ids=["hangs", "exits", "segfaults"],
)
def test_a_read_that_fails_in_passing_is_tried_again_and_then_failed(
    ask: Callable[..., RunResult], tmp_path: Path, declared: Any, attempts: int, reason: str
) -> None:
    result = ask(call(declared.spec.name), declared)

    assert result.ok and result.results[0].outcome is CallOutcome.FAILED
    assert result.results[0].reason == reason
    assert _acts(tmp_path) == attempts


def test_a_read_that_is_busy_twice_answers_at_its_third_attempt(
    ask: Callable[..., RunResult], tmp_path: Path
) -> None:
    result = ask(call("busy_twice"), tools.busy_twice)

    assert _told(result)["data"] == "done" and _acts(tmp_path) == 3
    assert result.results[0].attempt == 3


def test_a_call_ends_with_its_time_however_many_attempts_are_left(
    ask: Callable[..., RunResult], tmp_path: Path
) -> None:
    result = ask(call("hangs_for_a_while"), tools.hangs_for_a_while)

    told = _told(result)
    assert result.ok and result.results[0].outcome is CallOutcome.FAILED
    assert told["reason_code"] == result.results[0].reason == "call_timeout"
    assert 1 <= _acts(tmp_path) <= 4  # of nine, by its drawn backoffs
    assert told["message"].endswith("the 1 s it has for all its attempts are over.")


def test_a_wait_that_is_asked_for_and_ends_after_its_time_ends_the_call_at_once(
    ask: Callable[..., RunResult], tmp_path: Path
) -> None:
    result = ask(call("busy_for_long"), tools.busy_for_long)

    told = _told(result)
    assert told["reason_code"] == "call_timeout" and told["retry_after_s"] == 30
    assert told["message"].startswith("busy_for_long failed: busy. It is not tried again")
    assert _acts(tmp_path) == 1


def test_not_a_number_becomes_null_with_a_note(ask: Callable[..., RunResult]) -> None:  # B015
    told = _told(ask(call("not_a_number"), tools.not_a_number))

    assert told["data"] == {"mean": None, "max": None, "n": 3.0}
    assert told["notes"]


@pytest.mark.parametrize(
    ("declared", "reason"),
    [(tools.not_json, "result_not_json"), (tools.ten_megabytes, "result_too_large")],
    ids=["not_json", "ten_megabytes"],
)
def test_an_unusable_result_of_a_read_is_a_failure_the_model_is_told(
    ask: Callable[..., RunResult], declared: Any, reason: str
) -> None:
    result = ask(call(declared.spec.name), declared)

    assert result.ok and result.results[0].outcome is CallOutcome.FAILED
    assert _told(result)["reason_code"] == reason
    assert len(result.results[0].content) < 2_000


def test_a_long_result_is_cut_for_the_model_and_kept_whole(ask: Callable[..., RunResult]) -> None:
    result = ask(call("long_text"), tools.long_text)

    assert len(result.results[0].content.encode()) <= 17_000
    assert json.loads(result.results[0].full or "") == "word " * 10_000


def test_a_business_error_reaches_the_model_word_for_word(ask: Callable[..., RunResult]) -> None:
    told = _told(ask(call("refuses"), tools.refuses))

    assert told["message"] == "order 17 has been shipped" and told["reason_code"] == "already_shipped"
    assert told["error_type"] == "business_error" and told["status"] == "error"


def test_a_denial_ends_the_run_after_its_turn(ask: Callable[..., RunResult]) -> None:
    result = ask(calls(call("forbids"), call("add", a=1, b=1)), tools.forbids, tools.add)

    assert result.status is RunStatus.DENIED and result.model_calls == 1
    assert [r.outcome for r in result.results] == [CallOutcome.DENIED, CallOutcome.OK]


@pytest.mark.parametrize(
    "declared",
    [tools.pays_and_raises, tools.pays_and_hangs, tools.pays_and_dies, tools.pays_and_returns_nonsense],
    ids=lambda declared: str(declared.spec.name),
)
def test_an_effect_whose_outcome_is_unknown_is_never_tried_again(
    ask: Callable[..., RunResult], tmp_path: Path, declared: Any
) -> None:
    result = ask(call(declared.spec.name), declared)

    assert result.ok and result.output == "pending"
    assert result.results[0].outcome is CallOutcome.NEEDS_HUMAN
    assert _acts(tmp_path) == 1
    assert "Do not try it again" in _told(result)["message"]


def test_an_effect_that_answers_is_done_once(ask: Callable[..., RunResult], tmp_path: Path) -> None:
    result = ask(call("pays"), tools.pays)

    assert _told(result)["data"] == "paid" and _acts(tmp_path) == 1
