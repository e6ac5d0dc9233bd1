"""Expires leases whose holder went silent, and takes over those of a holder that is known to be dead."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from toolfleet.schemas.events import LeaseExpired
from toolfleet.schemas.ports import RunStore, Telemetry, Transition
from toolfleet.schemas.views import HeldLease
from toolfleet.workers.publisher import Publisher
from toolfleet.workers.telemetry import SILENT

log = structlog.get_logger("toolfleet.keeper.leases")

EXPIRE_BATCH = 200


async def expire(store: RunStore, publisher: Publisher, telemetry: Telemetry = SILENT) -> int:
    """T16, T17: one death each; at the third the step is given up. Returns how many were expired."""
    found = await store.expired_leases(limit=EXPIRE_BATCH)
    if not found:
        return 0
    with telemetry.merging({}) as watch:  # a call that is given up may close its turn
        applied = await store.transact(
            [Transition(run, LeaseExpired(command, token)) for run, command, token in found]
        )
        watch.ended(applied)
    await publisher.rows([row for one in applied for row in one.publish])
    expired = sum(1 for one in applied if one.missed is None)
    if expired:
        log.warning("leases_expired", count=expired)
    return expired


async def take_over(store: RunStore, publisher: Publisher, could_kill: Callable[[HeldLease], bool]) -> int:
    """Ends every lease at once: for the one process of an embedded fleet, whose lock proves that all holders are dead.

    `could_kill` says whether the step ran inside the dead process, where it may have killed it: that is a death.
    """
    taken = 0
    while held := await store.held_leases(limit=EXPIRE_BATCH):
        transitions = [
            Transition(
                one.run_id, LeaseExpired(one.command_id, one.token, owner_gone=True, death=could_kill(one))
            )
            for one in held
        ]
        applied = await store.transact(transitions)
        await publisher.rows([row for one in applied for row in one.publish])
        ended = sum(1 for one in applied if one.missed is None)
        taken += ended
        if not ended:
            break
    return taken
