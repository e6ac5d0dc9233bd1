"""Messages that cannot be trusted or read: to dead with the reason, the worker alive, and nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolfleet.adapters.broker.memory import MemoryLayer
from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.queues.envelope import Codec, KeyRing
from toolfleet.schemas.limits import HOLD_NEWER_S, MESSAGE_BYTES_MAX
from toolfleet.schemas.messages import DecideMessage
from toolfleet.schemas.ports import Outgoing
from toolfleet.workers.consumer import Consumer, Done, Received
from toolfleet.workers.machine import MACHINE

QUEUE = "decide.interactive"


class Bench:
    """A consumer over the embedded layer and a real database, with a role that only notes what it is given."""

    def __init__(self, database: str) -> None:
        upgrade(database)
        self.store = SqlStore(database, MACHINE)
        self.layer = MemoryLayer()
        self.now = SystemClock().now_s()
        self.codec = Codec(KeyRing.parse("k1:" + "ab" * 32), lambda: self.now)
        self.accepted: list[str] = []
        self.consumer = Consumer(
            self,
            [QUEUE],
            layer=self.layer,
            codec=self.codec,
            store=self.store,
            clock=SystemClock(),
            slots=300,
            batch=300,
        )

    async def accept(self, received: Sequence[Received], done: Done) -> None:
        self.accepted.extend(one.message.run_id for one in received)

    async def feed(self, *bodies: bytes) -> list[str]:
        """Publish and handle these bodies; the reasons of the dead letters there are now."""
        await self.layer.publish([Outgoing(QUEUE, body) for body in bodies])
        await self.consumer.handle(await self.layer.fetch([QUEUE], 300, wait_s=0))
        return sorted(letter.reason for letter in await self.store.dead(limit=1000))

    def message(self, run_id: str = "run_1", **fields: object) -> DecideMessage:
        base = DecideMessage(run_id=run_id, turn=1, command_id=f"{run_id}/1", published_at=self.now)
        return base.model_copy(update=fields)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(f"sqlite:///{tmp_path / 'fleet.db'}")


def test_each_kind_of_bad_message_is_buried_with_its_reason(bench: Bench) -> None:
    async def scenario() -> None:
        good = bench.codec.encode(QUEUE, bench.message())
        foreign = Codec(KeyRing.parse("k9:" + "cd" * 32), lambda: bench.now).encode(QUEUE, bench.message())
        altered = good.replace(b"run_1", b"run_2")
        moved = bench.codec.encode("decide.batch", bench.message())
        oversized = good + b" " * MESSAGE_BYTES_MAX

        reasons = await bench.feed(b"\x80\x04pickle", foreign, altered, moved, oversized, good)

        assert reasons == sorted(
            [
                "malformed_message",
                "unsigned_message",
                "altered_message",
                "altered_message",
                "oversized_message",
            ]
        )
        assert bench.accepted == ["run_1"]
        assert (await bench.layer.depths())[QUEUE] == 0
        await bench.store.aclose()

    asyncio.run(scenario())


def test_a_newer_message_is_held_and_buried_only_after_its_time(bench: Bench) -> None:  # B105
    async def scenario() -> None:
        newer = [bench.codec.encode(QUEUE, bench.message(f"run_{n}", v=2)) for n in range(100)]
        known = [bench.codec.encode(QUEUE, bench.message(f"run_{n}", v=1)) for n in range(100, 200)]

        assert await bench.feed(*newer, *known) == []
        assert len(bench.accepted) == 100
        assert (await bench.layer.depths())[QUEUE] == 100

        old = bench.codec.encode(
            QUEUE, bench.message("run_x", v=2, published_at=bench.now - HOLD_NEWER_S - 60)
        )
        assert await bench.feed(old) == ["newer_message"]
        await bench.store.aclose()

    asyncio.run(scenario())
