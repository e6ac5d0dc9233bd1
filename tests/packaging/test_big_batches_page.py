"""docs/big_batches.md is of whole nights, and all that is asked of them held; a rule that does not hold is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fault.big_batch_rules import GROWTH_MAX, STACKS, WHOLE, broken

FIGURES: dict[str, Any] = {
    "lines": {"small": 5_000, "large": 50_000, "other": 500},
    "counts": {
        "small": {"completed": 5_000},
        "large": {"completed": 49_998},
        "other": {"completed": 500},
    },
    "acts": {
        "asked": 5_550,
        "made": 5_548,
        "most_of_one": 1,
        "done": 5_540,
        "nobody knows": 10,
        "line failed: worker_lost": 2,
    },
    "kills": {"up": 12, "tool child": 9, "batch watch": 9},
    "outstanding_max": 500,
    "undisturbed_lines": 38_000,
    "share": {"begun": 0.5, "large_left": 36_000},
    "peak_pss_mb": {"up": {"small": 100.0, "large": 100.0 * GROWTH_MAX}},
}
CHANGES: dict[str, dict[str, Any]] = {
    "it has the size it should have": {"lines": {"small": 500, "large": 5_000, "other": 50}},
    "every line has one answer": {"counts": {"large": {"completed": 49_997}}},
    "every act that is said to have happened did, none twice": {"acts": {"most_of_one": 2}},
    "kills": {"kills": {"up": 3, "tool child": 9}},
    "no more is out than the window holds": {"outstanding_max": 50_000},
    "its share of what began": {"share": {"begun": 0.1}},
    "it did not wait for the large one": {"share": {"large_left": 0}},
    "memory": {"peak_pss_mb": {"up": {"large": 100.0 * GROWTH_MAX + 1}}},
    "most of it is one life of its processes": {"undisturbed_lines": 2_000},
}


def _changed(figures: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A copy in which what `change` names is otherwise."""
    return {
        name: _changed(value, change.get(name, {})) if isinstance(value, dict) else change.get(name, value)
        for name, value in figures.items()
    }


@pytest.mark.parametrize("stack", STACKS)
def test_every_rule_holds_for_a_committed_report(root: Path, stack: str) -> None:
    path = root / "docs" / "batches" / f"{stack}.json"
    page = (root / "docs" / "big_batches.md").read_text()
    if not path.exists():
        assert f"yet: {stack}" in page or f", {stack}" in page, "a page says what it is not of"
        return
    report = json.loads(path.read_text())

    assert report["stack"] == stack
    assert broken(report, WHOLE) == [], "run: make chaos"
    assert {"up", "tool child", "batch submit", "batch watch", "batch download"} <= set(report["peak_pss_mb"])


def test_figures_that_hold_break_no_rule() -> None:
    assert broken(FIGURES, WHOLE) == []


@pytest.mark.parametrize("rule", CHANGES)
def test_a_rule_that_does_not_hold_is_noticed(rule: str) -> None:
    found = [one.partition(": {")[0] for one in broken(_changed(FIGURES, CHANGES[rule]), WHOLE)]

    assert rule in found
    assert set(found) <= {rule, "kills of a whole night", "every line has one answer"}
