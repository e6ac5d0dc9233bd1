"""JSON log lines of `toolfleet up`: every line is an object, and those of a step say whose they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.integration.otlp_collector import Collector, collecting
from toolfleet import Fleet
from toolfleet.adapters.telemetry import names as n

WAIT_S = 60.0
SECRET = "tok-4711-do-not-show"
APP = """
from toolfleet import Fleet, ScriptedModel, ToolContext, call, say, tool

@tool(attempts_max=2)
async def shaky(ctx: ToolContext, text: str) -> str:
    "Fail once in passing."
    if ctx.attempt == 1:
        raise ConnectionError(ctx.context["tenant_token"])
    return "there"

fleet = Fleet(model=ScriptedModel([call("shaky", text="argument-4712"), say("answer-4713")]))
fleet.agent("desk", model="scripted", tools=[shaky], instructions="prompt-4714")
"""


@contextmanager
def _up(folder: Path, **environment: str) -> Iterator[list[dict[str, Any]]]:
    """`toolfleet up` over a database in that folder; its log lines, once it has ended."""
    (folder / "app.py").write_text(APP)
    lines: list[dict[str, Any]] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "toolfleet", "up", "-A", "app.py:fleet", "--database", _database(folder)],
        cwd=folder,
        env={**os.environ, "TOOLFLEET_LOG_FORMAT": "json", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert any(line == b"ready\n" for line in process.stdout), process.communicate()
        yield lines
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=WAIT_S)
        lines += [orjson.loads(line) for line in said.splitlines() if line.startswith(b"{")]
        assert [line for line in said.splitlines() if not line.startswith((b"{", b"stopp"))] == []
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _database(folder: Path) -> str:
    return f"sqlite:///{folder / 'fleet.db'}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


# B097
def test_lines_of_a_step_name_run_turn_call_trace_and_span_and_hold_no_content(
    tmp_path: Path, collector: Collector
) -> None:
    with _up(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as lines:
        client = Fleet(_database(tmp_path))
        run = client.submit("desk", "request-4715", context={"tenant_token": SECRET})
        assert run.wait(timeout_s=WAIT_S).output == "answer-4713"
        client.stop()

    (failed,) = [line for line in lines if line["event"] == "tool_failed"]
    (first, _) = sorted(
        (span for span in collector.of(n.EXECUTE_TOOL)), key=lambda span: span.attributes[n.ATTEMPT]
    )
    assert failed[n.LOG_RUN] == run.id and failed[n.LOG_TURN] == 1
    assert failed[n.LOG_CALL] == first.attributes[n.TOOL_CALL_ID]
    assert (failed[n.LOG_TRACE], failed[n.LOG_SPAN]) == (first.trace_id, first.span_id)
    assert all({"event", "level", "timestamp", "logger"} <= set(line) for line in lines)
    (ended,) = [line for line in lines if line["event"] == "spans_ended"]
    assert ended["exported"] == len(collector.spans) and "queue_full" not in ended
    everything = orjson.dumps(lines) + b"".join(collector.raw)
    for hidden in (SECRET, "argument-4712", "answer-4713", "prompt-4714", "request-4715"):
        assert hidden.encode() not in everything


def test_lines_name_the_run_without_traces_too(tmp_path: Path) -> None:
    with _up(tmp_path) as lines:
        client = Fleet(_database(tmp_path))
        run = client.submit("desk", "go", context={"tenant_token": SECRET})
        assert run.wait(timeout_s=WAIT_S).ok
        client.stop()

    (failed,) = [line for line in lines if line["event"] == "tool_failed"]
    assert (failed[n.LOG_RUN], failed[n.LOG_TURN]) == (run.id, 1) and n.LOG_TRACE not in failed
