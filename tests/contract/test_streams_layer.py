"""The contract of the message layer over a real Redis or Valkey, and what Streams need beyond it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest

pytest.register_assert_rewrite("tests.contract.message_layer_suite")

from tests import servers
from tests.contract.message_layer_suite import (
    Bench,
    MakeLayer,
    MessageLayerSuite,
)
from toolfleet.adapters.broker.streams import StreamsLayer
from toolfleet.schemas.ports import MessageLayer

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
