"""What must hold after every step of the machine, read from the state before, the event, and the step that followed.

The invariants of PROTOCOL.md, part two, that one run shows by itself, under their numbers there: 1, 2, 4 to 8, 10.
Pure, and strict on purpose: it says which event may do what, not only what a state may look like.
"""

from __future__ import annotations

from dataclasses import replace

from toolfleet.schemas.commands import RESULTS_QUEUE, CommandRow
from toolfleet.schemas.effects import ApprovalStatus, EffectState, arguments_hash
from toolfleet.schemas.events import (
    ApprovalRequested,
    CallAnswered,
    CallDeferred,
    CallFinished,
    CallLeased,
    CallRefused,
    CallRetry,
    CallsSettled,
    DecisionDeferred,
    DecisionLeased,
    EffectClaimed,
    EffectEnded,
    EffectResolved,
    Event,
    HandedBack,
    LeaseExpired,
    ModelFailed,
    ModelReplied,
    ReconcileAnswered,
    ReconcileStarted,
    RunUnworkable,
    Submitted,
)
from toolfleet.schemas.limits import DEATHS_MAX
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, RunStatus, TurnPhase
from toolfleet.schemas.records import (
    AppendAudit,
    AppendDead,
    AppendEvent,
    AppendItem,
    AppendMerge,
    CloseUsage,
    OpenUsage,
    ReuseResult,
    Step,
    StoreResult,
)
from toolfleet.schemas.run import CallState, RunState

FENCED = (
    ModelReplied,
    ModelFailed,
    RunUnworkable,
    DecisionDeferred,
    LeaseExpired,
    HandedBack,
    CallRetry,
    ReconcileAnswered,
)
_UNDECIDED = (RunStatus.QUEUED, RunStatus.DECIDING)
_CENT = 1e-9


def check_invariants(before: RunState | None, event: Event, step: Step, now_s: float) -> None:
    """Raise AssertionError, with the number of the invariant, for a step that breaks one."""
    after = step.state
    _shape(after)
    _numbers(before, step)
    _limits(after)
    if before is None:
        assert isinstance(event, Submitted) and after.status is RunStatus.QUEUED
        return
    if step.missed is not None:
        assert after == before, "a miss changes nothing"
        booked = all(isinstance(record, CloseUsage | AppendAudit) for record in step.records)
        assert booked, "a miss only books usage, and writes down who was refused"
        return
    _results(before, event, step)
    _merges(before, step)
    _dispatches(before, event, after)
    _attempts(before, event, step)
    _fences(before, event, step)
    _leases(before, event, step, now_s)
    _call_deadlines(before, event, step, now_s)
    if before.terminal:
        assert (after.status, after.output, after.reason) == (before.status, before.output, before.reason)
        assert isinstance(event, EffectResolved) or after.calls == before.calls, (
            "a terminal run stays as it is"
        )


def _shape(state: RunState) -> None:
    """1: which rows exist follows from run, turn and calls."""
    rows = state.commands
    assert len({row.id for row in rows}) == len(rows), "1: two rows of one id"
    if state.terminal:
        assert not rows, "1: a terminal run has a row"
        assert not state.open_calls, "1: a terminal run has an open call"
        assert state.phase in (TurnPhase.MERGED, TurnPhase.ENDED)
        return
    assert all(row.turn == state.turn for row in rows), "1: a row of another turn"
    undecided = state.status in _UNDECIDED
    assert state.phase is (TurnPhase.DECIDING if undecided else TurnPhase.CALLS), "1: status and phase differ"
    if undecided:
        assert [row.is_decide for row in rows] == [True], "1: not exactly one decision is outstanding"
        assert not state.calls
        assert (rows[0].token is not None) == (state.status is RunStatus.DECIDING), (
            "1: status and lease differ"
        )
        return
    assert rows, "1, P1: nothing is outstanding"
    by_call = {row.call_id: row for row in rows}
    for call in state.calls:
        row = by_call.pop(call.call_id, None)
        if call.open:
            assert row is not None and row.queue == f"exec.{call.tier.value}", (
                "1: an open call without its row"
            )
        else:
            assert row is None or row.queue == RESULTS_QUEUE, "1: a closed call has a row outside results"
            assert not call.dispatched, "4: a closed call counts as begun"
    assert not by_call, "1: a row of no call"
    for row in rows:
        assert (row.token is None) == (row.lease_until is None) == (row.owner is None)


