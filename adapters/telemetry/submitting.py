"""Where a trace begins: the runs of one submit, each with the trace context that travels with it from then on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import structlog
from opentelemetry.trace import Link, SpanContext, SpanKind

from toolfleet.adapters.telemetry import facts, ids
from toolfleet.adapters.telemetry import names as n
from toolfleet.adapters.telemetry.caller import trace_of_caller
from toolfleet.adapters.telemetry.recording import SAMPLED, UNSAMPLED, Recorder
from toolfleet.schemas.ports import Submission
from toolfleet.schemas.run import NewRun

log = structlog.get_logger("toolfleet.telemetry")


class Submitting:
    """Gives every run its trace: that of its request, or a new one. One span for each run that was made.

    Runs that are submitted together have a trace each, with a link to the caller's span: a batch of 100,000 runs is
    not one trace.
    """

    __slots__ = ("_links", "_parents", "_recorder", "_started", "_submitted", "runs")

    def __init__(self, recorder: Recorder, runs: Sequence[NewRun]) -> None:
        self._recorder = recorder
        self._submitted: Sequence[Submission] = ()
        self._started = 0
        self._links: Sequence[Link] = ()
        self._parents = [ids.read(run.trace) for run in runs]
        self.runs: Sequence[NewRun] = [
            replace(run, trace=self._context(run, parent).headers())
            for run, parent in zip(runs, self._parents, strict=True)
        ]

    def __enter__(self) -> Self:
        self._started = time.time_ns()
        caller = trace_of_caller()
        self._links = () if caller is None else [Link(_remote(caller))]
        return self

    def ended(self, submitted: Sequence[Submission]) -> None:
        self._submitted = submitted

    def __exit__(self, *exc: object) -> None:
        times = (self._started, time.time_ns())
        try:
            for run, parent, one in zip(self.runs, self._parents, self._submitted, strict=False):
                if one.created:  # a known key made its run before
                    self._record(run, parent, times)
        except Exception:
            log.exception("span_failed")

    def _context(self, run: NewRun, parent: ids.Traceparent | None) -> ids.Traceparent:
        span_id = ids.submit_span_id(run.run_id)
        if parent is not None:
            sampled = self._recorder.trace(run.run_id, run.trace).sampled
            return ids.Traceparent(parent.trace_id, span_id, sampled, parent.state)
        trace_id = ids.trace_id_of(run.run_id)
        return ids.Traceparent(trace_id, span_id, self._recorder.samples_root(trace_id))

    def _record(self, run: NewRun, parent: ids.Traceparent | None, times: tuple[int, int]) -> None:
        trace = self._recorder.trace(run.run_id, run.trace)
        if not trace.sampled:
            return
        attributes: facts.Attributes = {n.RUN: run.run_id, n.AGENT_NAME: run.agent, n.TENANT: run.tenant}
        attributes |= {n.AGENT_VERSION: run.agent_version, n.CORRELATION: run.correlation_id}
        self._recorder.record(
            n.SUBMIT,
            trace.span(ids.submit_span_id(run.run_id)),
            None if parent is None else trace.span(parent.span_id, remote=True),
            attributes,
            times,
            kind=SpanKind.PRODUCER,
            links=self._links if parent is None else (),
        )


def _remote(given: ids.Traceparent) -> SpanContext:
    return SpanContext(given.trace_id, given.span_id, True, SAMPLED if given.sampled else UNSAMPLED)
