"""The publishing half of a RabbitMQ session, with the wipe marker: what was handed over, and what is known of it.

A message is on the broker when it was confirmed and not returned. Confirms come in any order, one for many, and are
waited for by nobody here: each list has a callback. Runs in the thread of the session; nothing waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import unpack_from
from typing import Final

from amqp import spec  # type: ignore[import-untyped]

from toolfleet.adapters.broker.amqp_link import Channel, Link, method_key, returned_number, route_to
from toolfleet.adapters.broker.amqp_topology import Topology
from toolfleet.queues.topology import QUEUES
from toolfleet.schemas.ports import Outgoing

UNWRITTEN_BYTES_MAX: Final = 8 << 20  # more is not handed to a connection that does not take it

Done = Callable[[str | None], None]  # None: the broker has all of it; or why that is not known


@dataclass(slots=True, eq=False)
class Published:
    """A list of messages on its way. `done` is called once; after `given_up` never, and nothing more is written."""

    messages: Sequence[tuple[bytes, bytes]]  # route and body
    done: Done
    left: int
    given_up: bool = False

    def finish(self, reason: str | None) -> None:
        if not self.given_up:
            self.given_up = True
            self.done(reason)


@dataclass(slots=True, eq=False)
class _Unconfirmed:
    route: bytes
    body: bytes
    published: Published
    repeated: bool


class Writing:
    """Publishes over a channel with confirms."""

    def __init__(self, link: Link, channel: Channel, topology: Topology) -> None:
        self._link = link
        self._channel = channel
        self._topology = topology
        number = channel.number
        self._routes = {queue.name: route_to(number, topology.exchange, queue.name) for queue in QUEUES}
        self._marker_route = route_to(number, "", topology.marker)
        self._unconfirmed: dict[int, _Unconfirmed] = {}  # by number, in ascending order
        self._number = 0
        self._waiting: deque[Published] = deque()  # for a connection that takes them
        self._returned: list[_Unconfirmed] = []
        self._blocked = False
        channel.on[method_key(spec.Basic.Ack)] = self._on_ack
        channel.on[method_key(spec.Basic.Nack)] = self._on_nack
        channel.on[method_key(spec.Basic.Return)] = self._on_return
        link.control.on[method_key(spec.Connection.Blocked)] = self._on_blocked
        link.control.on[method_key(spec.Connection.Unblocked)] = self._on_unblocked

    def publish(self, messages: Sequence[Outgoing], done: Done) -> Published:
        return self._start([(self._routes[one.queue], one.body) for one in messages], done)

    def set_marker(self, value: str, done: Done) -> Published:
        return self._start([(self._marker_route, value.encode())], done)

    def serve(self) -> None:
        """Writes what waits for the connection, as far as it takes it, and what was returned again."""
        if self._returned:
            self._channel.declare(self._topology.declare)
            for one in self._returned:
                self._publish(one.route, one.body, one.published, repeated=True)
            self._returned.clear()
        while self._waiting and self._takes_more():
            published = self._waiting.popleft()
            if not published.given_up:
                self._write(published)

    def end(self, reason: str) -> None:
        """The connection is over: what was not confirmed is unknown."""
        unconfirmed = (*self._unconfirmed.values(), *self._returned)
        unknown = [*self._waiting, *(one.published for one in unconfirmed)]
        self._waiting.clear()
        self._returned.clear()
        self._unconfirmed.clear()
        for published in unknown:
            published.finish(reason)

    def _start(self, messages: Sequence[tuple[bytes, bytes]], done: Done) -> Published:
        published = Published(messages, done, len(messages))
        self._waiting.append(published)
        self.serve()
        return published

    def _takes_more(self) -> bool:
        return not self._blocked and self._link.waiting_bytes < UNWRITTEN_BYTES_MAX

    def _write(self, published: Published) -> None:
        for route, body in published.messages:
            self._publish(route, body, published, repeated=False)

    def _publish(self, route: bytes, body: bytes, published: Published, *, repeated: bool) -> None:
        self._number += 1
        self._unconfirmed[self._number] = _Unconfirmed(route, body, published, repeated)
        self._link.publish(self._channel.number, route, self._number, body)

    def _confirmed(self, method: bytes) -> list[_Unconfirmed]:
        number, multiple = unpack_from(">QB", method, 4)
        if not multiple & 1:
            one = self._unconfirmed.pop(number, None)
            return [] if one is None else [one]
        found = []
        for known in self._unconfirmed:
            if known > number:
                break
            found.append(known)
        return [self._unconfirmed.pop(known) for known in found]

    def _on_ack(self, method: bytes, header: bytes, body: bytes) -> None:
        for one in self._confirmed(method):
            one.published.left -= 1
            if not one.published.left:
                one.published.finish(None)

    def _on_nack(self, method: bytes, header: bytes, body: bytes) -> None:
        for one in self._confirmed(method):
            one.published.finish("RabbitMQ did not accept a message")

    def _on_return(self, method: bytes, header: bytes, body: bytes) -> None:
        """No queue took it: the queue was deleted, and is made again, once. The confirm that follows says nothing."""
        one = self._unconfirmed.pop(returned_number(header), None)
        if one is None:
            return
        if one.repeated:
            one.published.finish("RabbitMQ has no queue for a message, though it was declared")
        elif not one.published.given_up:
            self._returned.append(one)

    def _on_blocked(self, method: bytes, header: bytes, body: bytes) -> None:
        self._blocked = True

    def _on_unblocked(self, method: bytes, header: bytes, body: bytes) -> None:
        self._blocked = False


class Marker:
    """Reads the wipe marker, on a channel of its own: what that queue does not answer must not keep others waiting."""

    def __init__(self, channel: Channel, topology: Topology) -> None:
        self._channel = channel
        self._topology = topology
        self._reads: deque[Callable[[str | None], None]] = deque()
        channel.on[method_key(spec.Basic.GetOk)] = self._on_value
        channel.on[method_key(spec.Basic.GetEmpty)] = self._on_nothing

    def read(self, take: Callable[[str | None], None]) -> None:
        """Takes the message and puts it back in one go, so that nobody who stops here can keep it from others.

        None also while somebody else's reading has it, for about a millisecond: to be asked again before it is
        believed.
        """
        self._reads.append(take)
        self._channel.declare(self._topology.declare_marker)
        self._channel.send(spec.Basic.Get, "Bsb", 0, self._topology.marker, False)
        self._channel.send(spec.Basic.Recover, "b", True)

    def _on_value(self, method: bytes, header: bytes, body: bytes) -> None:
        self._reads.popleft()(body.decode())

    def _on_nothing(self, method: bytes, header: bytes, body: bytes) -> None:
        self._reads.popleft()(None)
