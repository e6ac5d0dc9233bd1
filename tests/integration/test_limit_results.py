"""A run that a limit ended says which one, and gives what had been found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolfleet import CallOutcome, Fleet, Limits, RunStatus, ScriptedModel, call, calls, tool
from toolfleet.commands import shapes
from toolfleet.found import FOUND_BYTES_MAX, Found, found_in
from toolfleet.schemas.envelopes import error, success
from toolfleet.schemas.results import CallResult

WAIT_S = 60.0


@tool(runner="loop")
async def look(place: str) -> dict[str, str]:
    """Look into one place."""
    if place == "attic":
        raise RuntimeError("dark")
    return {"place": place, "found": f"a key in the {place}"}


def _result(tmp_path: Path, script: list[Any], **limits: Any) -> Any:
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(script))
    fleet.agent("desk", model="scripted", tools=[look])
    with fleet:
        return fleet.submit("desk", "go", limits=Limits(**limits)).wait(timeout_s=WAIT_S)


def test_what_was_found_before_a_limit_is_given_with_the_limit(tmp_path: Path) -> None:
    script = [calls(call("look", place="hall"), call("look", place="attic")), call("look", place="cellar")]

    result = _result(tmp_path, script, turns_max=2)

    assert (result.status, result.limit) == (RunStatus.LIMIT_REACHED, "turns_max")
    assert "limit of 2 model turns" in result.output
    assert [(one.tool, one.data["found"]) for one in result.found] == [
        ("look", "a key in the hall"),
        ("look", "a key in the cellar"),
    ]
    shown = shapes.result(result)
    assert (shown["limit"], len(shown["found"]), shown["found"][0]["left_out"]) == ("turns_max", 2, False)
    assert shapes.found_line(result.found[0]).startswith('found by look: {"place": "hall"')


def test_a_run_no_limit_ended_names_none(tmp_path: Path) -> None:
    result = _result(tmp_path, [call("look", place="hall"), "done"])

    assert (result.ok, result.limit, result.found) == (True, None, ())


def test_what_was_found_is_bounded_and_the_newest_is_kept() -> None:
    def ok(number: int, size: int) -> CallResult:
        data = json.dumps("x" * size)
        return CallResult(f"call_{number}", number, CallOutcome.OK, success(data, provenance="look"))

    failed = CallResult("call_f", 9, CallOutcome.FAILED, error(outcome=CallOutcome.FAILED, message="no"))

    found = found_in([ok(0, 10), ok(1, FOUND_BYTES_MAX), failed, ok(2, 10)])

    assert found == (
        Found("call_0", "look", left_out=True),
        Found("call_1", "look", left_out=True),
        Found("call_2", "look", "x" * 10),
    )
