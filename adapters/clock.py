"""The only reader of time."""

from __future__ import annotations

import asyncio
import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def boot_s(self) -> float:
        """As monotonic_s, and goes on while the machine is suspended (clock_gettime(2): CLOCK_BOOTTIME, Linux)."""
        return time.clock_gettime(_BOOT)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
