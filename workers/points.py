"""Named places where a worker may be killed: inert unless a simulation or a fault test arms them.

The names are the ones of tests/fault and docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

POINTS: Final = (
    "decide.after_lease",
    "decide.before_model",
    "decide.after_model",
    "decide.after_commit",
    "decide.after_publish",
    "exec.after_read",
    "exec.after_lease",
    "exec.after_tool",
    "exec.after_store",
    "exec.after_publish",
    "collect.before_settle",
    "collect.after_settle",
    "collect.after_publish",
    "keeper.before_publish",
    "keeper.after_publish",
    "keeper.after_reset",
)

Point = Callable[[str], Awaitable[None]]


async def unarmed(name: str) -> None:
    """The point as it is in production: nothing happens."""
