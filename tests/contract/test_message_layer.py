"""The contract of the message layer over each layer there is, and what the embedded one promises beyond it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator

import pytest

from tests.contract.message_layer_suite import (  # after its asserts were made to speak
    HIGH,
    LOW,
    Bench,
    MakeLayer,
    MessageLayerSuite,
    bodies,
    outgoing,
    take,
    turn_the_loop,
)
from toolfleet.adapters.broker.memory import MemoryLayer
from toolfleet.schemas.ports import MessageLayer

SETTLING_TURNS = 10  # turns of the loop after which everything that could run without time passing has run


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_s(self) -> float:
        return 1_700_000_000.0 + self._now

    def monotonic_s(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Moves on, stopping at each sleeper on the way."""
        target = self._now + seconds
        await turn_the_loop(SETTLING_TURNS)
        while self._sleepers and self._sleepers[0][0] <= target:
            at, _, woken = heapq.heappop(self._sleepers)
            self._now = max(self._now, at)
            if not woken.done():
                woken.set_result(None)
                await turn_the_loop(SETTLING_TURNS)
        self._now = target
        await turn_the_loop(SETTLING_TURNS)


class MemoryBench:
    """The embedded layer on a clock moved by hand. Its other worker is another task of the same process."""

    claim_s = 8.0

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryLayer(claim_s=self.claim_s, clock=self.clock)

    @property
    def layer(self) -> MessageLayer:
        return self.memory

    async def second(self) -> MessageLayer:
        return self.memory

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def fall_silent(self, layer: MessageLayer) -> MessageLayer:
        await self.clock.advance(self.claim_s)
        return layer

    async def empty(self) -> None:
        await self.memory.wipe()


@contextlib.asynccontextmanager
async def memory() -> AsyncIterator[Bench]:
    bench = MemoryBench()
    try:
        yield bench
    finally:
        await bench.layer.aclose()


@pytest.fixture(params=[pytest.param(memory, id="memory")])
def make_layer(request: pytest.FixtureRequest) -> MakeLayer:
    made: MakeLayer = request.param
    return made


class TestMessageLayer(MessageLayerSuite):
    pass


def test_the_embedded_claim_ends_after_its_time_and_not_before() -> None:
    async def story() -> None:
        bench = MemoryBench()
        await bench.layer.publish(outgoing(LOW, b"1"))
        await take(bench.layer, [LOW])

        await bench.pass_time(bench.claim_s - 0.01)
        assert await take(bench.layer, [LOW]) == []
        await bench.pass_time(0.01)
        assert [one.redelivered for one in await take(bench.layer, [LOW])] == [True]

    asyncio.run(story())


def test_a_late_extension_keeps_what_nobody_took_over() -> None:
    async def story() -> None:
        bench = MemoryBench()
        await bench.layer.publish(outgoing(LOW, b"1"))
        held = await take(bench.layer, [LOW])

        await bench.pass_time(2 * bench.claim_s)
        await bench.layer.extend(held)
        await bench.pass_time(bench.claim_s / 2)

        assert await take(bench.layer, [LOW]) == []

    asyncio.run(story())


def test_messages_taken_over_come_in_their_old_order_before_what_waits() -> None:
    async def story() -> None:
        bench = MemoryBench()
        await bench.layer.publish(outgoing(LOW, b"1", b"2", b"3", b"4"))
        await take(bench.layer, [LOW], 1)
        await take(bench.layer, [LOW], 2)

        await bench.pass_time(bench.claim_s)

        assert bodies(await take(bench.layer, [LOW])) == [b"1", b"2", b"3", b"4"]

    asyncio.run(story())


def test_a_hand_back_is_no_redelivery() -> None:
    async def story() -> None:
        bench = MemoryBench()
        await bench.layer.publish(outgoing(LOW, b"1"))

        await bench.layer.release(await take(bench.layer, [LOW]), delay_s=0)

        assert [one.redelivered for one in await take(bench.layer, [LOW])] == [False]

    asyncio.run(story())


