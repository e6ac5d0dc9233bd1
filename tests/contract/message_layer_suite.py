"""What every message layer has to do, whatever it is made of. One class; `make_layer` says over which layer it runs.

A fixture `make_layer` returns a function that opens a fresh, empty `Bench`. Time passes through the bench alone, so a
layer inside the process runs on a clock moved by hand, and one over a server has a short claim and waits for real.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeAlias

from toolfleet.schemas.errors import BrokerUnavailable
from toolfleet.schemas.limits import MESSAGE_BYTES_MAX
from toolfleet.schemas.ports import Delivery, MessageLayer, Outgoing

LOW: Final = "exec.low"
HIGH: Final = "exec.high"
RESULTS: Final = "results"

PATIENCE: Final = 200  # looks of `collect`, a tenth of a claim apart: twenty claims
CANCEL_POINTS: Final = (
    12  # turns of the loop tried before and after the publish: more than any fetch needs here
)


class Bench(Protocol):
    """A broker with nothing in it, and what a test does to it from outside."""

    claim_s: float  # a silent holder loses its messages after this

    @property
    def layer(self) -> MessageLayer: ...

    async def second(self) -> MessageLayer:
        """The layer as another worker sees it: of another process, where the broker has processes."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Returns when that much time has passed for the layer."""
        ...

    async def fall_silent(self, layer: MessageLayer) -> MessageLayer:
        """The holder of what is in flight in `layer` is gone for good; the layer to go on with."""
        ...

    async def empty(self) -> None:
        """Everything is gone from the broker, as after FLUSHALL or a new disk."""
        ...


MakeLayer: TypeAlias = Callable[[], AbstractAsyncContextManager[Bench]]


def over_a_bench(
    story: Callable[[MessageLayerSuite, Bench], Awaitable[None]],
) -> Callable[[MessageLayerSuite, MakeLayer], None]:
    """The test that plays this story on a fresh bench, in an event loop of its own."""

    def test(self: MessageLayerSuite, make_layer: MakeLayer) -> None:
        async def play() -> None:
            async with make_layer() as bench:
                await story(self, bench)

        asyncio.run(play())

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


def outgoing(queue: str, *bodies: bytes) -> list[Outgoing]:
    return [Outgoing(queue, body) for body in bodies]


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


async def take(layer: MessageLayer, queues: Sequence[str], limit: int = 100) -> list[Delivery]:
    """What is there now."""
    return await layer.fetch(queues, limit, wait_s=0)


async def collect(bench: Bench, layer: MessageLayer, queues: Sequence[str], count: int) -> list[Delivery]:
    """`count` deliveries, however many fetches and however much time they take; all are left in flight."""
    found: list[Delivery] = []
    for _ in range(PATIENCE):
        found += await take(layer, queues, count - len(found))
        if len(found) == count:
            return found
        await layer.extend(found)
        await bench.pass_time(bench.claim_s / 10)
    raise AssertionError(f"{len(found)} of {count} messages came: {bodies(found)}")


