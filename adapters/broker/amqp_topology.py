"""What the RabbitMQ layer declares: names and arguments, as data, and how they are declared. No I/O of its own.

A message goes through one direct exchange to the quorum queue of its name. Nothing here may change for a prefix that is
in use: RabbitMQ refuses a declaration that differs from what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toolfleet.queues.topology import QUEUES

# How often a message may be given back by death or by hand before RabbitMQ puts it aside. The database decides what is
# poison, much earlier; this only ends a loop that nothing else ends. RabbitMQ 4's own default, 20, is reached by bad
# luck: each cut connection of a holder counts.
DELIVERY_LIMIT: Final = 1000
REFUSED_MAX: Final = 10_000  # what was put aside is kept for people; the oldest goes first
MARKER_READS_MAX: Final = 2**31 - 1  # each read of the marker counts as a delivery of it


@dataclass(frozen=True, slots=True)
class Topology:
    """The names below one prefix."""

    prefix: str

    @property
    def exchange(self) -> str:
        return self.prefix

    @property
    def refused(self) -> str:
        """Exchange and queue of what was given back too often."""
        return f"{self.prefix}.refused"

    @property
    def marker(self) -> str:
        """The queue that holds one message: the wipe marker."""
        return f"{self.prefix}.marker"

    def queue(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def all_queues(self) -> tuple[str, ...]:
        """Everything that is a queue at the broker, for who has to delete it."""
        return (*(self.queue(queue.name) for queue in QUEUES), self.refused, self.marker)

    def declare(self, channel: Any) -> None:
        """Sends every declaration and waits for none: one that is refused closes the channel."""
        channel.exchange_declare(self.refused, "fanout", durable=True, auto_delete=False, nowait=True)
        _declare_queue(channel, self.refused, {"x-max-length": REFUSED_MAX})
        channel.queue_bind(self.refused, self.refused, "", nowait=True)
        channel.exchange_declare(self.exchange, "direct", durable=True, auto_delete=False, nowait=True)
        limits = {"x-delivery-limit": DELIVERY_LIMIT, "x-dead-letter-exchange": self.refused}
        for queue in QUEUES:
            _declare_queue(channel, self.queue(queue.name), limits)
            channel.queue_bind(self.queue(queue.name), self.exchange, queue.name, nowait=True)
        self.declare_marker(channel)

    def declare_marker(self, channel: Any) -> None:
        """At most one message, the last one: two keepers that set the marker at once leave one of the two."""
        limits = {"x-max-length": 1, "x-overflow": "drop-head", "x-delivery-limit": MARKER_READS_MAX}
        _declare_queue(channel, self.marker, limits)


def _declare_queue(channel: Any, name: str, arguments: dict[str, Any]) -> None:
    channel.queue_declare(
        name,
        durable=True,
        auto_delete=False,
        nowait=True,
        arguments={"x-queue-type": "quorum", **arguments},
    )