def test_a_fetch_cancelled_while_it_waits_holds_nothing() -> None:
    async def story() -> None:
        bench = MemoryBench()
        for turns in range(SETTLING_TURNS):
            waiting = asyncio.create_task(bench.layer.fetch([LOW], 10, wait_s=60))
            await turn_the_loop(turns)
            await bench.layer.publish(outgoing(LOW, b"1"))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

            found = await take(bench.layer, [LOW])
            assert bodies(found) == [b"1"], f"after {turns} turns of the loop, without a claim that ends"
            await bench.layer.settle(found)

    asyncio.run(story())


def test_a_claim_made_while_another_waits_is_noticed_when_it_ends() -> None:
    async def story() -> None:
        bench = MemoryBench()
        waiting = asyncio.create_task(bench.layer.fetch([LOW, HIGH], 10, wait_s=100 * bench.claim_s))
        await bench.pass_time(bench.claim_s / 2)
        await bench.layer.publish(outgoing(HIGH, b"1"))
        held = await take(bench.layer, [HIGH])  # faster than the one who was woken for it
        assert bodies(held) == [b"1"]

        await bench.pass_time(bench.claim_s - 0.01)
        assert not waiting.done()
        await bench.pass_time(0.02)

        assert [(one.body, one.redelivered) for one in await waiting] == [(b"1", True)]

    asyncio.run(story())


def test_the_embedded_layer_keeps_nothing_of_what_is_settled() -> None:
    async def story() -> None:
        bench = MemoryBench()
        layer = bench.memory
        for number in range(200):
            await layer.publish(outgoing(LOW, b"%d" % number))
            await layer.release(await take(layer, [LOW]), delay_s=1)
            await bench.clock.advance(1)
            held = await take(layer, [LOW])
            await layer.extend(held)
            waiting = asyncio.create_task(layer.fetch([LOW], 1, wait_s=0.5))
            await bench.clock.advance(0.5)
            assert await waiting == []
            await layer.settle(held)

        assert not layer._in_flight and not layer._delayed and not layer._waiters
        assert not any(layer._ready.values())
        assert await layer.depths() == {LOW: 0}

    asyncio.run(story())


def test_the_embedded_layer_runs_on_the_machines_clock() -> None:
    async def story() -> None:
        layer = MemoryLayer(claim_s=0.01)
        assert layer.name == "memory"
        await layer.publish(outgoing(LOW, b"1"))
        await take(layer, [LOW])

        again = await layer.fetch([LOW], 1, wait_s=30)
        await layer.settle(again)

        assert [(one.body, one.redelivered) for one in again] == [(b"1", True)]
        assert await layer.fetch([LOW], 1, wait_s=0.01) == []
        await layer.aclose()

    asyncio.run(story())


def test_a_waiting_fetch_gets_what_is_released_when_its_delay_is_over_and_not_later() -> None:
    async def story() -> None:
        bench = MemoryBench()
        await bench.layer.publish(outgoing(LOW, b"1"))
        held = await take(bench.layer, [LOW])
        waiting = asyncio.create_task(bench.layer.fetch([LOW], 10, wait_s=100 * bench.claim_s))
        await turn_the_loop(SETTLING_TURNS)

        await bench.layer.release(held, delay_s=1)
        await bench.pass_time(1)

        assert waiting.done() and bodies(await waiting) == [b"1"]

    asyncio.run(story())


def test_a_fetch_that_was_woken_or_cancelled_leaves_no_timer() -> None:
    async def story() -> None:
        bench = MemoryBench()
        waiting = [asyncio.create_task(bench.layer.fetch([queue], 1, wait_s=60)) for queue in (LOW, HIGH)]
        await turn_the_loop(SETTLING_TURNS)

        await bench.layer.publish(outgoing(LOW, b"1"))
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await turn_the_loop(SETTLING_TURNS)

        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())