def _numbers(before: RunState | None, step: Step) -> None:
    """Items and events are numbered without gaps."""
    items = [one.seq for one in step.records if isinstance(one, AppendItem | AppendMerge)]
    first = 0 if before is None else before.item_count
    assert items == list(range(first, first + len(items))), "2: a gap in the items"
    assert step.state.item_count == first + len(items)
    events = [one.seq for one in step.records if isinstance(one, AppendEvent)]
    told = 0 if before is None else before.event_count
    assert events == list(range(told + 1, told + 1 + len(events))), "a gap in the events"
    assert step.state.event_count == told + len(events)


def _limits(state: RunState) -> None:
    """6: what can be counted is never over its limit."""
    used, limits = state.counters, state.limits
    assert used.tool_calls <= limits.calls_max, "6: too many calls"
    assert sum(call.open for call in state.calls) <= limits.calls_per_turn_max, "6: too many calls in a turn"
    assert state.turn <= limits.turns_max, "6: too many turns"
    assert used.corrections <= limits.corrections_max, "6: too many corrections"
    assert state.model_failures <= limits.model_attempts_max, "6: too many model attempts"
    assert all(call.attempt <= call.attempts_max for call in state.calls), "6: too many attempts"
    assert all(row.deaths < DEATHS_MAX for row in state.commands), "7: a step outlived its third death"
    assert used.cost_usd >= used.reserved_usd - _CENT >= -_CENT, "6: what is reserved does not count"


def _results(before: RunState, event: Event, step: Step) -> None:
    """2: the first outcome stays, each closing has one record. 4: the machine never guesses what an effect did."""
    stored = {r.result.call_id: r.result.outcome for r in step.records if isinstance(r, StoreResult)}
    reused = {r.call_id for r in step.records if isinstance(r, ReuseResult)}
    count = sum(isinstance(r, StoreResult | ReuseResult) for r in step.records)
    assert count == len(stored) + len(reused) == len(stored.keys() | reused), "2: two results of one call"
    for old in before.calls:
        new = step.state.call(old.call_id) if step.state.turn == before.turn else None
        if not old.open:
            assert old.call_id not in stored and old.call_id not in reused, "2: a second result"
            kept = isinstance(event, EffectResolved) and new is not None
            assert new is None or new == old or (kept and replace(new, entry=old.entry) == old), (
                "2: a closed call changed"
            )
        elif new is not None and new.open:
            assert old.call_id not in stored, "2: a result of a call that stays open"
        else:
            assert old.call_id in stored, "2: a call closed without a result"
            assert new is None or new.outcome is stored[old.call_id], "2: call and result differ"
            _truth(old, event, stored[old.call_id])


_TELLS = EffectClaimed | EffectEnded | ReconcileAnswered | CallAnswered


def _truth(old: CallState, event: Event, outcome: CallOutcome) -> None:
    """4: `ok` needs somebody who said so; of what has begun, only its sender or an answer says that nothing happened."""
    if not old.effect:
        return
    assert not isinstance(event, CallsSettled), "4: an effect took its outcome from a message"
    if isinstance(event, _TELLS):
        return
    assert outcome is not CallOutcome.OK, "4: nobody said that the effect happened"
    if old.dispatched:
        assert outcome is CallOutcome.NEEDS_HUMAN, f"4: an effect that had begun was closed as {outcome}"


