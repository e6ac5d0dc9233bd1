"""Where a trace begins: the runs of one submit, each with the trace context that travels with it from then on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import structlog
from opentelemetry.trace import Link, SpanContext, SpanKind

from toolfleet.adapters.telemetry import facts, ids
from toolfleet.adapters.telemetry import names as n
from toolfleet.adapters.telemetry.caller import trace_of_caller
from toolfleet.adapters.telemetry.recording import SAMPLED, UNSAMPLED, Recorder
from toolfleet.schemas.run import NewRun

log = structlog.get_logger("toolfleet.telemetry")


class Submitting:
    """Gives every run its trace: the one of its request, of the caller's current span, or a new one.

    Of several runs that are submitted together each has a trace of its own, which links to the caller's: a batch of
    100,000 runs is not one trace.
    """

    __slots__ = ("_caller", "_parents", "_recorder", "_runs", "_started")

    def __init__(self, recorder: Recorder, runs: Sequence[NewRun]) -> None:
        self._recorder = recorder
        self._runs = list(runs)
        self._caller: ids.Traceparent | None = None
        self._parents: list[ids.Traceparent | None] = []
        self._started = 0

    def __enter__(self) -> Sequence[NewRun]:
        self._started = time.time_ns()
        self._caller = trace_of_caller()
        only = self._caller if len(self._runs) == 1 else None
        self._parents = [ids.read(run.trace) or only for run in self._runs]
        self._runs = [
            replace(run, trace=self._context(run, parent).headers())
            for run, parent in zip(self._runs, self._parents, strict=True)
        ]
        return self._runs

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            return  # nothing was accepted, so there is no run to have a trace
        times = (self._started, time.time_ns())
        try:
            for run, parent in zip(self._runs, self._parents, strict=True):
                self._record(run, parent, times)
        except Exception:
            log.exception("span_failed")

    def _context(self, run: NewRun, parent: ids.Traceparent | None) -> ids.Traceparent:
        span_id = ids.submit_span_id(run.run_id)
        if parent is not None:
            trace = self._recorder.trace(run.run_id, parent.headers())
            return ids.Traceparent(parent.trace_id, span_id, trace.sampled, parent.state)
        trace_id = ids.trace_id_of(run.run_id)
        return ids.Traceparent(trace_id, span_id, self._recorder.samples_root(trace_id))

    def _record(self, run: NewRun, parent: ids.Traceparent | None, times: tuple[int, int]) -> None:
        trace = self._recorder.trace(run.run_id, run.trace)
        if not trace.sampled:
            return
        caller = self._caller
        links = [] if parent is not None or caller is None else [Link(_remote(caller))]
        attributes: facts.Attributes = {n.RUN: run.run_id, n.AGENT_NAME: run.agent, n.TENANT: run.tenant}
        attributes |= {n.AGENT_VERSION: run.agent_version, n.CORRELATION: run.correlation_id}
        self._recorder.record(
            n.SUBMIT,
            trace.span(ids.submit_span_id(run.run_id)),
            None if parent is None else trace.span(parent.span_id, remote=True),
            attributes,
            times,
            kind=SpanKind.PRODUCER,
            links=links,
        )


def _remote(given: ids.Traceparent) -> SpanContext:
    return SpanContext(given.trace_id, given.span_id, True, SAMPLED if given.sampled else UNSAMPLED)
