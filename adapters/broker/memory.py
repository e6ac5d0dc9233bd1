"""The embedded message layer: queues inside this process, for a fleet that is one process.

Nothing here outlives the process, and nothing has to: the database is the truth, and a start publishes every
outstanding step again. All methods belong to one event loop, `publish` included: other threads go through
`loop.call_soon_threadsafe`. Every change is made between two awaits, so a cancelled call has either done nothing or
everything.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from toolfleet.adapters.clock import SystemClock
from toolfleet.queues.policy import EMBEDDED_CLAIM_S
from toolfleet.schemas.errors import BrokerUnavailable
from toolfleet.schemas.ports import Clock, Delivery, Outgoing

_TICK_S = 1e-6  # times closer than this are the same: sums of floats


@dataclass(slots=True)
class _Entry:
    queue: str
    body: bytes
    redelivered: bool = False
    claimed_until: float = 0.0


class MemoryLayer:
    """Implements MessageLayer. First in, first out within a queue; earlier queues of a fetch first.

    A delivery that is neither settled nor extended for `claim_s` comes again, before what waits in its queue, and its
    old handle is void. A released one comes at the end of its queue and as it came before: a hand-back is no
    redelivery. Holds what is waiting, delayed or in flight and nothing else; its size is bounded by the outstanding
    rows and how often the keeper repeats them. After `aclose` every method raises BrokerUnavailable.
    """

    def __init__(
        self, name: str = "memory", *, claim_s: float = EMBEDDED_CLAIM_S, clock: Clock | None = None
    ) -> None:
        assert claim_s > 0
        self.name = name
        self._claim_s = claim_s
        self._clock: Clock = SystemClock() if clock is None else clock
        self._ready: dict[str, deque[_Entry]] = {}
        self._in_flight: dict[int, _Entry] = {}  # by handle; the claim that ends first comes first
        self._delayed: list[tuple[float, int, _Entry]] = []  # a heap by the time they become ready
        self._depths: dict[str, int] = {}
        self._waiters: dict[asyncio.Future[None], frozenset[str]] = {}
        self._numbers = itertools.count(1)
        self._marker: str | None = None
        self._closed = False

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """All are in their queues when this returns; who waits for them is woken."""
        self._check_open()
        for message in messages:
            self._ready.setdefault(message.queue, deque()).append(_Entry(message.queue, message.body))
            self._depths[message.queue] = self._depths.get(message.queue, 0) + 1
        self._wake({message.queue for message in messages})

    async def fetch(self, queues: Sequence[str], limit: int, *, wait_s: float) -> list[Delivery]:
        """Does not give control away while there is something to return, or when wait_s is 0."""
        assert limit > 0
        self._check_open()
        give_up_at = self._clock.monotonic_s() + wait_s
        while True:
            now = self._clock.monotonic_s()
            self._ripen(now)
            taken = self._take(queues, limit, now)
            if taken or give_up_at - now <= _TICK_S:
                return taken
            await self._wait(queues, min(give_up_at, self._ripens_at(now)) - now)
            if self._closed:
                return []

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        for delivery in deliveries:
            entry = self._in_flight.pop(delivery.handle, None)
            if entry is not None:
                self._depths[entry.queue] -= 1

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """The claim starts again now, also one that has ended, as long as nothing was taken over."""
        self._check_open()
        now = self._clock.monotonic_s()
        for delivery in deliveries:
            entry = self._in_flight.pop(delivery.handle, None)
            if entry is not None:
                self._claim(delivery.handle, entry, now)

    async def release(self, deliveries: Sequence[Delivery], *, delay_s: float) -> None:
        self._check_open()
        now = self._clock.monotonic_s()
        released = set()
        for delivery in deliveries:
            entry = self._in_flight.pop(delivery.handle, None)
            if entry is None:
                continue
            released.add(entry.queue)
            heapq.heappush(self._delayed, (now + max(0.0, delay_s), next(self._numbers), entry))
        self._wake(released)  # they take it, or look again when to wake up

    async def marker(self) -> str | None:
        self._check_open()
        return self._marker

    async def set_marker(self, value: str) -> None:
        self._check_open()
        self._marker = value

    async def depths(self) -> dict[str, int]:
        """Also 0 for a queue that was used before."""
        self._check_open()
        return dict(self._depths)

    async def waiting_since_s(self) -> dict[str, float]:
        """It does not keep times; its queues end with the process, and a row sent twice finds its first message."""
        self._check_open()
        return {}

    async def wipe(self) -> None:
        """Forgets everything, the marker included, as a server does that was emptied; who waits goes on waiting."""
        self._ready.clear()
        self._in_flight.clear()
        self._delayed.clear()
        self._depths.clear()
        self._marker = None

    async def aclose(self) -> None:
        """Ends every waiting fetch with nothing. Closing twice is harmless."""
        self._closed = True
        self._wake(None)
        await self.wipe()

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerUnavailable(
                f"the embedded message layer {self.name!r} is closed",
                hint="The fleet of this process was stopped; what is outstanding goes on at its next start.",
            )

    def _claim(self, handle: int, entry: _Entry, now: float) -> None:
        entry.claimed_until = now + self._claim_s
        self._in_flight[handle] = entry  # at the end, where the latest claim belongs: all last equally long

    def _take(self, queues: Sequence[str], limit: int, now: float) -> list[Delivery]:
        taken: list[Delivery] = []
        for queue in queues:
            ready = self._ready.get(queue)
            while ready and len(taken) < limit:
                entry = ready.popleft()
                handle = next(self._numbers)
                self._claim(handle, entry, now)
                taken.append(Delivery(queue, entry.body, entry.redelivered, handle))
        return taken

    def _ripen(self, now: float) -> None:
        """Back into their queues: whose claim has ended, in their old order, and whose delay is over."""
        ended = list(
            itertools.takewhile(lambda item: item[1].claimed_until <= now + _TICK_S, self._in_flight.items())
        )
        for handle, entry in reversed(ended):
            del self._in_flight[handle]
            entry.redelivered = True
            self._ready.setdefault(entry.queue, deque()).appendleft(entry)
        while self._delayed and self._delayed[0][0] <= now + _TICK_S:
            entry = heapq.heappop(self._delayed)[2]
            self._ready.setdefault(entry.queue, deque()).append(entry)

    def _ripens_at(self, now: float) -> float:
        """When to look again: at the first end of a claim or delay known now. A later claim ends after the last."""
        times = [now + self._claim_s]
        if self._in_flight:
            times.append(next(iter(self._in_flight.values())).claimed_until)
        if self._delayed:
            times.append(self._delayed[0][0])
        return min(times)

    async def _wait(self, queues: Sequence[str], seconds: float) -> None:
        """Until something is put into one of the queues, the layer is closed, or the time is over."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        self._waiters[woken] = frozenset(queues)
        try:
            await asyncio.wait((woken, timer), return_when=asyncio.FIRST_COMPLETED)
            if timer.done():
                timer.result()  # a clock that fails is not to be waited for again
        finally:
            del self._waiters[woken]
            timer.cancel()

    def _wake(self, queues: set[str] | None) -> None:
        """All who wait for one of these (None: all): one alone might be cancelled before it takes anything."""
        for woken, wanted in self._waiters.items():
            if not woken.done() and (queues is None or not wanted.isdisjoint(queues)):
                woken.set_result(None)
