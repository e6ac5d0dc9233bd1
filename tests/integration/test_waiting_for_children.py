"""What waits for a child process: not behind another tier, and not for a run that was stopped meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration import fleet_tools as tools
from toolfleet import Fleet, RunStatus, ScriptedModel, Settings, call, say
from toolfleet.workers.executor.handle import READ_AGAIN_S

WAIT_S = 60.0


def _model(messages: list[dict[str, Any]], _definitions: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] == "tool":
        return say("done")
    return call("adds_medium", a=1, b=2) if messages[-1]["content"] == "add" else call("waits_low")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Has one child for each tier."""
    database = f"sqlite:///{tmp_path / 'fleet.db'}"
    made = Fleet(settings=Settings(database=database, children=1), model=ScriptedModel(_model))
    made.agent("desk", model="scripted", tools=[tools.waits_low, tools.adds_medium])
    return made


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)  # between two looks at what child processes write; the line above bounds them


def _began(folder: Path) -> int:
    path = folder / "ledger"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_flood_of_plain_functions_keeps_no_other_tier_waiting(fleet: Fleet, tmp_path: Path) -> None:
    context = {"ledger": str(tmp_path / "ledger")}
    with fleet:
        flood = [fleet.submit("desk", "wait", context=context) for _ in range(20)]
        _until(lambda: _began(tmp_path) == 1)

        added = fleet.submit("desk", "add", context=context).wait(timeout_s=WAIT_S)

        assert added.status is RunStatus.COMPLETED
        assert _began(tmp_path) == 1, "the others are behind it still"
        (tmp_path / "go").touch()
        assert all(run.wait(timeout_s=WAIT_S).status is RunStatus.COMPLETED for run in flood)


def test_a_call_whose_run_was_stopped_while_it_waited_is_not_begun(fleet: Fleet, tmp_path: Path) -> None:
    context = {"ledger": str(tmp_path / "ledger")}
    with fleet:
        runs = [fleet.submit("desk", "wait", context=context) for _ in range(10)]
        _until(lambda: _began(tmp_path) == 1)
        time.sleep(READ_AGAIN_S)  # as long as what was read at first is believed
        for run in runs:
            run.cancel()
        (tmp_path / "go").touch()

        ended = [run.wait(timeout_s=WAIT_S).status for run in runs]
        last = fleet.submit("desk", "wait", context=context).wait(timeout_s=WAIT_S)

    assert ended == [RunStatus.CANCELLED] * 10
    assert last.status is RunStatus.COMPLETED
    assert _began(tmp_path) == 2, "the one that had begun, and the last one"
