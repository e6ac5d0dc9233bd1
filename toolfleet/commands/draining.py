"""How a command that serves ends: the first signal drains, the second one stops at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from toolfleet.commands.terminal import note


class Signals:
    """SIGINT and SIGTERM from now on, on the running loop: the first sets `asked`, every further one `asked_again`."""

    def __init__(self) -> None:
        self.asked, self.asked_again = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        (self.asked_again if self.asked.is_set() else self.asked).set()

    async def drained(
        self, stop: Coroutine[Any, Any, object], *, drain_s: float
    ) -> asyncio.Task[object] | None:
        """Carry out `stop`, and say so. None once it is done; the task that goes on where a second signal came first.

        Raises what `stop` raised."""
        note(f"stopping: waiting up to {drain_s:g} s for steps in flight; again to stop at once")
        stopping = asyncio.create_task(stop)
        impatience = asyncio.create_task(self.asked_again.wait())
        await asyncio.wait({stopping, impatience}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            note("stopped at once; what was in flight goes on at the next start")
            return stopping
        impatience.cancel()
        await stopping
        note("stopped")
        return None
