"""Limits with their defaults, and the counters they limit. The one module of defaults; docs/limits.md is generated from it.

A limit is reserved beforehand: a step that would exceed it is not begun. So a run exceeds a limit by at most the
step that was in flight when the last bit was used.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """What one run may use. An agent or a run may tighten the defaults; configuration may cap them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns_max: int = Field(default=8, ge=1, le=1000, description="model turns in one run")
    calls_max: int = Field(default=24, ge=0, le=10_000, description="tool calls in one run")
    calls_per_turn_max: int = Field(default=64, ge=1, le=256, description="tool calls in one turn")
    corrections_max: int = Field(
        default=1,
        ge=0,
        le=20,
        description="turns in which the model may repair invalid calls or an empty reply",
    )
    active_seconds_max: float = Field(
        default=600.0, gt=0, description="seconds of model and tool work; waiting for people does not count"
    )
    cost_usd_max: float = Field(
        default=1.00, ge=0, description="US dollars of model usage, reserved before each model call"
    )
    model_attempts_max: int = Field(
        default=5, ge=1, le=100, description="tries of one model call when the model's server fails"
    )
    model_timeout_s: float = Field(default=120.0, gt=0, description="deadline of one model call, seconds")
    output_tokens_max: int = Field(default=4096, ge=1, description="tokens the model may write in one reply")

    def tightened_by(self, other: Limits) -> Limits:
        """The stricter of both, field by field."""
        return Limits(
            **{name: min(getattr(self, name), getattr(other, name)) for name in Limits.model_fields}
        )


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Counters:
    """What a run has used so far. Costs are US dollars; `reserved_usd` belongs to model calls in flight."""

    model_calls: int = 0
    tool_calls: int = 0
    corrections: int = 0
    empty_replies: int = 0
    active_s: float = 0.0
    model_s: float = 0.0
    tool_s: float = 0.0
    queue_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    reserved_usd: float = 0.0
    next_reserve_usd: float = 0.0  # what the next model call will reserve


# The rest of the defaults: the fleet's own rhythm.
TOOL_TIMEOUT_S = 30.0  # one attempt of one call
TOOL_ATTEMPTS_MAX = 3
BACKOFF_FIRST_S = 0.5  # doubled at each attempt, full jitter
BACKOFF_MAX_S = 30.0
RETRY_AFTER_JITTER_MAX = 0.2  # above a Retry-After only upwards, by up to 20 %
RESULT_BYTES_TO_MODEL = 16_000
RESULT_BYTES_STORED = 1_000_000
LEASE_S = 30.0
LEASE_OVERRUN_S = 30.0  # a process stops renewing a step that is this far past its own deadline
KEEPER_PERIOD_S = 1.0
UNSENT_AFTER_S = 2.0  # a due row that nobody published for this long is published by the keeper
WAITING_MARGIN_S = 10.0  # between the clocks of publishers and broker, where ages of messages are compared
LOST_AFTER_S = 90.0  # doubled with each send, up to LOST_BACKOFF_MAX times; calls: deadline + LOST_MARGIN_S
LOST_MARGIN_S = 30.0
LOST_BACKOFF_MAX = 16
DEATHS_MAX = 3
MESSAGE_BYTES_MAX = 64_000
RESULT_BYTES_INLINE = 32_000  # a larger result is stored by the executor, its message carries ids only
ARGUMENTS_BYTES_MAX = 256_000
WORKER_BEAT_S = 5.0  # how often a worker process says that it is there
WORKER_SILENT_S = 30.0  # several beats; then a worker is not counted on
WORKER_FORGOTTEN_S = 24 * 3600.0  # a worker silent for this long is not listed any more
HOLD_NEWER_S = 3600.0  # how long a message of a newer version is held before it is a dead letter
HOLD_DELAY_S = 5.0
BREAKER_CALLS_MIN = 10  # a breaker opens at no fewer attempts within its window
BREAKER_FAILURES_SHARE = 0.5
BREAKER_WINDOW_S = 30.0
BREAKER_OPEN_S = 30.0  # then one probe of the whole fleet is let through
RETRY_SHARE = 0.2  # of a tool's attempts within that window may be retries; above, they wait
RETRIES_ALWAYS = 10  # within that window, whatever the share
PACE_LEASE_S = 30.0  # a place or serial key of a dead process is free again after that
BREAKERS_SEEN_S = 0.5  # how old a process's view of what is open may be
PAUSE_FIRST_S = 1.0  # of a model after a 429 that says no time; doubled with each one in a row
PAUSE_MAX_S = 60.0
CACHE_RETRY_S = 1.0  # a cache that is away is asked again that often
COUNTS_HELD_S = 0.25  # attempts that were answered are counted together; failures at once
REPEAT_WINDOW = 32  # calls of earlier turns that the repeat gate remembers
REPEAT_REUSES_AT = 2
REPEAT_TELLS_AT = 3
REPEAT_WITHDRAWS_AT = 4
REPEAT_STOPS_AT = 5
DRAFT_CHARS_MAX = 4000  # of what the model said beside calls: all that a run ended by a limit can give
TOOLS_NOTED_ABOVE = 10
TOOLS_WARNED_ABOVE = 20
TOOLS_MAX = 128  # OpenAI's limit
INPUT_BYTES_MAX = 1_000_000
SEND_BY_S = 5.0  # from the claim to the first byte; later, it is not sent
QUIET_S = (
    60.0  # after the last moment an attempt can have been at work; before, "did not happen" is not believed
)
RECONCILE_WAITS_S = (30.0, 120.0, 600.0)  # after each question without an answer; then a human
KEY_WAIT_S = 30.0  # how long a call that meets a held key waits before it looks again, if nobody wakes it
APPROVAL_EXPIRES_S = 24 * 3600.0
