"""Worker processes as people run them: `celery worker -Q`, `toolfleet worker`, `toolfleet up`, signals, health, lanes.

What an issue says has to happen within a time is waited for three times as long: the machine may be busy.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from celery import Celery

from tests import servers
from tests.fault.conftest import OpenStack
from tests.fault.stack import APP, ROOT, Process, Stack, stack_of, wait_until
from toolfleet import Lane
from toolfleet.adapters.broker.host import EXIT_STUCK
from toolfleet.celery_app import SUBMIT

CELERY = [str(Path(sys.executable).with_name("celery")), "-A", "tests.fault.app:app"]  # as people call it
BLOCKED = {"TOOLFLEET_LOOP_BLOCKED_S": "2"}
BROKERS = pytest.mark.parametrize("kind", ["streams", "rabbitmq"])
SLOW_ON_RABBITMQ = pytest.mark.parametrize(
    "kind",
    ["streams", pytest.param("rabbitmq", marks=pytest.mark.slow)],  # make chaos runs both
)

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def stacks(open_stack: OpenStack) -> dict[str, Stack]:
    """A stack of each kind with a steady worker of every role but exec; started with the first test that asks."""

    class Started(dict[str, Stack]):
        def __missing__(self, kind: str) -> Stack:
            self[kind] = open_stack(kind)
            self[kind].start_all(("decide", "collect", "keep"))
            return self[kind]

    return Started()


def _get(address: str, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(address + path, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        return exc.code, json.load(exc)


@BROKERS
def test_a_celery_worker_hosts_the_queues_it_is_told_to(kind: str, stacks: dict[str, Stack]) -> None:
    stack = stacks[kind]
    words = ["worker", "-Q", "exec.low,exec.medium", "-n", "tools@%h", "--without-mingle", "--without-gossip"]
    worker = stack.run([*CELERY, *words], "exec")

    runs = stack.submit([f"work {n}" for n in range(5)])
    stack.wait_all()
    said = subprocess.run(
        [*CELERY, "inspect", "--json", "fleet"],
        env=stack.environment(),
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=90,
    )
    nodes = json.loads(said.stdout.splitlines()[-1])
    mine = next(node for name, node in nodes.items() if name.startswith("tools@"))
    assert mine["roles"] == ["exec.low", "exec.medium"]
    assert mine["settled"] >= 5 * 6 and not mine["stuck"]
    assert {tuple(node["roles"]) for node in nodes.values()} >= {("results",), ("keeper",)}

    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0, worker.tail()
    stack.end(worker)
    assert [stack.story(run)[0] for run in runs] == ["completed None"] * 5
    stack.assert_nothing_is_left()


@SLOW_ON_RABBITMQ
def test_another_celery_app_starts_runs_and_gets_their_ids(kind: str, stacks: dict[str, Stack]) -> None:
    stack = stacks[kind]
    other = Celery("other", broker=stack.broker, backend="rpc://" if kind == "rabbitmq" else stack.broker)
    try:
        send = {"queue": f"{stack.prefix}.control", "task_id": f"ticket-{stack.prefix}"}
        first = other.send_task(SUBMIT, ["steady", "say hello"], **send).get(timeout=60)
        again = other.send_task(SUBMIT, ["steady", "say hello"], **send).get(timeout=60)
        stack.wait_all()
    finally:
        other.close()

    assert first == again, "a message that comes twice makes one run"
    assert stack.story(first)[0] == "completed None"


def test_a_green_pool_is_refused_with_the_reason(stacks: dict[str, Stack]) -> None:
    """Traps 5 and 11: with gevent nothing is given back, and AMQP crawls."""
    from toolfleet.adapters.broker.host import refuse_green_pool
    from toolfleet.schemas.errors import UnsafeSettings

    with pytest.raises(UnsafeSettings, match="gevent"):
        refuse_green_pool("celery.concurrency.gevent")
    refuse_green_pool("celery.concurrency.solo")


def test_the_loop_does_not_need_celerys_own_connection(
    redis: servers.Server, stacks: dict[str, Stack]
) -> None:
    """Its broker is away while a plain function hangs: killed at its deadline, and the others are not held up."""
    stack = stacks["streams"]
    with servers.redis_server() as control:
        worker = stack.start("exec", extra={"TOOLFLEET_CELERY_BROKER": servers.redis_url(control)})
        control.kill()

        started = time.monotonic()
        (hanging,) = stack.submit(["hang 1"])
        working = stack.submit([f"work {n}" for n in range(10)])
        wait_until(lambda: all(_ended(stack, run) for run in working), "the others end", seconds=30)
        wait_until(lambda: _ended(stack, hanging), "the hanging call is given up", seconds=3 * 3 + 6)
        took = time.monotonic() - started

        (reason,) = stack.query(
            "SELECT reason FROM results WHERE run_id = :run AND reason IS NOT NULL", run=hanging
        )
        assert reason[0] == "timeout"
        (tool_s,) = stack.query(
            "SELECT tool_s FROM results WHERE run_id = :run AND reason = 'timeout'", run=hanging
        )
        assert 2.0 <= tool_s[0] <= 3.0 * 3, took
        stack.finish(worker)


def _ended(stack: Stack, run: str) -> bool:
    return stack.query("SELECT finished_at FROM runs WHERE id = :run", run=run)[0][0] is not None


@SLOW_ON_RABBITMQ
def test_sigterm_with_fifty_calls_in_flight_drains_them(kind: str, stacks: dict[str, Stack]) -> None:
    """Trap 15: each is executed once, or comes again; the process leaves with 0 within its grace."""
    stack = stacks[kind]
    worker = stack.start("exec", extra={"TOOLFLEET_EXEC_SLOTS": "200"})
    runs = stack.submit([f"nap {n}" for n in range(50)])
    wait_until(lambda: _calls_out(stack, runs), "calls are out")

    worker.signal(signal.SIGTERM)
    assert worker.ended(3 * 10) == 0, worker.tail()
    stack.end(worker)

    second = stack.start("exec")
    stack.wait_all()
    stack.finish(second)
    assert [stack.story(run)[0] for run in runs] == ["completed None"] * 50
    assert stack.query("SELECT count(*) FROM results WHERE attempt > 1")[0][0] == 0
    stack.assert_nothing_is_left()


def test_a_long_drain_is_no_hang(stacks: dict[str, Stack]) -> None:
    """A worker that drains has ended its loops on purpose: it must not take itself for stuck and end by force."""
    stack = stacks["streams"]
    worker = stack.start("exec", extra={"TOOLFLEET_DRAIN_S": "60"})
    (run,) = stack.submit(["long_record 1"])
    mine = run.removeprefix("run_")
    wait_until(lambda: any(mine in key for key in stack.effects()), "the effect has begun")

    worker.signal(signal.SIGTERM)
    assert worker.ended(3 * 60) == 0, worker.tail()
    assert "worker_stuck" not in worker.log.read_text()
    stack.end(worker)
    stack.wait_all()
    assert stack.story(run)[0] == "completed None"


def _calls_out(stack: Stack, runs: list[str]) -> bool:
    return bool(stack.query("SELECT count(*) FROM commands WHERE queue = 'exec.low'")[0][0] >= len(runs))


@SLOW_ON_RABBITMQ
def test_five_hundred_calls_that_end_at_once_are_all_settled(kind: str, stacks: dict[str, Stack]) -> None:
    """Trap 8: acknowledgements in one burst lose none, and the worker goes on fetching."""
    stack = stacks[kind]
    worker = stack.start("exec", extra={"TOOLFLEET_EXEC_SLOTS": "600"})
    runs = stack.submit([f"nap {n}" for n in range(500)])
    stack.wait_all(seconds=180)
    after = stack.submit(["work 1"])
    stack.wait_all()
    stack.finish(worker)

    assert {stack.story(run)[0] for run in (*runs[::50], *after)} == {"completed None"}
    stack.assert_nothing_is_left()


@BROKERS
def test_an_interactive_run_does_not_wait_behind_a_thousand_of_a_batch(
    kind: str, stacks: dict[str, Stack]
) -> None:
    """Trap 14, B048: lanes are queues, not numbers."""
    stack = stacks[kind]
    decide = next(one for one in stack.processes if one.role == "decide")
    decide.signal(signal.SIGSTOP)
    stack.submit([f"say {n}" for n in range(1000)])
    (urgent,) = stack.submit(["say now"], lane=Lane.INTERACTIVE)
    decide.signal(signal.SIGCONT)
    went_on = time.time()

    wait_until(lambda: _ended(stack, urgent), "the interactive run ends", seconds=30)
    (finished,) = stack.query("SELECT finished_at FROM runs WHERE id = :run", run=urgent)[0]
    assert finished - went_on < 3 * 1.0
    waiting = stack.query(
        "SELECT count(*) FROM runs WHERE finished_at IS NULL OR finished_at > :at", at=finished
    )
    assert waiting[0][0] > 300, "the batch was still there"
    stack.wait_all(seconds=180)


def test_a_flood_of_one_tier_and_a_cancel_pass_each_other(stacks: dict[str, Stack]) -> None:
    """B048: every tier has its own queue and slots, and a cancel needs no queue at all."""
    stack = stacks["streams"]
    flood = stack.submit([f"alarm {n}" for n in range(300)])
    low = stack.submit(
        [f"work {n}" for n in range(5)], lane=Lane.INTERACTIVE
    )  # not behind it when deciding either
    # There is one; until a second has started, on a machine that is busy, the flood may be over.
    worker = stack.start("exec", extra={"TOOLFLEET_EXEC_SLOTS": "4"}, wait=False)

    wait_until(lambda: all(_ended(stack, run) for run in low), "low calls get on", seconds=60)
    assert not all(_ended(stack, run) for run in flood)
    open_one = next(run for run in reversed(flood) if not _ended(stack, run))
    asked = time.monotonic()
    stack.fleet().cancel(open_one)
    assert time.monotonic() - asked < 3 * 1.0
    stack.wait_all(seconds=240)
    stack.wait_for(worker)
    stack.finish(worker)
    assert stack.story(open_one)[0].startswith("cancelled")


def test_no_call_waits_behind_a_busy_slot_while_another_is_free(stacks: dict[str, Stack]) -> None:
    """B046: nobody fetches more than it can begin."""
    stack = stacks["streams"]
    workers = [stack.start("exec", extra={"TOOLFLEET_EXEC_SLOTS": "1"}, wait=False) for _ in range(2)]
    stack.wait_for(*workers)
    stack.submit([f"nap {n}" for n in range(6)])
    stack.wait_all()
    stack.finish(*workers)

    rows = stack.query('SELECT content FROM results WHERE content LIKE \'%"provenance":"nap"%\'')
    began = sorted(json.loads(row[0])["data"] for row in rows)[-6:]
    # Two at a time, a second each: the n-th begins when the (n-2)-th is over, and not a second later.
    assert all(later - earlier < 2.0 + 1.0 for earlier, later in itertools.pairwise(began[::2]))


@pytest.mark.parametrize(("tool", "status"), [("kill_worker", -signal.SIGKILL), ("block_worker", EXIT_STUCK)])
def test_a_tool_that_ends_its_worker_is_given_up_and_holds_up_nobody(
    tool: str, status: int, stacks: dict[str, Stack]
) -> None:
    """B044, trap 9."""
    stack = stacks["streams"]
    (poison,) = stack.submit([f"{tool} 1"])
    others: list[str] = []
    deaths = 0
    worker = stack.start("exec", extra=BLOCKED)
    while not _ended(stack, poison):
        others += stack.submit([f"work {deaths}"])
        wait_until(partial(_dead_or_ended, stack, worker, poison), "it dies or the run ends")
        if worker.popen.poll() is None:
            break
        assert worker.ended() == status
        deaths += 1
        stack.end(worker)
        worker = stack.start("exec", extra=BLOCKED)
    stack.wait_all()
    stack.finish(worker)

    assert 3 <= deaths <= 6
    assert [stack.story(run)[0] for run in others] == ["completed None"] * len(others)
    reasons = stack.query(
        "SELECT outcome, reason FROM results WHERE run_id = :run ORDER BY position", run=poison
    )
    assert [tuple(row) for row in reasons] == [("failed", "worker_lost"), ("ok", None)]
    dead = stack.query("SELECT kind, reason FROM dead WHERE run_id = :run", run=poison)
    assert [tuple(row) for row in dead] == [("step", "worker_lost")]
    _forget_dead(stack)


def _dead_or_ended(stack: Stack, worker: Process, run: str) -> bool:
    return worker.popen.poll() is not None or _ended(stack, run)


def _forget_dead(stack: Stack) -> None:
    fleet = stack.fleet()
    store = fleet.client().store
    for letter in fleet._run(store.dead(limit=100)):
        fleet._run(store.discard_dead(letter.id))


def test_a_worker_says_how_it_is(stacks: dict[str, Stack]) -> None:
    stack = stacks["streams"]
    worker = stack.start("exec", extra={"TOOLFLEET_HEALTH_PORT": "0"})
    address = stack.query("SELECT state FROM workers WHERE pid = :pid", pid=worker.pid)[0][0]
    address = json.loads(address)["health"]
    stack.submit(["work 1"])
    stack.wait_all()

    wait_until(lambda: int(str(_get(address, "/live")[1]["settled"])) >= 6, "the last message is settled")
    status, live = _get(address, "/live")
    assert (status, live["ok"], live["stuck"]) == (200, True, "")
    assert _get(address, "/ready")[0] == 200
    listed = subprocess.run(
        [sys.executable, "-m", "toolfleet", "workers", "ls", "--json"],
        env=stack.environment(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    mine = next(one for one in json.loads(listed.stdout) if one["pid"] == worker.pid)
    assert (mine["state"], mine["health"]) == ("ok", address)

    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    stack.end(worker)
    assert stack.query("SELECT count(*) FROM workers WHERE pid = :pid", pid=worker.pid)[0][0] == 0


@pytest.fixture
def up_stack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as opened:
        yield opened.enter_context(
            stack_of(
                "streams",
                tmp_path,
                database_server=request.getfixturevalue("postgresql"),
                broker_server=request.getfixturevalue("redis"),
            )
        )


def _up(stack: Stack) -> Process:
    words = ["-m", "toolfleet", "up", "-A", APP, "--workers", "1"]
    up = stack.run([sys.executable, *words], "up", wait=False)
    wait_until(partial(_says_ready, up), "all of it is there", seconds=90)
    return up


def _says_ready(up: Process) -> bool:
    assert up.popen.poll() is None, up.tail()
    return "\nready" in up.log.read_text(errors="replace")


def _restarted(stack: Stack, up: Process, before: list[int]) -> bool:
    """Four live children that are there, one of them new."""
    mine = set(servers.descendants(up.pid))
    there = {row[0] for row in stack.query("SELECT pid FROM workers")} & mine
    return len(there) == 4 and bool(there - set(before))


def _gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_children_of_a_killed_up_end_and_the_next_one_goes_on(up_stack: Stack) -> None:
    stack = up_stack
    up = _up(stack)
    children = [pid for pid in servers.descendants(up.pid) if pid != up.pid]
    workers = [row[0] for row in stack.query("SELECT pid FROM workers")]
    assert len(workers) == 4 and set(workers) <= set(children)

    runs = stack.submit([f"work {n}" for n in range(60)])
    os.kill(workers[0], signal.SIGKILL)
    wait_until(partial(_restarted, stack, up, workers), "the dead child is started again", seconds=90)
    children = [pid for pid in servers.descendants(up.pid) if pid != up.pid]
    up.signal(signal.SIGKILL)
    assert up.ended() == -signal.SIGKILL
    wait_until(lambda: _gone(children), "all children end", seconds=3 * 5)

    again = _up(stack)
    stack.wait_all()
    again.signal(signal.SIGTERM)
    assert again.ended() == 0, again.tail()
    assert [stack.story(run)[0] for run in runs] == ["completed None"] * 60
    stack.assert_nothing_is_left()
