"""The gates of the present: what is looked at before a call runs, in the order of DESIGN section 7.

A gate is a small function of what is asked: None lets the call pass, anything else stops it here. `PRESENT_GATES` is the
one place where their order stands; what is added later (breaker, rate, serial key) is appended there. A gate that holds
something while the call runs files what gives it back with `Asked.afterwards`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from toolfleet.schemas.effects import ApprovalStatus, StandingApproval, arguments_hash
from toolfleet.schemas.envelopes import error, not_permitted
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, Tier
from toolfleet.schemas.ports import RunStore, ToolAnswer, ToolFailed, ToolPlace
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import CallFacts, ToolContext, ToolSpec
from toolfleet.schemas.views import CallView
from toolfleet.workers.executor.projection import failed
from toolfleet.workers.machine import deadline
from toolfleet.workers.machine.approval import fits
from toolfleet.workers.machine.present import TIERS


@dataclass(frozen=True, slots=True)
class Outcome:
    """The call comes to this, without being run."""

    result: CallResult


@dataclass(frozen=True, slots=True)
class Later:
    """Not now; no attempt is used up."""

    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Raised:
    """With these arguments it is of a higher tier, and goes on in the queue of that one."""

    tier: Tier


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody has to approve it, or to grant what is missing; or a standing approval covers it."""

    summary: str
    expires_s: float
    standing: str | None = None
    permissions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing to do: whoever is waited for will wake it."""


Stopped = Outcome | Later | Raised | Ask | Waiting
UNASKED: Final = Ask("", 0.0)  # nobody has been asked yet


@dataclass(slots=True)
class Asked:
    """One call before its gates. `facts`: what its declaration says of these arguments. `timeout_s`: how long something
    declared to take so long may take now."""

    view: CallView
    call: CallState
    spec: ToolSpec
    arguments: dict[str, Any]
    context: ToolContext
    place: ToolPlace
    store: RunStore
    approvals: bool  # False: switched off for this fleet
    facts: CallFacts
    timeout_s: Callable[[float], float] = float
    _afterwards: list[Callable[[ToolAnswer | None], Awaitable[None]]] = field(default_factory=list)

    def afterwards(self, work: Callable[[ToolAnswer | None], Awaitable[None]]) -> None:
        """Called once, with what the attempt came to; None: it was not made after all."""
        self._afterwards.append(work)

    async def ended(self, answer: ToolAnswer | None) -> None:
        """The attempt is over, or will not be made: give back what gates hold, the last one first."""
        while self._afterwards:
            await self._afterwards.pop()(answer)


Gate = Callable[[Asked], Awaitable[Stopped | None]]


async def in_time(asked: Asked) -> Stopped | None:
    """Nothing of a call begins when its time is over. What people said of it is its outcome all the same."""
    question = asked.call.approval
    rejected = question is not None and question.status is ApprovalStatus.REJECTED
    if rejected or not deadline.over(asked.call, asked.view.now_s):
        return None
    return Outcome(deadline.timed_out(asked.call))


async def permission(asked: Asked) -> Stopped | None:
    """Whom the run acts for must have every permission the tool names, or somebody has granted it for this call."""
    missing = asked.spec.lacking(asked.view.permissions)
    if not missing:
        return None
    if asked.call.terms.grantable:
        found = _answered(asked, missing)
        return await _ask(asked, missing) if found is UNASKED else found
    message = not_permitted(asked.call.tool, missing)
    return _refused(asked.call, CallOutcome.DENIED, ReasonCode.PERMISSION_DENIED, message)


async def tier(asked: Asked) -> Stopped | None:
    """Arguments and configuration raise a tier, never lower it."""
    higher = max(asked.spec.tier, asked.facts.tier, key=TIERS.index)
    return Raised(higher) if TIERS.index(higher) > TIERS.index(asked.call.tier) else None


async def precheck(asked: Asked) -> Stopped | None:
    """Is the call right now, by the rules of the business? What the tool says is the outcome."""
    if "precheck" not in asked.spec.parts:
        return None
    answer = await asked.place.run(
        asked.arguments, asked.context, timeout_s=asked.timeout_s(asked.spec.timeout_s), part="precheck"
    )
    if not isinstance(answer, ToolFailed):
        return None
    if answer.code in ("business_error", "denied"):
        return Outcome(failed(asked.call, asked.spec, answer).result)
    message = f"{asked.call.tool} was not run: whether it may run could not be checked"
    return _refused(asked.call, CallOutcome.FAILED, ReasonCode.PRECHECK_FAILED, message, retryable=True)


async def approval(asked: Asked) -> Stopped | None:
    """A high call needs a yes, an irreversible one that of somebody else; bound to these arguments, and alive."""
    if not asked.call.terms.asks:
        return None
    found = _answered(asked)
    return await _ask(asked) if found is UNASKED else found


async def _ask(asked: Asked, missing: tuple[str, ...] = ()) -> Ask:
    summary, expires_s = asked.facts.summary, asked.spec.approval_expires_s
    if missing:  # no standing approval grants a permission
        return Ask(summary, expires_s, None, missing)
    standing = await asked.store.standing(asked.view.tenant, asked.call.tool)
    return Ask(summary, expires_s, next((one.id for one in standing if covers(one, asked)), None))


def _answered(asked: Asked, missing: tuple[str, ...] = ()) -> Stopped | None:
    """What became of the question about this call; None: a yes that is alive."""
    call, question = asked.call, asked.call.approval
    if question is None or not fits(call, missing):
        return UNASKED
    match question.status:
        case ApprovalStatus.REJECTED:
            return _rejected(call, question.reason)
        case ApprovalStatus.GRANTED | ApprovalStatus.PENDING if question.expires_at <= asked.view.now_s:
            message = f"{call.tool} was not run: nobody approved it in time"
            return _refused(
                call, CallOutcome.APPROVAL_EXPIRED, ReasonCode.APPROVAL_EXPIRED, message, by_user=True
            )
        case ApprovalStatus.GRANTED:
            return None
        case ApprovalStatus.PENDING:
            return Waiting()
        case _:
            return UNASKED


def covers(standing: StandingApproval, asked: Asked) -> bool:
    """The standing approval is for calls like this one: every value it names is the call's."""
    if TIERS.index(asked.call.tier) > TIERS.index(standing.tier_max):
        return False
    return all(
        name in asked.arguments and asked.arguments[name] == value
        for name, value in standing.arguments.items()
    )


