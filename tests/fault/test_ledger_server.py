"""No crash, sleep or misbehaviour makes a refund happen twice or get lost: the provider's own ledger is the judge.

B050: a retry executes its tools again; the provider sees one key for all attempts of a call, and nothing happens twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fault.conftest import OpenStack
from tests.fault.ledger_server import BEHAVIOURS
from tests.fault.siege import (
    FAULTS,
    FAULTS_MIN,
    JUDGED,
    RUNS_MIN,
    SLEEP,
    empty_pairs,
    judged,
    laid,
    provider,
)

SEED = 20261130
AROUND = (*(point for point in FAULTS if point.startswith("exec.")), SLEEP)
STRIKES = (*FAULTS, *AROUND * 7)
assert len(STRIKES) * len(BEHAVIOURS) >= RUNS_MIN


# B050: of eight behaviours at once, struck between claim and send, after the tool, and put to sleep.
@pytest.mark.timeout(120)
def test_a_refund_happens_once_whatever_strikes(open_stack: OpenStack) -> None:
    with provider() as address:
        siege = laid(open_stack("embedded"), address, SEED, ("exec.after_lease", "exec.after_tool", SLEEP))
        siege.play()
        report = judged(siege, SEED)

    assert report["runs"] >= len(BEHAVIOURS)
    assert set(report["provider"]) >= set(BEHAVIOURS) - {"answers"}
    assert report["outcomes"]["ok"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", JUDGED)
def test_500_faults_over_200_runs_and_every_pair_of_them(kind: str, open_stack: OpenStack) -> None:
    with provider() as address:
        siege = laid(open_stack(kind), address, SEED, STRIKES)
        siege.play()
        report = judged(siege, SEED)

    folder = os.environ.get("LEDGER_RESULTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{kind}.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    assert empty_pairs(report) == []
    assert report["runs"] >= RUNS_MIN
    assert report["faults"] >= FAULTS_MIN
    assert report["acts_per_order_max"] == 1