def _merges(before: RunState, step: Step) -> None:
    """2, 3: one merge per turn, complete, in call order."""
    merged = [record for record in step.records if isinstance(record, AppendMerge)]
    assert len(merged) <= 1, "3: two merges in one step"
    for merge in merged:
        assert before.phase in (TurnPhase.DECIDING, TurnPhase.CALLS), "3: a turn was merged twice"
        assert merge.turn == before.turn
        assert [call.index for call in merge.calls] == list(range(len(merge.calls))), "3: not in call order"
        assert merge.calls and all(not call.open for call in merge.calls), "3: merged while a call was open"
        assert step.state.phase is TurnPhase.MERGED or step.state.turn == before.turn + 1
    if before.phase is TurnPhase.CALLS and step.state.phase is not TurnPhase.CALLS:
        assert merged, "3: a turn with calls was left without a merge"


def _dispatches(before: RunState, event: Event, after: RunState) -> None:
    """5, P7: an effect begins by its claim, approved, while its run goes on; a second time only under a key."""
    for new in after.calls if after.turn == before.turn else ():
        old = before.call(new.call_id)
        if old is None or old.entry == new.entry or new.entry is None:
            continue
        if new.entry.state is not EffectState.DISPATCHED:
            continue
        assert isinstance(event, EffectClaimed | ReconcileStarted) and event.command_id == new.call_id, (
            "5: begun without a claim"
        )
        assert new.effect and old.open, "5: what began was not an open effect"
        assert before.status is RunStatus.WAITING, "P7: an effect begins in a run that stops"
        assert before.ending != ReasonCode.DEADLINE, "P7: an effect begins after the deadline"
        assert new.idempotent or not old.dispatched, "5: an effect begins twice without a key"
        assert new.entry.attempt == new.attempt, "5: ledger and call count differently"
        if new.terms.asks:
            asked = new.approval
            assert asked is not None and asked.status is ApprovalStatus.GRANTED, "P5: nobody approved it"
            assert asked.arguments_hash == arguments_hash(new.arguments), "P5: other arguments were approved"
            assert len(set(asked.granted_by)) >= (2 if asked.distinct else 1), "P5: one person twice"
            assert not asked.by_another or asked.requested_by not in asked.granted_by, "P5: the requester"


def _call_deadlines(before: RunState, event: Event, step: Step, now_s: float) -> None:
    """10: the time of a call begins once, stands still only while others are waited for, and nothing begins after it."""
    for new in step.state.calls if step.state.turn == before.turn else ():
        old = before.call(new.call_id)
        if old is None or old.call_timeout_s is None:
            assert new.deadline_at is None, "10: a deadline nobody declared"
            continue
        end = _end_of(old)
        if old.deadline_at is None and new.deadline_at is not None:
            assert new.deadline_at <= now_s + old.call_timeout_s, "10: more time than is declared"
        elif old.deadline_at is not None and new.deadline_at != old.deadline_at:
            held = isinstance(event, EffectClaimed) and new.deadline_at is None and new.waits_key
            assert held or isinstance(event, ApprovalRequested), "10: the deadline of a call moved"
        if new.entry != old.entry and new.entry is not None and new.entry.state is EffectState.DISPATCHED:
            assert end is None or end > now_s, "10: an effect begins after the deadline of its call"
        row, was = step.state.command(new.call_id), before.command(new.call_id)
        if new.open and isinstance(event, CallRetry | CallDeferred | EffectEnded | ReconcileAnswered):
            moved = row is not None and was is not None and row.due_at != was.due_at
            late = _end_of(new)
            assert not moved or new.dispatched or late is None or row.due_at < late, "10: due when it is over"
    for record in step.records:
        if isinstance(record, StoreResult) and record.result.reason == ReasonCode.CALL_TIMEOUT:
            call = before.call(record.result.call_id)
            assert call is not None and call.call_timeout_s is not None, "10: out of a time it does not have"
            taken = getattr(event, "taken_at", None)
            end = _end_of(call) or (now_s if taken is None else taken) + call.call_timeout_s
            assert end <= now_s + getattr(event, "delay_s", 0.0), "10: ended before its time"
            assert record.result.outcome is CallOutcome.FAILED
            ends = isinstance(event, EffectEnded | ReconcileAnswered)
            assert ends or not call.dispatched, "4: a deadline ended an effect that is out"


