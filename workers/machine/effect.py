"""The effect ledger as transitions: claimed, ended, asked for, answered, resolved (T10, T11, T13, T14, T26).

An effect begins by taking its key and ends by what is known of it. What is not known is asked for, never guessed.
"""

from __future__ import annotations

from dataclasses import replace

from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.effects import BEGUN, Audit, EffectState, Entry, Holder, arguments_hash
from toolfleet.schemas.envelopes import success, with_notice
from toolfleet.schemas.events import (
    EffectClaimed,
    EffectEnded,
    EffectResolved,
    ReconcileAnswered,
    ReconcileStarted,
)
from toolfleet.schemas.limits import DEATHS_MAX, KEY_WAIT_S, QUIET_S, RECONCILE_WAITS_S, SEND_BY_S
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, ReasonCode
from toolfleet.schemas.records import AppendAudit, ResolveEffect, Step
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import deadline, stop
from toolfleet.workers.machine.approval import asks, granted, lapsed
from toolfleet.workers.machine.call import give_up, needs_human, store
from toolfleet.workers.machine.draft import Draft, miss, refusal_of, stopping
from toolfleet.workers.machine.present import before_it_begins

QUIET_MARGIN_S = 0.5  # the question is asked a little later than it may be, so that its answer is believed
SHARED_NOTICE = "An equal call did this before; this is what it came to. It was not done again."


def claimed(state: RunState, event: EffectClaimed, now_s: float) -> Step:
    """T10: the lease and the key are the sender's, and its first byte has to leave before `send_by`."""
    row = state.command(event.command_id)
    call = state.call(row.call_id or "") if row is not None else None
    if row is not None and row.token == event.token and call is not None and call.dispatched:
        return Step(state)  # asked again because the answer was lost: it is claimed already
    found = before_it_begins(state, event.command_id, event.token, now_s)
    if isinstance(found, str):
        return miss(state, found)
    row, call = found
    if stopping(state):
        return miss(state, "run is stopping")
    if event.arguments_hash != arguments_hash(call.arguments):
        return miss(state, "not the arguments of this call")
    if not granted(call, event.arguments_hash, now_s):
        return miss(state, "not approved")
    if event.lapsed:
        return lapsed(state, row, call, event.lapsed, now_s)
    draft = Draft(state, now_s)
    if event.holder is not None and event.holder.call_id != call.call_id:
        _meet_holder(draft, row, call, event.key, event.holder)
        return draft.step()
    call = draft.called(call.call_id, deadline_at=deadline.taken(call, now_s))
    if deadline.over(call, now_s):
        store(draft, row, call, deadline.timed_out(call))
        return draft.step()
    approval_id = call.approval.id if asks(call) and call.approval is not None else None
    entry = Entry(event.key, EffectState.DISPATCHED, call.attempt, now_s + SEND_BY_S, approval_id=approval_id)
    draft.set_call(call.call_id, entry=entry, waiting=CallWaiting.READY, waits_key="")
    draft.put(row.leased(event.token, event.owner, now_s + event.lease_s, now_s))
    draft.event(
        "effect.dispatched", call_id=call.call_id, turn=state.turn, tool=call.tool, attempt=call.attempt
    )
    return draft.step()


def _meet_holder(draft: Draft, row: CommandRow, call: CallState, key: str, holder: Holder) -> None:
    """The key is another call's: wait until that has come to something, then share it."""
    if holder.state in BEGUN:
        draft.put(row.due(draft.now_s + KEY_WAIT_S))
        # Its time stands still: "failed" would be a guess about an equal effect that is out.
        draft.set_call(call.call_id, waiting=CallWaiting.RETRY_DUE, waits_key=key, deadline_at=None)
        draft.event(
            "call.deferred", call_id=call.call_id, turn=draft.state.turn, reason=ReasonCode.KEY_HELD.value
        )
        return
    shared = holder.result
    if holder.state is EffectState.HAPPENED and (shared is None or shared.outcome is not CallOutcome.OK):
        content = success(holder.answer or "null", provenance=call.tool)
        shared = CallResult(call.call_id, call.index, CallOutcome.OK, content)
    if shared is None:
        shared = needs_human(call, "the call that did it has no result")
    result = replace(
        shared,
        call_id=call.call_id,
        index=call.index,
        content=with_notice(shared.content, SHARED_NOTICE),
        reason=ReasonCode.SHARED_EFFECT.value,
        attempt=call.attempt,
        tool_s=0.0,
        queue_s=0.0,
    )
    store(draft, row, call, result)


