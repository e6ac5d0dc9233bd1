"""What processes share about pace: breakers, rates, places, serial keys and retry budgets of tools; quotas of models.

Values only. Everything here may be lost (it lives in the cache), so nothing here decides what is true of a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from toolfleet.schemas.limits import (
    BREAKER_CALLS_MIN,
    BREAKER_FAILURES_SHARE,
    BREAKER_OPEN_S,
    BREAKER_WINDOW_S,
)

# -- tools -------------------------------------------------------------------------------------------------------------

_RATE: Final = re.compile(r"(\d+)/(?:(\d+)?(s|min|h))")
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}
BUCKETS: Final = 10
RATE_COUNT_MAX: Final = 10_000  # every start within the period is remembered

Busy = Literal["rate", "bulkhead", "serial", "retry_budget"]
Ended = Literal["ok", "failed", "neither"]  # of an attempt, as a breaker sees it


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts in any `period_s` seconds."""

    count: int
    period_s: float

    @classmethod
    def parse(cls, text: str) -> Rate:
        """`10/s`, `100/min`, `5/10s`, `1000/h`. Raises ValueError saying what is wrong."""
        found = _RATE.fullmatch(text.replace(" ", ""))
        if found is None:
            raise ValueError(f"a rate is written as 10/s, 100/min, 1000/h or 5/10s (5 in 10 s), not {text!r}")
        count, period_s = int(found[1]), int(found[2] or 1) * _UNITS[found[3]]
        if not 1 <= count <= RATE_COUNT_MAX or period_s <= 0:
            raise ValueError(
                f"a rate has a count of 1 to {RATE_COUNT_MAX} and a period above 0, unlike {text!r}; "
                "use a shorter period for a larger count"
            )
        return cls(count, period_s)


def serial_key(template: str, arguments: Mapping[str, object]) -> str:
    """The key of a call: `order:{order_id}` with its arguments filled in; what is missing there is empty."""
    return re.sub(r"\{(\w+)\}", lambda name: str(arguments.get(name[1], "")), template)


@dataclass(frozen=True, slots=True)
class BreakerRule:
    """When a breaker opens: `failures_share` of at least `calls_min` attempts within `window_s`, for `open_s`."""

    calls_min: int = BREAKER_CALLS_MIN
    failures_share: float = BREAKER_FAILURES_SHARE
    window_s: float = BREAKER_WINDOW_S
    open_s: float = BREAKER_OPEN_S

    @property
    def bucket_s(self) -> float:
        """The window moves in steps of this."""
        return self.window_s / BUCKETS


BREAKER_RULE: Final = BreakerRule()


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A call that is about to be tried. `retry`: an earlier attempt of it failed. `returning`: it was refused here
    before and comes back at its time. `serial_key` is the filled-in key, or None."""

    tenant: str
    tool: str
    call_id: str
    retry: bool = False
    returning: bool = False
    deadline_s: float = 30.0
    rate: Rate | None = None
    concurrent_max: int | None = None
    serial_key: str | None = None
    retry_share: float | None = None

    @property
    def plain(self) -> bool:
        """Nothing but the breaker is asked."""
        budgeted = self.retry and self.retry_share is not None
        return self.rate is None and self.concurrent_max is None and self.serial_key is None and not budgeted


@dataclass(frozen=True, slots=True)
class Permit:
    """The attempt may begin. Given back with `leave`; `probe`: it is the one probe of a half-open breaker. `held`:
    something was taken for it that a lease keeps."""

    id: str
    entry: ToolEntry
    probe: bool = False
    held: bool = False
    shared: bool = True  # False: given by this process alone, while the cache is away


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: come back in `wait_s`, because of `reason`."""

    reason: Busy
    wait_s: float


@dataclass(frozen=True, slots=True)
class Open:
    """The breaker is open for `wait_s` more, until `until_s` (epoch, the clock of the cache)."""

    until_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class BreakerView:
    """One breaker as people see it. Times are seconds since the epoch; counts are those of the window."""

    tenant: str
    tool: str
    state: Literal["closed", "open", "half_open"]
    calls: int
    failures: int
    opened_at: float | None = None
    until_s: float | None = None
    probing: bool = False


# -- models ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelLane:
    """What one quota is for: a credential (a fingerprint, never the key) and a model."""

    credential: str
    model: str

    def __str__(self) -> str:
        return f"{self.credential}/{self.model}"


@dataclass(frozen=True, slots=True)
class Quota:
    """Requests and tokens a lane may use in any `period_s` seconds; None: not limited, or not known."""

    requests: int | None = None
    tokens: int | None = None
    period_s: float = 60.0

    def divided(self, among: int) -> Quota:
        """The share of one of so many processes, at least one request."""
        return Quota(
            None if self.requests is None else max(1, self.requests // among),
            None if self.tokens is None else max(1, self.tokens // among),
            self.period_s,
        )


@dataclass(frozen=True, slots=True)
class RateHint:
    """What a provider said of its limits in an answer (`x-ratelimit-*`); None where it said nothing."""

    limit_requests: int | None = None
    remaining_requests: int | None = None
    limit_tokens: int | None = None
    remaining_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model call that is about to be made. `owner` is who waits: one process has one entry at a time in each
    class. `quota` is what is configured for the lane."""

    lane: ModelLane
    tokens: int
    owner: str
    batch: bool = False
    quota: Quota = Quota()


@dataclass(frozen=True, slots=True)
class ModelPermit:
    """The call may be made; `tokens` are reserved for it until `settle`."""

    entry: ModelEntry
    tokens: int
    shared: bool = True  # False: of this process's own share, while the cache is away
    counted: bool = True  # False: nothing is limited, so nothing was taken


@dataclass(frozen=True, slots=True)
class ModelWait:
    """Not now: ask again in `wait_s`. `paused`: the provider said 429, and the whole lane waits."""

    wait_s: float
    paused: bool = False
