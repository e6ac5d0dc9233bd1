"""The closed lists: what a call can come to, what a call can wait for, what a run can be.

All values exist from the first release, so that later features add handlers and no states. `docs/state_machine.md`
has a paragraph for each.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class CallOutcome(StrEnum):
    """Terminal outcomes of a call. The first one stored wins and never changes."""

    OK = "ok"
    INVALID_ARGUMENTS = "invalid_arguments"
    UNKNOWN_TOOL = "unknown_tool"
    NOT_AVAILABLE = "not_available"  # not exposed, stage, breaker, rate
    NOT_RUN = "not_run"  # limit, repeat, one at a time
    BUSINESS_ERROR = "business_error"
    DENIED = "denied"
    REJECTED = "rejected"
    APPROVAL_EXPIRED = "approval_expired"
    FAILED = "failed"  # unclassified exception, attempts used up, worker lost
    CANCELLED = "cancelled"
    NEEDS_HUMAN = "needs_human"


class CallWaiting(StrEnum):
    """Why an open call is not being tried right now."""

    READY = "ready"  # nothing to wait for: its message is out, or about to be
    AWAITING_APPROVAL = "awaiting_approval"
    AWAITING_CALLBACK = "awaiting_callback"
    AWAITING_CLIENT = "awaiting_client"
    RETRY_DUE = "retry_due"
    RECONCILING = "reconciling"  # outcome unknown; never terminal, never closes a turn


class RunStatus(StrEnum):
    """Where a run is. The last six are terminal."""

    QUEUED = "queued"
    DECIDING = "deciding"
    WAITING = "waiting"  # calls are out, or somebody is asked
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    NEEDS_INPUT = "needs_input"  # the agent asks the user back
    LIMIT_REACHED = "limit_reached"
    DENIED = "denied"
    FAILED = "failed"  # with a reason code
    CANCELLED = "cancelled"


TERMINAL_STATUSES: Final = frozenset(
    {
        RunStatus.COMPLETED,
        RunStatus.NEEDS_INPUT,
        RunStatus.LIMIT_REACHED,
        RunStatus.DENIED,
        RunStatus.FAILED,
        RunStatus.CANCELLED,
    }
)


class TurnPhase(StrEnum):
    """Where the current turn is."""

    DECIDING = "deciding"  # the model is to be asked, or is being asked
    CALLS = "calls"  # its calls are out
    MERGED = "merged"  # every call has an outcome, and one item carries them all
    ENDED = "ended"  # the turn closed the run without a merge


class Lane(StrEnum):
    """Which queue of decisions a run waits in."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Tier(StrEnum):
    """How much harm a tool can do; binds queue, pool, retry, approval, audit and breaker."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    IRREVERSIBLE = "irreversible"


ASKED_TIERS: Final = (Tier.HIGH, Tier.IRREVERSIBLE)  # somebody has to approve what they do


class ReasonCode(StrEnum):
    """Why a run or a call ended as it did, for programs. Tools may add codes of their own to business errors."""

    TURNS_MAX = "turns_max"
    CALLS_MAX = "calls_max"
    CALLS_PER_TURN_MAX = "calls_per_turn_max"
    CORRECTIONS_MAX = "corrections_max"
    ACTIVE_SECONDS_MAX = "active_seconds_max"
    COST_USD_MAX = "cost_usd_max"
    DEADLINE = "deadline"
    REPEATED_CALL = "repeated_call"
    ONE_AT_A_TIME = "one_at_a_time"
    EMPTY_REPLY = "empty_reply"
    TOOL_REQUIRED = "tool_required"
    ANSWERED_TOO_EARLY = "answered_too_early"
    REQUIRED_TOOL_UNAVAILABLE = "required_tool_unavailable"
    POLICY_ERROR = "policy_error"
    OUTPUT_INVALID = "output_invalid"
    CONTEXT_LENGTH = "context_length"
    TOOL_CHANGED = "tool_changed"
    TRUNCATED_OUTPUT = "truncated_output"
    REFUSAL = "refusal"
    CONTENT_FILTER = "content_filter"
    MODEL_ERROR = "model_error"
    AGENT_NOT_LOADED = "agent_not_loaded"
    WORKER_LOST = "worker_lost"
    BREAKER_OPEN = "breaker_open"
    PERMISSION_DENIED = "permission_denied"
    TIMEOUT = "timeout"
    CALL_TIMEOUT = "call_timeout"
    EXCEPTION = "exception"
    CHILD_DIED = "child_died"
    RESULT_TOO_LARGE = "result_too_large"
    RESULT_NOT_JSON = "result_not_json"
    RESULT_INVALID = "result_invalid"
    TOOL_NOT_LOADED = "tool_not_loaded"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CANCELLED = "cancelled"
    VALIDATION = "validation"
    INVENTED_ARGUMENT = "invented_argument"
    PREREQUISITE = "prerequisite"
    STAGE = "stage"
    NEWER_MESSAGE = "newer_message"
    NOT_SENT = "not_sent"
    KEY_HELD = "key_held"
    SHARED_EFFECT = "shared_effect"
    REJECTED = "rejected"
    APPROVAL_EXPIRED = "approval_expired"
    PRECHECK_FAILED = "precheck_failed"
