"""What celery over Redis or RabbitMQ is known to do wrong, tried on our fleet; each test names the trap.

The traps are about visibility timeouts, delays, prefetching and reconnects. Others of their list are shown elsewhere:
2 in tests/packaging/test_no_broker_delays.py, 4 and 6 in test_outages.py, 5, 8, 9, 11, 14 and 15 in
test_worker_processes.py, 10 and 13 in test_rabbitmq_broker.py, 12 in tests/unit and tests/simulation.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import servers
from tests.conftest import require
from tests.fault.conftest import OpenStack
from tests.fault.stack import Process, Stack, stack_of, wait_until
from toolfleet import Lane

BROKERS = pytest.mark.parametrize("kind", ["streams", pytest.param("rabbitmq", marks=pytest.mark.slow)])
CELERY = [str(Path(sys.executable).with_name("celery")), "-A", "tests.fault.app:app"]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def stacks(open_stack: OpenStack) -> dict[str, Stack]:
    """A stack of each kind with three tool workers; its lease is 3 s and its claim 2 s."""

    class Started(dict[str, Stack]):
        def __missing__(self, kind: str) -> Stack:
            stack = self[kind] = open_stack(kind)
            # Hundreds of calls of one tool that fail at first would open its breaker, and be put off by nobody.
            stack.variables["TOOLFLEET_BREAKER_CALLS_MIN"] = "100000"
            started: list[Process] = [stack.start(role, wait=False) for role in ("decide", "collect", "keep")]
            started += [stack.start("exec", wait=False) for _ in range(3)]
            stack.wait_for(*started)
            return stack

    return Started()


@BROKERS
def test_a_call_longer_than_lease_and_claim_is_made_once(kind: str, stacks: dict[str, Stack]) -> None:
    """Trap 1, B040: with a visibility timeout of 5 s one call of 18 s was made four times."""
    stack = stacks[kind]
    runs = stack.submit(["long 1", "long_record 1"])
    stack.wait_all()

    assert [stack.story(run)[0] for run in runs] == ["completed None"] * 2
    asked = stack.effects()
    assert sorted(asked[key] for run in runs for key in asked if run.removeprefix("run_") in key) == [1, 1]
    stack.assert_nothing_is_left()


@BROKERS
def test_a_retry_far_ahead_comes_once_and_not_too_early(kind: str, stacks: dict[str, Stack]) -> None:
    """Trap 2, B040: with a delay beyond the visibility timeout ten tasks ran fifty times."""
    stack = stacks[kind]
    began = time.monotonic()
    runs = stack.submit(["later 8"] * 5)  # at ten failures the breaker would open, and nothing be tried again
    stack.wait_all()

    assert time.monotonic() - began >= 8.0
    assert [stack.story(run)[0] for run in runs] == ["completed None"] * 5
    asked = stack.effects()
    assert [asked[key] for run in runs for key in asked if run.removeprefix("run_") in key] == [2] * 5
    stack.assert_nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["streams", "rabbitmq"])
def test_what_is_delayed_waits_in_no_queue_and_in_no_worker(kind: str, stacks: dict[str, Stack]) -> None:
    """Trap 3: 20,000 delayed tasks were all pulled into one worker, and the next one waited behind them."""
    stack = stacks[kind]
    delayed = stack.submit(["later 3600"] * 300)
    wait_until(
        lambda: (
            stack.query("SELECT count(*) FROM commands WHERE due_at > :later", later=time.time() + 60)[0][0]
            == 300
        ),
        "all are put off",
    )
    wait_until(lambda: not stack.depths(), "the broker holds none of them")

    asked = time.time()
    (now,) = stack.submit(["look 1"], lane=Lane.INTERACTIVE)
    wait_until(lambda: _finished_at(stack, now), "the immediate one ends")
    assert _finished_at(stack, now) - asked < 3 * 1.0
    for run in delayed:
        stack.fleet().cancel(run)
    stack.wait_all()
    stack.assert_nothing_is_left()


def _finished_at(stack: Stack, run: str) -> float:
    return float(stack.query("SELECT coalesce(finished_at, 0) FROM runs WHERE id = :run", run=run)[0][0])


@pytest.fixture(scope="module")
def lone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Stack]]:
    """A stack over a Redis of its own, which a test may stop."""
    require("redis")
    with ExitStack() as opened:

        def open_() -> Stack:
            broker = opened.enter_context(servers.redis_server())
            database = request.getfixturevalue("postgresql")
            folder = tmp_path_factory.mktemp("lone")
            return opened.enter_context(
                stack_of("streams", folder, database_server=database, broker_server=broker)
            )

        yield open_


@pytest.mark.slow
def test_workers_consume_again_after_their_broker_was_away_while_they_were_idle(
    lone: Callable[[], Stack],
) -> None:
    """Trap 6, B042: alive is not consuming. Away for 20 s, then 100 messages. Trap 7: also under -P threads, where
    celery's own worker ended at this."""
    stack = lone()
    stack.start_all(("decide", "collect", "keep"))
    words = ["worker", "-P", "threads", "-Q", "exec.low,exec.medium", "-n", "threads@%h"]
    worker = stack.run([*CELERY, *words, "--without-mingle", "--without-gossip"], "exec")
    assert stack.broker_server is not None
    stack.broker_server.stop()
    subprocess.run(["sleep", "20"], check=True)
    stack.broker_server.start()

    runs = stack.submit([f"work {n}" for n in range(100)])
    stack.wait_all(seconds=3 * 60)
    assert {stack.story(run)[0] for run in runs[::10]} == {"completed None"}
    assert worker.popen.poll() is None
    stack.assert_nothing_is_left()
