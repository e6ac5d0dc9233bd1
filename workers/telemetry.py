"""Telemetry that is not there: the default of every worker. One object, made once, that does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Self

from toolfleet.schemas.events import Event
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.ports import Applied, Submission, Telemetry
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.schemas.views import CallView, RunInfo


class _Unwatched:
    """Stands for every watch."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def asking(self, info: RunInfo, request: ModelRequest) -> Self:
        return self

    def ended(self, *what: Event | Applied | Sequence[Applied | Submission] | None) -> None:
        pass


class _Submitting(_Unwatched):
    __slots__ = ("runs",)

    def __init__(self, runs: Sequence[NewRun]) -> None:
        self.runs = runs


_UNWATCHED: Final = _Unwatched()


class _Silent:
    __slots__ = ()

    def submitting(self, runs: Sequence[NewRun]) -> _Submitting:
        return _Submitting(runs)

    def decision(self, state: RunState, trace: Mapping[str, str]) -> _Unwatched:
        return _UNWATCHED

    def attempt(self, view: CallView, call: CallState) -> _Unwatched:
        return _UNWATCHED

    def merging(self, traces: Mapping[RunId, Mapping[str, str]]) -> _Unwatched:
        return _UNWATCHED


SILENT: Final[Telemetry] = _Silent()
