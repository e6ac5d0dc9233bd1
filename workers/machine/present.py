"""What the gates of the present decide (T9): refused, not now, of a higher tier; and who waits is woken."""

from __future__ import annotations

from dataclasses import replace

from toolfleet.schemas.commands import EXEC_QUEUES, CommandRow
from toolfleet.schemas.effects import ApprovalStatus
from toolfleet.schemas.events import CallDeferred, CallRefused, CallWoken, TierRaised
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, ReasonCode, Tier
from toolfleet.schemas.records import Step
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import deadline
from toolfleet.workers.machine.call import of_attempt, store
from toolfleet.workers.machine.draft import Draft, miss, refusal_of, withdrawn

TIERS = tuple(Tier)  # from the least harm to the most


def before_it_begins(
    state: RunState, command_id: str, token: LeaseToken | None, now_s: float
) -> tuple[CommandRow, CallState] | str:
    """The row and the call of a step whose gates were looked at: due, leased by nobody or by the sender, and no effect
    of it is out. Or why not."""
    row = state.command(command_id)
    if row is None or not row.is_exec:
        return "row gone"
    if token is None or row.token != token:
        refused = refusal_of(row, now_s)
        if refused is not None:
            return refused
    call = state.call(row.call_id or "")
    if call is None or not call.open:
        return "call closed"
    return "its effect has begun" if call.dispatched else (row, call)


def refused(state: RunState, event: CallRefused, now_s: float) -> Step:
    """A gate says no: that is the outcome. "Nobody answered" and "somebody said no" have to be true now."""
    found = before_it_begins(state, event.command_id, event.token, now_s)
    if isinstance(found, str):
        return miss(state, found)
    row, call = found
    if of_attempt(state, row, event.attempt) is None:
        return miss(state, "tried by somebody else")
    asked = call.approval
    draft = Draft(state, now_s)
    match event.result.outcome:
        case CallOutcome.APPROVAL_EXPIRED:
            if asked is None or asked.expires_at > now_s or asked.status is ApprovalStatus.REJECTED:
                return miss(state, "the approval is alive")
            draft.set_call(call.call_id, approval=replace(asked, status=ApprovalStatus.EXPIRED))
        case CallOutcome.REJECTED:
            if asked is None or asked.status is not ApprovalStatus.REJECTED:
                return miss(state, "nobody rejected it")
        case CallOutcome.FAILED if event.result.reason == ReasonCode.CALL_TIMEOUT:
            if not deadline.over(call, now_s):
                return miss(state, "there is time left")
    current = draft.state.call(call.call_id)
    assert current is not None
    store(draft, row, current, event.result)
    return draft.step()


def deferred(state: RunState, event: CallDeferred, now_s: float) -> Step:
    """Not now: due later, without an attempt; unless its time would be over by then."""
    found = before_it_begins(state, event.command_id, event.token, now_s)
    if isinstance(found, str):
        return miss(state, found)
    row, call = found
    if of_attempt(state, row, event.attempt) is None:
        return miss(state, "tried by somebody else")
    draft = Draft(state, now_s)
    call = draft.called(call.call_id, deadline_at=deadline.taken(call, now_s))
    if deadline.over(call, now_s + event.delay_s):
        why = f"it waited for its turn: {event.reason}"
        store(draft, row, call, deadline.timed_out(call, why, retry_after_s=round(event.delay_s, 1)))
        return draft.step()
    draft.put(row.due(now_s + event.delay_s))
    draft.set_call(call.call_id, waiting=CallWaiting.RETRY_DUE)
    draft.event(
        "call.deferred",
        call_id=call.call_id,
        turn=state.turn,
        reason=event.reason,
        delay_s=round(event.delay_s, 3),
    )
    return draft.step()


def raised(state: RunState, event: TierRaised, now_s: float) -> Step:
    """The call goes on in the queue of the higher tier; what was approved for the lower one counts no more."""
    found = before_it_begins(state, event.command_id, event.token, now_s)
    if isinstance(found, str):
        return miss(state, found)
    row, call = found
    if TIERS.index(event.tier) <= TIERS.index(call.tier):
        return miss(state, "not a higher tier")
    draft = Draft(state, now_s)
    draft.put(row.due(now_s, queue=EXEC_QUEUES[event.tier]))
    draft.set_call(
        call.call_id,
        tier=event.tier,
        terms=replace(call.terms, asks=event.asks),
        approval=withdrawn(call, now_s),
        deadline_at=deadline.taken(call, now_s),
        waiting=CallWaiting.READY,
    )
    draft.event(
        "call.tier_raised", call_id=call.call_id, turn=state.turn, tool=call.tool, tier=event.tier.value
    )
    return draft.step()


def woken(state: RunState, event: CallWoken, now_s: float) -> Step:
    """The key it waits for is free, or its holder has come to something: it is due now."""
    row = state.command(event.command_id)
    call = state.call(row.call_id or "") if row is not None else None
    if row is None or call is None or row.token is not None or call.waits_key != event.key:
        return miss(state, "does not wait for it")
    draft = Draft(state, now_s)
    draft.put(row.due(now_s))
    draft.set_call(call.call_id, waits_key="")
    return draft.step()
