"""One session with RabbitMQ: two connections, opened together and ended together, and the commands carried out on them.

Two connections and not one: a broker that is short of memory or disk stops reading from whoever publishes, and settling,
which would relieve it, must not be stuck behind that. Runs in the thread that owns it (amqp_thread); what the event loop
may hand over to that thread is declared here as well.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from toolfleet.adapters.broker.amqp_link import Link, Node, open_link
from toolfleet.adapters.broker.amqp_reading import Fetch, Handle, Reading
from toolfleet.adapters.broker.amqp_topology import Topology
from toolfleet.adapters.broker.amqp_writing import Marker, Published, Writing
from toolfleet.queues.topology import QUEUES
from toolfleet.schemas.ports import Delivery, Outgoing

CLOSE_S: Final = 1.0
TICK_S: Final = 1.0
DELAYED_MAX: Final = 10_000  # messages kept back with a delay; beyond it what is due first goes back early
MARKER_READS: Final = 8  # absent in so many readings, MARKER_PAUSE_S apart: not there
MARKER_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Wishes:
    """How sessions are opened and run."""

    nodes: tuple[Node, ...]
    topology: Topology
    prefetch: int
    linger_s: float
    heartbeat_s: float
    connect_s: float
    tls: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Command:
    """What the loop asks for. `repeatable`: goes on with the next session when this one ends before it is answered."""

    future: asyncio.Future[Any] = field(repr=False)
    repeatable = False


@dataclass(slots=True, eq=False)
class Publish(Command):
    messages: Sequence[Outgoing]


@dataclass(slots=True, eq=False)
class Take(Command):
    """A fetch; answered with deliveries."""

    queues: Sequence[str]
    limit: int
    give_up_at: float
    may_wait: bool
    repeatable = True


@dataclass(slots=True, eq=False)
class Settle(Command):
    deliveries: Sequence[Delivery]


@dataclass(slots=True, eq=False)
class Release(Command):
    deliveries: Sequence[Delivery]
    delay_s: float


@dataclass(slots=True, eq=False)
class ReadMarker(Command):
    repeatable = True


@dataclass(slots=True, eq=False)
class SetMarker(Command):
    value: str


@dataclass(slots=True, eq=False)
class CountDepths(Command):
    repeatable = True


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody waits for that command any more."""

    command: Command


@dataclass(frozen=True, slots=True)
class PutBack:
    """Came for a fetch that nobody waits for any more."""

    deliveries: Sequence[Delivery]


Note = Command | Forget | PutBack


class Desk(Protocol):
    """Where a session gets its commands and hands in its answers: the thread."""

    wake: socket.socket  # readable when there is something to take

    def take_notes(self) -> Sequence[Note]: ...

    def answer(self, command: Command, result: object) -> None: ...

    def fail(self, command: Command, reason: str) -> None: ...

    def hand_in(self) -> None: ...

    @property
    def closing(self) -> bool: ...


