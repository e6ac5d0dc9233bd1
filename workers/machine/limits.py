"""Which limit stops a run, what it tells the user, and how often a call was made before."""

from __future__ import annotations

from toolfleet.schemas.outcomes import CallOutcome, ReasonCode
from toolfleet.schemas.run import RunState, Signature

LIMIT_SENTENCES = {
    ReasonCode.TURNS_MAX: "the limit of {turns_max} model turns was reached",
    ReasonCode.CALLS_MAX: "the limit of {calls_max} tool calls was reached",
    ReasonCode.CORRECTIONS_MAX: "tool calls stayed invalid after {corrections_max} correction(s)",
    ReasonCode.ACTIVE_SECONDS_MAX: "the limit of {active_seconds_max:g} seconds of work was reached",
    ReasonCode.COST_USD_MAX: "the limit of {cost_usd_max:g} US dollars was reached",
    ReasonCode.DEADLINE: "the deadline of this request has passed",
    ReasonCode.REPEATED_CALL: "the same tool call was made again and again without new information",
    ReasonCode.TRUNCATED_OUTPUT: "the reply was longer than the limit of {output_tokens_max} tokens",
}


def before_model_call(state: RunState, now_s: float) -> str | None:
    """The limit that forbids the outstanding model call, or None. Its cost is reserved, so it counts in full."""
    limits, used = state.limits, state.counters
    if state.deadline_at is not None and state.deadline_at <= now_s:
        return ReasonCode.DEADLINE
    if state.turn > limits.turns_max:
        return ReasonCode.TURNS_MAX
    if used.active_s >= limits.active_seconds_max:
        return ReasonCode.ACTIVE_SECONDS_MAX
    if used.next_reserve_usd > 0 and used.cost_usd + used.next_reserve_usd > limits.cost_usd_max:
        return ReasonCode.COST_USD_MAX
    return None


def after_merge(state: RunState, now_s: float) -> str | None:
    """The limit that ends a run whose turn has just been merged, or None."""
    if state.deadline_at is not None and state.deadline_at <= now_s:
        return ReasonCode.DEADLINE
    if state.turn >= state.limits.turns_max:
        return ReasonCode.TURNS_MAX
    if state.counters.active_s >= state.limits.active_seconds_max:
        return ReasonCode.ACTIVE_SECONDS_MAX
    return None


def limit_sentence(state: RunState, reason: str) -> str:
    """What the user is told: which limit, and what was done before it."""
    known = {str(code): text for code, text in LIMIT_SENTENCES.items()}
    cause = known.get(reason, reason).format(**state.limits.model_dump())
    done = sum(1 for entry in state.window if entry.ok)
    tried = len(state.window)
    work = (
        f" Before that, {done} of {tried} recent tool calls succeeded; their results are kept with this run."
        if tried
        else " No tool call was finished before that."
    )
    found = f" What I had so far: {state.draft.strip()}" if state.draft else ""
    return f"I had to stop: {cause}.{work}{found}"


def times_made(window: tuple[Signature, ...], signature: str) -> int:
    """How often that very call was made in earlier turns."""
    return sum(1 for entry in window if entry.signature == signature)


def reusable(window: tuple[Signature, ...], signature: str) -> Signature | None:
    """The newest earlier call whose result still stands: it succeeded, and no effect came after it."""
    for entry in reversed(window):
        if not entry.read_only:
            return None
        if entry.signature == signature:
            return entry if entry.ok else None
    return None


def counts_as_ok(outcome: CallOutcome | None) -> bool:
    return outcome is CallOutcome.OK
