"""Transitions of a call: leased, finished, tried again, counted (T6 to T8, T12, T22). Effects: see effect.py."""

from __future__ import annotations

from dataclasses import replace

from toolfleet.schemas.commands import RESULTS_QUEUE, CommandRow
from toolfleet.schemas.effects import Audit, EffectState, Entry
from toolfleet.schemas.envelopes import error
from toolfleet.schemas.events import CallAnswered, CallFinished, CallLeased, CallRetry, CallsSettled
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.limits import DEATHS_MAX, LOST_AFTER_S
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, ReasonCode
from toolfleet.schemas.records import AppendAudit, AppendDead, Step
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import closing, deadline
from toolfleet.workers.machine.draft import Draft, miss, refusal_of, stopping

_ANSWERABLE = frozenset({CallWaiting.AWAITING_CALLBACK, CallWaiting.AWAITING_CLIENT})
_SAID = {CallOutcome.OK: EffectState.HAPPENED, CallOutcome.BUSINESS_ERROR: EffectState.BUSINESS_ERROR}


def leased(state: RunState, event: CallLeased, now_s: float) -> Step:
    """T6: the executor holds the call from here on. What became of an effect that has begun is asked for by T13."""
    row = state.command(event.command_id)
    if row is not None and row.token == event.token:
        return Step(state)  # asked again because the answer was lost: the lease is the sender's already
    refused = refusal_of(row, now_s)
    if refused is not None or row is None:
        return miss(state, refused or "row gone")
    call = state.call(row.call_id or "")
    if call is None or not call.open or not row.is_exec:
        return miss(state, "call closed")
    if call.dispatched:
        return miss(state, "its effect has begun")
    if call.effect and stopping(state):
        return miss(state, "run is stopping")
    draft = Draft(state, now_s)
    draft.set_call(call.call_id, waiting=CallWaiting.READY, deadline_at=deadline.taken(call, now_s))
    draft.put(row.leased(event.token, event.owner, now_s + event.lease_s, now_s))
    return draft.step()


def finished(state: RunState, event: CallFinished, now_s: float) -> Step:
    """T7: the outcome of a read-only call is stored and the row moves to `results`."""
    row = state.command(event.command_id)
    call = of_attempt(state, row, event.attempt)
    if call is None or row is None or not row.is_exec or call.effect:
        return miss(state, "call closed or tried by somebody else")
    if not _held(row, event.token):
        return miss(state, "lease lost")
    draft = Draft(state, now_s)
    store(draft, row, call, event.result)
    return draft.step()


def retry(state: RunState, event: CallRetry, now_s: float) -> Step:
    """T8: the call is due again after its delay; or this was its last attempt, or its third death, or its time would be
    over by then."""
    row = state.command(event.command_id)
    call = of_attempt(state, row, event.attempt)
    if call is None or row is None or not row.is_exec:
        return miss(state, "call closed or tried by somebody else")
    if not _held(row, event.token):
        return miss(state, "lease lost")
    assert not call.effect, "a call with an effect is never retried before its outcome is known"
    draft = Draft(state, now_s)
    taken_at = now_s if event.taken_at is None else min(event.taken_at, now_s)
    call = draft.called(call.call_id, deadline_at=deadline.taken(call, taken_at))
    deaths = row.deaths + (1 if event.died else 0)
    row = replace(row, deaths=deaths)
    if event.died and deaths >= DEATHS_MAX:
        give_up(draft, row, call)
    elif event.attempt >= call.attempts_max:
        store(draft, row, call, event.result)
    elif deadline.over(call, now_s + event.delay_s):
        store(draft, row, call, deadline.cut_off(call, event.result))
    else:
        draft.put(row.due(now_s + event.delay_s))
        draft.set_call(call.call_id, attempt=call.attempt + 1, waiting=CallWaiting.RETRY_DUE)
        draft.event(
            "call.retry",
            call_id=call.call_id,
            turn=state.turn,
            attempt=event.attempt,
            reason=event.result.reason,
            delay_s=round(event.delay_s, 3),
        )
    return draft.step()


