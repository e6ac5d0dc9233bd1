"""The measurements, each over one stack that is up: what is done, what is read, what makes a round fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import redis

from benchmarks.w3 import counts
from benchmarks.w3.measure import Moment, moment, quantile, tree
from benchmarks.w3.shape import BUSY, MODEL_CALLS, SLOW, Shape, as_json
from benchmarks.w3.stacks import ROOT, Stack

TAIL_S: Final = 0.3  # after the last run: acknowledgements and marks belong to the runs too
KILLED_AT: Final = 0.4  # of the undisturbed wall
LIMIT_S: Final = 300.0  # one batch takes no longer, whatever time is left
LIMIT_MIN_S: Final = 30.0
FAULT_LIMIT_S: Final = 90.0  # three leases: what a fault takes is what is measured


class RoundFailed(Exception):
    """A round whose figures mean nothing, and why."""


@dataclass(slots=True)
class Model:
    """The model server's counters; `ends_at`: when all measuring should be over."""

    url: str
    pid: int
    ends_at: float = float("inf")

    @property
    def limit_s(self) -> float:
        """How long one batch may take now."""
        return min(LIMIT_S, max(LIMIT_MIN_S, self.ends_at - time.monotonic()))

    def counts(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url.removesuffix("/v1") + "/counts", timeout=10) as answer:
            told: dict[str, Any] = json.loads(answer.read())
        return told


@contextmanager
def _memory(stack: Stack, figures: dict[str, Any]) -> Iterator[None]:
    """The largest memory of the stack meanwhile."""
    roots = sorted({pid for pids in stack.groups().values() for pid in pids})
    command = [sys.executable, "-m", "benchmarks.w3.measure", *map(str, roots)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment
    ) as watcher:
        try:
            yield
        finally:
            told, _ = watcher.communicate()
    figures["peak_pss_mb"] = json.loads(told)["peak_mb"]


def batch(
    stack: Stack, model: Model, shape: Shape, n: int, *, memory: bool = False, wait: bool = False
) -> dict[str, Any]:
    """n runs at once. Raises RoundFailed where the model was not asked exactly three times for each."""
    figures: dict[str, Any] = {}
    asked, load = model.counts(), os.getloadavg()[0]
    before = moment(stack.groups())
    if memory:
        with _memory(stack, figures):
            told = stack.ask("batch", n=n, shape=as_json(shape), wait=wait, limit_s=model.limit_s)
    else:
        told = stack.ask("batch", n=n, shape=as_json(shape), wait=wait, limit_s=model.limit_s)
    time.sleep(TAIL_S)
    after = moment(stack.groups())
    counted = _model_calls(model, asked, told, shape, n)
    return {
        **figures,
        **_cpu(before, after, n),
        "n": n,
        "shape": as_json(shape),
        "wall_s": told["wall_s"],
        "submit_s": told["submit_s"],
        "runs_per_s": n / told["wall_s"],
        "p50_s": quantile(told["seconds"], 0.5),
        "p95_s": quantile(told["seconds"], 0.95),
        "load": [load, os.getloadavg()[0]],
        **counted,
    }


def _cpu(before: Moment, after: Moment, n: int) -> dict[str, Any]:
    """CPU by kind of process, and the share of the machine that others used meanwhile (the model server among them)."""
    used = after.since(before)
    total = sum(used.values())
    seconds = (after.at - before.at) * (os.cpu_count() or 1)
    return {
        "cpu_ms": total / n * 1000,
        "cpu_ms_by_kind": {kind: value / n * 1000 for kind, value in used.items()},
        "others_share": max(0.0, after.busy_s - before.busy_s - total) / seconds,
    }


def _model_calls(
    model: Model, asked: dict[str, Any], told: dict[str, Any], shape: Shape, n: int
) -> dict[str, Any]:
    now = model.counts()
    made = now["model_calls"] - asked["model_calls"]
    if now["refused"] != asked["refused"]:
        raise RoundFailed(f"the model server refused a conversation: {now['last_refusal']}")
    expected = 0 if shape.scripted else MODEL_CALLS * n
    if made != expected:
        raise RoundFailed(f"{made} model calls instead of {expected}")
    if told.get("model_calls", MODEL_CALLS * n) != MODEL_CALLS * n:
        raise RoundFailed(f"the runs count {told['model_calls']} model calls instead of {MODEL_CALLS * n}")
    return {"model_calls": made, "model_in_flight_max": now["in_flight_max"]}


def single(stack: Stack, model: Model, shape: Shape, n: int) -> dict[str, Any]:
    """One run at a time: what is added to the ideal."""
    asked, load = model.counts(), os.getloadavg()[0]
    before = moment(stack.groups())
    told = stack.ask("single", n=n, shape=as_json(shape), limit_s=model.limit_s)
    after = moment(stack.groups())
    counted = _model_calls(model, asked, told, shape, n)
    added = [seconds * 1000 - shape.ideal_ms for seconds in told["seconds"]]
    waited = [seconds * 1000 - shape.ideal_ms for seconds in told["waited_s"]]
    return {
        **_cpu(before, after, n),
        "n": n,
        "shape": as_json(shape),
        "added_p50_ms": quantile(added, 0.5),
        "added_p95_ms": quantile(added, 0.95),
        "waited_p50_ms": quantile(waited, 0.5),
        "waited_p95_ms": quantile(waited, 0.95),
        "load": [load, os.getloadavg()[0]],
        **counted,
    }