def _end_of(call: CallState) -> float | None:
    """When its time is over, by the question asked last; None: never, or not while somebody is asked."""
    asked = call.approval
    if call.deadline_at is None or call.call_timeout_s is None:
        return None
    if asked is None or asked.requested_at < call.deadline_at - call.call_timeout_s:
        return call.deadline_at
    if asked.status is ApprovalStatus.PENDING:
        return None
    return call.deadline_at + (0.0 if asked.decided_at is None else asked.decided_at - asked.requested_at)


_AGAIN = CallRetry | EffectEnded | ReconcileStarted | ReconcileAnswered


def _attempts(before: RunState, event: Event, step: Step) -> None:
    """6: attempts go up by one, and every model attempt has its usage row."""
    after = step.state
    for new in after.calls if after.turn == before.turn else ():
        old = before.call(new.call_id)
        if old is not None and new.open:
            by = new.attempt - old.attempt
            assert by == 0 or (by == 1 and isinstance(event, _AGAIN)), "6: attempts jumped"
    opened = [record for record in step.records if isinstance(record, OpenUsage)]
    if after.turn == before.turn and after.model_attempt > before.model_attempt:
        assert isinstance(event, DecisionLeased) and len(opened) == 1, (
            "6: a model attempt without a usage row"
        )
        assert opened[0].token == event.token and opened[0].attempt == after.model_attempt
        cost = after.counters.cost_usd
        assert not opened[0].reserved_usd or cost <= after.limits.cost_usd_max + _CENT, (
            "6: too much is reserved"
        )
    else:
        assert not opened, "6: a usage row without a model attempt"


def _fences(before: RunState, event: Event, step: Step) -> None:
    """8: what an old token or an old attempt says is not accepted."""
    row = before.command(event.command_id) if hasattr(event, "command_id") else None
    if isinstance(event, FENCED):
        assert row is not None and row.token == event.token, "8: a commit under an old lease"
    if isinstance(event, CallRetry | CallFinished | CallRefused | CallDeferred):
        call = before.call(event.command_id)
        assert call is not None and call.open and call.attempt == event.attempt, "8: an old attempt"
        assert row is not None and row.token in (event.token, None), "8: under another lease"
        assert not call.dispatched, "8: its effect is out"
    if isinstance(event, EffectEnded):
        call = before.call(event.command_id)
        if step.state.calls != before.calls or step.state.turn != before.turn:
            assert call is not None and call.open and call.dispatched and call.entry is not None
            assert call.entry.attempt == event.attempt, "8: an old attempt"
        else:  # evidence, nothing else
            assert step.state.commands == before.commands
            assert {type(record) for record in step.records} == {AppendEvent}


_TAKES = DecisionLeased | CallLeased | EffectClaimed | ReconcileStarted


def _leases(before: RunState, event: Event, step: Step, now_s: float) -> None:
    """7: who counts as dead. 8: one holder at a time. 10: nothing is begun before it is due."""
    for row in step.state.commands:
        old = before.command(row.id)
        if old is None:
            assert row.token is None and row.deaths == 0, "9: a row was put with a lease"
            continue
        if row.token is not None and row.token != old.token:
            assert old.token is None, "8: one lease replaced another"
            assert old.due_at <= now_s, "10: begun before it was due"
            assert isinstance(event, _TAKES) and event.token == row.token
        if row.due_at != old.due_at:
            assert (row.sent_at, row.sends, row.token) == (None, 0, None), (
                "a row is due again and counts as sent"
            )
        _deaths(old, row, event)
    for letter in step.records:
        if isinstance(letter, AppendDead):
            assert letter.deaths == DEATHS_MAX and _died(event), "7: given up without three deaths"


def _deaths(old: CommandRow, row: CommandRow, event: Event) -> None:
    more = row.deaths - old.deaths
    assert more in (0, 1), "7: deaths jumped"
    assert more == 0 or (_died(event) and getattr(event, "command_id", None) == row.id), (
        "7: a death of nothing"
    )


def _died(event: Event) -> bool:
    return (isinstance(event, LeaseExpired) and event.death) or (
        isinstance(event, CallRetry | EffectEnded) and event.died
    )
