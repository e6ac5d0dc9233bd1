"""The watchdog of a worker's event loop: what stands still is seen, what is merely busy is not."""

from __future__ import annotations

import asyncio
import threading
import time

from toolfleet.watchdog import LoopWatch

BLOCKED_S = 0.2
LOOK_S = 0.02


def test_a_loop_that_stands_still_is_told_with_the_place() -> None:
    told: list[tuple[float, str]] = []
    seen = threading.Event()

    def on_blocked(seconds: float, stack: str) -> None:
        told.append((seconds, stack))
        seen.set()

    async def block() -> None:
        LoopWatch(asyncio.get_running_loop(), BLOCKED_S, on_blocked, look_s=LOOK_S).start()
        await asyncio.sleep(0)
        assert seen.wait(30.0), "a tool that blocks the loop"

    asyncio.run(block())

    ((seconds, stack),) = told
    assert seconds >= BLOCKED_S - LOOK_S
    assert "in block" in stack and "seen.wait(30.0)" in stack


def test_a_loop_that_turns_is_left_alone_and_a_stopped_watch_says_nothing() -> None:
    told: list[float] = []

    async def turn() -> None:
        watch = LoopWatch(asyncio.get_running_loop(), BLOCKED_S, lambda s, _: told.append(s), look_s=LOOK_S)
        watch.start()
        for _ in range(
            40
        ):  # three times as long as it may stand still, in pieces that are too short to count
            time.sleep(3 * BLOCKED_S / 40)  # noqa: ASYNC251 - what a tool computes between two awaits
            await asyncio.sleep(0)
        watch.stop()
        watch._thread.join(30.0)
        assert not watch._thread.is_alive()

    asyncio.run(turn())

    assert told == []
