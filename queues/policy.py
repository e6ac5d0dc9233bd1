"""The numbers of each queue: how many messages are fetched together, how long a silent worker keeps a step.

The inequalities between them are asserted at import, with what would break otherwise. Pure; docs/queues.md shows the
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from toolfleet.schemas.commands import DECIDE_QUEUES, DELIVER_QUEUE, EXEC_QUEUES, RESULTS_QUEUE
from toolfleet.schemas.limits import (
    HOLD_DELAY_S,
    HOLD_NEWER_S,
    KEEPER_PERIOD_S,
    LEASE_S,
    LOST_AFTER_S,
    LOST_MARGIN_S,
    MESSAGE_BYTES_MAX,
    RESULT_BYTES_INLINE,
    UNSENT_AFTER_S,
)
from toolfleet.schemas.outcomes import Lane, Tier

HEARTBEAT_S: Final = (
    LEASE_S / 3
)  # how often a process renews its leases: two renewals may fail before one expires
# A broker hands a message to somebody else when its holder has been silent for this long. Shorter than a lease, so that
# a read-only call, which takes none, is back within one; a row that is still leased then wakes up when that expires.
CLAIM_S: Final = 20.0
CLAIMS_LOOKED_FOR: Final = 4  # how often in a claim somebody looks for what silent holders have
EXTENSIONS_PER_CLAIM: Final = (
    3  # how often a consumer tells the broker that it still works on what it fetched
)

# In one process nobody falls silent but a task that was cancelled, and the keeper publishes its row again long
# before this; so it only has to be longer than the steps people run there.
EMBEDDED_CLAIM_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """`fetch_max`: messages one fetch takes. `lease_s`: None where the step is one transaction and takes no lease.

    `lost_after_s`: a row sent longer ago than this is published again; counted from the end of the call's own
    deadline where `after_deadline` is set.
    """

    fetch_max: int
    lease_s: float | None
    lost_after_s: float
    after_deadline: bool = False


_DECIDE = QueuePolicy(fetch_max=32, lease_s=LEASE_S, lost_after_s=LOST_AFTER_S)

POLICIES: Final[Mapping[str, QueuePolicy]] = MappingProxyType(
    {
        DECIDE_QUEUES[Lane.INTERACTIVE]: _DECIDE,
        DECIDE_QUEUES[Lane.BATCH]: _DECIDE,
        EXEC_QUEUES[Tier.LOW]: QueuePolicy(32, LEASE_S, LOST_MARGIN_S, after_deadline=True),
        EXEC_QUEUES[Tier.MEDIUM]: QueuePolicy(32, LEASE_S, LOST_MARGIN_S, after_deadline=True),
        # The more harm a tool can do, the fewer of its calls a dying worker has in its hands.
        EXEC_QUEUES[Tier.HIGH]: QueuePolicy(8, LEASE_S, LOST_MARGIN_S, after_deadline=True),
        EXEC_QUEUES[Tier.IRREVERSIBLE]: QueuePolicy(1, LEASE_S, LOST_MARGIN_S, after_deadline=True),
        RESULTS_QUEUE: QueuePolicy(100, None, LOST_AFTER_S),  # one transaction counts them all
        DELIVER_QUEUE: QueuePolicy(32, LEASE_S, LOST_AFTER_S),
    }
)


def broken_rules(
    policies: Mapping[str, QueuePolicy],
    *,
    heartbeat_s: float = HEARTBEAT_S,
    keeper_period_s: float = KEEPER_PERIOD_S,
    claim_s: float = CLAIM_S,
) -> list[str]:
    """One sentence for each inequality that does not hold; the reason is what would happen otherwise."""
    found = []
    for name, policy in policies.items():
        if policy.fetch_max < 1:
            found.append(f"{name}: nothing would be fetched")
        if policy.lost_after_s <= UNSENT_AFTER_S + keeper_period_s:
            found.append(f"{name}: a message would count as lost before the keeper can have published it")
        if policy.lease_s is None:
            continue
        if policy.lease_s <= 2 * heartbeat_s:
            found.append(f"{name}: one late renewal would lose the lease of a live worker")
        if claim_s + claim_s / CLAIMS_LOOKED_FOR > policy.lease_s:
            found.append(f"{name}: a read-only call of a dead worker would be away for longer than a lease")
        # A deadline is longer than 0 s, so the margin after it may be as short as the lease.
        if policy.lost_after_s < policy.lease_s or (
            policy.lost_after_s == policy.lease_s and not policy.after_deadline
        ):
            found.append(f"{name}: a step that is being worked on would count as lost")
    return found


assert not broken_rules(POLICIES), broken_rules(POLICIES)
assert EXTENSIONS_PER_CLAIM > 2, "one late extension would lose a live worker's message"
assert CLAIM_S <= EMBEDDED_CLAIM_S, "steps in one process would be taken from themselves"
assert 0 < HOLD_DELAY_S < HOLD_NEWER_S, "a message of a newer version would be dead before it was tried again"
assert 0 < RESULT_BYTES_INLINE < MESSAGE_BYTES_MAX, "no result could ride along"
