"""The stored rows of one run, read back through the store's own reading methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.simulation.ports import finished
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.ports import RunStore
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import RunState
from toolfleet.schemas.views import DeadLetter, RunEvent, RunView, StoredItem


@dataclass(frozen=True, slots=True)
class RunRows:
    """Everything stored of one run at one moment."""

    state: RunState
    results: tuple[tuple[int, CallResult], ...]
    items: tuple[StoredItem, ...]
    usage: tuple[dict[str, Any], ...]


class Rows:
    """Reads without giving control away: the in-memory store never waits."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def run(self, run_id: RunId) -> RunRows | None:
        view = finished(self._store.run(run_id))
        if view is None:
            return None
        return RunRows(
            state=view.state,
            results=tuple(finished(self._store.results(run_id))),
            items=tuple(finished(self._store.items(run_id))),
            usage=tuple(finished(self._store.usage(run_id))),
        )

    def events(self, run_id: RunId) -> list[RunEvent]:
        return finished(self._store.events(run_id))  # type: ignore[no-any-return]

    def dead(self) -> list[DeadLetter]:
        return finished(self._store.dead(limit=1000))  # type: ignore[no-any-return]

    def counts(self) -> dict[str, int]:
        return finished(self._store.counts())  # type: ignore[no-any-return]

    def view(self, run_id: RunId) -> RunView:
        return finished(self._store.run(run_id))  # type: ignore[no-any-return]
