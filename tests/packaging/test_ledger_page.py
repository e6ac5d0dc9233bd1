"""docs/ledger.md says of every fault before every behaviour of a provider that runs met it, and how it came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fault.ledger_server import BEHAVIOURS
from tests.fault.siege import FAULTS, FAULTS_MIN, JUDGED, RUNS_MIN, empty_pairs


@pytest.fixture(params=JUDGED)
def report(root: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((root / "docs" / "ledger" / f"{request.param}.json").read_text())
    assert told["stack"] == request.param
    return told


def test_no_pair_is_empty(report: dict[str, Any]) -> None:
    assert empty_pairs(report) == [], "run: make chaos"
    assert set(report["pairs"]) == set(report["strikes"]) == set(FAULTS), "run: make chaos"


def test_it_was_as_large_as_promised_and_nothing_happened_twice(report: dict[str, Any]) -> None:
    assert report["runs"] >= RUNS_MIN
    assert report["faults"] >= FAULTS_MIN
    assert report["acts_per_order_max"] == 1
    assert set(report["provider"]) == {*BEHAVIOURS, "question dropped"} - {"answers"}
    assert set(report["outcomes"]) <= {"ok", "needs_human", "failed"}


def test_a_pair_that_is_missing_is_noticed(report: dict[str, Any]) -> None:
    del report["pairs"][FAULTS[0]]["hangs"]
    report["pairs"][FAULTS[-1]]["429"] = 0

    assert empty_pairs(report) == [(FAULTS[0], "hangs"), (FAULTS[-1], "429")]
