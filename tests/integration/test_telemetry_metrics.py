"""/metrics of a fleet, scraped and parsed: what is counted is what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from toolfleet import BusinessError, Fleet, RunRequest, ScriptedModel, ToolContext, call, calls, say, tool
from toolfleet.app import EmbeddedFleet
from toolfleet.queues.topology import QUEUES
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault
from toolfleet.settings import load_settings

WAIT_S = 60.0
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@tool
async def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@tool
async def refuses() -> None:
    """Say no."""
    raise BusinessError("it has been shipped", reason_code="shipped")


@tool(attempts_max=2)
async def shaky(ctx: ToolContext) -> str:
    """Fail once in passing."""
    if ctx.attempt == 1:
        raise ConnectionError("gone")
    return "there"


def _script() -> Any:
    failed: set[str] = set()

    def play(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
        asked = next(m["content"] for m in messages if m["role"] == "user")
        if asked == "flaky" and asked not in failed:
            failed.add(asked)
            raise ModelError(
                ModelFault("unavailable", "busy", retryable=True, retry_after_s=0.01, status=503)
            )
        if messages[-1]["role"] != "user":
            return say("done")
        return calls(
            call("add", a=1, b=2), call("add", a="x"), call("refuses"), call("shaky"), call("nobody")
        )

    return play


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    settings = load_settings(database=f"sqlite:///{tmp_path / 'fleet.db'}", health_port=0, traces="off")
    made = Fleet(model=ScriptedModel(_script()), settings=settings)
    made.agent("desk", model="scripted", tools=[add, refuses, shaky])
    with made:
        yield made


def _scraped(fleet: Fleet) -> Samples:
    assert isinstance(fleet._workers, EmbeddedFleet)
    with urlopen(f"{fleet._workers.health}/metrics", timeout=WAIT_S) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _by(samples: Samples, name: str, *labels: str) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for (sample, of_sample), value in samples.items():
        if sample == name and value:
            found[tuple(dict(of_sample)[label] for label in labels)] += value  # type: ignore[assignment]
    return found


def test_counters_agree_with_the_stored_rows(fleet: Fleet) -> None:
    runs = fleet.submit_many([RunRequest("desk", text) for text in ("one", "two", "flaky")])
    for run in runs:
        assert run.wait(timeout_s=WAIT_S).ok
    client = fleet.client()
    steps = [step for run in runs for step in fleet._run(client.store.steps(run.id))]
    usage = [row for run in runs for row in fleet._run(client.store.usage(run.id))]
    samples = _scraped(fleet)

    decisions = Counter((s.fields["model"], s.outcome) for s in steps if s.kind == "decide")
    assert _by(samples, "toolfleet_decisions_total", "model", "outcome") == decisions
    assert decisions["scripted", "unavailable"] == 1
    called = Counter(
        ("other" if s.outcome == "unknown_tool" else s.tool_name, s.outcome)
        for s in steps
        if s.kind == "call"
    )
    assert _by(samples, "toolfleet_calls_total", "tool", "outcome") == called
    assert called["shaky", "ok"] == 3 and called["other", "unknown_tool"] == 3
    tokens = _by(samples, "toolfleet_model_tokens_total", "kind")
    for kind in ("input", "output", "cached", "reasoning"):
        assert tokens[(kind,)] == sum(row[f"{kind}_tokens"] for row in usage)
    cost = sum(_by(samples, "toolfleet_model_cost_usd_total").values())
    assert cost == pytest.approx(sum(row["cost_usd"] for row in usage))
    assert _by(samples, "toolfleet_retries_total", "step") == {("decide",): 1, ("call",): 3}
    assert _by(samples, "toolfleet_runs_finished_total", "status") == {("completed",): 3}
    assert _by(samples, "toolfleet_runs_accepted_total", "agent") == {("desk",): 3}
    assert _by(samples, "toolfleet_merges_total") == {(): 3}


def test_seconds_are_split_by_part(fleet: Fleet) -> None:
    run = fleet.submit("desk", "flaky")
    assert run.wait(timeout_s=WAIT_S).ok
    steps = fleet._run(fleet.client().store.steps(run.id))
    samples = _scraped(fleet)

    seconds = _by(samples, "toolfleet_step_seconds_sum", "step", "part")
    counts = _by(samples, "toolfleet_step_seconds_count", "step", "part")
    of_model = sum(s.fields["model_s"] for s in steps if s.kind == "decide")
    of_tools = [s.fields["tool_s"] for s in steps if s.kind == "call" and s.attempt]
    assert seconds["decide", "model"] == pytest.approx(of_model)
    assert seconds["call", "tool"] == pytest.approx(sum(of_tools)) and counts["call", "tool"] == len(of_tools)
    assert counts["decide", "wait"] == counts["call", "wait"] == 1


def test_queues_and_consumers_are_shown_with_and_without_work(fleet: Fleet) -> None:
    assert fleet.submit("desk", "one").wait(timeout_s=WAIT_S).ok
    samples = _scraped(fleet)

    queues = {queue.name for queue in QUEUES}
    shown = {dict(labels)["queue"] for name, labels in samples if name == "toolfleet_queue_rows"}
    consumed = {dict(labels)["queue"] for name, labels in samples if name == "toolfleet_slots"}
    assert shown == queues and consumed == queues - {"deliver"}
    taken = _by(samples, "toolfleet_messages_taken_total", "queue")
    assert taken[("decide.interactive",)] == 2 and taken[("exec.low",)] >= 4
    assert all(
        labels == frozenset() for name, labels in samples if name == "toolfleet_messages_dropped_total"
    )


def test_labels_hold_no_ids_and_no_text_of_the_model(fleet: Fleet) -> None:
    run = fleet.submit("desk", "one")
    assert run.wait(timeout_s=WAIT_S).ok
    samples = _scraped(fleet)

    values = {value for name, labels in samples for label, value in labels if label != "le"}
    assert not any(run.id in value or value.startswith("call_") for value in values)
    assert "nobody" not in values
    assert {label for _, labels in samples for label, _ in labels} == {
        *("agent", "status", "model", "outcome", "tool", "step", "part", "kind", "queue", "le")
    }


def test_there_is_a_bound_on_the_values_of_a_label() -> None:
    from toolfleet.adapters.telemetry.metrics import LABEL_VALUES_MAX, OTHER, Metrics

    metrics = Metrics(())
    seen = {metrics._known("tool", f"tool_{i}") for i in range(2 * LABEL_VALUES_MAX)}

    assert len(seen) == LABEL_VALUES_MAX + 1 and OTHER in seen
