"""The contract of the message layer over a real Redis or Valkey, and what Streams need beyond it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests import servers
from tests.conftest import require
from tests.contract.message_layer_suite import (
    HIGH,
    LOW,
    Bench,
    MakeLayer,
    MessageLayerSuite,
    bodies,
    outgoing,
)
from toolfleet.adapters.broker.streams import StreamsLayer
from toolfleet.schemas.errors import BrokerUnavailable
from toolfleet.schemas.ports import Delivery, MessageLayer

_prefixes = (f"t{number}" for number in itertools.count(1))


class StreamsBench:
    """Layers of one prefix of a shared server; emptying deletes what has that prefix."""

    claim_s = 0.4

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = next(_prefixes)
        self.layers: list[StreamsLayer] = []
        self._layer = self.open()

    def open(self) -> StreamsLayer:
        layer = StreamsLayer(self.url, prefix=self.prefix, claim_s=self.claim_s)
        self.layers.append(layer)
        return layer

    @property
    def layer(self) -> MessageLayer:
        return self._layer

    async def second(self) -> MessageLayer:
        return self.open()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def fall_silent(self, layer: MessageLayer) -> MessageLayer:
        other = self.open()
        await asyncio.sleep(self.claim_s)
        return other

    async def empty(self) -> None:
        redis = self._layer._redis
        keys = [key async for key in redis.scan_iter(match=f"{self.prefix}:*")]
        if keys:
            await redis.delete(*keys)

    async def aclose(self) -> None:
        for layer in self.layers:
            await layer.aclose()


@pytest.fixture
def make_layer(redis: servers.Server) -> MakeLayer:
    @contextlib.asynccontextmanager
    async def made() -> AsyncIterator[Bench]:
        bench = StreamsBench(servers.redis_url(redis))
        try:
            yield bench
        finally:
            await bench.empty()
            await bench.aclose()

    return made


class TestStreamsLayer(MessageLayerSuite):
    pass


def play(story: Callable[[StreamsBench], Awaitable[None]], server: servers.Server) -> None:
    """Play a story on a bench of its own."""

    async def played() -> None:
        bench = StreamsBench(servers.redis_url(server))
        try:
            await story(bench)
        finally:
            await bench.empty()
            await bench.aclose()

    asyncio.run(played())


def test_it_tells_since_when_a_message_waits_that_nobody_fetched(redis: servers.Server) -> None:
    async def story(bench: StreamsBench) -> None:
        layer = bench.open()
        assert await layer.waiting_since_s() == {}
        began = time.time()
        await layer.publish(outgoing(LOW, b"1", b"2"))
        assert await layer.fetch([HIGH], 1, wait_s=0) == []
        (held,) = await layer.fetch([LOW], 1, wait_s=0)

        waiting = await layer.waiting_since_s()
        assert set(waiting) == {LOW} and began - 1 <= waiting[LOW] <= time.time() + 1
        (other,) = await layer.fetch([LOW], 1, wait_s=0)
        assert await layer.waiting_since_s() == {}, "what is in flight waits no more"
        await layer.settle([held, other])

    play(story, redis)


def test_a_consumer_of_a_dead_process_is_removed_once_it_holds_nothing(
    redis: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolfleet.adapters.broker.streams.FORGET_IDLE_S", 0.1)
    monkeypatch.setattr("toolfleet.adapters.broker.streams.FORGET_EVERY_S", 0.1)

    async def story(bench: StreamsBench) -> None:
        dead, alive = bench.open(), bench.open()
        await alive.publish(outgoing(LOW, b"1"))
        assert len(await dead.fetch([LOW], 1, wait_s=0)) == 1

        async def consumers() -> set[bytes]:
            rows = await alive._redis.xinfo_consumers(alive._stream(LOW), "fleet")
            return {row["name"] for row in rows}

        assert dead.consumer in await consumers()
        held = []
        for _ in range(200):
            held += await alive.fetch([LOW], 1, wait_s=0.05)
            await alive.extend(held)
            if held and dead.consumer not in await consumers():
                break
        assert [(one.body, one.redelivered) for one in held] == [(b"1", True)]
        assert await consumers() == {alive.consumer}
        await alive.settle(held)
        await alive.aclose()
        bench.layers.remove(alive)

    play(story, redis)


def test_a_closed_layer_leaves_no_consumer_behind(redis: servers.Server) -> None:
    async def story(bench: StreamsBench) -> None:
        layer = bench.open()
        await layer.fetch([LOW, HIGH], 1, wait_s=0)
        await layer.aclose()
        bench.layers.remove(layer)

        client = bench.open()._redis
        assert await client.xinfo_consumers(f"{bench.prefix}:queue:{LOW}", "fleet") == []

    play(story, redis)


def test_what_is_published_while_the_server_is_away_is_not_said_to_be_there() -> None:
    require("redis")

    async def story() -> None:
        with servers.redis_server() as server:
            layer = StreamsLayer(servers.redis_url(server), claim_s=0.4)
            await layer.publish(outgoing(LOW, b"1"))
            server.kill()

            for attempt in (
                layer.publish(outgoing(LOW, b"2")),
                layer.fetch([LOW], 1, wait_s=0.1),
                layer.depths(),
                layer.marker(),
            ):
                with pytest.raises(BrokerUnavailable):
                    await asyncio.wait_for(attempt, 30)
            server.start()
            assert bodies(await layer.fetch([LOW], 10, wait_s=5)) == [b"1"]
            await layer.aclose()

    asyncio.run(story())


def test_three_cuts_in_three_seconds_do_not_stop_the_consuming() -> None:
    """Trap 6: alive but not consuming after reconnects."""
    require("redis")

    async def story() -> None:
        with servers.redis_server() as server:
            layer = StreamsLayer(servers.redis_url(server))
            killer = StreamsLayer(servers.redis_url(server))
            for number in range(3):
                waiting = asyncio.create_task(layer.fetch([LOW], 1, wait_s=10))
                while not (await killer._redis.info("clients"))["blocked_clients"]:
                    assert not waiting.done()
                await killer._redis.client_kill_filter(_type="normal", skipme=True)
                with contextlib.suppress(BrokerUnavailable):
                    assert await waiting == []
                await killer.publish(outgoing(LOW, b"%d" % number))
                (came,) = await _patiently(layer)
                await layer.settle([came])
            await layer.aclose()
            await killer.aclose()

    asyncio.run(story())


async def _patiently(layer: StreamsLayer) -> list[Delivery]:
    for _ in range(20):
        with contextlib.suppress(BrokerUnavailable):
            found = await layer.fetch([LOW], 1, wait_s=1)
            if found:
                return found
    raise AssertionError("it does not consume any more")
