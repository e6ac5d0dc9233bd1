"""Spans of real worker processes: none is lost to a fork, and the trace of a run holds together over all of them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import servers
from tests.integration.otlp_collector import Collector, Span, collecting
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.adapters.telemetry import names as n
from toolfleet.schemas.views import WorkerView
from toolfleet.workers.machine import MACHINE

WAIT_S = 60.0
MODULE = "tests.integration.telemetry_app"
SUBMIT = """
from tests.integration.telemetry_app import fleet
run = fleet.submit("desk", "go")
assert run.wait(timeout_s=60).ok
print(run.id)
fleet.stop()
"""
SEND = """
from tests.integration.telemetry_app import app, fleet
sent = [app.send_task("toolfleet.submit", ["desk", "go"]) for _ in range({count})]
for one in sent:
    run = one.get(timeout=60)
    assert fleet.wait(run, timeout_s=60).ok
    print(run)
fleet.stop()
"""


class Place:
    """A database, a broker and a collector, and processes that have them in their environment."""

    def __init__(self, postgresql: servers.Server, redis: servers.Server, collector: Collector) -> None:
        self.collector = collector
        self.root = Path(__file__).parents[2]
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "TOOLFLEET_DATABASE": servers.new_database(postgresql),
            "TOOLFLEET_BROKER": servers.redis_url(redis, 0),
            "TOOLFLEET_BROKER_PREFIX": f"t{secrets.token_hex(4)}",
            "TOOLFLEET_SIGNING_KEYS": f"k1:{secrets.token_hex(32)}",
            "TOOLFLEET_KEEPER_PERIOD_S": "0.2",
            "TOOLFLEET_HEALTH_PORT": "0",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        }

    def run(self, code: str) -> list[str]:
        """What a Python process prints, word by word."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split()

    def exposed(self) -> dict[int, dict[str, float]]:
        """What each worker says on /metrics, by process: the sum of each metric over its labels."""
        found = {}
        for view in asyncio.run(self._workers()):
            with urlopen(f"{view.beat.state['health']}/metrics", timeout=WAIT_S) as answer:
                found[view.beat.pid] = summed(answer.read().decode())
        return found

    async def _workers(self) -> list[WorkerView]:
        store = SqlStore(self.environment["TOOLFLEET_DATABASE"], MACHINE)
        try:
            return await store.workers()
        finally:
            await store.aclose()

    @contextmanager
    def processes(self, *commands: list[str]) -> Iterator[list[int]]:
        """Started together, ended by SIGTERM and waited for; their ids."""
        started = [
            subprocess.Popen(
                [sys.executable, "-m", *command],
                env=self.environment,
                cwd=self.root,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            for command in commands
        ]
        try:
            yield [one.pid for one in started]
            for one in started:
                one.send_signal(signal.SIGTERM)
            for one in started:
                _, said = one.communicate(timeout=WAIT_S)
                assert one.returncode == 0, said.decode()
        finally:
            for one in started:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
                    one.communicate()


@pytest.fixture
def place(postgresql: servers.Server, redis: servers.Server) -> Iterator[Place]:
    with collecting() as collector:
        yield Place(postgresql, redis, collector)


def summed(text: str) -> dict[str, float]:
    """Each metric, summed over its labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _by_step(spans: list[Span], run_id: str) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda one: one.attributes.get(n.TURN, 0)):
        if span.attributes.get(n.RUN) == run_id:
            found.setdefault(span.step, []).append(span)
    return found


def _is_whole(spans: dict[str, list[Span]]) -> bool:
    """Every span of a run of two turns and three calls is there, once."""
    counts = {step: len(found) for step, found in spans.items()}
    return counts == {n.SUBMIT: 1, n.DECIDE: 2, n.CHAT: 2, n.EXECUTE_TOOL: 3, n.MERGE: 1}


# B093
def test_one_trace_goes_through_the_processes_of_all_roles(place: Place) -> None:
    roles = [
        ["toolfleet", "worker", role, "-A", f"{MODULE}:fleet"]
        for role in ("decide", "exec", "collect", "keep")
    ]
    with place.processes(*roles) as (decide, execute, collect, keep):
        (run_id,) = place.run(SUBMIT)
        exposed = place.exposed()

    spans = _by_step(place.collector.spans, run_id)
    assert _is_whole(spans), {step: len(found) for step, found in spans.items()}
    (submit,), (first, second), (merge,) = spans[n.SUBMIT], spans[n.DECIDE], spans[n.MERGE]
    assert {span.trace_id for found in spans.values() for span in found} == {submit.trace_id}
    assert {span.parent_id for span in spans[n.EXECUTE_TOOL]} == {first.span_id}
    assert sorted(merge.links) == sorted((span.trace_id, span.span_id) for span in spans[n.EXECUTE_TOOL])
    assert second.links == ((merge.trace_id, merge.span_id),)
    assert {first.parent_id, second.parent_id} == {submit.span_id}
    made_by = {step: {span.resource["process.pid"] for span in found} for step, found in spans.items()}
    assert made_by[n.DECIDE] == {decide} and made_by[n.EXECUTE_TOOL] == {execute}
    assert made_by[n.MERGE] == {collect} and made_by[n.SUBMIT].isdisjoint({decide, execute, collect})
    assert set(exposed) == {decide, execute, collect, keep}
    assert exposed[decide]["toolfleet_decisions_total"] == 2
    assert exposed[collect]["toolfleet_calls_total"] == 3
    assert "toolfleet_calls_total" not in exposed[execute]
    assert [pid for pid in exposed if "toolfleet_queue_rows" in exposed[pid]] == [keep]


# B095
@pytest.mark.parametrize(
    "pool", [["prefork", "-c", "4"], ["threads", "-c", "4"], ["solo"]], ids=lambda p: p[0]
)
def test_spans_of_every_process_of_a_celery_pool_arrive(place: Place, pool: list[str]) -> None:
    prefix = place.environment["TOOLFLEET_BROKER_PREFIX"]
    place.environment["TEST_POOL"] = pool[0]
    queues = "decide.interactive,decide.batch,exec.low,exec.medium,results,keeper"
    command = [
        "celery",
        "-A",
        f"{MODULE}:app",
        "-q",
        "worker",
        "-P",
        *pool,
        "-Q",
        f"{queues},{prefix}.control",
    ]
    with place.processes([*command, "--without-gossip", "--without-mingle", "-l", "WARNING"]) as (host,):
        runs = place.run(SEND.format(count=12))

    assert len(set(runs)) == 12
    broken = {run: _by_step(place.collector.spans, run) for run in runs}
    broken = {run: spans for run, spans in broken.items() if not _is_whole(spans)}
    assert broken == {}
    pids = {span.resource["process.pid"] for span in place.collector.of(n.SUBMIT)}
    assert {span.resource["process.pid"] for span in place.collector.of(n.DECIDE)} == {host}
    assert (host in pids) == (pool[0] != "prefork")
    assert pool[0] != "prefork" or len(pids) > 1
