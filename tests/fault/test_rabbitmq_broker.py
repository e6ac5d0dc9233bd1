"""RabbitMQ nodes that are killed under load: nothing that was confirmed is lost, and nobody has to be started again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests import servers
from tests.conftest import require
from toolfleet.adapters.broker.rabbitmq import RabbitLayer
from toolfleet.schemas.errors import BrokerUnavailable
from toolfleet.schemas.ports import MessageLayer, Outgoing

QUEUE = "exec.low"
KILLS = 2
LISTS_BETWEEN_KILLS = 40
LIST_LENGTH = 25
BACK_WITHIN_S = 30.0  # after the node answers again: its queues have to elect their leaders first


@pytest.fixture
def node() -> Iterator[servers.Server]:
    require("rabbitmq")
    with servers.rabbitmq_server() as server:
        yield server


def settle_down(node: servers.Server) -> None:
    """Writes out what RabbitMQ 3.10 keeps about a new queue in memory for seconds.

    Killed before, the queue comes back without a leader and answers nobody, for good (rabbitmq-server issue 10070).
    """
    servers.rabbitmq_control(node, "eval", "[dets:sync(Table) || Table <- dets:all()].")


class Load:
    """Publishes numbered lists until they are confirmed, and consumes them in two layers."""

    def __init__(self, server: servers.Server) -> None:
        url = servers.rabbitmq_url(server)
        self.publisher = RabbitLayer(url)
        self.consumers = [RabbitLayer(url) for _ in range(2)]
        self.sent = 0
        self.confirmed: set[bytes] = set()
        self.seen: Counter[bytes] = Counter()
        self.failures = 0

    async def publish(self, lists: int) -> None:
        """Each list again and again until the broker has it, as the outbox does."""
        for _ in range(lists):
            bodies = [b"%d" % number for number in range(self.sent, self.sent + LIST_LENGTH)]
            self.sent += LIST_LENGTH
            while not self.confirmed.issuperset(bodies):
                try:
                    await self.publisher.publish([Outgoing(QUEUE, body) for body in bodies])
                    self.confirmed.update(bodies)
                except BrokerUnavailable:
                    self.failures += 1
                    await asyncio.sleep(0.05)

    async def consume(self, layer: MessageLayer) -> None:
        while True:
            try:
                found = await layer.fetch([QUEUE], 32, wait_s=1)
                self.seen.update(one.body for one in found)
                await layer.settle(found)
            except BrokerUnavailable:
                self.failures += 1
                await asyncio.sleep(0.05)

    async def all_seen(self) -> None:
        while len(self.seen) < self.sent:  # noqa: ASYNC110  # two consumers, and no event says when both are done
            await asyncio.sleep(0.02)

    async def aclose(self) -> None:
        for layer in (self.publisher, *self.consumers):
            await layer.aclose()


@pytest.mark.timeout(300)
def test_a_node_killed_under_load_loses_nothing(node: servers.Server) -> None:
    async def story() -> None:
        load = Load(node)
        await load.publish(1)
        await asyncio.to_thread(settle_down, node)
        consuming = [asyncio.create_task(load.consume(layer)) for layer in load.consumers]
        for _ in range(KILLS):
            publishing = asyncio.create_task(load.publish(LISTS_BETWEEN_KILLS))
            target = load.sent + LISTS_BETWEEN_KILLS * LIST_LENGTH // 2
            while load.sent < target and not publishing.done():  # noqa: ASYNC110  # half of it is on its way
                await asyncio.sleep(0)
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            async with asyncio.timeout(BACK_WITHIN_S):
                await publishing
        async with asyncio.timeout(BACK_WITHIN_S):
            await load.all_seen()
        for task in consuming:
            task.cancel()
        ended = await asyncio.gather(*consuming, return_exceptions=True)
        depths = await load.publisher.depths()
        await load.aclose()

        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        assert load.failures > 0, "the kills were not noticed"
        assert {b"%d" % number for number in range(load.sent)} == set(load.seen) == load.confirmed
        assert depths[QUEUE] == 0

    asyncio.run(story())


@pytest.mark.timeout(200)
def test_what_is_in_flight_delayed_or_marked_outlives_a_killed_node(node: servers.Server) -> None:
    async def story() -> None:
        layer = RabbitLayer(servers.rabbitmq_url(node))
        await layer.set_marker("ours")
        await layer.publish([Outgoing(QUEUE, body) for body in (b"held", b"delayed", b"waiting")])
        held = {one.body: one for one in await layer.fetch([QUEUE], 2, wait_s=0)}
        await layer.release([held[b"delayed"]], delay_s=3600)
        waiting = asyncio.create_task(layer.fetch(["results"], 1, wait_s=0.5))
        await waiting
        await asyncio.to_thread(settle_down, node)

        node.kill()
        started = time.monotonic()
        asked = [layer.marker(), layer.depths(), layer.set_marker("x")]
        asked += [layer.publish([Outgoing(QUEUE, b"x")]), layer.fetch([QUEUE], 1, wait_s=0.5)]
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, BrokerUnavailable), repr(error)
        assert time.monotonic() - started < 10
        await asyncio.to_thread(node.start)

        found: set[bytes] = set()
        async with asyncio.timeout(BACK_WITHIN_S):
            while len(found) < 3:
                try:
                    found.update(one.body for one in await layer.fetch([QUEUE], 10, wait_s=1))
                except BrokerUnavailable:
                    await asyncio.sleep(0.05)
        assert found == {b"held", b"delayed", b"waiting"}
        assert await layer.marker() == "ours"
        await layer.aclose()

    asyncio.run(story())


@pytest.mark.timeout(200)
def test_a_node_that_is_new_has_no_marker_and_works(node: servers.Server) -> None:
    async def story() -> None:
        layer = RabbitLayer(servers.rabbitmq_url(node))
        await layer.set_marker("ours")
        await layer.publish([Outgoing(QUEUE, b"lost with its disk")])

        node.kill()
        for path in sorted((node.folder / "data").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        await asyncio.to_thread(node.start)

        marker: str | None = "unknown"
        async with asyncio.timeout(BACK_WITHIN_S):
            while marker == "unknown":
                try:
                    marker = await layer.marker()
                except BrokerUnavailable:
                    await asyncio.sleep(0.05)
        assert marker is None
        await layer.publish([Outgoing(QUEUE, b"1")])
        assert [one.body for one in await layer.fetch([QUEUE], 10, wait_s=5)] == [b"1"]
        await layer.aclose()

    asyncio.run(story())
