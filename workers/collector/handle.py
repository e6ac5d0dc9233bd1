"""One turn's join, for a batch of outcomes: lock, insert, count, merge what is complete, resume."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from toolfleet.schemas.events import CallsSettled
from toolfleet.schemas.ids import CallId, RunId
from toolfleet.schemas.messages import ResultMessage
from toolfleet.schemas.ports import Clock, RunStore, Telemetry, Transition
from toolfleet.schemas.results import CallResult
from toolfleet.workers.consumer import Done, Received
from toolfleet.workers.leases import commit
from toolfleet.workers.points import Point
from toolfleet.workers.publisher import Publisher
from toolfleet.workers.telemetry import SILENT


class Collector:
    """The results collector: one transition per run and batch, whatever number of results came in."""

    def __init__(
        self,
        *,
        store: RunStore,
        publisher: Publisher,
        clock: Clock,
        point: Point,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._point = point
        self._telemetry = telemetry
        self.dropped = 0  # messages that found no work

    async def accept(self, received: Sequence[Received], done: Done) -> None:
        by_run: dict[RunId, list[CallResult]] = defaultdict(list)
        traces: dict[RunId, Mapping[str, str]] = {}
        for one in received:
            message = one.message
            if isinstance(message, ResultMessage):
                by_run[RunId(message.run_id)].extend(_carried(message))
                traces[RunId(message.run_id)] = message.trace
        await self._point("collect.before_settle")
        transitions = [Transition(run_id, CallsSettled(tuple(results))) for run_id, results in by_run.items()]
        with self._telemetry.merging(traces) as watch:
            applied = await commit(self._store, self._clock, transitions)
            watch.ended(applied)
        self.dropped += sum(1 for one in applied if one.missed is not None)
        await self._point("collect.after_settle")
        await self._publisher.rows([row for one in applied for row in one.publish])
        await self._point("collect.after_publish")


def _carried(message: ResultMessage) -> list[CallResult]:
    carried = message.result
    if carried is None:
        return []  # stored by its executor; only to be counted
    return [
        CallResult(
            call_id=CallId(message.call_id),
            index=carried.index,
            outcome=carried.outcome,
            content=carried.content,
            reason=carried.reason,
            attempt=carried.attempt,
            full=carried.full,
            tool_s=carried.tool_s,
            queue_s=carried.queue_s,
        )
    ]