def ended(state: RunState, event: EffectEnded, now_s: float) -> Step:
    """T11: what the sender says counts while its effect is out, with the same attempt; else it is kept as evidence."""
    row = state.command(event.command_id)
    call = state.call(row.call_id or "") if row is not None and row.is_exec else None
    if row is None or call is None or not call.open or call.entry is None or not call.dispatched:
        return _late(state, event, now_s)
    entry = call.entry
    if entry.attempt != event.attempt:
        return _late(state, event, now_s)
    unknown = event.came is EffectState.RECONCILING
    if entry.doubt and event.came is not EffectState.HAPPENED and not event.no_effect:
        unknown = True  # this attempt did nothing, which says nothing of the one before
    if unknown and entry.state is EffectState.RECONCILING:
        return miss(state, "being asked for already")
    draft = Draft(state, now_s)
    row = replace(row, deaths=row.deaths + (1 if event.died else 0))
    if event.died and row.deaths >= DEATHS_MAX:
        give_up(draft, row, call)
        return draft.step()
    if unknown:
        _unknown(draft, row, call, entry)
    elif event.again:
        _again(draft, row, call, replace(entry, state=event.came), event.delay_s, event.result)
    else:
        _settle(draft, row, call, replace(entry, state=event.came), event.result)
    return draft.step()


def asked(state: RunState, event: ReconcileStarted, now_s: float) -> Step:
    """T13: the question is begun: a look-up; or, for a tool that takes our key, the same request once more."""
    row = state.command(event.command_id)
    if row is not None and row.token == event.token:
        return Step(state)  # asked again because the answer was lost
    refused = refusal_of(row, now_s)
    if refused is not None or row is None:
        return miss(state, refused or "row gone")
    call = state.call(row.call_id or "")
    if call is None or not call.open or call.entry is None or not call.dispatched:
        return miss(state, "nothing to ask for")
    entry = call.entry
    draft = Draft(state, now_s)
    leased = row.leased(event.token, event.owner, now_s + event.lease_s, now_s)
    if call.terms.reconciles:
        entry = replace(entry, state=EffectState.RECONCILING, asked_at=now_s)
        draft.set_call(call.call_id, entry=entry, waiting=CallWaiting.RECONCILING)
        draft.put(leased)
    elif call.idempotent:
        may = not stopping(state) and granted(call, arguments_hash(call.arguments), now_s)
        may = may and not deadline.over(call, now_s)
        if not may or call.attempt >= call.attempts_max:
            _human(draft, row, call, entry, "it may not be asked for again")
            return draft.step()
        entry = replace(
            entry,
            state=EffectState.DISPATCHED,
            attempt=call.attempt + 1,
            send_by=now_s + SEND_BY_S,
            doubt=True,
        )
        draft.set_call(call.call_id, entry=entry, attempt=call.attempt + 1, waiting=CallWaiting.READY)
        draft.put(leased)
    elif now_s < entry.send_by + call.timeout_s:
        draft.put(row.due(entry.send_by + call.timeout_s))  # its sender may still be at work
        draft.set_call(call.call_id, waiting=CallWaiting.RECONCILING)
    else:
        _human(draft, row, call, entry, "nothing tells what became of it")
    return draft.step()


def answered(state: RunState, event: ReconcileAnswered, now_s: float) -> Step:
    """T14: "happened" counts at once; "did not happen" only when asked late enough, and leads to a new attempt only
    where that cannot do it twice."""
    row = state.command(event.command_id)
    call = state.call(row.call_id or "") if row is not None and row.is_exec else None
    if row is None or call is None or not call.open or call.entry is None:
        return miss(state, "call closed")
    entry = call.entry
    if row.token != event.token:
        return miss(state, "lease lost")
    if entry.state is not EffectState.RECONCILING or entry.attempt != event.attempt:
        return miss(state, "another attempt")
    draft = Draft(state, now_s)
    quiet_at = entry.send_by + call.timeout_s + QUIET_S
    match event.came:
        case EffectState.HAPPENED:
            _settle(draft, row, call, replace(entry, state=EffectState.HAPPENED), event.result)
        case EffectState.DID_NOT_HAPPEN if entry.asked_at <= quiet_at:
            draft.put(row.due(quiet_at + QUIET_MARGIN_S))
        case EffectState.DID_NOT_HAPPEN if call.idempotent or call.terms.reconcile_is_final:
            free = replace(entry, state=EffectState.DID_NOT_HAPPEN, doubt=False)
            _again(draft, row, call, free, 0.0, event.result)
        case EffectState.DID_NOT_HAPPEN:
            _human(draft, row, call, entry, event.evidence or "the other side does not know of it yet")
        case _:
            _no_answer(draft, row, call, entry)
    return draft.step()


