"""A task of an existing Celery app as a tool: sent, awaited without a blocked worker, and told apart when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests import servers
from tests.fault.stack import wait_until
from toolfleet import CallOutcome, Fleet, ScriptedModel, call, calls, celery_task_tool, say
from toolfleet.schemas.errors import InvalidDefinition

ROOT = Path(__file__).parent.parent.parent

BILLING = '''
import os, time
from celery import Celery
from toolfleet import BusinessError

app = Celery("billing", broker=os.environ["BILLING"], backend=os.environ["BILLING"])
app.conf.task_default_queue = "billing"

@app.task(name="billing.add")
def add(a: int, b: int) -> int:
    """Add two amounts."""
    return a + b

@app.task(name="billing.refuse")
def refuse(a: int) -> int:
    raise BusinessError(f"no {a} today")

@app.task(name="billing.crash")
def crash(a: int) -> int:
    raise RuntimeError("a secret")

@app.task(name="billing.slow")
def slow(a: int) -> int:
    time.sleep(1.0)  # a task that takes its time, in a worker of its own
    return a

@app.task(name="billing.endless")
def endless(a: int) -> int:
    time.sleep(600)  # a task that hangs: the deadline of its call ends the wait
'''


@pytest.fixture(scope="module")
def billing(redis: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    """Somebody's Celery app with a worker that knows nothing of us."""
    folder = tmp_path_factory.mktemp("billing")
    (folder / "billing.py").write_text(BILLING)
    url = servers.redis_url(redis, 3)
    environment = {**os.environ, "BILLING": url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "celery", "-A", "billing", "worker", "-P", "threads", "-c", "8"]
    worker = subprocess.Popen(
        [*command, "--without-gossip", "--without-mingle", "-Q", "billing,other"],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    app = Celery("billing", broker=url, backend=url)
    app.conf.task_default_queue = "billing"
    try:
        wait_until(lambda: app.control.ping(timeout=0.5), "the billing worker answers", seconds=60)
        yield app
    finally:
        worker.kill()
        worker.wait()
        app.close()


def _number(name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
        "description": name,
    }


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    asked = [message["content"] for message in messages if message["role"] == "user"][-1]
    if messages[-1]["role"] == "user":
        return calls(*(call(name, a=7) for name in asked.split()))
    return say("over")


@pytest.fixture
def fleet(billing: Celery, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(_script))
    names = ("refuse", "crash", "slow", "endless")
    tools = [
        celery_task_tool(
            billing,
            f"billing.{name}",
            name=name,
            parameters=_number(name),
            description=name,
            timeout_s=1.5 if name == "endless" else 60.0,
            attempts_max=1,
        )
        for name in names
    ]
    made.agent("clerk", model="scripted", tools=tools, parallel_tool_calls="on")
    with made:
        yield made


def test_what_a_task_comes_to_is_what_the_call_comes_to(fleet: Fleet) -> None:
    result = fleet.submit("clerk", "slow refuse crash").wait(timeout_s=60)

    outcomes = {one.index: one for one in result.results}
    assert [outcomes[i].outcome for i in range(3)] == [
        CallOutcome.OK,
        CallOutcome.BUSINESS_ERROR,
        CallOutcome.FAILED,
    ]
    assert '"data":7' in outcomes[0].content
    assert "no 7 today" in outcomes[1].content
    assert "a secret" not in outcomes[2].content, "the text of a foreign exception stays inside"


def test_waiting_for_tasks_blocks_nobody(fleet: Fleet) -> None:
    """Eight tasks of one second, side by side, are awaited by one loop."""
    started = time.monotonic()
    runs = [fleet.submit("clerk", "slow") for _ in range(8)]

    assert all(run.wait(timeout_s=60).ok for run in runs)
    assert time.monotonic() - started < 3 * 2.5, "not one after the other"


def test_a_task_that_does_not_end_is_given_up_at_the_deadline(fleet: Fleet) -> None:
    (result,) = fleet.submit("clerk", "endless").wait(timeout_s=60).results

    assert (result.outcome, result.reason) == (CallOutcome.FAILED, "timeout")


def test_a_task_object_brings_its_schema_and_its_words(billing: Celery) -> None:
    @billing.task(name="billing.add", shared=False)
    def add(a: int, b: int = 1) -> int:
        """Add two amounts."""
        return a + b

    made = celery_task_tool(billing, add)

    assert made.spec.name == "billing_add"
    assert made.spec.description == "Add two amounts."
    assert made.spec.parameters["properties"]["b"]["default"] == 1
    assert made.spec.parameters["required"] == ["a"]


def test_a_task_that_could_not_work_as_a_tool_is_refused(billing: Celery) -> None:
    with pytest.raises(InvalidDefinition, match="only a name"):
        celery_task_tool(billing, "billing.add")
    deaf = Celery("deaf", broker="memory://")
    with pytest.raises(InvalidDefinition, match="no result backend"):
        celery_task_tool(deaf, "a.b", parameters=_number("x"), description="x")
    deaf.close()
