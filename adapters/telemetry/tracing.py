"""schemas.ports.Telemetry over OpenTelemetry: one trace per run, over any number of processes.

Nothing here waits or raises into a step. Spans and their ids: recording.py, ids.py; what is in them: facts.py, names.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolfleet.adapters.telemetry.recording import Recorder
from toolfleet.adapters.telemetry.steps import Attempt, Decision, Merging
from toolfleet.adapters.telemetry.submitting import Submitting
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.schemas.views import CallView


class Tracing:
    """Watches steps and records their spans."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def submitting(self, runs: Sequence[NewRun]) -> Submitting:
        return Submitting(self._recorder, runs)

    def decision(self, state: RunState, trace: Mapping[str, str]) -> Decision:
        return Decision(self._recorder, state, self._recorder.trace(state.run_id, trace))

    def attempt(self, view: CallView, call: CallState) -> Attempt:
        return Attempt(self._recorder, view, call, self._recorder.trace(view.run_id, view.trace))

    def merging(self, traces: Mapping[RunId, Mapping[str, str]]) -> Merging:
        return Merging(self._recorder, traces)
