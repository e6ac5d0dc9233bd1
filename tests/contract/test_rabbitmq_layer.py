"""The contract of the message layer over RabbitMQ, and what this layer promises beyond it. Kills of nodes: tests/fault."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import amqp
import pytest

pytest.register_assert_rewrite("tests.contract.message_layer_suite")

from tests import servers
from tests.contract.message_layer_suite import Bench, MakeLayer, MessageLayerSuite
from toolfleet.adapters.broker.amqp_topology import Topology
from toolfleet.adapters.broker.rabbitmq import RabbitLayer
from toolfleet.schemas.errors import BrokerUnavailable
from toolfleet.schemas.ports import MessageLayer

_numbers = itertools.count(1)


class Proxy:
    """Passes connections on to the broker until they are cut: what was written to them before still arrives."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> int:
        """Ends every connection, and says how many; new ones are accepted."""
        pairs, self._pairs = self._pairs, []
        for client, _ in pairs:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RD)  # what is there is still read, and then the end
        return len(pairs)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._pairs.append((client, broker))
            answers = threading.Thread(target=self._pump, args=(broker, client))
            asks = threading.Thread(target=self._carry, args=(client, broker, answers))
            self._threads += [answers, asks]
            answers.start()
            asks.start()

    def _carry(self, client: socket.socket, broker: socket.socket, answers: threading.Thread) -> None:
        self._pump(client, broker)
        answers.join()
        client.close()
        broker.close()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for sock, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with contextlib.suppress(OSError):
                sock.shutdown(how)


class Broker:
    """A prefix of its own at a node, and the layers that were opened on it, each through a proxy."""

    claim_s = 0.5  # nobody's: a connection that ends gives its messages back at once

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        self.topology = Topology(f"test{os.getpid()}.{next(_numbers)}")
        self._proxies: dict[RabbitLayer, Proxy] = {}
        self.rabbit = self.open()

    @property
    def layer(self) -> MessageLayer:
        return self.rabbit

    def open(self, **options: float) -> RabbitLayer:
        proxy = Proxy(self.server.port)
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}//"
        layer = RabbitLayer(url, prefix=self.topology.prefix, **options)  # type: ignore[arg-type]
        self._proxies[layer] = proxy
        return layer

    async def second(self) -> MessageLayer:
        return self.open()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def fall_silent(self, layer: MessageLayer) -> MessageLayer:
        """After a round trip: RabbitMQ hands on what was settled a moment before its connection ended, or does not."""
        assert isinstance(layer, RabbitLayer)
        with contextlib.suppress(BrokerUnavailable):
            await layer.depths()
        self._proxies.pop(layer).close()
        await layer.aclose()
        return self.open()

    def cut(self, layer: RabbitLayer) -> int:
        return self._proxies[layer].cut()

    async def empty(self) -> None:
        with self.admin() as channel:
            for queue in self.topology.all_queues():
                channel.queue_delete(queue)

    @contextlib.contextmanager
    def admin(self) -> Iterator[amqp.Channel]:
        with amqp.Connection(f"127.0.0.1:{self.server.port}", connect_timeout=5) as connection:
            yield connection.channel()

    async def aclose(self) -> None:
        for layer, proxy in self._proxies.items():
            await layer.aclose()
            proxy.close()
        await self.empty()
        with self.admin() as channel:
            channel.exchange_delete(self.topology.exchange)
            channel.exchange_delete(self.topology.refused)


@contextlib.asynccontextmanager
async def broker_of(server: servers.Server) -> AsyncIterator[Broker]:
    broker = Broker(server)
    try:
        yield broker
    finally:
        await broker.aclose()


@pytest.fixture
def make_layer(rabbitmq: servers.Server) -> MakeLayer:
    def make() -> contextlib.AbstractAsyncContextManager[Bench]:
        return broker_of(rabbitmq)

    return make


class TestRabbitLayer(MessageLayerSuite):
    pass
