"""The gates of pace: breaker, rate, places, serial key, retry budget. What is asked, and what follows from the answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import orjson

from toolfleet.schemas.envelopes import error
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, ReasonCode
from toolfleet.schemas.pace import Ended, Open, Rate, ToolEntry, Wait, serial_key
from toolfleet.schemas.ports import ToolAnswer, ToolFailed, ToolPace
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import ToolSpec
from toolfleet.schemas.views import CallView
from toolfleet.workers.executor.gate import Asked, Gate, Later, Outcome, Stopped

SPREAD = 0.2  # those that were refused together do not come back together


def gate(pace: ToolPace, draw: Callable[[], float]) -> Gate:
    """The last of the present gates: what it takes is given back when the attempt has ended, or was not made."""

    async def paced(asked: Asked) -> Stopped | None:
        answer = await pace.enter(entry_of(asked.view, asked.call, asked.spec))
        match answer:
            case Open():
                return Outcome(unavailable(asked.call, answer))
            case Wait(reason, wait_s):
                return Later(wait_s * (1.0 + SPREAD * draw()), reason)
        permit = answer

        async def left(came: ToolAnswer | None) -> None:
            await pace.leave(permit, "neither" if came is None else ended_as(came))

        asked.afterwards(left)
        return None

    return paced


ANSWERED = frozenset({"business_error", "invalid_arguments", "denied"})  # the tool works; it said no
NOT_ITS_FAULT = frozenset({"not_loaded", "tool_changed"})
SPOKE = frozenset({"not_json", "too_large", "result_invalid"})  # it came back, with what we cannot take


def entry_of(view: CallView, call: CallState, spec: ToolSpec) -> ToolEntry:
    """What an attempt of that call needs."""
    key = None
    if spec.serial_key is not None:
        key = serial_key(spec.serial_key, orjson.loads(call.arguments))
    return ToolEntry(
        tenant=view.tenant,
        tool=call.tool,
        call_id=call.call_id,
        retry=call.attempt > 1,
        returning=call.waiting is CallWaiting.RETRY_DUE,
        deadline_s=spec.timeout_s,
        rate=None if spec.rate_limit is None else Rate.parse(spec.rate_limit),
        concurrent_max=spec.concurrent_max,
        serial_key=key,
        retry_share=spec.retry_share,
    )


def ended_as(answer: ToolAnswer) -> Ended:
    """How the breaker counts an attempt. A rule, bad arguments or no permission are answers of a tool that works;
    an attempt of which no line ran tells nothing."""
    if not isinstance(answer, ToolFailed):
        return "ok"
    if answer.code in ANSWERED or answer.kind in SPOKE:
        return "ok" if answer.began else "neither"
    if not answer.began or answer.kind in NOT_ITS_FAULT:
        return "neither"
    return "failed"


def unavailable(call: CallState, open_: Open) -> CallResult:
    """The outcome while the breaker is open: final for this call; a later one may find it closed."""
    until = datetime.fromtimestamp(open_.until_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    content = error(
        outcome=CallOutcome.NOT_AVAILABLE,
        reason=ReasonCode.BREAKER_OPEN,
        message=f"{call.tool} is unavailable until {until}: it failed too often in the last moments. Go on without it, "
        "or tell the user.",
        retryable=True,
        retry_after_s=round(open_.wait_s, 1),
        suggested_action="go_on_without_it_or_tell_the_user",
    )
    return CallResult(
        call.call_id,
        call.index,
        CallOutcome.NOT_AVAILABLE,
        content,
        reason=ReasonCode.BREAKER_OPEN,
        attempt=call.attempt,
    )
