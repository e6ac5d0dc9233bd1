"""The time of a call over all its attempts: when it begins, what does not count, when it is over.

It begins when an executor takes the call for the first time. While somebody is asked, and while an equal effect is out,
it stands still. `deadline_at` of a call is when it is over, without what the question asked last took: that is read from
the question, whoever wrote down its answer.
"""

from __future__ import annotations

from toolfleet.schemas.effects import ApprovalStatus
from toolfleet.schemas.envelopes import error, with_cause
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState

_SAME_S = 1e-3  # sums of times of day are that exact, and more


def taken(call: CallState, at_s: float) -> float | None:
    """`deadline_at` of a call that an executor took at that time: set by whoever took it first."""
    if call.deadline_at is not None or call.call_timeout_s is None:
        return call.deadline_at
    return at_s + call.call_timeout_s


def asked_again(call: CallState, now_s: float) -> float | None:
    """`deadline_at` of a call about which somebody is asked now: what the question before took is added for good."""
    begun = taken(call, now_s)
    return None if begun is None else begun + _waited_s(call, begun, now_s)


def ends_at(call: CallState) -> float | None:
    """When its time is over. None: there is no end, it has not begun, or somebody is asked and it stands still."""
    if call.deadline_at is None or _pending(call):
        return None
    return call.deadline_at + _waited_s(call, call.deadline_at, call.deadline_at)


def over(call: CallState, at_s: float) -> bool:
    """Nothing of it may begin at that time any more."""
    end = ends_at(call)
    return end is not None and end <= at_s


def timed_out(call: CallState, why: str = "", *, retry_after_s: float | None = None) -> CallResult:
    """The outcome of a call whose time is over and of which nothing is out. `why` it was not run before, if known."""
    message = f"{call.tool} was not run{f' ({why})' if why else ''}: {_no_time(call)}"
    content = error(
        outcome=CallOutcome.FAILED,
        reason=ReasonCode.CALL_TIMEOUT,
        message=message,
        retryable=True,
        retry_after_s=retry_after_s,
        suggested_action="go_on_without_it_or_tell_the_user",
    )
    return CallResult(
        call.call_id,
        call.index,
        CallOutcome.FAILED,
        content,
        reason=ReasonCode.CALL_TIMEOUT,
        attempt=call.attempt,
    )


def cut_off(call: CallState, result: CallResult) -> CallResult:
    """The outcome of an attempt after which there is no time for another: what failed, and why it stays so."""
    return CallResult(
        result.call_id,
        result.index,
        result.outcome,
        with_cause(
            result.content, reason=ReasonCode.CALL_TIMEOUT, more=f"It is not tried again: {_no_time(call)}"
        ),
        reason=ReasonCode.CALL_TIMEOUT,
        attempt=result.attempt,
        tool_s=result.tool_s,
        queue_s=result.queue_s,
    )


def _no_time(call: CallState) -> str:
    assert call.call_timeout_s is not None, "only a declared time is ever over"
    return f"the {call.call_timeout_s:g} s it has for all its attempts are over."


def _pending(call: CallState) -> bool:
    return call.approval is not None and call.approval.status is ApprovalStatus.PENDING


def _waited_s(call: CallState, deadline_at: float, now_s: float) -> float:
    """What the last question took of this time. A question from before it began took nothing of it."""
    asked = call.approval
    if asked is None or call.call_timeout_s is None:
        return 0.0
    if asked.requested_at < deadline_at - call.call_timeout_s - _SAME_S:
        return 0.0
    until = now_s if asked.decided_at is None else asked.decided_at
    return max(0.0, until - asked.requested_at)
