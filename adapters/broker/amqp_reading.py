"""The consuming half of a RabbitMQ session: which process gets which messages, and when it gives them back.

RabbitMQ pushes to consumers, and counts what a consumer holds against its prefetch. A consumer is opened here for a
fetch and for as many messages as that fetch may take, so that nothing comes which nobody has room for:

- a fetch of one queue that may wait opens a consumer only when all open ones are full, and leaves it open: what is
  settled makes room for as much, and comes without being asked for. All its consumers together never hold more than the
  caller had room for.
- a fetch of several queues, or one that may not wait, first asks how many messages are ready, opens consumers for just
  those, in the order of the queues, and closes them when they have come. With nothing there it waits on one consumer for
  one message per queue.

What came while no fetch was waiting is held for the next one, but not longer than `linger_s`: then the consumers are
closed and it is put back, for whoever is idle. basic.get would be simpler; RabbitMQ commits every one of them to its
log, one after the other.

Each queue has a channel of its own: a channel carries out one thing after the other, and a queue that has no leader at
the moment answers nothing. Runs in the thread of the session; nothing waits here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from struct import unpack_from

from amqp import spec  # type: ignore[import-untyped]

from toolfleet.adapters.broker.amqp_link import Channel, ConnectionEnded, method_key, short_string
from toolfleet.adapters.broker.amqp_topology import Topology
from toolfleet.schemas.ports import Delivery


@dataclass(frozen=True, slots=True)
class Handle:
    """A delivery tag counts within one channel, and dies with it: `generation` is the session it belongs to."""

    generation: int
    channel: int
    tag: int


@dataclass(slots=True, eq=False)
class _Consumer:
    """A consumer at the broker. `lasting`: stays open for the next fetch. Never holds more than `prefetch`."""

    tag: str
    line: _Line
    prefetch: int
    lasting: bool
    unsettled: int = 0
    open: bool = True
    started: bool = False
    ended: bool = False  # the broker will send nothing more under this tag

    @property
    def room(self) -> int:
        return self.prefetch - self.unsettled


@dataclass(slots=True, eq=False)
class _Line:
    """One queue, with a channel of its own. `room`: how many messages the broker may still send to open consumers."""

    queue: str
    name: str
    channel: Channel
    held: deque[Delivery] = field(default_factory=deque)
    consumers: dict[str, _Consumer] = field(
        default_factory=dict
    )  # the open ones, and those that hold something
    unsettled: dict[int, _Consumer] = field(default_factory=dict)  # by delivery tag, in ascending order
    asked: deque[Callable[[int], None]] = field(
        default_factory=deque
    )  # who gets the next count of ready messages
    room: int = 0
    opened: int = 0
    window: int = 0  # the prefetch that the channel was told last
    unwanted_since: float | None = None

    @property
    def open(self) -> list[_Consumer]:
        return [consumer for consumer in self.consumers.values() if consumer.open]


class _Stage(Enum):
    NEW = 1
    ASKING = 2  # how many messages are ready in each queue
    GATHERING = 3  # those, on consumers opened for just as many
    WAITING = 4  # for the first message


@dataclass(slots=True, eq=False)
class Fetch:
    """A fetch in progress. `take` is called once, with what came; an empty list when the time was over."""

    queues: Sequence[str]
    limit: int
    give_up_at: float
    may_wait: bool
    take: Callable[[list[Delivery]], None]
    stage: _Stage = _Stage.NEW
    unanswered: int = 0
    ready: dict[_Line, int] = field(default_factory=dict)
    gathering: list[_Consumer] = field(default_factory=list)
    looked_again: bool = False

    @property
    def lasting(self) -> bool:
        return self.may_wait and len(self.queues) == 1

    def again(self) -> Fetch:
        """The same for another session."""
        return Fetch(self.queues, self.limit, self.give_up_at, self.may_wait, self.take)


class Reading:
    """Consumes each queue over the channel given for it. `fetches` are those in progress, oldest first."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        topology: Topology,
        *,
        generation: int,
        prefetch: int,
        linger_s: float,
    ) -> None:
        self._generation = generation
        self._prefetch = prefetch
        self._linger_s = linger_s
        self.fetches: list[Fetch] = []
        self._lines = {
            queue: _Line(queue, topology.queue(queue), channel) for queue, channel in channels.items()
        }
        for line in self._lines.values():
            handlers = (
                (spec.Basic.Deliver, self._on_deliver),
                (spec.Basic.ConsumeOk, self._on_started),
                (spec.Basic.CancelOk, self._on_ended),
                (spec.Basic.Cancel, self._on_queue_gone),
                (spec.Queue.DeclareOk, self._on_count),
            )
            for method, handler in handlers:
                line.channel.on[method_key(method)] = partial(handler, line)

    def serve(self, now: float) -> None:
        """Moves every fetch on as far as it goes with what has come."""
        for fetch in tuple(self.fetches):
            self._advance(fetch, now)

    def tick(self, now: float) -> float:
        """Gives back what nobody has asked for in time. Returns when to come again at the latest."""
        wanted = {queue for fetch in self.fetches for queue in fetch.queues}
        times = [fetch.give_up_at for fetch in self.fetches if fetch.may_wait]
        for line in self._lines.values():
            if line.queue in wanted or not (line.room or line.held):
                line.unwanted_since = None
                continue
            if line.unwanted_since is None:
                line.unwanted_since = now
            elif now - line.unwanted_since >= self._linger_s:
                self._give_back(line)
                continue
            times.append(line.unwanted_since + self._linger_s)
        return min(times, default=now + 1.0)

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Fetched, but the fetch was given up meanwhile: for the next one."""
        for delivery in reversed([one for one in deliveries if self._tag(one) is not None]):
            self._lines[delivery.queue].held.appendleft(delivery)

    def unsettled(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Those that are this session's and not settled yet, each once."""
        return list({one.handle: one for one in deliveries if self._tag(one) is not None}.values())

    def settle(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledges: of each queue everything up to the first unsettled one together, the others one by one."""
        for line, tags in self._tags(deliveries):
            prefix = list(itertools.takewhile(tags.__contains__, line.unsettled))
            if prefix:
                line.channel.send(spec.Basic.Ack, "Lb", prefix[-1], len(prefix) > 1)
            for tag in sorted(tags.difference(prefix)):
                line.channel.send(spec.Basic.Ack, "Lb", tag, False)
            for tag in tags:
                self._settled(line, tag)

    def reject(self, deliveries: Iterable[Delivery]) -> None:
        """Back to the front of their queues; counts as a delivery."""
        for line, tags in self._tags(deliveries):
            for tag in sorted(tags):
                line.channel.send(spec.Basic.Nack, "Lbb", tag, False, True)
                self._settled(line, tag)

    def depths(self, take: Callable[[dict[str, int]], None]) -> None:
        """Ready at the broker and unsettled here, per queue."""
        found: dict[str, int] = {}

        def counted(line: _Line, ready: int) -> None:
            found[line.queue] = ready + len(line.unsettled)
            if len(found) == len(self._lines):
                take(found)

        for line in self._lines.values():
            self._ask(line, lambda ready, line=line: counted(line, ready))  # type: ignore[misc]

    def _advance(self, fetch: Fetch, now: float) -> None:
        lines = [self._lines[queue] for queue in fetch.queues]
        if fetch.stage is _Stage.NEW:
            if fetch.lasting or (fetch.may_wait and all(line.room for line in lines)):
                fetch.stage = (
                    _Stage.WAITING
                )  # what has room is empty, or the broker would have sent something
            else:
                self._ask_for_ready(fetch, lines)
        if fetch.stage is _Stage.ASKING and not fetch.unanswered:
            self._gather(fetch, lines)
        if fetch.stage is _Stage.GATHERING and self._gathered(fetch):
            fetch.stage = _Stage.WAITING
        if fetch.stage is _Stage.WAITING:
            self._wait(fetch, lines, now)

    def _ask_for_ready(self, fetch: Fetch, lines: Sequence[_Line]) -> None:
        def counted(line: _Line, ready: int) -> None:
            fetch.ready[line] = ready
            fetch.unanswered -= 1

        fetch.stage = _Stage.ASKING
        fetch.unanswered = len(lines)
        for line in lines:
            self._ask(line, lambda ready, line=line: counted(line, ready))  # type: ignore[misc]

    def _gather(self, fetch: Fetch, lines: Sequence[_Line]) -> None:
        """Opens consumers for what is ready, earlier queues first, and for no more than the fetch may take."""
        fetch.stage = _Stage.GATHERING
        left = fetch.limit
        for line in lines:
            left -= min(left, len(line.held))
            wanted = min(left, fetch.ready[line])
            if wanted:
                fetch.gathering.append(self._open(line, wanted, lasting=False))
                left -= wanted

    def _gathered(self, fetch: Fetch) -> bool:
        """All came; or others were faster, which is known when a question asked after them is answered."""
        short = [consumer for consumer in fetch.gathering if consumer.room]
        if not short:
            return True
        if fetch.looked_again:
            return fetch.unanswered == 0
        if all(consumer.started for consumer in short):
            fetch.looked_again = True
            self._ask_for_ready(fetch, [consumer.line for consumer in short])
            fetch.stage = _Stage.GATHERING
        return False

    def _wait(self, fetch: Fetch, lines: Sequence[_Line], now: float) -> None:
        found: list[Delivery] = []
        for line in lines:
            while line.held and len(found) < fetch.limit:
                found.append(line.held.popleft())
        if found or not fetch.may_wait:
            self._close_passing(lines)
        if found or now >= fetch.give_up_at:
            self.fetches.remove(fetch)
            fetch.take(found)
            return
        for line in lines:
            if not line.room:
                self._open(line, fetch.limit if fetch.lasting else 1, lasting=fetch.lasting)

    def _ask(self, line: _Line, take: Callable[[int], None]) -> None:
        """How many messages are ready: the answer of a passive declaration, which commits nothing."""
        line.asked.append(take)
        question = (0, line.name, True, False, False, False, False, None)
        line.channel.send(spec.Queue.Declare, "BsbbbbbF", *question)

    def _open(self, line: _Line, count: int, *, lasting: bool) -> _Consumer:
        count = min(count, self._prefetch)
        if count != line.window:
            line.window = count
            line.channel.send(spec.Basic.Qos, "lBb", 0, count, False)  # for each consumer opened after it
        line.opened += 1
        consumer = _Consumer(f"{line.opened}", line, count, lasting)
        line.consumers[consumer.tag] = consumer
        line.room += count
        request = (0, line.name, consumer.tag, False, False, False, False, None)
        line.channel.send(spec.Basic.Consume, "BssbbbbF", *request)
        return consumer

    def _close(self, consumer: _Consumer) -> None:
        """What it holds stays its own. A message on its way is put back by the broker, or comes and is held."""
        consumer.open = False
        consumer.line.room -= consumer.room
        consumer.line.channel.send(spec.Basic.Cancel, "sb", consumer.tag, False)

    def _close_passing(self, lines: Sequence[_Line]) -> None:
        """Before anything of theirs is settled: that would make room for more."""
        for line in lines:
            for consumer in [one for one in line.open if not one.lasting]:
                self._close(consumer)

    def _give_back(self, line: _Line) -> None:
        line.unwanted_since = None
        for consumer in line.open:
            self._close(consumer)
        held = tuple(line.held)
        line.held.clear()
        self.reject(held)

    def _tag(self, delivery: Delivery) -> int | None:
        """Its tag if it is unsettled and of this session."""
        handle: Handle = delivery.handle
        known = handle.generation == self._generation and handle.tag in self._lines[delivery.queue].unsettled
        return handle.tag if known else None

    def _tags(self, deliveries: Iterable[Delivery]) -> list[tuple[_Line, set[int]]]:
        """The tags to deal with, by queue."""
        found: dict[str, set[int]] = {}
        for one in deliveries:
            tag = self._tag(one)
            if tag is not None:
                found.setdefault(one.queue, set()).add(tag)
        return [(self._lines[queue], tags) for queue, tags in found.items()]

    def _settled(self, line: _Line, tag: int) -> None:
        consumer = line.unsettled.pop(tag)
        consumer.unsettled -= 1
        if consumer.open:
            line.room += 1
        elif consumer.ended and not consumer.unsettled:
            line.consumers.pop(consumer.tag, None)

    def _on_deliver(self, line: _Line, method: bytes, header: bytes, body: bytes) -> None:
        name, at = short_string(method, 4)
        tag, redelivered = unpack_from(">QB", method, at)
        consumer = line.consumers.get(name)
        if consumer is None:  # sent after the consumer was ended
            line.channel.send(spec.Basic.Nack, "Lbb", tag, False, True)
            return
        line.unsettled[tag] = consumer
        consumer.unsettled += 1
        if consumer.open:
            line.room -= 1
        handle = Handle(self._generation, line.channel.number, tag)
        line.held.append(Delivery(line.queue, body, bool(redelivered), handle))

    def _on_started(self, line: _Line, method: bytes, header: bytes, body: bytes) -> None:
        line.consumers[short_string(method, 4)[0]].started = True

    def _on_ended(self, line: _Line, method: bytes, header: bytes, body: bytes) -> None:
        consumer = line.consumers[short_string(method, 4)[0]]
        consumer.ended = True
        if not consumer.unsettled:
            del line.consumers[consumer.tag]

    def _on_queue_gone(self, line: _Line, method: bytes, header: bytes, body: bytes) -> None:
        raise ConnectionEnded(f"{line.name} was deleted while it was consumed")

    def _on_count(self, line: _Line, method: bytes, header: bytes, body: bytes) -> None:
        _, at = short_string(method, 4)
        (ready,) = unpack_from(">I", method, at)
        line.asked.popleft()(ready)