class Session:
    """Carries out commands until the desk is closing. `pending`: those not answered yet."""

    def __init__(self, wishes: Wishes, node: Node, generation: int, desk: Desk) -> None:
        """Connects and declares. Raises ConnectionEnded or UnsafeSettings."""
        self._desk = desk
        self.pending: dict[Command, None] = {}
        self._published: dict[Command, Published] = {}
        self._fetches: dict[Command, Fetch] = {}
        self._settled: deque[tuple[int, Command]] = deque()  # to be answered when so many bytes were written
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._kept_back: dict[Handle, Delivery] = {}  # released, and not on the broker again
        self._beat_at = 0.0
        options = {"heartbeat_s": wishes.heartbeat_s, "connect_s": wishes.connect_s}
        self._reading_link = open_link(node, **options, tls=wishes.tls)
        self._links: list[Link] = [self._reading_link]
        try:
            self._reading_link.declare(wishes.topology)
            lanes = {queue.name: self._reading_link.open_channel() for queue in QUEUES}
            marker_channel = self._reading_link.open_channel()
            writing_link = open_link(node, **options, tls=wishes.tls)
            self._links.append(writing_link)
            writing_channel = writing_link.open_channel(confirms=True)
        except BaseException:
            self.drop()
            raise
        for link in self._links:
            link.run_free()
        self._reading = Reading(
            lanes,
            wishes.topology,
            generation=generation,
            prefetch=wishes.prefetch,
            linger_s=wishes.linger_s,
        )
        self._writing = Writing(writing_link, writing_channel, wishes.topology)
        self._marker = Marker(marker_channel, wishes.topology)

    def run(self) -> None:
        """Returns when the desk is closing. Raises ConnectionEnded."""
        desk = self._desk
        with selectors.DefaultSelector() as selector:
            selector.register(desk.wake, selectors.EVENT_READ)
            for link in self._links:
                selector.register(link.sock, selectors.EVENT_READ, link)
            more = False
            while not desk.closing:
                for note in desk.take_notes():
                    self._carry_out(note)
                wake_at = self._turn()
                desk.hand_in()
                self._watch_writes(selector)
                timeout = 0.0 if more else max(0.0, min(TICK_S, wake_at - time.monotonic()))
                more = False
                for key, mask in selector.select(timeout):
                    if key.data is not None and mask & selectors.EVENT_READ:
                        more |= key.data.receive()

    def end(self, reason: str) -> None:
        """The connections are over: what was published and not confirmed is unknown."""
        self._writing.end(reason)
        self.drop()

    def close(self) -> None:
        """Writes what was settled, and goes; what is unsettled is put back by the broker. Takes CLOSE_S at most, twice."""
        for link in self._links:
            link.close(within_s=CLOSE_S)

    def drop(self) -> None:
        for link in self._links:
            link.drop()

    def _turn(self) -> float:
        """Everything that can be done without waiting. Returns when to come again at the latest."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        self._writing.serve()
        self._reading.serve(now)
        wake_at = self._reading.tick(now)
        if now - self._beat_at >= TICK_S:
            self._beat_at = now
            for link in self._links:
                link.beat(now)
        for link in self._links:
            link.flush()
        while self._settled and self._settled[0][0] <= self._reading_link.sent:
            self._answer(self._settled.popleft()[1], None)
        return min(wake_at, self._timers[0][0]) if self._timers else wake_at

    def _watch_writes(self, selector: selectors.BaseSelector) -> None:
        for link in self._links:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.waiting_bytes else 0)
            if selector.get_key(link.sock).events != events:
                selector.modify(link.sock, events, link)

    def _carry_out(self, note: Note) -> None:
        if isinstance(note, Command):
            self.pending[note] = None
        match note:
            case Publish():
                self._published[note] = self._writing.publish(note.messages, self._told(note))
            case Take():
                self._fetch(note)
            case Settle():
                self._reading.settle(note.deliveries)
                self._settled.append((self._reading_link.queued, note))
            case Release():
                self._release(note)
            case ReadMarker():
                self._read_marker(note, MARKER_READS)
            case SetMarker():
                self._published[note] = self._writing.set_marker(note.value, self._told(note))
            case CountDepths():
                self._reading.depths(lambda found: self._answer(note, found))
            case Forget():
                self._forget(note.command)
            case PutBack():
                self._reading.put_back(note.deliveries)

    def _fetch(self, command: Take) -> None:
        def take(found: list[Delivery]) -> None:
            self._fetches.pop(command, None)
            self._answer(command, found)

        fetch = Fetch(command.queues, command.limit, command.give_up_at, command.may_wait, take)
        self._fetches[command] = fetch
        self._reading.fetches.append(fetch)

    def _forget(self, command: Command) -> None:
        self.pending.pop(command, None)
        published = self._published.pop(command, None)
        if published is not None:
            published.given_up = True
        fetch = self._fetches.pop(command, None)
        if fetch is not None and fetch in self._reading.fetches:
            self._reading.fetches.remove(fetch)

    def _told(self, command: Command) -> Callable[[str | None], None]:
        """What to do when it is known whether the broker has what that command published."""

        def told(reason: str | None) -> None:
            self._published.pop(command, None)
            if reason is None:
                self._answer(command, None)
            else:
                self._fail(command, f"it is not known whether it has what was published: {reason}")

        return told

    def _release(self, command: Release) -> None:
        """With a delay: kept unsettled here until then, so that it comes again at once if this process dies."""
        released = [
            one for one in self._reading.unsettled(command.deliveries) if one.handle not in self._kept_back
        ]
        self._kept_back.update((one.handle, one) for one in released)
        if command.delay_s <= 0:
            self._return(released, command)
            return
        due_at = time.monotonic() + command.delay_s
        heapq.heappush(self._timers, (due_at, next(self._numbers), lambda: self._return(released, None)))
        self._answer(command, None)
        if len(self._kept_back) > DELAYED_MAX:
            early = list(itertools.islice(self._kept_back.values(), len(self._kept_back) - DELAYED_MAX))
            self._return(early, None)

    def _return(self, released: Sequence[Delivery], command: Command | None) -> None:
        """A copy is published, and the old one settled when that is confirmed: nothing counts as a delivery."""
        for one in released:
            self._kept_back.pop(one.handle, None)
        alive = self._reading.unsettled(released)

        def copied(reason: str | None) -> None:
            if reason is None:
                self._reading.settle(alive)
            else:  # not to be lost in this process; this does count
                self._reading.reject(alive)
            if command is None:
                return
            if reason is None:
                self._settled.append((self._reading_link.queued, command))
            else:
                self._fail(command, reason)

        if alive:
            self._writing.publish([Outgoing(one.queue, one.body) for one in alive], copied)
        else:
            copied(None)

    def _read_marker(self, command: ReadMarker, times: int) -> None:
        def read(value: str | None) -> None:
            if value is None and times > 1:
                again = time.monotonic() + MARKER_PAUSE_S
                heapq.heappush(
                    self._timers, (again, next(self._numbers), lambda: self._read_marker(command, times - 1))
                )
            else:
                self._answer(command, value)

        self._marker.read(read)

    def _answer(self, command: Command, result: object) -> None:
        if command in self.pending:
            del self.pending[command]
            self._desk.answer(command, result)
        elif isinstance(command, Take) and isinstance(result, list):
            self._reading.put_back(result)

    def _fail(self, command: Command, reason: str) -> None:
        if command in self.pending:
            del self.pending[command]
            self._desk.fail(command, reason)