# DESIGN section 7: cancelled (the row is gone then) → its time → permission → precheck → approval → breaker → rate, serial key →
# claim. `tier` comes before what depends on it: whoever is asked for a permission is asked at the tier the call has.
PRESENT_GATES: Final[tuple[Gate, ...]] = (in_time, tier, permission, precheck, approval)


async def pass_gates(asked: Asked, gates: Sequence[Gate] = PRESENT_GATES) -> Stopped | None:
    """What stops the call, or None. Where a gate stops it, what earlier ones hold is given back."""
    for gate in gates:
        stopped = await gate(asked)
        if stopped is not None:
            await asked.ended(None)
            return stopped
    return None


def sent_hash(call: CallState) -> str:
    """Of the arguments as they will be sent."""
    return arguments_hash(call.arguments)


def _rejected(call: CallState, said: str) -> Outcome:
    message = f"{call.tool} was not run: it was rejected{f' ({said})' if said else ''}"
    return _refused(call, CallOutcome.REJECTED, ReasonCode.REJECTED, message, by_user=True)


def _refused(
    call: CallState,
    outcome: CallOutcome,
    reason: str,
    message: str,
    *,
    by_user: bool = False,
    retryable: bool = False,
) -> Outcome:
    content = error(
        outcome=outcome, reason=reason, message=message, user_action_required=by_user, retryable=retryable
    )
    return Outcome(
        CallResult(call.call_id, call.index, outcome, content, reason=str(reason), attempt=call.attempt)
    )
