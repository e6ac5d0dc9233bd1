"""A batch of 50,000 lines: one answer for each and no act twice whoever is killed, fair to others, in constant memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fault.big_batch import night
from tests.fault.big_batch_rules import STACKS, WHOLE, Sizes, broken
from tests.fault.conftest import OpenStack

SEED = 20261130
SHORT = Sizes(
    small=0,
    large=240,
    other=30,
    early=4,
    late=0,
    in_flight_max=8,
    lease_s=3.0,
    looks=0,
    cuts=False,
    model_s=0.2,
    left_min=0.0,
    gate_from=0.6,
)


# Ten processes start one after the other: half a minute on an idle machine, and many times that beside other suites.
@pytest.mark.timeout(600)
def test_a_batch_whose_processes_are_killed_has_one_answer_for_each_line(open_stack: OpenStack) -> None:
    report = night(open_stack("embedded"), SHORT, SEED)

    assert broken(report, SHORT) == []
    assert set(report["peak_pss_mb"]) >= {"up", "tool child", "batch submit", "batch watch", "batch download"}


# B077: a group of 30,000 tasks took its memory and its time before the first one ran; here no more is outstanding at any
# moment than the window of the batches holds, and no process grows with the lines.
@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("kind", STACKS)
def test_50_000_lines_take_the_memory_of_5_000(kind: str, open_stack: OpenStack) -> None:
    report = night(open_stack(kind), WHOLE, SEED)

    folder = os.environ.get("BATCH_RESULTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{kind}.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    assert broken(report, WHOLE) == []
