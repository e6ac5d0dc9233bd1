"""The message layer over RabbitMQ quorum queues, for fleets of many processes.

`RabbitLayer` is what an event loop sees. The connections belong to one thread (amqp_thread, amqp_session), which reads
(amqp_reading), publishes (amqp_writing) and speaks AMQP (amqp_link); what is declared is in amqp_topology.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolfleet.adapters.broker.amqp_link import nodes_of
from toolfleet.adapters.broker.amqp_session import (
    Command,
    CountDepths,
    Forget,
    Publish,
    PutBack,
    ReadMarker,
    Release,
    SetMarker,
    Settle,
    Take,
    Wishes,
)
from toolfleet.adapters.broker.amqp_thread import AmqpThread, unavailable
from toolfleet.adapters.broker.amqp_topology import Topology
from toolfleet.queues.topology import QUEUE_BY_NAME
from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.schemas.ports import Delivery, Outgoing

PREFETCH: Final = 256
LINGER_S: Final = (
    0.2  # a fraction of the second after which a message must not wait for a busy process (B046)
)
HEARTBEAT_S: Final = 10.0
CONNECT_S: Final = 3.0
PATIENCE_S: Final = 10.0
CLOSE_S: Final = 5.0


class RabbitLayer:
    """Implements MessageLayer over the RabbitMQ at `url`: `amqp://user:password@host:port/vhost`, or `amqps://`.

    Several nodes are separated by `;` and tried in order. Opens with the first call, and reconnects for ever; while
    there is no connection every method raises BrokerUnavailable, after `patience_s` at the latest. Raises UnsafeSettings
    where what is declared exists with other arguments. Belongs to one event loop.

    `prefetch`: the most messages that are asked of one queue at once. `tls`: as kombu's `ssl` (`ca_certs`, `certfile`,
    `keyfile`). A message that nobody settles comes again when its holder's connection ends, or after the broker's
    consumer_timeout (30 minutes if not set), which ends the connection; nothing extends it.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "toolfleet",
        name: str | None = None,
        prefetch: int = PREFETCH,
        linger_s: float = LINGER_S,
        patience_s: float = PATIENCE_S,
        heartbeat_s: float = HEARTBEAT_S,
        connect_s: float = CONNECT_S,
        tls: Mapping[str, Any] | None = None,
    ) -> None:
        refuse_patched_process()
        assert prefetch > 0 and linger_s > 0 and patience_s > 0
        self.name = f"rabbitmq/{prefix}" if name is None else name
        self._wishes = Wishes(
            nodes=nodes_of(url),
            topology=Topology(prefix),
            prefetch=prefetch,
            linger_s=linger_s,
            heartbeat_s=heartbeat_s,
            connect_s=connect_s,
            tls=dict(tls or {}),
        )
        self._patience_s = patience_s
        self._generations = itertools.count(1)
        self._thread: AmqpThread | None = None
        self._closed = False

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Persistent, and confirmed by a majority of the nodes of each queue when this returns."""
        assert all(message.queue in QUEUE_BY_NAME for message in messages)
        self._running()
        if messages:
            await self._ask(Publish(_future(), tuple(messages)), self._patience_s)

    async def fetch(self, queues: Sequence[str], limit: int, *, wait_s: float) -> list[Delivery]:
        """A message that came for a cancelled fetch goes to the next one, or back to the broker within `linger_s`."""
        assert limit > 0 and all(queue in QUEUE_BY_NAME for queue in queues)
        give_up_at = time.monotonic() + wait_s
        command = Take(_future(), tuple(queues), limit, give_up_at, wait_s > 0)
        found: list[Delivery] = await self._ask(command, max(0.0, wait_s) + self._patience_s)
        return found

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Written to the connection when this returns; what belongs to an earlier connection is dropped silently."""
        self._running()
        if deliveries:
            await self._ask(Settle(_future(), tuple(deliveries)), self._patience_s)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Does nothing: RabbitMQ keeps a message with its holder as long as the connection lives."""
        self._running()

    async def release(self, deliveries: Sequence[Delivery], *, delay_s: float) -> None:
        """Goes to the end of its queue as a new message, after delay_s. Until then it counts as in flight here."""
        self._running()
        if deliveries:
            await self._ask(Release(_future(), tuple(deliveries), delay_s), self._patience_s)

    async def marker(self) -> str | None:
        """None is believed after several readings; a broker that was emptied has been declared anew by then."""
        value: str | None = await self._ask(ReadMarker(_future()), self._patience_s)
        return value

    async def set_marker(self, value: str) -> None:
        await self._ask(SetMarker(_future(), value), self._patience_s)

    async def depths(self) -> dict[str, int]:
        """Messages that are ready, and those in flight in this process; what other processes hold is not known here."""
        found: dict[str, int] = await self._ask(CountDepths(_future()), self._patience_s)
        return found

    async def waiting_since_s(self) -> dict[str, float]:
        """A quorum queue does not tell when its messages were published without giving them out."""
        return {}

    async def aclose(self) -> None:
        """Gives back what is unsettled and ends the thread, within CLOSE_S. Closing twice is harmless."""
        self._closed = True
        thread = self._thread
        if thread is not None:
            thread.close()
            await asyncio.wait([thread.ended], timeout=CLOSE_S)

    async def _ask(self, command: Command, timeout_s: float) -> Any:
        thread = self._running()
        if not thread.put(command):
            raise unavailable(self.name, "its thread has just ended")
        try:
            async with asyncio.timeout(timeout_s):
                return await command.future
        except TimeoutError:
            thread.put(Forget(command))
            raise unavailable(self.name, f"no answer within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            thread.put(Forget(command))
            future = command.future
            if future.done() and not future.cancelled() and future.exception() is None:
                _give_back(thread, command, future.result())
            raise

    def _running(self) -> AmqpThread:
        """The thread, started again where it has died."""
        if self._closed:
            raise unavailable(self.name, "the layer was closed")
        if self._thread is None or self._thread.over:
            if self._thread is not None and self._thread.refusal is not None:
                raise self._thread.refusal
            self._thread = AmqpThread(self.name, self._wishes, asyncio.get_running_loop(), self._generations)
        return self._thread


def refuse_patched_process() -> None:
    """Raises UnsafeSettings where gevent or eventlet has replaced sockets and threads."""
    gevent = sys.modules.get("gevent.monkey")
    eventlet = sys.modules.get("eventlet.patcher")
    if (gevent is not None and gevent.is_module_patched("socket")) or (
        eventlet is not None and eventlet.is_monkey_patched("socket")
    ):
        raise UnsafeSettings(
            "this process is monkey-patched by gevent or eventlet, under which RabbitMQ delivers a few messages a second",
            hint="Start the worker with -P solo or -P prefork.",
        )


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _give_back(thread: AmqpThread, command: Command, result: Any) -> None:
    if isinstance(command, Take) and result:
        thread.put(PutBack(result))
