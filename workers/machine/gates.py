"""The pure gates: which calls of a reply are admitted, and what the others are answered, without a message.

In call order, on the locked counters: shape (known tool, exposed, arguments; judged before), corrections, limits,
withdrawn tools, repeats, one at a time. Gates of the present (cancelled, permission, breaker, rate) are the
executor's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from toolfleet.schemas.envelopes import error
from toolfleet.schemas.events import ModelReplied, ProposedCall
from toolfleet.schemas.ids import CallId, call_id_of
from toolfleet.schemas.limits import (
    REPEAT_REUSES_AT,
    REPEAT_STOPS_AT,
    REPEAT_TELLS_AT,
    REPEAT_WITHDRAWS_AT,
)
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import limits
from toolfleet.workers.machine.answers import outside

_CORRECTABLE = frozenset({CallOutcome.INVALID_ARGUMENTS, CallOutcome.UNKNOWN_TOOL})


@dataclass(frozen=True, slots=True)
class Reuse:
    """A call that is answered with the stored result of an earlier equal one."""

    source: CallId
    notice: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gates say of one call: admitted (neither), answered, or reused."""

    call: CallState
    answer: CallResult | None = None
    reuse: Reuse | None = None


@dataclass(slots=True)
class _Tally:
    """What the gates have let through so far in this turn."""

    admitted: int = 0
    withdrawn: set[str] = field(default_factory=set)
    ending: str | None = None


@dataclass(frozen=True, slots=True)
class Gated:
    """The verdicts of a turn in call order, and what they change in the run."""

    verdicts: tuple[Verdict, ...]
    corrections: int  # 0 or 1
    withdrawn: tuple[str, ...]
    ending: str | None


def gate(state: RunState, event: ModelReplied) -> Gated:
    """The verdict on each call of the reply."""
    invalid = any(p.answer is not None and p.answer.outcome in _CORRECTABLE for p in event.calls)
    tally = _Tally(withdrawn=set(state.withdrawn))
    if invalid and state.counters.corrections >= state.limits.corrections_max:
        tally.ending = ReasonCode.CORRECTIONS_MAX
    verdicts = tuple(_verdict(state, proposed, event, tally) for proposed in event.calls)
    return Gated(
        verdicts=verdicts,
        corrections=1 if invalid and tally.ending != ReasonCode.CORRECTIONS_MAX else 0,
        withdrawn=(*state.withdrawn, *sorted(tally.withdrawn - set(state.withdrawn))),
        ending=tally.ending,
    )


def _verdict(state: RunState, proposed: ProposedCall, event: ModelReplied, tally: _Tally) -> Verdict:
    call = call_state(state, proposed)
    if proposed.answer is not None:
        return Verdict(call, answer=replace(proposed.answer, call_id=call.call_id, index=call.index))
    made = limits.times_made(state.window, call.signature) + 1
    stops = made >= REPEAT_STOPS_AT and not call.repeatable  # whether or not it was withdrawn before
    refused = _limits(state, call, tally) or (
        None if stops else outside(event, call) or _withdrawn(call, tally)
    )
    if refused is not None:
        return Verdict(call, answer=refused)
    repeated = _repeat(state, call, made, tally)
    if repeated is not None:
        return repeated
    if not event.parallel and tally.admitted >= 1:
        message = "only one tool call at a time runs here; this one did not. Ask again when you have the other result."
        return Verdict(call, answer=not_run(call, ReasonCode.ONE_AT_A_TIME, message, by_model=True))
    tally.admitted += 1
    return Verdict(call)


def _limits(state: RunState, call: CallState, tally: _Tally) -> CallResult | None:
    if tally.ending is not None:
        return not_run(
            call, tally.ending, "not run: the run ends after this turn because a limit was reached"
        )
    if call.index >= state.limits.calls_per_turn_max:
        message = f"not run: more than {state.limits.calls_per_turn_max} calls in one turn"
        return not_run(call, ReasonCode.CALLS_PER_TURN_MAX, message, by_model=True)
    if state.counters.tool_calls + tally.admitted >= state.limits.calls_max:
        tally.ending = ReasonCode.CALLS_MAX
        return not_run(
            call, ReasonCode.CALLS_MAX, f"not run: the limit of {state.limits.calls_max} calls was reached"
        )
    return None


def _withdrawn(call: CallState, tally: _Tally) -> CallResult | None:
    if call.tool not in tally.withdrawn:
        return None
    message = f"{call.tool} is no longer available in this run; go on without it"
    content = error(outcome=CallOutcome.NOT_AVAILABLE, reason=ReasonCode.REPEATED_CALL, message=message)
    return CallResult(
        call.call_id, call.index, CallOutcome.NOT_AVAILABLE, content, reason=ReasonCode.REPEATED_CALL
    )


def _repeat(state: RunState, call: CallState, made: int, tally: _Tally) -> Verdict | None:
    """The repeat gate: 2nd equal read reuses, 3rd also tells, 4th withdraws, 5th stops; other calls from the 4th."""
    if call.repeatable or made < REPEAT_REUSES_AT:
        return None
    if made >= REPEAT_STOPS_AT:
        tally.ending = ReasonCode.REPEATED_CALL
        message = f"not run: this very call was made {made} times"
        return Verdict(call, answer=not_run(call, ReasonCode.REPEATED_CALL, message))
    if made >= REPEAT_WITHDRAWS_AT:
        tally.withdrawn.add(call.tool)
    source = None if call.effect else limits.reusable(state.window, call.signature)
    if source is None:
        return _told(call, made) if made >= REPEAT_WITHDRAWS_AT else None
    notice = ""
    if made >= REPEAT_TELLS_AT:
        notice = f"You have made this very call {made} times; the result is the same. Use it, or do something else."
    if made >= REPEAT_WITHDRAWS_AT:
        notice += f" {call.tool} is withdrawn for the rest of this run."
    return Verdict(call, reuse=Reuse(source.call_id, notice))


def _told(call: CallState, made: int) -> Verdict:
    """A call that never came to anything that can be reused is not tried a fourth time."""
    message = f"not run: this very call was made {made} times, and {call.tool} is withdrawn for the rest of this run"
    content = error(outcome=CallOutcome.NOT_AVAILABLE, reason=ReasonCode.REPEATED_CALL, message=message)
    answer = CallResult(
        call.call_id, call.index, CallOutcome.NOT_AVAILABLE, content, reason=ReasonCode.REPEATED_CALL
    )
    return Verdict(call, answer=answer)


def not_run(call: CallState, reason: str, message: str, *, by_model: bool = False) -> CallResult:
    """The answer of a call that a limit or a rule kept from running."""
    content = error(outcome=CallOutcome.NOT_RUN, reason=reason, message=message, retryable_by_model=by_model)
    return CallResult(call.call_id, call.index, CallOutcome.NOT_RUN, content, reason=reason)


def call_state(state: RunState, proposed: ProposedCall) -> CallState:
    """The call as the run will hold it, open."""
    return CallState(
        call_id=call_id_of(state.run_id, state.turn, proposed.index),
        index=proposed.index,
        tool=proposed.tool,
        tier=proposed.tier,
        arguments=proposed.arguments,
        signature=proposed.signature,
        wire_id=proposed.wire_id,
        effect=proposed.effect,
        idempotent=proposed.idempotent,
        attempts_max=proposed.attempts_max,
        timeout_s=proposed.timeout_s,
        call_timeout_s=proposed.call_timeout_s,
        repaired=proposed.repaired,
        tell_on_denied=proposed.tell_on_denied,
        repeatable=proposed.repeatable,
        terms=proposed.terms,
    )
