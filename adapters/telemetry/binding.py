"""Telemetry that only names run, turn and call in the log lines of a step: JSON logs without traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import Any, Final, Self

from structlog.contextvars import bind_contextvars, reset_contextvars

from toolfleet.adapters.telemetry import names as n
from toolfleet.schemas.events import Event
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.ports import Applied, Submission
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.schemas.views import CallView, RunInfo


class _Bound:
    __slots__ = ("_fields", "_tokens", "runs")

    def __init__(self, fields: Mapping[str, object], runs: Sequence[NewRun] = ()) -> None:
        self._fields = fields
        self._tokens: Mapping[str, Token[Any]] = {}
        self.runs = runs

    def __enter__(self) -> Self:
        self._tokens = bind_contextvars(**self._fields)
        return self

    def __exit__(self, *exc: object) -> None:
        reset_contextvars(**self._tokens)

    def asking(self, info: RunInfo, request: ModelRequest) -> _Bound:
        return _NOTHING

    def ended(self, *what: Event | Applied | Sequence[Applied | Submission] | None) -> None:
        pass


_NOTHING: Final = _Bound({})


class Binding:
    """schemas.ports.Telemetry for log lines."""

    def submitting(self, runs: Sequence[NewRun]) -> _Bound:
        return _Bound({}, runs)

    def decision(self, state: RunState, trace: Mapping[str, str]) -> _Bound:
        return _Bound({n.LOG_RUN: state.run_id, n.LOG_TURN: state.turn})

    def attempt(self, view: CallView, call: CallState) -> _Bound:
        return _Bound({n.LOG_RUN: view.run_id, n.LOG_TURN: view.turn, n.LOG_CALL: call.call_id})

    def merging(self, traces: Mapping[RunId, Mapping[str, str]]) -> _Bound:
        return _NOTHING
