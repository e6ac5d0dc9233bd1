"""A batch of 50,000 lines: one answer for each and no act twice whoever is killed, fair to others, in constant memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.fault.big_batch import GROWTH_MAX, KILLS_MIN, SHARE_MIN, STACKS, Sizes, grown, night
from tests.fault.conftest import OpenStack

SEED = 20261130
WHOLE = Sizes(small=5_000, large=50_000, other=500, early=24, late=4, in_flight_max=500, lease_s=10.0)
SHORT = Sizes(
    small=0,
    large=240,
    other=30,
    early=3,
    late=1,
    in_flight_max=8,
    lease_s=3.0,
    looks=0,
    cuts=False,
    model_s=0.2,
    left_min=0.1,
)


def _checked(report: dict[str, Any], sizes: Sizes) -> None:
    """What holds of a night of any size."""
    completed = sum(counts["completed"] for counts in report["counts"].values())
    lines = sum(report["lines"].values())
    failed = sum(count for what, count in report["acts"].items() if what.startswith("line failed"))
    assert completed + failed == lines
    assert report["acts"]["most_of_one"] == 1
    # B077: 50,000 inputs were queued at once; here no more is outstanding than the window of the batches holds
    assert 0 < report["outstanding_max"] <= sizes.in_flight_max
    assert report["share"]["begun"] >= SHARE_MIN, report["share"]
    assert report["share"]["large_left"] > sizes.large * sizes.left_min, "it did not wait for the large one"


@pytest.mark.timeout(
    600
)  # ten processes start one after the other: half a minute, and many times that beside other suites
def test_a_batch_whose_processes_are_killed_has_one_answer_for_each_line(open_stack: OpenStack) -> None:
    report = night(open_stack("embedded"), SHORT, SEED)

    _checked(report, SHORT)
    assert sum(report["kills"].values()) >= SHORT.early
    assert set(report["peak_pss_mb"]) >= {"up", "tool child", "batch submit", "batch watch", "batch download"}


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("kind", STACKS)
def test_50_000_lines_take_the_memory_of_5_000(kind: str, open_stack: OpenStack) -> None:
    report = night(open_stack(kind), WHOLE, SEED)

    folder = os.environ.get("BATCH_RESULTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{kind}.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    _checked(report, WHOLE)
    assert sum(report["kills"].values()) >= KILLS_MIN
    assert {role: by for role, by in grown(report).items() if by > GROWTH_MAX} == {}, report["peak_pss_mb"]
