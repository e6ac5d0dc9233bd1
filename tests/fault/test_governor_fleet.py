"""The quota of a model through a whole fleet: worker processes over Redis and PostgreSQL, before a server that enforces it.

test_governor.py shows the turns alone; here each call is a run that was submitted, leased, sent away and published again.
Latencies are those of the database: from a run's row to its end.
"""

from __future__ import annotations

import json
import math
import random
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.fault.quota_app import AGENT, MODEL
from tests.fault.stack import Stack, stack_of, wait_until
from tests.fault.test_governor import model_server, p95
from toolfleet import Lane


@dataclass(frozen=True)
class Case:
    """A quota, how long it is tried, by how many decision workers, and the bars. `used`: tokens of a call;
    `output_tokens`: what its agent may write, which is reserved with the request's own."""

    requests: int
    tokens: int
    period_s: float
    seconds: float
    workers: int
    used_share_min: float
    refused_share_max: float
    slower_max: float
    answer_s: float = 1.0
    used: int = 150
    output_tokens: int = 600

    @property
    def calls(self) -> float:
        """How many calls of this kind its quota is, in one period."""
        return min(self.requests, self.tokens / self.used)

    @property
    def periods(self) -> int:
        return int(self.seconds / self.period_s)


BY_REQUESTS = Case(900, 1_000_000, 60.0, 130.0, 8, 0.95, 0.001, 1.5)
BY_TOKENS = Case(10_000, 135_000, 60.0, 130.0, 8, 0.95, 0.001, 1.5)
SHORT = Case(30, 1_000_000, 3.0, 7.0, 2, 0.30, 0.05, 4.0, answer_s=0.5)  # a busy machine has its say in 7 s
ASKED_MIN = 8  # interactive runs of a measurement, however slow the machine is


@contextmanager
def fleet_of(
    case: Case, address: str, folder: Path, redis: servers.Server, postgresql: servers.Server
) -> Iterator[Stack]:
    """The decision workers of the case and one keeper, all there."""
    quota = {"requests": case.requests, "tokens": case.tokens, "period_s": case.period_s}
    with stack_of("streams", folder, database_server=postgresql, broker_server=redis) as stack:
        stack.app, stack.agent = "tests.fault.quota_app:fleet", AGENT
        stack.variables = {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_KEY": "k",
            "QUOTA_OUTPUT_TOKENS": str(case.output_tokens),
            "TOOLFLEET_MODEL_QUOTAS": json.dumps({MODEL: quota}),
            "TOOLFLEET_LEASE_S": "10",
        }
        started = [stack.start(role, wait=False) for role in ["keep", *["decide"] * case.workers]]
        stack.wait_for(*started)
        yield stack


def measured(stack: Stack, case: Case, address: str, *, flood: bool) -> tuple[dict[str, Any], list[float]]:
    """What the server counted since now, and how long the interactive runs submitted since now took."""
    _ask(urllib.request.Request(f"{address}/forget", method="POST"))
    known = {id_ for (id_,) in stack.query("SELECT id FROM runs")}
    if flood:  # more than the quota is, so that it never runs dry, on a slow machine either
        count = math.ceil(1.33 * case.calls * max(case.seconds / case.period_s, case.periods + 1))
        stack.submit([str(case.used)] * count, lane=Lane.BATCH)
    every_s = 10 * case.period_s / case.calls  # a tenth of the quota
    ends = time.monotonic() + case.seconds
    asked = 0
    while asked < ASKED_MIN or time.monotonic() < ends:
        time.sleep(every_s * random.uniform(0.5, 1.5))  # the pace of those who ask
        stack.submit([str(case.used)], lane=Lane.INTERACTIVE)
        asked += 1
    wait_until(lambda: not _left(stack, Lane.INTERACTIVE), "interactive runs end", seconds=60)
    counts = _ask(f"{address}/counts")
    assert _left(stack, Lane.BATCH) or not flood, (
        "the flood ran dry before those who came after it were served"
    )
    statement = "SELECT id, finished_at - created_at FROM runs WHERE lane = 'interactive' ORDER BY 2"
    return counts, [float(took) for id_, took in stack.query(statement) if id_ not in known]


def _ask(request: str | urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def _left(stack: Stack, lane: Lane) -> int:
    statement = "SELECT count(*) FROM runs WHERE lane = :lane AND finished_at IS NULL"
    return int(stack.query(statement, lane=lane.value)[0][0])


def check(case: Case, folder: Path, redis: servers.Server, postgresql: servers.Server, report: Any) -> None:
    quota = (case.requests, case.tokens, case.period_s, case.answer_s)
    with model_server(*quota) as address, fleet_of(case, address, folder, redis, postgresql) as stack:
        quiet_counts, quiet = measured(stack, case, address, flood=False)
        counts, busy = measured(stack, case, address, flood=True)
        ended = stack.query("SELECT DISTINCT status FROM runs WHERE finished_at IS NOT NULL")

    within = [tokens for at, tokens in counts["let"] if at < case.periods * case.period_s]
    used_share = max(len(within) / (case.requests * case.periods), sum(within) / (case.tokens * case.periods))
    refused_share = counts["refused"] / (counts["refused"] + len(counts["let"]))
    slower = p95(busy) / p95(quiet)
    report("used_share", round(used_share, 4))
    report("refused_share", round(refused_share, 5))
    report("slower", round(slower, 3))
    report("p95_s", [round(p95(quiet), 3), round(p95(busy), 3)])

    assert ended == [("completed",)]
    assert min(len(quiet), len(busy)) >= ASKED_MIN
    assert quiet_counts["refused"] == 0
    assert used_share >= case.used_share_min, f"{used_share:.3f} of the quota was used"
    assert refused_share <= case.refused_share_max, f"{counts['refused']} of {len(counts['let'])} were 429"
    assert slower <= case.slower_max, f"p95 {p95(quiet):.2f} s alone, {p95(busy):.2f} s beside a flood"


@pytest.mark.timeout(600)
def test_a_fleet_uses_its_quota_and_a_flood_is_not_felt_in_front_of_it(
    tmp_path: Path, redis: servers.Server, postgresql: servers.Server, record_property: Any
) -> None:
    check(SHORT, tmp_path, redis, postgresql, record_property)


@pytest.mark.slow  # eight workers share the cores with whatever else runs: a measurement, not a yes or no
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", [BY_REQUESTS, BY_TOKENS], ids=["requests", "tokens"])
def test_a_fleet_of_eight_workers_uses_a_minute_s_quota_to_the_end(
    case: Case, tmp_path: Path, redis: servers.Server, postgresql: servers.Server, record_property: Any
) -> None:
    check(case, tmp_path, redis, postgresql, record_property)
