"""Kills this process at a named point (workers/points.py), for fault tests; inert unless a setting names one."""

from __future__ import annotations

import os
import signal

from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.workers.points import POINTS, Point, unarmed


def armed(setting: str | None) -> Point:
    """The point for `NAME` or `NAME:N`: kill -9 of this process at its Nth passing. None: nothing ever happens.

    Raises UnsafeSettings for a name that is no point.
    """
    if not setting:
        return unarmed
    name, _, count = setting.partition(":")
    if name not in POINTS or (count and not count.isdigit()):
        raise UnsafeSettings(
            f"there is no fault point {setting!r}", hint=f"NAME or NAME:N, of: {', '.join(POINTS)}."
        )
    left = int(count or 1)

    async def point(passed: str) -> None:
        nonlocal left
        if passed == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return point
