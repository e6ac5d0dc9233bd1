"""What the simulation finds: nothing, in 300 worlds full of faults and in the set-ups aimed at one place each; and
something, as soon as a guard is taken out.

A world that fails prints its story and how to replay it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation import aimed, aimed_deadlines, aimed_effects, aimed_world
from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import told
from tests.simulation.world import Report, Scenario, simulate

pytestmark = pytest.mark.timeout(900)  # on a busy machine the test that asks first runs all 300

SEEDS = 300
SHARDS = 15
SHARD_SEEDS = SEEDS // SHARDS
FAULTS_MEAN_MIN = 5.0
AIMED: dict[str, Scenario] = (
    aimed.DEATHS
    | aimed.FREEZES
    | aimed.RESULTS
    | aimed.EARLY
    | aimed.ANSWERS
    | aimed_effects.ALL
    | aimed_world.ALL
    | aimed_deadlines.ALL
)
AIMED_SEEDS = (0, 1)
MUTANT_SEEDS = 60  # tried after the aimed set-ups
LONG_SEEDS = range(1_000, 4_000)

# What strikes a process, the database, the broker or a run as a whole; messages and tools fail much more often.
HARD = frozenset(
    {
        "kill",
        "stop",
        "freeze",
        "cut_off",
        "store_away",
        "broker_away",
        "answer_lost",
        "wipe",
        "poison",
        "cancel",
    }
)


@functools.cache
def report_of(seed: int) -> Report:
    """Each world is run once, whichever test asks first."""
    report = simulate(seed)
    return report if report.violations else report.without_lines()


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_seed_breaks_a_promise(shard: int) -> None:
    first = shard * SHARD_SEEDS

    failed = [report for seed in range(first, first + SHARD_SEEDS) if (report := report_of(seed)).violations]

    assert not failed, "\n\n".join(told(report) for report in failed)


def test_the_seeds_inject_faults_of_every_kind() -> None:
    reports = [report_of(seed) for seed in range(SEEDS)]
    faults: Counter[str] = sum((report.faults for report in reports), Counter())
    statuses: Counter[str] = sum((report.statuses for report in reports), Counter())

    assert faults.total() / SEEDS >= FAULTS_MEAN_MIN
    assert sum(faults[kind] for kind in HARD) / SEEDS >= FAULTS_MEAN_MIN, faults
    assert set(faults) >= HARD
    assert {f"model_{kind}" for kind in ("rate_limited", "timeout", "bad_request", "slow")} <= set(faults)
    assert {f"tool_{kind}" for kind in ("died", "timed_out", "retryable", "late", "raised_after")} <= set(
        faults
    )
    assert {"reconcile_silent", "decision_refused", "tool_not_sent", "tool_refused"} <= set(faults)
    assert set(statuses) == {"completed", "limit_reached", "cancelled", "failed", "denied"}


@pytest.mark.parametrize("name", AIMED)
def test_a_set_up_aimed_at_one_place_breaks_no_promise(name: str) -> None:
    failed = [report for seed in AIMED_SEEDS if (report := simulate(seed, AIMED[name])).violations]

    assert not failed, "\n\n".join(told(report) for report in failed)


@pytest.mark.parametrize("seed", (3, 7, 58, 141, 222))
def test_a_seed_replays_exactly(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)

    assert first.lines == second.lines
    assert first.digest == second.digest
    assert first.digest != simulate(seed + 1).digest


def test_a_seed_replays_in_another_process_with_another_order_of_hashes() -> None:
    here = simulate(17)
    script = Path(__file__).with_name("run.py")
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}

    done = subprocess.run(
        [sys.executable, str(script), "--seed", "17"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert f"story {here.digest}" in done.stdout


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_guard_that_is_taken_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, word = MUTATIONS[name]
    mutation(monkeypatch)

    found = next((report for report in _worlds(word) if report.violations), None)

    assert found is not None, f"nothing noticed {name} in {len(AIMED)} set-ups and {MUTANT_SEEDS} seeds"


def _worlds(word: str) -> Iterator[Report]:
    """The set-ups that have this word in their names, the other ones, then seeds."""
    for name in sorted(AIMED, key=lambda name: word not in name):
        yield simulate(0, AIMED[name])
    for seed in range(MUTANT_SEEDS):
        yield simulate(seed)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_no_seed_breaks_a_promise_in_the_long_run() -> None:
    failed = [report for seed in LONG_SEEDS if (report := simulate(seed)).violations]

    assert not failed, "\n\n".join(told(report) for report in failed)