def idle(stack: Stack, seconds: float) -> dict[str, Any]:
    """CPU of the stack while nothing is to be done."""
    before = moment(stack.groups())
    time.sleep(seconds)
    used = moment(stack.groups()).since(before)
    return {
        "cpu_ms_per_s": sum(used.values()) / seconds * 1000,
        "by_kind": {k: v / seconds * 1000 for k, v in used.items()},
    }


def counted(stack: Stack, model: Model, shape: Shape, n: int) -> dict[str, Any]:
    """What the servers count for one run; what they count without runs in as much time is taken off."""
    settle_s = counts.settles(stack)
    first = counts.read(stack)
    time.sleep(settle_s)
    second = counts.read(stack)
    idle_per_s = {name: max(0.0, value - first.get(name, 0.0)) / settle_s for name, value in second.items()}
    started = time.monotonic()
    figures = batch(stack, model, shape, n)
    time.sleep(settle_s)
    after = counts.read(stack)
    seconds = time.monotonic() - started
    idle_then = {name: each * seconds for name, each in idle_per_s.items() if not name.startswith("table ")}
    return {"n": n, "per_run": counts.per_run(second, after, idle_then, n), "cpu_ms": figures["cpu_ms"]}


def message_bytes(stack: Stack, model: Model, shape: Shape, n: int) -> dict[str, Any]:
    """Messages and their bytes for one run, seen by MONITOR in a round of its own."""
    with counts.Monitor(stack.servers["redis"].port) as monitor:
        batch(stack, model, shape, n)
    return {"n": n, "messages": monitor.messages / n, "bytes": monitor.message_bytes / n}


# -- faults ------------------------------------------------------------------------------------------------------------


def killed(stack: Stack, model: Model, n: int) -> dict[str, Any]:
    """One of two decision workers is killed in the middle: how much longer all runs take, and what it costs."""
    undisturbed = batch(stack, model, SLOW, n)
    asked = model.counts()["model_calls"]
    victim = next(worker for worker in stack.workers if worker.kind == "decide")
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(stack.ask, "batch", n=n, shape=as_json(SLOW), limit_s=FAULT_LIMIT_S)
        time.sleep(max(0.4, undisturbed["wall_s"] * KILLED_AT))
        held = stack.query(
            "SELECT count(*) FROM commands WHERE token IS NOT NULL AND owner LIKE %s",
            f"%:{victim.popen.pid}",
        )[0][0]
        open_runs = stack.query("SELECT count(*) FROM runs WHERE finished_at IS NULL")[0][0]
        os.kill(victim.popen.pid, signal.SIGKILL)
        victim.popen.wait()
        told = going.result()
    stack.workers.remove(victim)
    stack.start_worker("decide")
    stack.wait_for_workers()
    extra = model.counts()["model_calls"] - asked - MODEL_CALLS * n
    if open_runs == 0 or held == 0:
        raise RoundFailed(f"killed too late: {open_runs} runs open, {held} steps held")
    return {
        "n": n,
        "undisturbed_s": undisturbed["wall_s"],
        "disturbed_s": told["wall_s"],
        "recovery_s": told["wall_s"] - undisturbed["wall_s"],
        "steps_held": held,
        "runs_open": open_runs,
        "extra_model_calls": extra,
    }


def flushed(stack: Stack, model: Model, n: int) -> dict[str, Any]:
    """FLUSHALL in the middle: until every row that was out is published again, and until all runs have ended."""
    ended = "SELECT count(*) FROM runs WHERE finished_at IS NOT NULL"
    before = stack.query(ended)[0][0]
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(stack.ask, "batch", n=n, shape=as_json(BUSY), limit_s=model.limit_s)
        while stack.query(ended)[0][0] - before < n // 4:
            if going.done():
                raise RoundFailed(f"all {n} runs ended before anything was wiped: {going.exception()}")
            time.sleep(0.02)
        with redis.Redis(port=stack.servers["redis"].port) as client:
            client.flushall()
        wiped_at = time.time()
        outstanding = _not_sent_since(stack, wiped_at)
        again_s = _until_sent(stack, wiped_at, going)
        told = going.result()
    return {
        "n": n,
        "outstanding_rows": outstanding,
        "published_again_s": again_s,
        "wall_s": told["wall_s"],
    }


def _not_sent_since(stack: Stack, wiped_at: float) -> int:
    """Rows that nobody works on and whose message, if there was one, is gone."""
    asked = "SELECT count(*) FROM commands WHERE token IS NULL AND due_at <= %s AND (sent_at IS NULL OR sent_at <= %s)"
    return int(stack.query(asked, wiped_at, wiped_at)[0][0])


def _until_sent(stack: Stack, wiped_at: float, going: Future[Any]) -> float:
    while _not_sent_since(stack, wiped_at):
        if going.done() and going.exception() is not None:
            raise RoundFailed(f"the runs did not end after FLUSHALL: {going.exception()}")
        time.sleep(0.02)
    return time.time() - wiped_at


def client(calls: int) -> dict[str, Any]:
    """CPU of a call of the model client, as its own benchmark tells it."""
    command = [sys.executable, str(ROOT / "benchmarks" / "model_client.py"), "--calls", str(calls)]
    told = subprocess.run(
        command, capture_output=True, check=True, text=True, timeout=LIMIT_S, cwd=ROOT
    ).stdout
    found = {
        (int(tools), int(messages)): float(ms)
        for tools, messages, ms in re.findall(r"(\d+) tools +(\d+) messages .*?: ([\d.]+) ms a call", told)
    }
    return {"short_ms": found[3, 2], "long_ms": found[20, 42]}


def alive(stack: Stack) -> int:
    """How many processes the stack is."""
    return len(tree([pid for pids in stack.groups().values() for pid in pids]))