def resolved(state: RunState, event: EffectResolved, now_s: float) -> Step:
    """T26: an operator says what it came to. The turn is not reopened; the key is held or free accordingly."""
    found = event.found
    if found is None or found.state is not EffectState.NEEDS_HUMAN:
        return miss(
            state, "no effect that waits for a human" if found is None else f"it is {found.state.value}"
        )
    new = EffectState.HAPPENED if event.happened else EffectState.DID_NOT_HAPPEN
    draft = Draft(state, now_s)
    if state.call(event.call_id) is not None:
        draft.set_call(event.call_id, entry=replace(found, state=new))
    draft.add(ResolveEffect(event.call_id, new, event.by, event.answer))
    draft.add(
        AppendAudit(
            Audit(
                action="resolve",
                accepted=True,
                reason=new.value,
                by=event.by,
                run_id=state.run_id,
                call_id=event.call_id,
                data={k: v for k, v in (("said", event.note), ("asked_again", event.asked)) if v},
            )
        )
    )
    said = {"by": event.by, "note": event.note, "asked_again": event.asked}
    draft.event("effect.resolved", call_id=event.call_id, state=new.value, **said)
    return draft.step()


def wake(draft: Draft, key: str) -> None:
    """Calls of this run that wait for the key are due now; those of other runs are woken by who wrote this."""
    for call in draft.state.open_calls:
        row = draft.state.command(call.call_id)
        if call.waits_key == key and row is not None and row.token is None:
            draft.put(row.due(draft.now_s))
            draft.set_call(call.call_id, waits_key="")


def _settle(draft: Draft, row: CommandRow, call: CallState, entry: Entry, result: CallResult) -> None:
    store(draft, row, draft.called(call.call_id, entry=entry), result)
    wake(draft, entry.key)


def _human(draft: Draft, row: CommandRow, call: CallState, entry: Entry, why: str) -> None:
    _settle(draft, row, call, replace(entry, state=EffectState.NEEDS_HUMAN), needs_human(call, why))


def _unknown(draft: Draft, row: CommandRow, call: CallState, entry: Entry) -> None:
    """Nobody knows what the attempt did: it is asked for, at once the first time."""
    tries = entry.tries
    if call.terms.reconciles:
        due_at = draft.now_s
    elif call.idempotent:
        due_at = draft.now_s + (RECONCILE_WAITS_S[min(tries, len(RECONCILE_WAITS_S)) - 1] if tries else 0.0)
        tries += 1
    else:
        due_at = max(draft.now_s, entry.send_by + call.timeout_s)
    entry = replace(entry, state=EffectState.RECONCILING, tries=tries)
    draft.put(row.due(due_at))
    draft.set_call(call.call_id, entry=entry, waiting=CallWaiting.RECONCILING)
    draft.event(
        "effect.reconciling",
        call_id=call.call_id,
        turn=draft.state.turn,
        tool=call.tool,
        attempt=entry.attempt,
    )


def _no_answer(draft: Draft, row: CommandRow, call: CallState, entry: Entry) -> None:
    if entry.tries >= len(RECONCILE_WAITS_S):
        _human(draft, row, call, entry, "nobody answered what became of it")
        return
    draft.put(row.due(draft.now_s + RECONCILE_WAITS_S[entry.tries]))
    draft.set_call(call.call_id, entry=replace(entry, tries=entry.tries + 1))


def _again(
    draft: Draft, row: CommandRow, call: CallState, entry: Entry, delay_s: float, result: CallResult
) -> None:
    """Nothing happened, so it may be tried again; unless the run stops, or attempts or time are used up."""
    if stopping(draft.state):
        _settle(draft, row, call, entry, stop.stopped_result(draft.state, call))
    elif call.attempt >= call.attempts_max:
        _settle(draft, row, call, entry, result)
    elif deadline.over(call, draft.now_s + delay_s):
        _settle(draft, row, call, entry, deadline.cut_off(call, result))
    else:
        draft.put(row.due(draft.now_s + delay_s))
        draft.set_call(call.call_id, entry=entry, attempt=call.attempt + 1, waiting=CallWaiting.RETRY_DUE)
        draft.event(
            "call.retry",
            call_id=call.call_id,
            turn=draft.state.turn,
            attempt=call.attempt,
            reason=result.reason,
            delay_s=round(delay_s, 3),
        )
        wake(draft, entry.key)


def _late(state: RunState, event: EffectEnded, now_s: float) -> Step:
    """An outcome nobody waits for any more. Where it says something new, it is kept as an event of the run."""
    call = state.call(str(event.command_id))
    known = call.entry if call is not None else event.found
    if known is None or event.came is EffectState.NOT_SENT:
        return miss(state, "call closed or tried by somebody else")
    if known.attempt == event.attempt and known.state in (event.came, EffectState.RECONCILING):
        return miss(state, "stored already")
    draft = Draft(state, now_s)
    draft.event(
        "call.late_result",
        call_id=str(event.command_id),
        outcome=event.result.outcome.value,
        effect=event.came.value,
        attempt=event.attempt,
        known=known.state.value,
    )
    return draft.step()
