"""Sees from a thread of its own that an event loop no longer turns: something on it computes, or waits, without await."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.5


class LoopWatch:
    """Calls `on_blocked(seconds, stack)` once, from its thread, when the loop has not turned for `blocked_s`.

    Time is counted in looks of the watch itself: a process that was stopped and goes on (SIGSTOP, a suspended machine)
    has not blocked its loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        blocked_s: float,
        on_blocked: Callable[[float, str], object],
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._loop = loop
        self._blocked_s = blocked_s
        self._on_blocked = on_blocked
        self._look_s = look_s
        self._looped_in = threading.get_ident()
        self._turned = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="toolfleet-watchdog", daemon=True)

    def start(self) -> None:
        """To be called on the loop's own thread."""
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        still_s = 0.0
        self._turned.set()
        while not self._stopped.wait(self._look_s):
            still_s = 0.0 if self._turned.is_set() else still_s + self._look_s
            if still_s >= self._blocked_s:
                self._on_blocked(still_s, self._stack())
                return
            if still_s == 0.0:
                self._turned.clear()
                try:
                    self._loop.call_soon_threadsafe(self._turned.set)
                except RuntimeError:  # the loop is closed: its process ends
                    return

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._looped_in)
        return "" if frame is None else "".join(traceback.format_stack(frame))