def settled(state: RunState, event: CallsSettled, now_s: float) -> Step:
    """T12: outcomes are stored, first one wins, and the turn is merged when none of its calls is open."""
    if state.terminal:
        return miss(state, "run ended")
    draft = Draft(state, now_s)
    for result in sorted(event.results, key=lambda r: r.index):
        call = draft.state.call(result.call_id)
        if call is None or not call.open:
            continue
        if call.effect:  # only its executor's own row counts
            draft.add(_forged(state, result))
        else:
            draft.result(call, result)
    closing.count(draft)
    if draft.state == state:
        return Step(state, tuple(draft.records), missed="nothing left to count")
    return draft.step()


def _forged(state: RunState, result: CallResult) -> AppendAudit:
    """No executor sends the outcome of an effect in a message."""
    return AppendAudit(
        Audit(
            action="result",
            accepted=False,
            reason="outcome_in_message",
            run_id=state.run_id,
            call_id=result.call_id,
            data={"outcome": result.outcome.value},
        )
    )


def answered(state: RunState, event: CallAnswered, now_s: float) -> Step:
    """T22: a client or a callback answers a call that waits for it."""
    call = state.call(event.call_id)
    if call is None or not call.open or call.waiting not in _ANSWERABLE:
        return miss(state, "nobody waits for this answer")
    draft = Draft(state, now_s)
    if call.entry is not None and call.dispatched:
        said = _SAID.get(event.result.outcome, EffectState.NEEDS_HUMAN)
        draft.set_call(call.call_id, entry=replace(call.entry, state=said))
    draft.result(call, event.result)
    closing.count(draft)
    return draft.step()


def give_up(draft: Draft, row: CommandRow, call: CallState) -> None:
    """T17 for a call: too many workers died of it. What an effect did is unknown, so a human decides."""
    draft.add(
        AppendDead(row.id, row.queue, draft.state.turn, call.call_id, ReasonCode.WORKER_LOST, row.deaths)
    )
    if call.effect and call.dispatched:
        draft.set_call(call.call_id, entry=replace(_entry(call), state=EffectState.NEEDS_HUMAN))
        draft.result(call, needs_human(call, "the workers that ran it were lost"))
    else:
        message = f"{call.tool} could not be run: the process that ran it died {row.deaths} times"
        content = error(outcome=CallOutcome.FAILED, reason=ReasonCode.WORKER_LOST, message=message)
        draft.result(
            call,
            CallResult(
                call.call_id,
                call.index,
                CallOutcome.FAILED,
                content,
                ReasonCode.WORKER_LOST,
                attempt=call.attempt,
            ),
        )
    closing.count(draft)


def needs_human(call: CallState, why: str) -> CallResult:
    """The outcome of an effect nobody can tell: the model is told not to try again."""
    message = (
        f"It is not known whether {call.tool} took effect: {why}. A person will find out. Do not try it again; "
        "tell the user that it is being checked."
    )
    content = error(
        outcome=CallOutcome.NEEDS_HUMAN,
        reason=ReasonCode.OUTCOME_UNKNOWN,
        message=message,
        status="pending",
        operation_id=call.call_id,
        suggested_action="tell_user_it_is_being_checked",
    )
    return CallResult(
        call.call_id,
        call.index,
        CallOutcome.NEEDS_HUMAN,
        content,
        reason=ReasonCode.OUTCOME_UNKNOWN,
        attempt=call.attempt,
    )


def _entry(call: CallState) -> Entry:
    assert call.entry is not None, "an effect that has begun is in the ledger"
    return call.entry


def store(draft: Draft, row: CommandRow, call: CallState, result: CallResult) -> None:
    """The outcome, and the row moved to `results` in the same transaction; the collector deletes it."""
    draft.result(call, result)
    draft.put(replace(row.due(draft.now_s, queue=RESULTS_QUEUE), lost_after_s=LOST_AFTER_S))


def of_attempt(state: RunState, row: CommandRow | None, attempt: int) -> CallState | None:
    if row is None or row.call_id is None:
        return None
    call = state.call(row.call_id)
    return call if call is not None and call.open and call.attempt == attempt else None


def _held(row: CommandRow, token: LeaseToken | None) -> bool:
    """The lease is the sender's; or the sender took none and nobody has one."""
    return row.token == token
