"""Prometheus metrics of one worker, in a registry of its own. Labels are names that somebody declared, never ids.

What is counted is what was stored: the records of each committed transition, so that the sums over all workers are
those of the step, usage and result rows. A counter of a process that is killed ends with it; the rows do not.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeGuard

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from toolfleet.adapters.telemetry import names as n
from toolfleet.schemas.events import CallRetry, EffectEnded, Event, LeaseExpired, ModelFailed, ModelReplied
from toolfleet.schemas.ports import Applied, Submission, Transition
from toolfleet.schemas.records import AppendDead, AppendMerge, AppendStep, CloseUsage
from toolfleet.schemas.run import NewRun, RunState
from toolfleet.schemas.views import QueueLoad

LABEL_VALUES_MAX: Final = (
    200  # of one label; a fleet that declares more tools or models counts the rest together
)
OTHER: Final = "other"
# From a warm cache to the longest deadline of a tool, 24 h; waits for people are no steps.
SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 3600)


class Consuming(Protocol):
    """How one consumer gets on (workers/progress.py)."""

    @property
    def queues(self) -> tuple[str, ...]: ...
    @property
    def slots(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def taken(self) -> int: ...
    @property
    def settled(self) -> int: ...


class Spans(Protocol):
    """What became of spans (export.py)."""

    @property
    def exported(self) -> int: ...
    @property
    def dropped(self) -> dict[str, int]: ...


class Metrics:
    """Counts what is stored, and asks the rest when it is scraped. `tools`: those this process declares; a call of any
    other is counted as `other`."""

    def __init__(self, tools: Container[str]) -> None:
        self.registry = CollectorRegistry()
        self._tools = tools
        self._names: dict[str, set[str]] = {}
        self.progress: Callable[[], Sequence[Consuming]] = tuple
        self.dropped: Callable[[], int] = int
        self.spans: Callable[[], Spans | None] = lambda: None
        self.loads: Sequence[QueueLoad] | None = None  # None: this worker does not keep, so it does not say
        self.queues: Sequence[str] = ()
        self._accepted = self._counter(n.M_ACCEPTED, "agent")
        self._finished = self._counter(n.M_FINISHED, "status")
        self._decisions = self._counter(n.M_DECISIONS, "model", "outcome")
        self._calls = self._counter(n.M_CALLS, "tool", "outcome")
        self._retries = self._counter(n.M_RETRIES, "step")
        self._deaths = self._counter(n.M_DEATHS, "queue")
        self._dead = self._counter(n.M_DEAD, "queue")
        self._merges = self._counter(n.M_MERGES)
        self._tokens = self._counter(n.M_TOKENS, "model", "kind")
        self._cost = self._counter(n.M_COST, "model")
        name, text = n.M_SECONDS
        self._seconds = Histogram(name, text, ["step", "part"], registry=self.registry, buckets=SECONDS)
        self.registry.register(_Scraped(self))

    def expose(self) -> tuple[bytes, str]:
        """The text format, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def submitted(self, runs: Sequence[NewRun], answers: Sequence[Submission]) -> None:
        for run, answer in zip(runs, answers, strict=True):
            if answer.created:
                self._accepted.labels(self._known("agent", run.agent)).inc()

    def stored(self, transitions: Sequence[Transition], applied: Sequence[Applied]) -> None:
        """Count what these transitions wrote."""
        for transition, one in zip(transitions, applied, strict=True):
            self._records(transition.event, one)
            if one.missed is None and one.before is not None and one.state is not None:
                self._changes(transition.event, one.before, one.state)

    def _records(self, event: Event, applied: Applied) -> None:
        for record in applied.records:
            match record:
                case AppendStep(kind="decide"):
                    self._decided(record)
                case AppendStep(kind="call"):
                    self._called(record)
                case CloseUsage() if isinstance(event, ModelReplied | ModelFailed):
                    self._used(event.facts.model, record)
                case AppendMerge():
                    self._merges.inc()
                case AppendDead():
                    self._dead.labels(record.queue).inc()
                case _:
                    pass

    def _decided(self, step: AppendStep) -> None:
        model = self._known("model", str(step.fields["model"]))
        self._decisions.labels(model, step.outcome).inc()
        self._seconds.labels("decide", "model").observe(float(step.fields["model_s"]))
        self._seconds.labels("decide", "queue").observe(float(step.fields["queue_s"]))

    def _called(self, step: AppendStep) -> None:
        declared = step.tool_name in self._tools  # else its name may be whatever the model wrote
        tool = self._known("tool", str(step.tool_name)) if declared else OTHER
        self._calls.labels(tool, step.outcome).inc()
        if step.attempt:  # it ran
            self._seconds.labels("call", "tool").observe(float(step.fields["tool_s"]))
            self._seconds.labels("call", "queue").observe(float(step.fields["queue_s"]))

    def _used(self, declared: str, usage: CloseUsage) -> None:
        """Of a late reply too: it was paid for. Its row is closed only once, and so is it counted only once."""
        model = self._known("model", declared)
        for kind in ("input", "output", "cached", "reasoning"):
            self._tokens.labels(model, kind).inc(getattr(usage, f"{kind}_tokens"))
        self._cost.labels(model).inc(usage.cost_usd)

    def _changes(self, event: Event, before: RunState, after: RunState) -> None:
        if after.terminal and not before.terminal:
            self._finished.labels(after.status.value).inc()
        if isinstance(event, ModelFailed) and not after.terminal:
            self._retries.labels("decide").inc()
            self._seconds.labels("decide", "wait").observe(event.delay_s)
        elif isinstance(event, CallRetry | EffectEnded) and _row_is_due_again(event, after):
            self._retries.labels("call").inc()
            self._seconds.labels("call", "wait").observe(event.delay_s)
        row = before.command(event.command_id) if _is_death(event) else None
        if row is not None:
            self._deaths.labels(row.queue).inc()

    def _known(self, label: str, value: str) -> str:
        """The value, while there are few of that label."""
        known = self._names.setdefault(label, set())
        if value in known:
            return value
        if len(known) >= LABEL_VALUES_MAX:
            return OTHER
        known.add(value)
        return value

    def _counter(self, named: tuple[str, str], *labels: str) -> Counter:
        return Counter(*named, labels, registry=self.registry)


