"""Queues are declared once, with numbers that fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toolfleet.queues.policy import CLAIM_S, HEARTBEAT_S, POLICIES, QueuePolicy, broken_rules
from toolfleet.queues.topology import QUEUE_BY_NAME, QUEUES, Role, queues_of, render_table
from toolfleet.schemas.commands import DECIDE_QUEUES, DELIVER_QUEUE, EXEC_QUEUES, RESULTS_QUEUE
from toolfleet.schemas.messages import DecideMessage, DeliverMessage, ExecMessage, ResultMessage

SOUND = QueuePolicy(fetch_max=1, lease_s=30.0, lost_after_s=90.0)


def test_every_queue_a_row_can_be_in_is_declared_once() -> None:
    named = [*DECIDE_QUEUES.values(), *EXEC_QUEUES.values(), RESULTS_QUEUE, DELIVER_QUEUE]

    assert sorted(queue.name for queue in QUEUES) == sorted(named)
    assert set(QUEUE_BY_NAME) == set(named) == set(POLICIES)


def test_every_role_reads_its_queues_and_people_who_wait_come_first() -> None:
    assert queues_of(Role.DECISION) == ("decide.interactive", "decide.batch")
    assert queues_of(Role.EXECUTOR) == ("exec.low", "exec.medium", "exec.high", "exec.irreversible")
    assert queues_of(Role.COLLECTOR) == ("results",)
    assert queues_of(Role.COURIER) == ("deliver",)


def test_each_queue_has_one_type_of_message() -> None:
    types = {queue.name.split(".")[0]: queue.message for queue in QUEUES}

    assert types == {
        "decide": DecideMessage,
        "exec": ExecMessage,
        "results": ResultMessage,
        "deliver": DeliverMessage,
    }


def test_the_numbers_fit_together() -> None:
    assert broken_rules(POLICIES) == []
    assert broken_rules({"q": SOUND}) == []


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (replace(SOUND, fetch_max=0), "nothing would be fetched"),
        (replace(SOUND, lease_s=2 * HEARTBEAT_S), "lose the lease of a live worker"),
        (replace(SOUND, lease_s=CLAIM_S), "longer than a lease"),
        (replace(SOUND, lost_after_s=30.0), "would count as lost"),
        (replace(SOUND, lost_after_s=29.0, after_deadline=True), "would count as lost"),
        (replace(SOUND, lease_s=None, lost_after_s=3.0), "before the keeper can have published it"),
    ],
)
def test_numbers_that_do_not_fit_are_named(policy: QueuePolicy, found: str) -> None:
    sentences = broken_rules({"q": policy})

    assert any(sentence.startswith("q: ") and found in sentence for sentence in sentences), sentences


def test_the_table_of_the_docs_has_a_row_for_each_queue_and_for_dead() -> None:
    head, line, *rows = render_table().splitlines()

    assert [row.split("|")[1].strip() for row in rows] == [
        *(f"`{queue.name}`" for queue in QUEUES),
        "dead (a table)",
    ]
    assert {row.count("|") for row in (head, line, *rows)} == {8}
    assert "| 100 | none | 90 s |" in rows[6]
    assert "| 30 s | the call's deadline + 30 s |" in rows[2]
