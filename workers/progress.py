"""Is a worker getting on? Judged by what it does, never by the fact that its process lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toolfleet.schemas.views import QueueLoad

LOOK_S: Final = (
    60.0  # a consumer with room looks at the broker every second; one that did not for this long hangs
)
STEP_MARGIN_S: Final = (
    60.0  # beyond the longest deadline of a step; then whoever should have ended it did not
)
WAITING_S: Final = 180.0  # twice what the keeper waits before it publishes a row again (LOST_AFTER_S)


@dataclass(frozen=True, slots=True)
class Progress:
    """How one consumer gets on. `..._s` are ages: since it last looked at the broker, since it last got a message, since
    it last settled one (or began, if it has not), and of the oldest thing it works on (0: nothing)."""

    queues: tuple[str, ...]
    slots: int
    in_flight: int
    taken: int
    settled: int
    looked_s: float
    taken_s: float
    settled_s: float
    oldest_s: float


def stuck(progress: Progress, loads: Sequence[QueueLoad], *, longest_s: float) -> str | None:
    """Why this consumer does not get on, or None. `longest_s`: the longest deadline of a step it may have.

    `loads` is what the database knows to be outstanding: a consumer that has room, gets nothing, and whose queue has
    had work for long without anybody holding it, is alive but not consuming.
    """
    name = ", ".join(progress.queues)
    room = progress.in_flight < progress.slots
    if room and progress.looked_s > LOOK_S:
        return f"{name}: has not looked at the broker for {progress.looked_s:.0f} s, though it has room"
    still_s = min(
        progress.oldest_s, progress.settled_s
    )  # what was fetched may wait its turn while others are settled
    if progress.in_flight and still_s > longest_s + STEP_MARGIN_S:
        return f"{name}: nothing has been settled for {still_s:.0f} s; no step may take {longest_s:.0f} s"
    if not room:
        return None
    patience = max(WAITING_S, longest_s + STEP_MARGIN_S)
    waiting = max((load.oldest_s for load in loads if load.queue in progress.queues), default=0.0)
    if min(waiting, progress.taken_s) > patience:
        return (
            f"{name}: work has waited for {waiting:.0f} s, and nothing was taken for {progress.taken_s:.0f} s"
        )
    return None