async def turn_the_loop(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


class MessageLayerSuite:
    """Subclass it as `Test…` beside a `make_layer` fixture."""

    @over_a_bench
    async def test_what_is_published_is_fetched_in_the_order_of_a_queue(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1", b"2"))
        await bench.layer.publish(outgoing(LOW, b"3"))

        found = await collect(bench, bench.layer, [LOW], 3)

        assert bodies(found) == [b"1", b"2", b"3"]
        assert [(one.queue, one.redelivered) for one in found] == [(LOW, False)] * 3

    @over_a_bench
    async def test_one_publish_feeds_many_queues(self, bench: Bench) -> None:
        await bench.layer.publish([*outgoing(LOW, b"l"), *outgoing(RESULTS, b"r"), *outgoing(HIGH, b"h")])

        found = [await collect(bench, bench.layer, [queue], 1) for queue in (HIGH, LOW, RESULTS)]

        assert [bodies(one) for one in found] == [[b"h"], [b"l"], [b"r"]]

    @over_a_bench
    async def test_publishing_nothing_is_harmless(self, bench: Bench) -> None:
        await bench.layer.publish([])

        assert await take(bench.layer, [LOW]) == []

    @over_a_bench
    async def test_a_fetch_takes_no_more_than_asked_and_the_rest_stays(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1", b"2", b"3"))

        first = await take(bench.layer, [LOW], 2)
        rest = await collect(bench, bench.layer, [LOW], 3 - len(first))

        assert 1 <= len(first) <= 2
        assert bodies([*first, *rest]) == [b"1", b"2", b"3"]

    @over_a_bench
    async def test_earlier_queues_come_first(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"l1", b"l2"))
        await bench.layer.publish(outgoing(HIGH, b"h1", b"h2"))

        first = await take(bench.layer, [HIGH, LOW], 2)
        rest = await collect(bench, bench.layer, [HIGH, LOW], 2)

        assert bodies(first) == [b"h1", b"h2"]
        assert bodies(rest) == [b"l1", b"l2"]

    @over_a_bench
    async def test_other_queues_are_left_alone(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"l"))

        assert await take(bench.layer, [HIGH, RESULTS]) == []
        assert bodies(await collect(bench, bench.layer, [LOW], 1)) == [b"l"]

    @over_a_bench
    async def test_a_fetch_that_does_not_wait_returns_at_once(self, bench: Bench) -> None:
        assert await take(bench.layer, [LOW, HIGH]) == []

    @over_a_bench
    async def test_a_waiting_fetch_is_woken_by_a_message(self, bench: Bench) -> None:
        waiting = asyncio.create_task(bench.layer.fetch([HIGH, LOW], 10, wait_s=60))
        await turn_the_loop(5)

        await bench.layer.publish(outgoing(RESULTS, b"not this"))
        await bench.layer.publish(outgoing(LOW, b"this"))

        assert bodies(await waiting) == [b"this"]

    @over_a_bench
    async def test_a_waiting_fetch_ends_with_nothing_when_its_time_is_over(self, bench: Bench) -> None:
        waiting = asyncio.create_task(bench.layer.fetch([LOW], 10, wait_s=0.2))
        await bench.pass_time(0.2)

        assert await waiting == []

    @over_a_bench
    async def test_a_waiting_fetch_gets_what_a_silent_worker_held(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1"))
        await collect(bench, bench.layer, [LOW], 1)
        other = await bench.second()

        waiting = asyncio.create_task(other.fetch([LOW], 10, wait_s=20 * bench.claim_s))
        await turn_the_loop(5)
        await bench.fall_silent(bench.layer)

        assert [(one.body, one.redelivered) for one in await waiting] == [(b"1", True)]

    @over_a_bench
    async def test_what_is_in_flight_does_not_come_twice(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1"))

        await collect(bench, bench.layer, [LOW], 1)

        assert await take(bench.layer, [LOW]) == []
        assert await take(await bench.second(), [LOW]) == []

    @over_a_bench
    async def test_what_is_not_settled_comes_again_and_says_so(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1", b"2", b"3"))
        held = await collect(bench, bench.layer, [LOW], 3)
        await bench.layer.settle(held[1:2])

        layer = await bench.fall_silent(bench.layer)
        again = await collect(bench, layer, [LOW], 2)

        assert sorted((one.body, one.redelivered) for one in again) == [(b"1", True), (b"3", True)]

    @over_a_bench
    async def test_it_comes_again_as_often_as_nobody_settles_it(self, bench: Bench) -> None:
        layer = bench.layer
        await layer.publish(outgoing(LOW, b"1"))

        for _ in range(4):
            await collect(bench, layer, [LOW], 1)
            layer = await bench.fall_silent(layer)

        await layer.settle(await collect(bench, layer, [LOW], 1))
        layer = await bench.fall_silent(layer)
        assert await take(layer, [LOW]) == []

    @over_a_bench
    async def test_what_is_settled_never_comes_again(self, bench: Bench) -> None:
        await bench.layer.publish([*outgoing(LOW, b"1", b"2"), *outgoing(HIGH, b"3")])

        await bench.layer.settle(await collect(bench, bench.layer, [LOW, HIGH], 3))
        layer = await bench.fall_silent(bench.layer)

        assert await take(layer, [LOW, HIGH]) == []
        assert sum((await layer.depths()).values()) == 0

    @over_a_bench
    async def test_settling_twice_is_harmless(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1", b"2", b"3"))
        held = await collect(bench, bench.layer, [LOW], 2)

        await bench.layer.settle([held[0], held[0]])
        await bench.layer.settle(held)
        await bench.layer.settle(held)
        await bench.layer.settle([])

        assert bodies(await collect(bench, bench.layer, [LOW], 1)) == [b"3"]
        assert (await bench.layer.depths()).get(LOW) == 1

    @over_a_bench
    async def test_a_late_word_about_what_was_taken_over_is_harmless(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1", b"2"))
        old = await collect(bench, bench.layer, [LOW], 2)
        layer = await bench.fall_silent(bench.layer)
        new = await collect(bench, layer, [LOW], 2)

        await layer.extend(old)
        await layer.release(old[:1], delay_s=0)
        await layer.settle(old)
        await layer.settle(new)

        await bench.pass_time(2 * bench.claim_s)
        left = await take(layer, [LOW])  # a broker may have put back what the old holder released
        assert set(bodies(left)) <= {b"1"}
        await layer.settle(left)
        assert (await layer.depths()).get(LOW, 0) == 0

    @over_a_bench
    async def test_what_is_extended_stays_with_its_holder(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1", b"2"))
        held = await collect(bench, bench.layer, [LOW], 2)
        other = await bench.second()

        for _ in range(6):
            await bench.pass_time(bench.claim_s / 2)
            assert await take(other, [LOW]) == []
            await bench.layer.extend(held)

        await bench.layer.settle(held)
        assert (await bench.layer.depths()).get(LOW, 0) == 0

    @over_a_bench
    async def test_what_is_released_comes_again_at_once(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1", b"2"))
        held = await collect(bench, bench.layer, [LOW], 2)

        await bench.layer.release(held, delay_s=0)
        again = await collect(bench, bench.layer, [LOW], 2)

        assert sorted(bodies(again)) == [b"1", b"2"]
        await bench.layer.settle(again)
        assert (await bench.layer.depths()).get(LOW, 0) == 0

    @over_a_bench
    async def test_what_is_released_with_a_delay_does_not_come_before_it(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"held", b"other"))
        held = await collect(bench, bench.layer, [LOW], 2)
        await bench.layer.settle(held[1:])
        delay_s = 4 * bench.claim_s

        await bench.layer.release(held[:1], delay_s=delay_s)

        assert await take(bench.layer, [LOW]) == []
        await bench.pass_time(delay_s / 2)
        assert await take(bench.layer, [LOW]) == []
        assert (await bench.layer.depths()).get(LOW) == 1
        await bench.pass_time(delay_s / 2)
        again = await collect(bench, bench.layer, [LOW], 1)
        await bench.layer.settle(again)
        assert bodies(again) == [b"held"]

    @over_a_bench
    async def test_a_message_may_be_released_for_ever(self, bench: Bench) -> None:  # B105
        await bench.layer.publish(outgoing(LOW, b"from a newer release"))

        for _ in range(30):  # more than any broker's delivery limit that comes by default (20)
            held = await collect(bench, bench.layer, [LOW], 1)
            await bench.layer.release(held, delay_s=0)

        assert bodies(await collect(bench, bench.layer, [LOW], 1)) == [b"from a newer release"]

    @over_a_bench
    async def test_a_waiting_fetch_gets_what_is_released_meanwhile(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1"))
        held = await collect(bench, bench.layer, [LOW], 1)
        delay_s = bench.claim_s / 2
        waiting = asyncio.create_task(bench.layer.fetch([LOW], 10, wait_s=20 * bench.claim_s))
        await turn_the_loop(5)

        await bench.layer.release(held, delay_s=delay_s)
        await turn_the_loop(5)
        assert not waiting.done()
        await bench.pass_time(2 * delay_s)

        assert bodies(await waiting) == [b"1"]

    @over_a_bench
    async def test_the_marker_is_there_until_the_broker_is_emptied(self, bench: Bench) -> None:
        assert await bench.layer.marker() is None

        await bench.layer.set_marker("first")
        await bench.layer.set_marker("second")
        assert await bench.layer.marker() == "second"
        assert await (await bench.second()).marker() == "second"

        await bench.empty()
        assert await bench.layer.marker() is None

    @over_a_bench
    async def test_an_emptied_broker_works_on(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1", b"2", b"3"))
        held = await collect(bench, bench.layer, [LOW], 2)

        await bench.empty()
        await bench.layer.settle(held[:1])
        await bench.layer.extend(held[1:])

        assert (await bench.layer.depths()).get(LOW, 0) == 0
        await bench.layer.publish(outgoing(LOW, b"4"))
        again = await collect(bench, bench.layer, [LOW], 1)
        await bench.layer.settle(again)
        assert bodies(again) == [b"4"]
        assert (await bench.layer.depths()).get(LOW, 0) == 0

    @over_a_bench
    async def test_depths_count_what_waits_and_what_is_in_flight(self, bench: Bench) -> None:
        await bench.layer.publish([*outgoing(LOW, b"1", b"2", b"3"), *outgoing(HIGH, b"4")])
        held = await collect(bench, bench.layer, [LOW], 2)
        before = await bench.layer.depths()

        await bench.layer.settle(held)
        after = await bench.layer.depths()

        assert (before.get(LOW), before.get(HIGH), before.get(RESULTS, 0)) == (3, 1, 0)
        assert (after.get(LOW), after.get(HIGH)) == (1, 1)

    @over_a_bench
    async def test_a_body_comes_as_it_was_sent(self, bench: Bench) -> None:
        every_byte = bytes(range(256))
        largest = (every_byte * (MESSAGE_BYTES_MAX // 256 + 1))[:MESSAGE_BYTES_MAX]
        sent = [b"", b"\0", b"\r\n", b"\xff\xfe", every_byte, largest]
        await bench.layer.publish(outgoing(LOW, *sent))

        found = await collect(bench, bench.layer, [LOW], len(sent))

        assert bodies(found) == sent

    @over_a_bench
    async def test_equal_bodies_are_different_messages(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"same", b"same"))
        held = await collect(bench, bench.layer, [LOW], 2)

        await bench.layer.settle(held[:1])
        layer = await bench.fall_silent(bench.layer)

        assert bodies(await collect(bench, layer, [LOW], 1)) == [b"same"]
        assert await take(layer, [LOW]) == []

    @over_a_bench
    async def test_a_cancelled_fetch_loses_no_message(self, bench: Bench) -> None:
        layer = bench.layer
        sent, settled = [], []
        for before in range(CANCEL_POINTS):
            for after in range(CANCEL_POINTS):
                waiting = asyncio.create_task(layer.fetch([LOW], 10, wait_s=60))
                await turn_the_loop(before)
                sent.append(b"%d/%d" % (before, after))
                publishing = asyncio.create_task(layer.publish(outgoing(LOW, sent[-1])))
                await turn_the_loop(after)
                waiting.cancel()
                (found, _) = await asyncio.gather(waiting, publishing, return_exceptions=True)
                if not isinstance(found, BaseException):
                    settled += bodies(found)
                    await layer.settle(found)

        layer = await bench.fall_silent(layer)
        left = await collect(bench, layer, [LOW], len(sent) - len(settled))

        assert sorted([*settled, *bodies(left)]) == sorted(sent)
        assert await take(layer, [LOW]) == []

    @over_a_bench
    async def test_a_cancelled_fetch_does_not_keep_the_message_from_another(self, bench: Bench) -> None:
        other = await bench.second()
        cancelled = asyncio.create_task(bench.layer.fetch([LOW], 10, wait_s=60))
        waiting = asyncio.create_task(other.fetch([LOW], 10, wait_s=60))
        await turn_the_loop(5)

        await bench.layer.publish(outgoing(LOW, b"1"))
        cancelled.cancel()
        (first,) = await asyncio.gather(cancelled, return_exceptions=True)
        if not isinstance(first, BaseException):  # it was faster than its cancellation
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert bodies(first) == [b"1"]
            return
        if not waiting.done():
            await bench.fall_silent(bench.layer)

        assert bodies(await waiting) == [b"1"]

    @over_a_bench
    async def test_two_consumers_share_and_no_message_goes_to_both(self, bench: Bench) -> None:
        sent = [b"%d" % number for number in range(400)]
        found: list[list[bytes]] = [[], []]

        async def consume(layer: MessageLayer, mine: list[bytes]) -> None:
            while len(found[0]) + len(found[1]) < len(sent):
                held = await layer.fetch([LOW], 3, wait_s=bench.claim_s / 4)
                mine.extend(bodies(held))
                await layer.settle(held)
                await asyncio.sleep(0)

        both = [
            asyncio.create_task(consume(layer, mine))
            for layer, mine in zip((bench.layer, await bench.second()), found, strict=True)
        ]
        for start in range(0, len(sent), 20):
            await bench.layer.publish(outgoing(LOW, *sent[start : start + 20]))
            await turn_the_loop(3)
        while not all(task.done() for task in both):
            await bench.pass_time(bench.claim_s / 4)

        for task in both:
            task.result()
        assert sorted([*found[0], *found[1]]) == sorted(sent)
        assert found[0] and found[1]

    @over_a_bench
    async def test_ten_thousand_messages_go_through_once(self, bench: Bench) -> None:
        sent = [b"%05d" % number for number in range(10_000)]
        found: list[bytes] = []
        started = time.monotonic()

        for start in range(0, len(sent), 100):
            await bench.layer.publish(outgoing(RESULTS, *sent[start : start + 100]))
        while len(found) < len(sent):
            held = await bench.layer.fetch([RESULTS], 100, wait_s=bench.claim_s)
            assert held, f"only {len(found)} came"
            found += bodies(held)
            await bench.layer.settle(held)

        assert found == sent
        assert time.monotonic() - started < 30  # sanity, not speed: about 3 ms a message, on a busy machine
        assert (await bench.layer.depths()).get(RESULTS, 0) == 0

    @over_a_bench
    async def test_closing_ends_a_waiting_fetch_and_may_be_done_twice(self, bench: Bench) -> None:
        waiting = asyncio.create_task(bench.layer.fetch([LOW], 10, wait_s=3600))
        await turn_the_loop(5)

        await bench.layer.aclose()
        async with asyncio.timeout(30):
            (ended,) = await asyncio.gather(waiting, return_exceptions=True)
        await bench.layer.aclose()

        assert ended == [] or isinstance(ended, BrokerUnavailable)

    @over_a_bench
    async def test_a_closed_layer_refuses_and_does_not_pretend(self, bench: Bench) -> None:
        await bench.layer.publish(outgoing(LOW, b"1"))
        held = await collect(bench, bench.layer, [LOW], 1)
        await bench.layer.aclose()

        layer = bench.layer
        for refused in (
            layer.publish(outgoing(LOW, b"2")),
            layer.fetch([LOW], 1, wait_s=0),
            layer.settle(held),
            layer.extend(held),
            layer.release(held, delay_s=0),
            layer.marker(),
            layer.set_marker("x"),
            layer.depths(),
        ):
            (error,) = await asyncio.gather(refused, return_exceptions=True)
            assert isinstance(error, BrokerUnavailable)
