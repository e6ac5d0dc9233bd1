"""What workers show of a step: a decision with its model call, an attempt of a call, a merge. See recording.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

import structlog
from opentelemetry.trace import Link, SpanContext, SpanKind

from toolfleet.adapters.telemetry import facts, ids
from toolfleet.adapters.telemetry import names as n
from toolfleet.adapters.telemetry.recording import Current, Recorder, Trace, new_span_id
from toolfleet.schemas.conversation import MergeItem
from toolfleet.schemas.events import Event
from toolfleet.schemas.ids import CallId, RunId
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.ports import Applied
from toolfleet.schemas.records import AppendMerge, AppendStep
from toolfleet.schemas.run import CallState, RunState
from toolfleet.schemas.views import CallView, RunInfo

log = structlog.get_logger("toolfleet.telemetry")


class _Watch:
    """`with` of a step: opens, closes, records; a failure to record is logged and stays here."""

    __slots__ = ("_current", "_recorder", "_trace")

    def __init__(self, recorder: Recorder, trace: Trace, current: Current) -> None:
        self._recorder = recorder
        self._trace = trace
        self._current = current

    def __enter__(self) -> Self:
        self._current.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: object, where: TracebackType | None) -> None:
        times = self._current.close()
        if self._trace.sampled:
            try:
                self._record(times)
            except Exception:
                log.exception("span_failed")

    def _record(self, times: tuple[int, int]) -> None:
        raise NotImplementedError


class Decision(_Watch):
    """One try of a decision, with the model call inside it."""

    __slots__ = ("_applied", "_chat", "_event", "_info", "_request", "_state")

    def __init__(self, recorder: Recorder, state: RunState, trace: Trace) -> None:
        current = Current(
            trace.span(ids.decide_span_id(state.run_id, state.turn)),
            {n.LOG_RUN: state.run_id, n.LOG_TURN: state.turn},
        )
        super().__init__(recorder, trace, current)
        self._state = state
        self._info: RunInfo | None = None
        self._request: ModelRequest | None = None
        self._chat: _Asking | None = None
        self._event: Event | None = None
        self._applied: Applied | None = None

    def asking(self, info: RunInfo, request: ModelRequest) -> AbstractContextManager[object]:
        self._info, self._request = info, request
        if not self._trace.sampled:
            return nullcontext()
        self._chat = _Asking(Current(self._trace.span(new_span_id()), {}))
        return self._chat

    def ended(self, event: Event, applied: Applied) -> None:
        self._event, self._applied = event, applied

    def _record(self, times: tuple[int, int]) -> None:
        recorder, trace, state, applied = self._recorder, self._trace, self._state, self._applied
        stored = applied is not None and applied.missed is None and self._moved_on(applied)
        context = self._current.context if stored else trace.span(new_span_id())
        attributes = facts.decision(state, self._info, self._request, self._event, applied)
        root, links = trace.root(state.turn), self._links()
        recorder.record(n.DECIDE, context, root, attributes, times, links=links, kind=SpanKind.CONSUMER)
        if self._chat is not None and self._info is not None and self._request is not None:
            model = self._request.agent.model
            chat = facts.chat(self._info, self._request, self._event, content=recorder.content)
            recorder.record(
                f"{n.CHAT} {model}", self._chat.context, context, chat, self._chat.times, kind=SpanKind.CLIENT
            )
        if stored and applied is not None:
            self._record_answers(applied, context, times[1])
            recorder.merged(trace, applied, (times[1], times[1]))

    def _moved_on(self, applied: Applied) -> bool:
        """Whether this was the last try of the decision: a failed one that is due again is followed by another."""
        return applied.state is None or not any(
            row.is_decide and row.turn == self._state.turn for row in applied.state.commands
        )

    def _links(self) -> list[Link]:
        """To the merge that this decision goes on from."""
        state, request = self._state, self._request
        if state.turn == 1 or request is None or not isinstance(request.items[-1], MergeItem):
            return []
        return [Link(self._trace.span(ids.merge_span_id(state.run_id, state.turn - 1), remote=True))]

    def _record_answers(self, applied: Applied, parent: SpanContext, at: int) -> None:
        known = frozenset(() if self._request is None else (tool.name for tool in self._request.tools))
        for step in applied.records:
            if isinstance(step, AppendStep) and step.kind == "call" and step.call_id is not None:
                context = self._trace.span(ids.attempt_span_id(step.call_id, 1))
                attributes = facts.answered(self._state, step, known)
                self._recorder.record(n.ANSWER_CALL, context, parent, attributes, (at, at))


class _Asking:
    """`with` of a model call."""

    __slots__ = ("_current", "times")

    def __init__(self, current: Current) -> None:
        self._current = current
        self.times = (0, 0)

    @property
    def context(self) -> SpanContext:
        return self._current.context

    def __enter__(self) -> Self:
        self._current.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.times = self._current.close()


class Attempt(_Watch):
    """One attempt of a call, a child of the decision that admitted it."""

    __slots__ = ("_applied", "_call", "_event", "_view")

    def __init__(self, recorder: Recorder, view: CallView, call: CallState, trace: Trace) -> None:
        context = trace.span(ids.attempt_span_id(CallId(call.call_id), call.attempt))
        fields = {n.LOG_RUN: view.run_id, n.LOG_TURN: view.turn, n.LOG_CALL: call.call_id}
        super().__init__(recorder, trace, Current(context, fields))
        self._view = view
        self._call = call
        self._event: Event | None = None
        self._applied: Applied | None = None

    def ended(self, event: Event, applied: Applied | None) -> None:
        self._event, self._applied = event, applied

    def _record(self, times: tuple[int, int]) -> None:
        view, call, applied = self._view, self._call, self._applied
        stored = self._event is not None and (applied is None or applied.missed is None)
        context = self._current.context if stored else self._trace.span(new_span_id())
        attributes = facts.attempt(view, call, self._event, applied, content=self._recorder.content)
        parent = self._trace.span(ids.decide_span_id(view.run_id, view.turn), remote=True)
        name = f"{n.EXECUTE_TOOL} {call.tool}"
        self._recorder.record(name, context, parent, attributes, times, kind=SpanKind.INTERNAL)


class Merging:
    """Outcomes of many runs counted in one transaction: one span for each turn that this merged."""

    __slots__ = ("_applied", "_recorder", "_started", "_traces")

    def __init__(self, recorder: Recorder, traces: Mapping[RunId, Mapping[str, str]]) -> None:
        self._recorder = recorder
        self._traces = traces
        self._applied: Sequence[Applied] = ()
        self._started = 0

    def __enter__(self) -> Self:
        self._started = time.time_ns()
        return self

    def ended(self, applied: Sequence[Applied]) -> None:
        self._applied = applied

    def __exit__(self, *exc: object) -> None:
        times = (self._started, time.time_ns())
        try:
            for one in self._applied:
                if one.before is not None and any(isinstance(r, AppendMerge) for r in one.records):
                    trace = self._recorder.trace(one.before.run_id, self._headers(one, one.before.run_id))
                    self._recorder.merged(trace, one, times)
        except Exception:
            log.exception("span_failed")

    def _headers(self, applied: Applied, run_id: RunId) -> Mapping[str, str]:
        """Of the message that was counted; the keeper has none, and looks at what goes out next."""
        of_next = applied.publish[0].trace if applied.publish else {}
        return self._traces.get(run_id, of_next)
