"""The message layer over Redis or Valkey Streams (6.2 or newer): one stream and one consumer group per queue.

    publish   XADD                      settle    XACK + XDEL, so the length of a stream is what is outstanding
    fetch     XREADGROUP, XAUTOCLAIM    extend    XCLAIM JUSTID of entries that are still ours
    release   XACK + XDEL + XADD, or ZADD until the delay is over

Whatever does not block goes through one pump: what many callers want at the same time travels in one pipeline, on one
connection. A fetch that waits has a connection of its own. Nothing here is the truth: what Redis loses, the keeper
publishes again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.redis_client import Pump, open_client, translated
from toolfleet.queues.policy import CLAIM_S, CLAIMS_LOOKED_FOR
from toolfleet.queues.topology import QUEUE_BY_NAME
from toolfleet.schemas.errors import BrokerUnavailable
from toolfleet.schemas.ports import Clock, Delivery, Outgoing

log = structlog.get_logger("toolfleet.streams")

GROUP: Final = b"fleet"
BLOCK_S: Final = 1.0  # one XREADGROUP waits at most this long: well below the socket's own timeout
FORGET_EVERY_S: Final = 60.0
FORGET_IDLE_S: Final = (
    600.0  # a consumer that has nothing and has not read for this long is of a dead process
)
DELETED: Final = b"NOGROUP", b"UNBLOCKED", b"no longer exists"


class Handle(NamedTuple):
    """Which entry a delivery is."""

    queue: str
    entry: bytes


@cache
def script(name: str) -> str:
    """The text of one of the Lua scripts; what goes in and out is said at its top."""
    return (files(__package__) / "lua" / f"{name}.lua").read_text()


class StreamsLayer:
    """Implements MessageLayer for every process that has the same `url` and `prefix`.

    `claim_s`: a process that neither settles nor extends for that long loses what it had to another one. Opens with
    the first use, and again after the server was away or emptied. Methods belong to one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "toolfleet",
        name: str | None = None,
        claim_s: float = CLAIM_S,
        clock: Clock | None = None,
    ) -> None:
        self.name = f"redis/{prefix}" if name is None else name
        self._prefix = prefix
        self._claim_ms = int(claim_s * 1000)
        self._clock: Clock = SystemClock() if clock is None else clock
        self.consumer = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}".encode()
        self._redis: Redis = open_client(url, name="toolfleet")
        self._pump = Pump(self._redis)
        self._groups: set[str] = set()  # queues whose group is known to be there
        self._claim_at: dict[str, float] = {}
        self._forget_at: dict[str, float] = {}
        self._reads: set[asyncio.Task[list[Delivery]]] = set()
        self._givings: set[asyncio.Task[None]] = set()  # what a cancelled fetch still got goes back
        self._closed = False

    # -- what the workers do --------------------------------------------------------------------------------------

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Returns when Redis has answered for all of them."""
        self._check_open()
        if messages:
            await self._pump.run([("XADD", self._stream(one.queue), "*", b"b", one.body) for one in messages])

    async def fetch(self, queues: Sequence[str], limit: int, *, wait_s: float) -> list[Delivery]:
        """What silent workers held comes first, then new ones; a cancelled fetch gives back what it still gets."""
        assert limit > 0
        self._check_open()
        read = asyncio.ensure_future(self._fetch(queues, limit, wait_s))
        self._reads.add(read)
        read.add_done_callback(self._reads.discard)
        try:
            return await asyncio.shield(read)
        except asyncio.CancelledError:
            read.add_done_callback(self._give_back)
            raise

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        await self._of_streams("settle", (), deliveries)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        await self._of_streams("extend", (self.consumer,), deliveries)

    async def release(self, deliveries: Sequence[Delivery], *, delay_s: float) -> None:
        """As new entries: a hand-back is no redelivery, and may be repeated for ever."""
        self._check_open()
        await self._release(deliveries, delay_s)

    # -- what the keeper and people ask ---------------------------------------------------------------------------

    async def marker(self) -> str | None:
        self._check_open()
        (value,) = await self._pump.run([("GET", self._key("marker"))])
        return None if value is None else bytes(value).decode()

    async def set_marker(self, value: str) -> None:
        self._check_open()
        await self._pump.run([("SET", self._key("marker"), value)])

    async def depths(self) -> dict[str, int]:
        """Of every queue of the topology: entries that wait, are in flight, or are held back."""
        self._check_open()
        names = list(QUEUE_BY_NAME)
        asked: list[tuple[Any, ...]] = [("XLEN", self._stream(name)) for name in names]
        counts = await self._pump.run([*asked, *(("ZCARD", self._held(name)) for name in names)])
        return {name: counts[i] + counts[i + len(names)] for i, name in enumerate(names)}

    async def waiting_since_s(self) -> dict[str, float]:
        self._check_open()
        names = list(QUEUE_BY_NAME)
        streams = [self._stream(name) for name in names]
        (found,) = await self._pump.run([("EVAL", script("oldest"), len(streams), *streams, GROUP)])
        return {name: at_ms / 1000 for name, at_ms in zip(names, found, strict=True) if at_ms}

    async def aclose(self) -> None:
        """Waits for reads that are under way, removes its consumers where they hold nothing. Harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self._reads:
            await asyncio.wait(set(self._reads), timeout=BLOCK_S + 1.0)
        if self._givings:
            await asyncio.wait(set(self._givings), timeout=1.0)
        try:
            asked = [self._forgetting(queue, self.consumer) for queue in sorted(self._groups)]
            await self._pump.run(asked, errors=True)  # no group: the server was emptied
        except BrokerUnavailable as exc:
            log.info("consumers_left", error=exc.message)  # somebody else removes them
        await self._pump.aclose()
        await self._redis.aclose()

    # -- reading --------------------------------------------------------------------------------------------------

    async def _fetch(self, queues: Sequence[str], limit: int, wait_s: float) -> list[Delivery]:
        give_up_at = self._clock.monotonic_s() + wait_s
        while True:
            await self._ready(queues)
            try:
                found = await self._claim(queues, limit) or await self._take(queues, limit)
                left_s = give_up_at - self._clock.monotonic_s()
                if found or left_s <= 0 or self._closed:
                    return found
                found = await self._wait(
                    queues, limit, min(left_s, BLOCK_S, self._claim_ms / 1000 / CLAIMS_LOOKED_FOR)
                )
            except ResponseError as exc:
                if not any(word in str(exc).encode() for word in DELETED):
                    raise BrokerUnavailable(
                        f"Redis refused a read: {exc}", hint="Look at the server."
                    ) from exc
                self._groups.difference_update(queues)  # the server was emptied: make the groups again
                continue
            if found:
                return found

    async def _ready(self, queues: Sequence[str]) -> None:
        """The groups of these queues are there; whoever asks first makes them, from the first entry on."""
        fresh = [queue for queue in queues if queue not in self._groups]
        if not fresh:
            return
        asked = [("XGROUP", "CREATE", self._stream(queue), GROUP, "0", "MKSTREAM") for queue in fresh]
        answers = await self._pump.run(asked, errors=True)
        for queue, answer in zip(fresh, answers, strict=True):
            if isinstance(answer, Exception) and "BUSYGROUP" not in str(answer):
                raise BrokerUnavailable(
                    f"Redis made no group for {queue}: {answer}", hint="Look at the server."
                )
            self._groups.add(queue)

    async def _take(self, queues: Sequence[str], limit: int) -> list[Delivery]:
        """What is there now, in the order of the queues."""
        keys = [key for queue in queues for key in (self._stream(queue), self._held(queue))]
        asked = ("EVAL", script("fetch"), len(keys), *keys, GROUP, self.consumer, limit)
        (entries,) = await self._pump.run([asked])
        return [
            Delivery(queues[pair - 1], bytes(body), False, Handle(queues[pair - 1], entry))
            for pair, entry, body in entries
        ]

    async def _wait(self, queues: Sequence[str], limit: int, seconds: float) -> list[Delivery]:
        """Blocks until there is something in one of the queues. Empty where the time is over."""
        each = max(1, limit // len(queues))  # COUNT is for each stream
        by_key = {self._stream(queue): queue for queue in queues}
        with translated():
            block_ms = max(1, int(seconds * 1000))
            ask: Any = self._redis.execute_command
            answer = await ask(
                *("XREADGROUP", "GROUP", GROUP, self.consumer, "COUNT", each, "BLOCK", block_ms, "STREAMS"),
                *by_key,
                *(b">" for _ in by_key),
            )
        found = [
            Delivery(by_key[key], bytes(fields[b"b"]), False, Handle(by_key[key], entry))
            for key, entries in answer or ()
            for entry, fields in entries
        ]
        if len(found) > limit:  # fewer places than queues, and several had something
            await self._release(found[limit:], 0.0)
        return found[:limit]

    async def _claim(self, queues: Sequence[str], limit: int) -> list[Delivery]:
        """Takes over what others have held for too long; now and then, and one queue after the other."""
        now = self._clock.monotonic_s()
        due = [queue for queue in queues if self._claim_at.get(queue, 0.0) <= now]
        found: list[Delivery] = []
        for queue in due:
            if len(found) >= limit:
                break
            self._claim_at[queue] = now + self._claim_ms / 1000 / CLAIMS_LOOKED_FOR
            count = limit - len(found)
            asked = (
                "XAUTOCLAIM",
                self._stream(queue),
                GROUP,
                self.consumer,
                self._claim_ms,
                "0-0",
                "COUNT",
                count,
            )
            (answer,) = await self._pump.run([asked])
            # None: an entry somebody deleted by hand while it was held, as Redis 6.2 tells it
            entries = [(one[0], one[1]) for one in answer[1] if one and one[1]]
            found += [
                Delivery(queue, bytes(fields[b"b"]), True, Handle(queue, entry)) for entry, fields in entries
            ]
            if len(found) >= limit:
                self._claim_at[queue] = now  # there may be more
        await self._forget(queues, now)
        return found

    async def _forget(self, queues: Sequence[str], now: float) -> None:
        """Removes consumers of dead processes that hold nothing (any more)."""
        due = [queue for queue in queues if self._forget_at.get(queue, 0.0) <= now]
        for queue in due:
            self._forget_at[queue] = now + FORGET_EVERY_S
        if not due:
            return
        infos = await self._pump.run([("XINFO", "CONSUMERS", self._stream(queue), GROUP) for queue in due])
        idle_ms = max(FORGET_IDLE_S * 1000, 10 * self._claim_ms)
        dead = [
            (queue, info[b"name"])
            for queue, rows in zip(due, infos, strict=True)
            for info in map(_pairs, rows)
            if info[b"pending"] == 0 and info[b"idle"] > idle_ms and info[b"name"] != self.consumer
        ]
        if dead:
            await self._pump.run([self._forgetting(queue, name) for queue, name in dead])

    # -- writing --------------------------------------------------------------------------------------------------

    async def _of_streams(
        self, name: str, arguments: tuple[bytes, ...], deliveries: Sequence[Delivery]
    ) -> None:
        """Run a script for each stream these are of."""
        entries: dict[str, list[bytes]] = defaultdict(list)
        for delivery in deliveries:
            entries[delivery.handle.queue].append(delivery.handle.entry)
        asked = [
            ("EVAL", script(name), 1, self._stream(queue), GROUP, *arguments, *ids)
            for queue, ids in entries.items()
        ]
        answers = await self._pump.run(asked, errors=True) if asked else []
        for answer in answers:  # no group: the server was emptied, and what is gone is settled
            if isinstance(answer, Exception) and "NOGROUP" not in str(answer):
                raise BrokerUnavailable(f"Redis refused: {answer}", hint="Look at the server.") from answer

    async def _release(self, deliveries: Sequence[Delivery], delay_s: float) -> None:
        delay_ms = max(0, int(delay_s * 1000))
        await self._pump.run(
            [
                (
                    "EVAL",
                    script("release"),
                    2,
                    self._stream(one.handle.queue),
                    self._held(one.handle.queue),
                    GROUP,
                    one.handle.entry,
                    one.body,
                    delay_ms,
                )
                for one in deliveries
            ]
        )

    def _give_back(self, read: asyncio.Task[list[Delivery]]) -> None:
        """Of a fetch nobody waits for any more."""
        if read.cancelled() or read.exception() is not None or not read.result():
            return
        giving = asyncio.ensure_future(self._given_back(read.result()))
        self._givings.add(giving)
        giving.add_done_callback(self._givings.discard)

    async def _given_back(self, deliveries: Sequence[Delivery]) -> None:
        try:
            await self._release(deliveries, 0.0)
        except BrokerUnavailable as exc:
            log.warning("give_back_failed", messages=len(deliveries), error=exc.message)  # the claim ends

    # -- names ----------------------------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    @cache  # noqa: B019 - as many as there are queues, and the layer lives as long as the process
    def _stream(self, queue: str) -> bytes:
        return f"{self._prefix}:queue:{queue}".encode()

    def _held(self, queue: str) -> str:
        return f"{self._prefix}:held:{queue}"

    def _forgetting(self, queue: str, consumer: bytes) -> tuple[Any, ...]:
        return ("EVAL", script("forget"), 1, self._stream(queue), GROUP, consumer)

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerUnavailable(
                f"the message layer {self.name!r} is closed",
                hint="This process stopped it; what is outstanding is in the database.",
            )


def _pairs(row: Any) -> dict[bytes, Any]:
    """A row of XINFO, which comes flat."""
    if isinstance(row, dict):
        return row
    return dict(zip(row[::2], row[1::2], strict=True))
