"""How long to wait before a step is tried again. The draw (0..1) is given, so the same draw gives the same delay."""

from __future__ import annotations

from toolfleet.schemas.limits import BACKOFF_FIRST_S, BACKOFF_MAX_S, RETRY_AFTER_JITTER_MAX


def backoff_s(failures: int, draw: float, *, retry_after_s: float | None = None) -> float:
    """Seconds to wait after `failures` failures (from 1): full jitter over 0.5 s doubled each time, at most 30 s.

    A Retry-After is a floor, jittered only upwards, by up to 20 %.
    """
    delay = longest_backoff_s(failures) * draw
    if retry_after_s is None:
        return delay
    return max(delay, retry_after_s * (1.0 + RETRY_AFTER_JITTER_MAX * draw))


def longest_backoff_s(failures: int) -> float:
    """The most that is waited after `failures` failures where the other side asks for nothing."""
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 30))
