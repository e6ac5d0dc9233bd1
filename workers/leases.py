"""The leases a process holds, renewed together; and commits that outlive a short outage of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.events import HandedBack
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId
from toolfleet.schemas.limits import LEASE_OVERRUN_S, LEASE_S
from toolfleet.schemas.ports import Applied, Clock, RunStore, Transition

log = structlog.get_logger("toolfleet.leases")

T = TypeVar("T")

RENEWALS_PER_LEASE = 3
COMMIT_TRIES = (
    64  # with the waits below five minutes: an outage shorter than that costs no work and counts no death
)
COMMIT_WAIT_MAX_S = 5.0  # less than a lease: who waits is back before the keeper expires anything


@dataclass(slots=True)
class _Held:
    run_id: RunId
    token: LeaseToken
    give_up_at: float  # monotonic; past it the step has overrun its own deadline, and its lease is let go
    lost: Callable[[], object] | None  # stops the local work when the lease is gone


class Leases:
    """Renews every held lease in one statement every third of the lease."""

    def __init__(self, store: RunStore, clock: Clock, *, lease_s: float = LEASE_S) -> None:
        self._store = store
        self._clock = clock
        self.lease_s = lease_s
        self._held: dict[CommandId, _Held] = {}

    def hold(
        self,
        run_id: RunId,
        command_id: CommandId,
        token: LeaseToken,
        *,
        deadline_s: float,
        lost: Callable[[], object] | None = None,
    ) -> None:
        """Renew from now on; `deadline_s`: how long the step may take. `lost` is called when the lease is gone."""
        give_up_at = self._clock.monotonic_s() + deadline_s + LEASE_OVERRUN_S
        self._held[command_id] = _Held(run_id, token, give_up_at, lost)

    def drop(self, command_id: CommandId) -> None:
        """The step ended in the database; nothing to renew."""
        self._held.pop(command_id, None)

    async def guard(
        self,
        run_id: RunId,
        command_id: CommandId,
        token: LeaseToken,
        work: Coroutine[Any, Any, T],
        *,
        deadline_s: float,
        stop_when_lost: bool = True,
    ) -> T | None:
        """What `work` returns, the lease renewed meanwhile; None: the lease was lost and the work was stopped.

        `stop_when_lost` False: an effect that may have begun runs to its outcome, which counts without the lease.
        """
        task = asyncio.ensure_future(work)
        self.hold(
            run_id, command_id, token, deadline_s=deadline_s, lost=task.cancel if stop_when_lost else None
        )
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                task.cancel()
                raise
            return None
        finally:
            self.drop(command_id)

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await self._clock.sleep(self.lease_s / RENEWALS_PER_LEASE)
            try:
                await self.renew()
            except StoreUnavailable as exc:
                log.warning("renew_failed", held=len(self._held), error=exc.message)

    async def renew(self) -> None:
        """One statement for all; a lease that is gone stops its local work."""
        now = self._clock.monotonic_s()
        asked = {cid: held for cid, held in self._held.items() if held.give_up_at > now}
        if not asked:
            return
        pairs = sorted((command_id, held.token) for command_id, held in asked.items())
        kept = await self._store.renew(pairs, self.lease_s)
        for command_id, held in asked.items():
            if command_id not in kept and self._held.get(command_id) is held:
                del self._held[command_id]
                log.warning("lease_lost", command_id=command_id, run_id=held.run_id)
                if held.lost is not None:
                    held.lost()

    async def hand_back(self) -> None:
        """T24: a stopping worker gives back what it holds."""
        handed = [
            Transition(held.run_id, HandedBack(command_id, held.token))
            for command_id, held in self._held.items()
        ]
        self._held.clear()
        if not handed:
            return
        try:
            await self._store.transact(handed)
        except StoreUnavailable as exc:  # they expire instead; whoever stops goes on stopping
            log.warning("hand_back_failed", leases=len(handed), error=exc.message)


async def commit(store: RunStore, clock: Clock, transitions: Sequence[Transition]) -> list[Applied]:
    """`store.transact`, tried again while the database is away: the work it stores was paid for."""
    for tried in range(1, COMMIT_TRIES + 1):
        try:
            return await store.transact(transitions)
        except StoreUnavailable as exc:
            if tried == COMMIT_TRIES:
                raise
            log.warning("commit_failed", tried=tried, error=exc.message)
            await clock.sleep(min(COMMIT_WAIT_MAX_S, 0.1 * 2**tried))
    raise AssertionError("unreachable")
