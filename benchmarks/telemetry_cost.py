"""What telemetry costs a step: µs of CPU with traces off, unsampled and sampled to memory; and what counting costs.

    .venv/bin/python benchmarks/telemetry_cost.py [STEPS]

A step is what a worker shows of it: a decision with its model call, an attempt of a call, the merge of a turn. The work
itself is not done, so the figures are those of the hooks alone; off is what every worker pays that has none of it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

from toolfleet.adapters.telemetry.export import SpanQueue
from toolfleet.adapters.telemetry.metrics import Metrics
from toolfleet.adapters.telemetry.recording import Recorder
from toolfleet.adapters.telemetry.tracing import Tracing
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.conversation import UserItem
from toolfleet.schemas.events import CallFinished, CallsSettled, Event, ModelReplied, StepFacts
from toolfleet.schemas.ids import CallId, CommandId, LeaseToken, RunId
from toolfleet.schemas.limits import DEFAULT_LIMITS
from toolfleet.schemas.model import ModelReply, ModelRequest, Usage
from toolfleet.schemas.outcomes import CallOutcome, Lane, RunStatus, Tier, TurnPhase
from toolfleet.schemas.ports import Applied, Telemetry, Transition
from toolfleet.schemas.records import AppendMerge, AppendStep, CloseUsage
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.schemas.views import CallView, RunInfo
from toolfleet.workers.telemetry import SILENT

RUN = RunId("run_0190b8f0c2a17d3e9a5b4c3d2e1f0a9b")
TOKEN = LeaseToken("0190b8f0c2a17d3e9a5b4c3d2e1f0a9c")
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
CALL = CallState(CallId(f"call_{RUN[4:]}_1_0"), 0, "look_up", Tier.LOW, "{}", "0" * 32, "call_1")
STATE = RunState(
    RUN, RunStatus.WAITING, Lane.INTERACTIVE, DEFAULT_LIMITS, phase=TurnPhase.CALLS, calls=(CALL,)
)
ROW = CommandRow(id=CommandId(CALL.call_id), queue="exec.low", turn=1, due_at=0.0, call_id=CALL.call_id)
INFO = RunInfo(
    RUN, "desk", "a" * 16, "b" * 16, "c" * 16, "default", None, None, RUN, "hi", {}, {}, TRACE, 0.0, None
)
VIEW = CallView(ROW, CALL, RUN, "waiting", 1, "desk", "a" * 16, "default", RUN, {}, TRACE, 0.0)
REQUEST = ModelRequest(AgentSpec(name="desk", model="gpt-4o-mini"), (UserItem("hi"),), ())
REPLY = ModelReply(
    "hi", (), "tool_calls", "chat_completions", {}, "gpt-4o-mini-2024-07-18", Usage(900, 50, 700)
)
REPLIED = ModelReplied(
    CommandId(f"{RUN}/1"), TOKEN, REPLY, (), True, StepFacts(model="gpt-4o-mini", model_s=0.8)
)
RESULT = CallResult(CALL.call_id, 0, CallOutcome.OK, "{}", attempt=1, tool_s=0.2)
FINISHED = CallFinished(ROW.id, None, 1, RESULT)
FIELDS = {"model": "gpt-4o-mini", "model_s": 0.8, "queue_s": 0.01, "tool_s": 0.2}
DECIDED = AppendStep("decide", 1, "tool_calls", attempt=1, fields=FIELDS)
CALLED = AppendStep("call", 1, "ok", CALL.call_id, "look_up", 1, FIELDS)
USED = CloseUsage(TOKEN, "replied", "gpt-4o-mini", 900, 50, 700, 0, 0.0003)
CLOSED = replace(CALL, outcome=CallOutcome.OK)
AFTER_DECISION = Applied(STATE, STATE, None, (), 0.0, (USED, DECIDED))
AFTER_MERGE = Applied(replace(STATE, turn=2), STATE, None, (), 0.0, (CALLED, AppendMerge(2, 1, (CLOSED,))))


def steps(telemetry: Telemetry) -> dict[str, Callable[[], None]]:
    """What a worker does around each kind of step."""

    def decision() -> None:
        with telemetry.decision(STATE, TRACE) as watch:
            with watch.asking(INFO, REQUEST):
                pass
            watch.ended(REPLIED, AFTER_DECISION)

    def attempt() -> None:
        with telemetry.attempt(VIEW, CALL) as watch:
            watch.ended(FINISHED, None)

    def merge() -> None:
        with telemetry.merging({RUN: TRACE}) as watch:
            watch.ended([AFTER_MERGE])

    return {"decide + chat": decision, "execute_tool": attempt, "merge": merge}


def counting(metrics: Metrics) -> dict[str, Callable[[], None]]:
    """What the store's commits cost more where they are counted."""
    replied: tuple[Event, Applied] = (REPLIED, AFTER_DECISION)
    settled: tuple[Event, Applied] = (CallsSettled((RESULT,)), AFTER_MERGE)

    def count(event: Event, applied: Applied) -> Callable[[], None]:
        transitions = [Transition(RUN, event)]
        return lambda: metrics.stored(transitions, [applied])

    return {"decide + chat": count(*replied), "execute_tool": lambda: None, "merge": count(*settled)}


def measured(work: Callable[[], None], times: int) -> float:
    """µs of CPU for one, the best of five."""
    best = float("inf")
    for _ in range(5):
        gc.collect()
        began = time.process_time()
        for _ in range(times):
            work()
        best = min(best, time.process_time() - began)
    return best / times * 1e6


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    resource = Resource.create({})
    queue = SpanQueue(InMemorySpanExporter, size=10 * times, batch=10 * times, delay_s=3600)
    queue.start()

    def tracing(sampler: object) -> Tracing:
        return Tracing(Recorder(queue.put, sampler=ParentBased(sampler), resource=lambda: resource))  # type: ignore[arg-type]

    unsampled = {"traceparent": TRACE["traceparent"][:-2] + "00"}
    rows = {
        "off": steps(SILENT),
        "unsampled": steps(_Given(tracing(ALWAYS_OFF), unsampled)),
        "sampled": steps(tracing(ALWAYS_ON)),
        "metrics": counting(Metrics({"look_up"})),
    }
    names = list(rows["off"])
    sys.stdout.write(f"{'µs per step':<14}" + "".join(f"{name:>16}" for name in names) + "\n")
    for row, works in rows.items():
        figures = []
        for name in names:
            figures.append(f"{measured(works[name], times):>16.2f}")
            queue._spans.clear()
        sys.stdout.write(f"{row:<14}" + "".join(figures) + "\n")


class _Given:
    """Steps of a run whose caller does not sample."""

    def __init__(self, tracing: Tracing, headers: dict[str, str]) -> None:
        self._tracing = tracing
        self._view = replace(VIEW, trace=headers)
        self._headers = headers
        self.submitting = tracing.submitting

    def decision(self, state: RunState, trace: object) -> object:
        return self._tracing.decision(state, self._headers)

    def attempt(self, view: CallView, call: CallState) -> object:
        return self._tracing.attempt(self._view, call)

    def merging(self, traces: object) -> object:
        return self._tracing.merging({RUN: self._headers})


if __name__ == "__main__":
    main()
