"""An asyncio loop without a clock of its own: when nothing is ready, time jumps to the next timer.

Nothing here waits, opens a file or asks the operating system, so a world that draws everything from one seed replays
exactly. `shuffle` runs callbacks that are ready together in a drawn order.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

STANDSTILL_MAX = 200_000  # turns of the loop at one instant: more is work that never ends


class Stuck(Exception):
    """Nothing is ready and no timer is set, or time does not pass any more."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks as every loop does; `time()` is the virtual time, from 0."""

    def __init__(self, shuffle: random.Random | None = None) -> None:
        super().__init__()
        self._virtual_s = 0.0
        self._selector = _Timeless(self)
        if shuffle is not None:
            self._ready = _Shuffled(shuffle)

    def time(self) -> float:
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Only for the selector: what a real one does by waiting."""
        self._virtual_s += seconds

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none: nothing outside exists."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector, so nobody has to be woken."""


class _Timeless:
    """Stands where the loop expects a selector."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._standstill = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        if timeout > 0:
            self._standstill = 0
            self._loop.jump(timeout)
        else:
            self._standstill += 1
            if self._standstill > STANDSTILL_MAX:
                raise Stuck(f"time stands still at {self._loop.time():.6f} s")
        return []


class _Shuffled(deque[Any]):
    """The queue of ready callbacks, left in a drawn order."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def popleft(self) -> Any:
        if len(self) > 1:
            self.rotate(-self._rng.randrange(len(self)))
        return super().popleft()
