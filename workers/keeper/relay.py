"""Publishes rows that were not sent, rows whose time has come, rows whose message may be lost; heals a wiped broker."""

from __future__ import annotations

import structlog

from toolfleet.schemas.errors import BrokerUnavailable
from toolfleet.schemas.ports import MessageLayer, RunStore
from toolfleet.workers.points import Point
from toolfleet.workers.publisher import Publisher

log = structlog.get_logger("toolfleet.keeper.relay")

RELAY_BATCH = 500


async def relay(store: RunStore, layer: MessageLayer, publisher: Publisher, point: Point) -> int:
    """T15: publish first, then mark. Returns how many rows went out."""
    sent = 0
    try:
        waiting = await layer.waiting_since_s()
    except BrokerUnavailable:
        return 0  # nothing could be published
    while True:
        due = await store.due_rows(limit=RELAY_BATCH, broker=layer.name, waiting_since_s=waiting)
        if not due:
            return sent
        await point("keeper.before_publish")
        if not await publisher.rows(due):
            return sent
        await point("keeper.after_publish")
        sent += len(due)
        if len(due) < RELAY_BATCH:
            return sent


async def heal_wipe(store: RunStore, layer: MessageLayer, point: Point) -> bool:
    """T18: the broker's marker is gone or foreign: note the reset, commit, and only then give the marker back."""
    ours = await store.broker_marker(layer.name)
    try:
        theirs = await layer.marker()
    except BrokerUnavailable:
        return False
    if theirs == ours:
        return False
    await store.note_broker_reset(layer.name)
    await point("keeper.after_reset")
    await layer.set_marker(ours)
    log.info("broker_reset", broker=layer.name, had_marker=theirs is not None)
    return True
