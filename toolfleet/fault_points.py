"""Kills or stops this process at a named point (workers/points.py), for fault tests; inert unless a setting names one."""

from __future__ import annotations

import os
import signal
from typing import Final

from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.workers.points import POINTS, Point, unarmed

_SIGNALS: Final = {"": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def armed(setting: str | None) -> Point:
    """The point for `NAME`, `NAME:N` or `NAME:N:stop`: kill -9 (SIGSTOP) of this process at its Nth passing. None:
    nothing ever happens.

    Raises UnsafeSettings for a name that is no point.
    """
    if not setting:
        return unarmed
    name, _, rest = setting.partition(":")
    count, _, what = rest.partition(":")
    if name not in POINTS or (count and not count.isdigit()) or what not in _SIGNALS:
        raise UnsafeSettings(
            f"there is no fault point {setting!r}",
            hint=f"NAME, NAME:N or NAME:N:stop, of: {', '.join(POINTS)}.",
        )
    left = int(count or 1)

    async def point(passed: str) -> None:
        nonlocal left
        if passed == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), _SIGNALS[what])

    return point
