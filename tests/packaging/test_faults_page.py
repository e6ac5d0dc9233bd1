"""docs/faults.md says of every fault on every stack that it passed, or why it does not apply."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fault.matrix import NOT_APPLICABLE, OUTAGE_CELLS, OUTAGES, POINT_CELLS, SELECTED, STACKS
from toolfleet.workers.points import POINTS


def test_no_cell_is_empty(root: Path) -> None:
    passed = json.loads((root / "docs" / "faults.json").read_text())

    empty = [
        f"{fault} on {kind}"
        for kind, fault in (*POINT_CELLS, *OUTAGE_CELLS)
        if (fault, kind) not in NOT_APPLICABLE and fault not in passed.get(kind, ())
    ]
    assert empty == [], "run: make chaos"


def test_what_is_said_to_have_passed_is_a_fault(root: Path) -> None:
    passed = json.loads((root / "docs" / "faults.json").read_text())

    assert set(passed) <= set(STACKS)
    assert {fault for faults in passed.values() for fault in faults} <= {*POINTS, *OUTAGES}
    assert {point for _, point in SELECTED} <= set(POINTS)
