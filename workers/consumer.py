"""The loop every role shares: fetch, decode, hand to the role, settle. What cannot be trusted goes to dead.

A message is settled whatever came of it: the row it names is the truth, and what was not done is still outstanding
there. A role that fails on a message loses nothing; the failure is logged, and the row heals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from toolfleet.queues.envelope import Codec
from toolfleet.queues.policy import CLAIM_S, EXTENSIONS_PER_CLAIM
from toolfleet.schemas.errors import BrokerUnavailable, MessageRefused, NewerMessage, StoreUnavailable
from toolfleet.schemas.ids import new_event_id
from toolfleet.schemas.limits import HOLD_DELAY_S, HOLD_NEWER_S, MESSAGE_BYTES_MAX
from toolfleet.schemas.messages import Message
from toolfleet.schemas.ports import Clock, Delivery, MessageLayer, RunStore
from toolfleet.schemas.views import DeadLetter
from toolfleet.workers.progress import Progress

log = structlog.get_logger("toolfleet.consumer")

FETCH_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Received:
    """A message that could be read, with how it came."""

    message: Message
    delivery: Delivery


Done = Callable[[Received], Awaitable[None]]


class Role(Protocol):
    """What a worker does with messages. `accept` returns when all of them have been worked on; `done` may be awaited
    for each as soon as it is, so that a slow one does not hold the places of those that came with it."""

    async def accept(self, received: Sequence[Received], done: Done) -> None: ...


class Consumer:
    """Feeds one role from its queues, at most `slots` messages at a time, `batch` of them together."""

    def __init__(
        self,
        role: Role,
        queues: Sequence[str],
        *,
        layer: MessageLayer,
        codec: Codec,
        store: RunStore,
        clock: Clock,
        slots: int,
        batch: int,
        claim_s: float = CLAIM_S,
    ) -> None:
        self._extend_every_s = claim_s / EXTENSIONS_PER_CLAIM
        self._role = role
        self.queues = tuple(queues)
        self._layer = layer
        self._codec = codec
        self._store = store
        self._clock = clock
        self._slots = slots
        self._batch = batch
        self._free = slots
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working_on: dict[
            int, list[Delivery]
        ] = {}  # by batch: what has to be kept from being taken over
        self._begun_at: dict[int, float] = {}  # by batch, the oldest first
        self._stopping = False
        self._looked_at = clock.monotonic_s()
        self._taken_at = clock.monotonic_s()
        self._settled_at = clock.monotonic_s()
        self.taken = 0  # messages fetched since the start
        self.settled = 0  # messages the broker was told to be done with

    @property
    def in_flight(self) -> int:
        return self._slots - self._free

    def progress(self) -> Progress:
        """How it gets on, now."""
        now = self._clock.monotonic_s()
        oldest = next(iter(self._begun_at.values()), now)
        return Progress(
            queues=self.queues,
            slots=self._slots,
            in_flight=self.in_flight,
            taken=self.taken,
            settled=self.settled,
            looked_s=now - self._looked_at,
            taken_s=now - self._taken_at,
            settled_s=now - self._settled_at,
            oldest_s=now - oldest,
        )

    async def run(self) -> None:
        """Consume until `stop`; a broker that is away is waited for."""
        extending = asyncio.create_task(self._extend())
        try:
            await self._consume()
        finally:
            extending.cancel()

    async def _consume(self) -> None:
        failures = 0
        while not self._stopping:
            self._looked_at = self._clock.monotonic_s()
            if self._free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            try:
                deliveries = await self._layer.fetch(
                    self.queues, min(self._free, self._batch), wait_s=FETCH_WAIT_S
                )
                failures = 0
            except BrokerUnavailable as exc:
                failures += 1
                log.warning("fetch_failed", queues=self.queues, error=exc.message)
                await self._clock.sleep(min(5.0, 0.1 * 2 ** min(failures, 6)))
                continue
            if deliveries:
                self._start(deliveries)

    async def _extend(self) -> None:
        """Tell the broker, again and again, that what is in flight is being worked on."""
        while True:
            await self._clock.sleep(self._extend_every_s)
            held = [delivery for batch in self._working_on.values() for delivery in batch]
            if held:
                try:
                    await self._layer.extend(held)
                except BrokerUnavailable as exc:
                    log.warning("extend_failed", messages=len(held), error=exc.message)

    def stop(self) -> None:
        """Fetch no more; what is in flight goes on."""
        self._stopping = True
        self._freed.set()

    async def drain(self, *, grace_s: float) -> bool:
        """Wait for what is in flight, at most grace_s; True: nothing is left."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=grace_s)
        return not self._tasks

    async def abandon(self) -> None:
        """Cancel what is still in flight, after its leases were given back; its messages go back to the broker."""
        left = [delivery for batch in self._working_on.values() for delivery in batch]
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if left:
            try:
                await self._layer.release(left, delay_s=0.0)
            except BrokerUnavailable as exc:  # then they come again when their claim ends
                log.warning("release_failed", messages=len(left), error=exc.message)

    def _start(self, deliveries: list[Delivery]) -> None:
        self._free -= len(deliveries)
        self.taken += len(deliveries)
        self._taken_at = self._clock.monotonic_s()
        task = asyncio.create_task(self._work(deliveries))
        self._tasks.add(task)  # a task without a strong reference can vanish
        task.add_done_callback(self._tasks.discard)

    async def _work(self, deliveries: list[Delivery]) -> None:
        left = list(deliveries)
        self._working_on[id(left)] = left
        self._begun_at[id(left)] = self._clock.monotonic_s()
        try:
            await self.handle(deliveries, left)
        finally:
            del self._working_on[id(left)], self._begun_at[id(left)]
            self._release(len(left))

    def _release(self, count: int) -> None:
        self._free += count
        self._freed.set()

    async def handle(self, deliveries: Sequence[Delivery], left: list[Delivery] | None = None) -> None:
        """Decode, work, settle: one batch, whole. `left` shrinks by each message that is done before the others."""
        received, settled = await self._read(deliveries)

        async def done(one: Received) -> None:
            received.remove(one)
            await self._settle([one.delivery])
            if left is not None:
                left.remove(one.delivery)
                self._release(1)

        if received:
            try:
                await self._role.accept(list(received), done)
            except (StoreUnavailable, BrokerUnavailable) as exc:  # an outage is one line
                log.warning("role_failed", queues=self.queues, messages=len(received), error=exc.message)
            except Exception:
                log.exception("role_failed", queues=self.queues, messages=len(received))
            settled.extend(one.delivery for one in received)
        await self._settle(settled)

    async def _read(self, deliveries: Sequence[Delivery]) -> tuple[list[Received], list[Delivery]]:
        received: list[Received] = []
        done: list[Delivery] = []
        for delivery in deliveries:
            try:
                received.append(Received(self._codec.decode(delivery.queue, delivery.body), delivery))
            except NewerMessage as exc:
                if self._clock.now_s() - exc.published_at < HOLD_NEWER_S:
                    await self._layer.release([delivery], delay_s=HOLD_DELAY_S)
                else:
                    await self._bury(delivery, exc)
                    done.append(delivery)
            except MessageRefused as exc:
                await self._bury(delivery, exc)
                done.append(delivery)
        return received, done

    async def _bury(self, delivery: Delivery, exc: MessageRefused) -> None:
        log.warning("message_refused", queue=delivery.queue, reason=exc.code, bytes=len(delivery.body))
        letter = DeadLetter(
            id=new_event_id(),
            kind="message",
            queue=delivery.queue,
            reason=exc.code,
            at=0.0,
            body=delivery.body[:MESSAGE_BYTES_MAX],
            detail=exc.message,
        )
        await self._store.add_dead(letter)

    async def _settle(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        try:
            await self._layer.settle(deliveries)
            self.settled += len(deliveries)
            self._settled_at = self._clock.monotonic_s()
        except BrokerUnavailable as exc:  # they come again, find no row, and are settled then
            log.warning("settle_failed", messages=len(deliveries), error=exc.message)


async def each(received: Sequence[Received], work: Callable[[Received], Awaitable[None]], done: Done) -> None:
    """Work on every message of a batch side by side; one that fails does not stop the others, nor keeps its place."""

    async def worked(one: Received) -> None:
        try:
            await work(one)
        finally:
            if not _cancelled():
                await done(one)

    if len(received) == 1:
        await worked(received[0])
        return
    answers = await asyncio.gather(*(worked(one) for one in received), return_exceptions=True)
    for one, answer in zip(received, answers, strict=True):
        if isinstance(answer, Exception):
            log.error("message_failed", queue=one.delivery.queue, exc_info=answer)
        elif isinstance(answer, BaseException):
            raise answer


def _cancelled() -> bool:
    """This task is being stopped: what it holds is left as it is, to come again."""
    me = asyncio.current_task()
    return me is not None and me.cancelling() > 0
