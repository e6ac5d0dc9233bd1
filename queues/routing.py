"""Where a step travels, and the message that names it. Pure."""

from __future__ import annotations

from toolfleet.queues.topology import QUEUE_BY_NAME
from toolfleet.schemas.commands import DECIDE_QUEUES, EXEC_QUEUES
from toolfleet.schemas.errors import MalformedMessage
from toolfleet.schemas.limits import LOST_MARGIN_S
from toolfleet.schemas.messages import DecideMessage, DeliverMessage, ExecMessage, Message, ResultMessage
from toolfleet.schemas.outcomes import Lane, Tier
from toolfleet.schemas.views import DueRow


def queue_for_tier(tier: Tier) -> str:
    """The queue of the calls of that tier."""
    return EXEC_QUEUES[tier]


def queue_for_lane(lane: Lane) -> str:
    """The queue of the decisions of that lane."""
    return DECIDE_QUEUES[lane]


def lost_after_for_call(timeout_s: float) -> float:
    """Seconds after which a call that was sent is perhaps lost: its own deadline and a margin."""
    return timeout_s + LOST_MARGIN_S


def message_for(due: DueRow, published_at: float) -> Message:
    """The message that names this row: ids, how often the row was sent before, trace context; nothing to believe.

    A row of queue `results` is an outcome that is stored already, so none rides along. Raises MalformedMessage for a
    queue this release does not have: a newer one, in a rolling deploy, wrote the row.
    """
    row = due.row
    queue = QUEUE_BY_NAME.get(row.queue)
    if queue is None:
        raise MalformedMessage(
            f"row {row.id} of run {due.run_id} is for queue {row.queue!r}, which this release does not have",
            hint="Leave it to the release that wrote it; if there is none, upgrade this process.",
            run_id=due.run_id,
            queue=row.queue,
        )
    kind = queue.message
    if kind is DecideMessage or kind is DeliverMessage:
        return kind(
            run_id=due.run_id,
            turn=row.turn,
            trace=due.trace,
            published_at=published_at,
            command_id=row.id,
            sends=row.sends,
        )
    assert kind is ExecMessage or kind is ResultMessage
    assert row.call_id is not None, f"row {row.id} in {row.queue} names no call"
    return kind(
        run_id=due.run_id,
        turn=row.turn,
        trace=due.trace,
        published_at=published_at,
        command_id=row.id,
        call_id=row.call_id,
        sends=row.sends,
    )