def _is_death(event: Event) -> TypeGuard[LeaseExpired | CallRetry | EffectEnded]:
    if isinstance(event, LeaseExpired):
        return event.death
    return isinstance(event, CallRetry | EffectEnded) and event.died


def _row_is_due_again(event: CallRetry | EffectEnded, after: RunState) -> bool:
    if isinstance(event, EffectEnded) and not event.again:
        return False
    row = after.command(event.command_id)
    return row is not None and row.is_exec


class _Scraped:
    """What is asked when somebody looks: consumers, spans, and what the database was last heard to hold."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        return ()  # asked once, at registration; the names are in no other collector

    def collect(self) -> Iterator[Metric]:
        yield from self._consumers()
        yield CounterMetricFamily(*n.M_DROPPED, value=self._metrics.dropped())
        spans = self._metrics.spans()
        if spans is not None:
            yield CounterMetricFamily(*n.M_SPANS_EXPORTED, value=spans.exported)
            dropped = CounterMetricFamily(*n.M_SPANS_DROPPED, labels=["reason"])
            for reason, count in spans.dropped.items():
                dropped.add_metric([reason], count)
            yield dropped
        yield from self._queues()

    def _consumers(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily(*n.M_IN_FLIGHT, labels=["queue"])
        slots = GaugeMetricFamily(*n.M_SLOTS, labels=["queue"])
        taken = CounterMetricFamily(*n.M_TAKEN, labels=["queue"])
        settled = CounterMetricFamily(*n.M_SETTLED, labels=["queue"])
        for one in self._metrics.progress():
            queue = [",".join(one.queues)]
            in_flight.add_metric(queue, one.in_flight)
            slots.add_metric(queue, one.slots)
            taken.add_metric(queue, one.taken)
            settled.add_metric(queue, one.settled)
        yield from (in_flight, slots, taken, settled)

    def _queues(self) -> Iterator[Metric]:
        loads = self._metrics.loads
        if loads is None:
            return
        by_queue = {load.queue: load for load in loads}
        rows = GaugeMetricFamily(*n.M_QUEUE_ROWS, labels=["queue"])
        leased = GaugeMetricFamily(*n.M_QUEUE_LEASED, labels=["queue"])
        oldest = GaugeMetricFamily(*n.M_QUEUE_OLDEST, labels=["queue"])
        for queue in self._metrics.queues:  # those that are not loaded have nothing
            load = by_queue.get(queue, QueueLoad(queue, 0, 0, 0.0))
            rows.add_metric([queue], load.rows)
            leased.add_metric([queue], load.leased)
            oldest.add_metric([queue], load.oldest_s)
        yield from (rows, leased, oldest)
