"""Command rows: which steps of a run are outstanding.

One table is outbox, due-table, lease and healer. A row exists exactly while its work is outstanding: it is put by
the transition that asks for the step and dropped by the transition that consumes it. Rows are part of the state
the machine reduces, so every rule about them is pure code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from toolfleet.schemas.ids import CallId, CommandId, LeaseToken
from toolfleet.schemas.limits import LOST_AFTER_S
from toolfleet.schemas.outcomes import Lane, Tier

DECIDE_QUEUES: Final = {lane: f"decide.{lane.value}" for lane in Lane}
EXEC_QUEUES: Final = {tier: f"exec.{tier.value}" for tier in Tier}
RESULTS_QUEUE: Final = "results"
DELIVER_QUEUE: Final = "deliver"


@dataclass(frozen=True, slots=True)
class CommandRow:
    """One outstanding step. Times are seconds since the epoch by the database's clock.

    `sent_at` is written lazily after a publish and cleared by every write of `due_at`. `token` present means that
    one worker holds the lease, whether `lease_until` has passed or not; only the keeper expires it.
    `deaths` counts leases that expired without a result, and children that died.
    """

    id: CommandId
    queue: str
    turn: int
    due_at: float
    call_id: CallId | None = None
    sent_at: float | None = None
    sends: int = 0
    lost_after_s: float = LOST_AFTER_S  # sent longer ago than this, doubled with each send: perhaps lost
    deaths: int = 0
    owner: str | None = None
    token: LeaseToken | None = None
    lease_until: float | None = None

    @property
    def is_decide(self) -> bool:
        return self.queue.startswith("decide.")

    @property
    def is_exec(self) -> bool:
        return self.queue.startswith("exec.")

    def due(self, at_s: float, *, queue: str | None = None) -> CommandRow:
        """The row without a lease, due at `at_s`, not sent: every write of `due_at` goes through here."""
        return replace(
            self,
            queue=queue or self.queue,
            due_at=at_s,
            sent_at=None,
            sends=0,
            owner=None,
            token=None,
            lease_until=None,
        )

    def leased(self, token: LeaseToken, owner: str, until_s: float, now_s: float) -> CommandRow:
        """The row under a lease. Taking it proves that its message arrived, so it counts as sent."""
        return replace(
            self,
            token=token,
            owner=owner,
            lease_until=until_s,
            sent_at=now_s if self.sent_at is None else self.sent_at,
        )
