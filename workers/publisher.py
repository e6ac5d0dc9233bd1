"""Publishes rows after their commit. What it cannot publish stays unsent, and the keeper sends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from toolfleet.queues.envelope import Codec
from toolfleet.queues.routing import message_for
from toolfleet.queues.topology import QUEUE_BY_NAME
from toolfleet.schemas.errors import BrokerUnavailable, MessageRefused
from toolfleet.schemas.messages import Message
from toolfleet.schemas.ports import MessageLayer, Outgoing, RunStore, SentMark
from toolfleet.schemas.views import DueRow

log = structlog.get_logger("toolfleet.publisher")


class Publisher:
    """Turns rows into signed messages. `now` is the wall clock, for the age of a message only."""

    def __init__(self, store: RunStore, layer: MessageLayer, codec: Codec, now: Callable[[], float]) -> None:
        self._store = store
        self._layer = layer
        self._codec = codec
        self._now = now

    async def rows(self, due: Sequence[DueRow]) -> bool:
        """Publish the messages of these rows, then mark them sent. False: the broker did not take them."""
        if not due:
            return True
        at_s = self._now()
        known = [one for one in due if _known(one)]
        outgoing = [
            Outgoing(one.row.queue, self._codec.encode(one.row.queue, message_for(one, at_s)))
            for one in known
        ]
        if not await self._publish(outgoing):
            return False
        await self._store.mark_sent([SentMark(one.row.id, one.row.due_at, at_s) for one in known])
        return True

    async def message(self, queue: str, message: Message) -> bool:
        """Publish one message that has no row of its own to be marked: a result that rides along.

        False: it was not taken, or is too large or no proper text for a message; then it has to be stored.
        """
        try:
            body = self._codec.encode(queue, message)
        except MessageRefused as exc:
            log.info("not_inline", queue=queue, reason=exc.code)
            return False
        return await self._publish([Outgoing(queue, body)])

    async def _publish(self, outgoing: Sequence[Outgoing]) -> bool:
        try:
            await self._layer.publish(outgoing)
        except BrokerUnavailable as exc:
            log.warning("publish_failed", messages=len(outgoing), error=exc.message)
            return False
        return True


def _known(due: DueRow) -> bool:
    """A newer release may have written rows of queues this one does not have: they are left to it."""
    if due.row.queue in QUEUE_BY_NAME:
        return True
    log.warning("unknown_queue", queue=due.row.queue, command_id=due.row.id)
    return False
