"""How a span of ours comes to be: the trace of a run as every process sees it, and the recording of what has ended.

A span is made when its step has ended, because only then is known which of several tries of a step was the one that
was stored: that one gets the id that children and links compute (ids.py), every other one an id of its own. While the
step runs its context is the current one, so that what tools and HTTP clients record lies under it, and its ids are in
the log lines.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from typing import Any, Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace.span import TraceState
from structlog.contextvars import bind_contextvars, reset_contextvars

from toolfleet.adapters.telemetry import facts, ids
from toolfleet.adapters.telemetry import names as n
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.ports import Applied
from toolfleet.schemas.records import AppendMerge
from toolfleet.schemas.run import CallState

SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
UNSAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
_SCOPE: Final = InstrumentationScope(n.SCOPE)
_ERROR: Final = Status(StatusCode.ERROR)
_UNSET: Final = Status(StatusCode.UNSET)

Put = Callable[[ReadableSpan], None]


class Trace:
    """The trace of one run, as every process sees it."""

    __slots__ = ("_flags", "_run", "_state", "_submitted", "sampled", "trace_id")

    def __init__(self, run_id: RunId, headers: Mapping[str, str], sampler: Sampler) -> None:
        given = ids.read(headers)
        self._run = run_id
        self._submitted = 0 if given is None else given.span_id
        self.trace_id = ids.trace_id_of(run_id) if given is None else given.trace_id
        self._state = TraceState.from_header([given.state]) if given is not None and given.state else None
        parent = None
        if given is not None:
            flags = SAMPLED if given.sampled else UNSAMPLED
            remote = SpanContext(self.trace_id, self._submitted, True, flags, self._state)
            parent = set_span_in_context(NonRecordingSpan(remote), Context())
        self.sampled = _sampled(sampler, parent, self.trace_id)
        self._flags = SAMPLED if self.sampled else UNSAMPLED

    def span(self, span_id: int, *, remote: bool = False) -> SpanContext:
        return SpanContext(self.trace_id, span_id, remote, self._flags, self._state)

    def root(self, turn: int) -> SpanContext | None:
        """The parent of the decision of that turn. Where nobody said who submitted the run, the first is the root."""
        if self._submitted:
            return self.span(self._submitted, remote=True)
        return None if turn == 1 else self.span(ids.decide_span_id(self._run, 1), remote=True)


class Recorder:
    """Makes spans of what has ended and puts them into a queue. `content`: prompts, arguments, results are exported."""

    def __init__(
        self, put: Put, *, sampler: Sampler, resource: Callable[[], Resource], content: bool = False
    ) -> None:
        self._put = put
        self._sampler = sampler
        self._resource = resource
        self.content = content

    def trace(self, run_id: RunId, headers: Mapping[str, str]) -> Trace:
        return Trace(run_id, headers, self._sampler)

    def samples_root(self, trace_id: int) -> bool:
        """Whether a trace that begins here is sampled."""
        return _sampled(self._sampler, None, trace_id)

    def record(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: facts.Attributes,
        times: tuple[int, int],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> None:
        """One finished span, into the queue."""
        span = ReadableSpan(
            name,
            context,
            parent,
            self._resource(),
            attributes,
            (),
            links,
            kind,
            status=_ERROR if n.ERROR_TYPE in attributes else _UNSET,
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=_SCOPE,
        )
        self._put(span)

    def merged(self, trace: Trace, applied: Applied, times: tuple[int, int]) -> None:
        """The span of the merge that `applied` made, if it made one."""
        found = next((record for record in applied.records if isinstance(record, AppendMerge)), None)
        if found is None or applied.before is None or not trace.sampled:
            return
        run_id = applied.before.run_id
        links = [
            Link(
                trace.span(ids.attempt_span_id(call.call_id, number), remote=True),
                {n.TOOL_CALL_ID: call.call_id},
            )
            for call in found.calls
            for number in range(1, _attempts(call) + 1)
        ]
        context = trace.span(ids.merge_span_id(run_id, found.turn))
        parent = trace.span(ids.decide_span_id(run_id, found.turn), remote=True)
        self.record(n.MERGE, context, parent, facts.merge(applied, found), times, links=links)


def _sampled(sampler: Sampler, parent: Context | None, trace_id: int) -> bool:
    return sampler.should_sample(parent, trace_id, n.SCOPE).decision is Decision.RECORD_AND_SAMPLE


def _attempts(call: CallState) -> int:
    """How many spans there are of a call that has its outcome."""
    return call.attempt - 1 if call.outcome is CallOutcome.CANCELLED else call.attempt


def new_span_id() -> int:
    return random.getrandbits(64) or 1


class Current:
    """Makes a span the current one, and names it in log lines."""

    __slots__ = ("_bound", "_tokens", "context", "started")

    def __init__(self, context: SpanContext, fields: Mapping[str, object]) -> None:
        self.context = context
        self._bound = fields
        self._tokens: tuple[Token[Context], Mapping[str, Token[Any]]] | None = None
        self.started = 0

    def open(self) -> None:
        self.started = time.time_ns()
        span = NonRecordingSpan(self.context)
        fields = {
            **self._bound,
            n.LOG_TRACE: f"{self.context.trace_id:032x}",
            n.LOG_SPAN: f"{self.context.span_id:016x}",
        }
        self._tokens = attach(set_span_in_context(span)), bind_contextvars(**fields)

    def close(self) -> tuple[int, int]:
        """Start and end, nanoseconds since the epoch."""
        assert self._tokens is not None, "opened before"
        detach(self._tokens[0])
        reset_contextvars(**self._tokens[1])
        return self.started, time.time_ns()
