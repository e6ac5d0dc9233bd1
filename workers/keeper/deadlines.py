"""Ends runs whose wall deadline has passed."""

from __future__ import annotations

from toolfleet.schemas.events import DeadlineReached
from toolfleet.schemas.ports import RunStore, Transition
from toolfleet.workers.publisher import Publisher

OVERDUE_BATCH = 200


async def end_overdue(store: RunStore, publisher: Publisher) -> int:
    """T23 for every overdue run; returns how many were stopped."""
    overdue = await store.overdue_runs(limit=OVERDUE_BATCH)
    if not overdue:
        return 0
    applied = await store.transact([Transition(run_id, DeadlineReached()) for run_id in overdue])
    await publisher.rows([row for one in applied for row in one.publish])
    return sum(1 for one in applied if one.missed is None)
