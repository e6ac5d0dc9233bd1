"""Carries open batches on: makes runs of their items a window at a time, settles what has ended, stops what was stopped."""

from __future__ import annotations

from toolfleet.schemas.batches import FEED_MAX
from toolfleet.schemas.events import CancelRequested
from toolfleet.schemas.ports import RunStore, Submission, Telemetry, Transition
from toolfleet.workers.publisher import Publisher
from toolfleet.workers.telemetry import SILENT

ROUNDS_MAX = 20  # in one period of the keeper, whose other duties wait meanwhile
BY_BATCH = "batch"  # who cancelled the runs of a batch that is cancelled


async def feed(
    store: RunStore, publisher: Publisher, *, in_flight_max: int, telemetry: Telemetry = SILENT
) -> int:
    """Returns how many runs were made. Killed anywhere: what was committed is published by the relay, and the rest is
    still to be done."""
    batches = store.batches
    if batches is None:
        return 0
    made = 0
    for _ in range(ROUNDS_MAX):
        advanced = await batches.advance(in_flight_max=in_flight_max, feed_max=FEED_MAX)
        if advanced.runs:
            with telemetry.submitting(advanced.runs) as watch:
                watch.ended([Submission(run.run_id, True, ()) for run in advanced.runs])
        await publisher.rows(advanced.publish)
        if advanced.cancel:
            stops = [Transition(run_id, CancelRequested(BY_BATCH)) for run_id in advanced.cancel]
            applied = await store.transact(stops)
            await publisher.rows([row for one in applied for row in one.publish])
        made += len(advanced.runs)
        if not advanced.more:
            break
    return made
