"""A row becomes the message of its queue."""

from __future__ import annotations

import pytest

from toolfleet.queues.policy import POLICIES
from toolfleet.queues.routing import lost_after_for_call, message_for, queue_for_lane, queue_for_tier
from toolfleet.queues.topology import QUEUES
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.errors import MalformedMessage
from toolfleet.schemas.ids import RunId, call_command_id, call_id_of, decide_command_id
from toolfleet.schemas.messages import DecideMessage, DeliverMessage, ExecMessage, ResultMessage
from toolfleet.schemas.outcomes import Lane, Tier
from toolfleet.schemas.views import DueRow

RUN = RunId("run_1")
CALL = call_id_of(RUN, 3, 2)
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def due(queue: str) -> DueRow:
    if queue.startswith(("exec.", "results")):
        row = CommandRow(call_command_id(CALL), queue, 3, 10.0, call_id=CALL, sends=2)
    else:
        row = CommandRow(decide_command_id(RUN, 3), queue, 3, 10.0, sends=2)
    return DueRow(RUN, row, TRACE)


def test_a_tier_and_a_lane_have_a_queue_each() -> None:
    assert [queue_for_tier(tier) for tier in Tier] == [
        "exec.low",
        "exec.medium",
        "exec.high",
        "exec.irreversible",
    ]
    assert [queue_for_lane(lane) for lane in Lane] == ["decide.interactive", "decide.batch"]


@pytest.mark.parametrize("queue", [queue.name for queue in QUEUES])
def test_a_message_says_where_to_look_and_how_often_it_was_sent(queue: str) -> None:
    message = message_for(due(queue), 1234.5)

    assert (message.run_id, message.turn, message.sends) == (RUN, 3, 2)
    assert (message.trace, message.published_at) == (TRACE, 1234.5)
    assert message.command_id == due(queue).row.id


def test_each_queue_gets_its_type() -> None:
    kinds = {queue.name: type(message_for(due(queue.name), 1.0)) for queue in QUEUES}

    assert kinds == {queue.name: queue.message for queue in QUEUES}


def test_a_call_is_named_and_a_stored_outcome_does_not_ride_along() -> None:
    run_it, count_it = message_for(due("exec.high"), 1.0), message_for(due("results"), 1.0)

    assert isinstance(run_it, ExecMessage) and run_it.call_id == CALL
    assert isinstance(count_it, ResultMessage) and count_it.call_id == CALL
    assert count_it.result is None


def test_decisions_and_deliveries_name_no_call() -> None:
    assert isinstance(message_for(due("decide.batch"), 1.0), DecideMessage)
    assert isinstance(message_for(due("deliver"), 1.0), DeliverMessage)


def test_a_row_for_a_queue_of_a_newer_release_is_refused_with_what_to_do() -> None:  # B105
    with pytest.raises(MalformedMessage, match=r"exec\.cosmic.*does not have(.|\n)*upgrade") as refused:
        message_for(due("exec.cosmic"), 1.0)

    assert refused.value.fields == {"run_id": RUN, "queue": "exec.cosmic"}


def test_a_call_is_perhaps_lost_a_margin_after_its_own_deadline() -> None:
    for tier in Tier:
        policy = POLICIES[queue_for_tier(tier)]
        assert policy.after_deadline and lost_after_for_call(45.0) == 45.0 + policy.lost_after_s
