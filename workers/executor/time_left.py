"""How long an attempt may take: what is declared, cut to what is left of the call's time."""

from __future__ import annotations

from typing import Final

from toolfleet.schemas.ports import Clock
from toolfleet.schemas.run import CallState
from toolfleet.schemas.views import CallView
from toolfleet.workers.machine import deadline

LEAST_S: Final = 0.01  # of an attempt that begins just before the end; the next one is refused by its gate


def timeout_s(view: CallView, call: CallState, clock: Clock, declared_s: float) -> float:
    """Seconds. The time of day is the database's, at the reading of the call, and this process's own clock since."""
    end = deadline.ends_at(call)
    if end is None and call.deadline_at is None and call.call_timeout_s is not None:
        end = view.now_s + call.call_timeout_s  # taken now; written down with what follows
    if end is None:
        return declared_s
    now_s = view.now_s + (clock.monotonic_s() - view.read_at)
    return min(declared_s, round(max(LEAST_S, end - now_s), 3))
