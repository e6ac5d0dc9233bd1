"""Every queue, declared once as data: who reads it, what is in it, its numbers. docs/queues.md is rendered from it.

A message layer declares these queues and no others. What cannot be processed goes to no queue: `dead` is a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from toolfleet.queues.policy import POLICIES, QueuePolicy
from toolfleet.schemas.commands import DECIDE_QUEUES, DELIVER_QUEUE, EXEC_QUEUES, RESULTS_QUEUE
from toolfleet.schemas.messages import DecideMessage, DeliverMessage, ExecMessage, Message, ResultMessage
from toolfleet.schemas.outcomes import Lane, Tier


class Role(StrEnum):
    """The workers that read queues. The keeper reads none."""

    DECISION = "decision"
    EXECUTOR = "executor"
    COLLECTOR = "collector"
    COURIER = "courier"


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue. `message` is the only type that may be in it."""

    name: str
    role: Role
    message: type[Message]
    policy: QueuePolicy
    carries: str


def _queue(name: str, role: Role, message: type[Message], carries: str) -> Queue:
    return Queue(name, role, message, POLICIES[name], carries)


# The order is the order in which a worker empties its queues: people who wait come before batches.
QUEUES: Final = (
    _queue(
        DECIDE_QUEUES[Lane.INTERACTIVE],
        Role.DECISION,
        DecideMessage,
        "model turns of runs that somebody waits for",
    ),
    _queue(DECIDE_QUEUES[Lane.BATCH], Role.DECISION, DecideMessage, "model turns of batch runs"),
    _queue(EXEC_QUEUES[Tier.LOW], Role.EXECUTOR, ExecMessage, "calls that can do little harm"),
    _queue(
        EXEC_QUEUES[Tier.MEDIUM], Role.EXECUTOR, ExecMessage, "calls that run at once and are always audited"
    ),
    _queue(EXEC_QUEUES[Tier.HIGH], Role.EXECUTOR, ExecMessage, "calls that need a confirmation"),
    _queue(EXEC_QUEUES[Tier.IRREVERSIBLE], Role.EXECUTOR, ExecMessage, "calls that cannot be undone"),
    _queue(RESULTS_QUEUE, Role.COLLECTOR, ResultMessage, "outcomes of calls, to be counted and merged"),
    _queue(DELIVER_QUEUE, Role.COURIER, DeliverMessage, "webhooks to be sent"),
)

QUEUE_BY_NAME: Final[Mapping[str, Queue]] = MappingProxyType({queue.name: queue for queue in QUEUES})

assert len(QUEUE_BY_NAME) == len(QUEUES), "two queues of one name"
assert set(QUEUE_BY_NAME) == set(POLICIES), "a policy without a queue"


def queues_of(role: Role) -> tuple[str, ...]:
    """The names of the queues that role reads, in the order in which it empties them."""
    return tuple(queue.name for queue in QUEUES if queue.role == role)


def render_table() -> str:
    """The table of docs/queues.md: markdown, one row per queue, and one for the table of dead letters."""
    rows = [
        ("queue", "read by", "message", "carries", "fetched at most", "lease", "sent again after"),
        ("---", "---", "---", "---", "---:", "---:", "---:"),
        *(_row(queue) for queue in QUEUES),
        ("dead (a table)", "people", "-", "what could not be processed, with the reason", "-", "-", "-"),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(queue: Queue) -> tuple[str, ...]:
    policy = queue.policy
    lost = f"{policy.lost_after_s:g} s"
    return (
        f"`{queue.name}`",
        queue.role.value,
        f"`{queue.message.__name__}`",
        queue.carries,
        str(policy.fetch_max),
        "none" if policy.lease_s is None else f"{policy.lease_s:g} s",
        f"the call's deadline + {lost}" if policy.after_deadline else lost,
    )
