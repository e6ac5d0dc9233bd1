"""A store whose commits are counted. Everything else goes straight to the store it stands before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import structlog

from toolfleet.adapters.telemetry.metrics import Metrics
from toolfleet.schemas.batch_port import BatchStore
from toolfleet.schemas.batches import Advanced
from toolfleet.schemas.ports import Applied, RunStore, Submission, Transition
from toolfleet.schemas.run import NewRun

log = structlog.get_logger("toolfleet.telemetry")


def observed(store: RunStore, metrics: Metrics) -> RunStore:
    """The same store, with what it commits counted in `metrics`."""
    return cast(RunStore, _Observed(store, metrics))


class _Observed:
    """A commit whose answer is lost on the way is not counted; its rows are the truth."""

    def __init__(self, store: RunStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def batches(self) -> BatchStore | None:
        found = self._store.batches
        return None if found is None else cast(BatchStore, _ObservedBatches(found, self._metrics))

    async def submit(self, runs: Sequence[NewRun]) -> list[Submission]:
        answers = await self._store.submit(runs)
        try:
            self._metrics.submitted(runs, answers)
        except Exception:  # what was accepted stays accepted
            log.exception("count_failed")
        return answers

    async def transact(self, transitions: Sequence[Transition]) -> list[Applied]:
        applied = await self._store.transact(transitions)
        try:
            self._metrics.stored(transitions, applied)
        except Exception:  # what was stored stays stored
            log.exception("count_failed")
        return applied


class _ObservedBatches:
    """Runs that are made for items are counted as those somebody submitted."""

    def __init__(self, batches: BatchStore, metrics: Metrics) -> None:
        self._batches = batches
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    async def advance(self, *, in_flight_max: int, feed_max: int) -> Advanced:
        advanced = await self._batches.advance(in_flight_max=in_flight_max, feed_max=feed_max)
        try:
            self._metrics.submitted(
                advanced.runs, [Submission(run.run_id, True, ()) for run in advanced.runs]
            )
        except Exception:  # what was made stays made
            log.exception("count_failed")
        return advanced
