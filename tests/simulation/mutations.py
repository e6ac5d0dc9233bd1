"""Guards taken out one at a time: proof that the oracle bites. Each must be found by aimed set-ups or by seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from toolfleet.adapters.store.memory_ledger import MemoryLedger
from toolfleet.queues.routing import message_for
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.effects import ApprovalStatus, EffectState
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.events import CallsSettled, EffectClaimed, LeaseExpired, ModelReplied
from toolfleet.schemas.outcomes import CallOutcome, TurnPhase
from toolfleet.schemas.ports import Outgoing, SentMark, Transition
from toolfleet.schemas.records import Step, StoreResult
from toolfleet.schemas.run import RunState
from toolfleet.schemas.views import DueRow
from toolfleet.workers.consumer import Consumer
from toolfleet.workers.decision.handle import Decider
from toolfleet.workers.executor import handle as executor
from toolfleet.workers.executor.effects import Started
from toolfleet.workers.executor.handle import Executor
from toolfleet.workers.leases import commit
from toolfleet.workers.machine import (
    MACHINE,
    approval,
    call,
    closing,
    deadline,
    effect,
    lease,
    present,
    stop,
    turn,
)
from toolfleet.workers.machine.draft import Draft

Patch = pytest.MonkeyPatch


def reply_without_its_token(patch: Patch) -> None:
    """A model reply is accepted from whoever sends it."""

    def mine(state: RunState, command_id: str, token: str) -> CommandRow | None:
        row = state.command(command_id)
        return row if row is not None and row.is_decide else None

    patch.setattr(turn, "_mine", mine)


def last_outcome_wins(patch: Patch) -> None:
    """A second outcome of a read-only call replaces the first."""

    def settled(state: RunState, event: CallsSettled, now_s: float) -> Step:
        draft = Draft(state, now_s)
        for result in event.results:
            known = draft.state.call(result.call_id)
            if known is not None and not known.effect:
                draft.add(StoreResult(state.turn, result))
                draft.close_call(known, result)
        closing.count(draft)
        return draft.step()

    patch.setattr(call, "settled", settled)


def effects_begun_again(patch: Patch) -> None:
    """An effect whose worker was lost is begun again, as a read-only call is."""
    asked = effect.asked

    def again(state: RunState, event: Any, now_s: float) -> Step:
        row = state.command(event.command_id)
        forgotten = tuple(
            replace(one, idempotent=True, terms=replace(one.terms, reconciles=False)) for one in state.calls
        )
        return asked(state if row is None else replace(state, calls=forgotten), event, now_s)

    patch.setattr(effect, "asked", again)


def effects_without_an_entry(patch: Patch) -> None:
    """A claim takes the lease and writes nothing into the ledger."""
    claimed = effect.claimed

    def unmarked(state: RunState, event: Any, now_s: float) -> Step:
        step = claimed(state, event, now_s)
        calls = tuple(replace(one, entry=None) for one in step.state.calls)
        return replace(step, state=replace(step.state, calls=calls))

    patch.setattr(effect, "claimed", unmarked)


def keys_nobody_holds(patch: Patch) -> None:
    """The effect key: a claim does not ask who holds it, and no index does."""
    informed = MemoryLedger.informed

    def alone(self: MemoryLedger, event: Any, state: RunState, *more: Any) -> Any:
        return event if isinstance(event, EffectClaimed) else informed(self, event, state, *more)

    patch.setattr(MemoryLedger, "informed", alone)
    patch.setattr(MemoryLedger, "check_keys", lambda self, changed: None)


def claims_in_runs_that_stop(patch: Patch) -> None:
    """A claim does not ask whether its run goes on, and a cancel leaves alone what has not begun."""
    patch.setattr(effect, "stopping", lambda state: False)
    patch.setattr(executor, "_workable", lambda view: view is not None and view.call.open)
    result = Draft.result

    def kept(self: Draft, one: Any, said: Any) -> None:
        if said.outcome is not CallOutcome.CANCELLED:
            result(self, one, said)

    patch.setattr(Draft, "result", kept)


def sends_after_a_sleep(patch: Patch) -> None:
    """The sender does not look at its clocks before the first byte."""
    patch.setattr(Started, "late", lambda self, clock: False)


def any_attempt_ends_an_effect(patch: Patch) -> None:
    """T11 does not ask which attempt the sender means: the fence by attempt."""
    ended = effect.ended

    def whichever(state: RunState, event: Any, now_s: float) -> Step:
        call_ = state.call(event.command_id)
        if call_ is not None and call_.entry is not None:
            event = replace(event, attempt=call_.entry.attempt)
        return ended(state, event, now_s)

    patch.setattr(effect, "ended", whichever)


def no_quiet_time(patch: Patch) -> None:
    """ "Did not happen" is believed at once, while the request may still be on its way."""
    patch.setattr(effect, "QUIET_S", -1_000.0)


def every_answer_is_final(patch: Patch) -> None:
    """ "Did not happen" of a tool that cannot be sure leads to another attempt."""
    answered = effect.answered

    def final(state: RunState, event: Any, now_s: float) -> Step:
        sure = tuple(replace(one, terms=replace(one.terms, reconcile_is_final=True)) for one in state.calls)
        return answered(replace(state, calls=sure), event, now_s)

    patch.setattr(effect, "answered", final)


def unknown_counts_as_nothing(patch: Patch) -> None:
    """What nobody knows of an effect is tried again, as if nothing had happened."""
    ended = effect.ended

    def hopeful(state: RunState, event: Any, now_s: float) -> Step:
        if event.came is EffectState.RECONCILING:
            event = replace(event, came=EffectState.NOT_SENT, again=True)
        return ended(state, event, now_s)

    patch.setattr(effect, "ended", hopeful)


def doubt_forgotten(patch: Patch) -> None:
    """A refusal of a second attempt under a key is believed for the first one as well."""
    ended = effect.ended
    patch.setattr(
        effect, "ended", lambda state, event, now_s: ended(state, replace(event, no_effect=True), now_s)
    )


def nobody_is_asked(patch: Patch) -> None:
    """Neither the gate nor the claim asks whether a call was approved."""

    async def passes(_asked: Any) -> None:
        """Everything passes."""

    patch.setattr(
        Executor.__init__, "__kwdefaults__", {**Executor.__init__.__kwdefaults__, "gates": (passes,)}
    )
    patch.setattr(effect, "granted", lambda call, sent_hash, now_s: True)


def one_person_is_enough(patch: Patch) -> None:
    """The requester approves, and the same person confirms twice."""
    refusal = approval._refusal

    def lenient(state: RunState, call_: Any, event: Any, now_s: float) -> str | None:
        found = refusal(state, call_, event, now_s)
        return None if found in ("requester", "same_person") else found

    patch.setattr(approval, "_refusal", lenient)


def edits_keep_their_confirmations(patch: Patch) -> None:
    """Who confirmed the model's arguments counts for an approver's own as well; the hash check is gone."""
    decided = approval.decided

    def kept(state: RunState, event: Any, now_s: float) -> Step:
        call_ = state.call(event.call_id)
        if call_ is not None and call_.approval is not None:
            event = replace(event, arguments_hash=call_.approval.arguments_hash)
        step = decided(state, event, now_s)
        if event.answer != "edit" or step.missed is not None:
            return step
        calls = tuple(
            replace(one, approval=replace(one.approval, status=ApprovalStatus.GRANTED))
            if one.call_id == event.call_id and one.approval is not None
            else one
            for one in step.state.calls
        )
        rows = tuple(row.due(now_s) if row.call_id == event.call_id else row for row in step.state.commands)
        return replace(step, state=replace(step.state, calls=calls, commands=rows))

    patch.setattr(approval, "decided", kept)


def leases_over_leases(patch: Patch) -> None:
    """R8 without the question whether somebody has it."""

    def refusal(row: CommandRow | None, now_s: float) -> str | None:
        if row is None:
            return "row gone"
        return "not yet due" if row.due_at > now_s else None

    patch.setattr(turn, "refusal_of", refusal)
    patch.setattr(call, "refusal_of", refusal)
    patch.setattr(present, "refusal_of", refusal)


def leases_before_due(patch: Patch) -> None:
    """R8 without the question whether it is due."""

    def refusal(row: CommandRow | None, now_s: float) -> str | None:
        if row is None:
            return "row gone"
        return "leased" if row.token is not None else None

    workable = executor._workable

    def at_any_time(view: Any) -> bool:
        return workable(view if view is None else replace(view, now_s=max(view.now_s, view.row.due_at)))

    patch.setattr(turn, "refusal_of", refusal)
    patch.setattr(call, "refusal_of", refusal)
    patch.setattr(present, "refusal_of", refusal)
    patch.setattr(executor, "_workable", at_any_time)


def merges_without_a_phase(patch: Patch) -> None:
    """A turn with no open call is merged, whatever phase it is in."""

    def count(draft: Draft) -> None:
        closed = {one.call_id for one in draft.state.calls if not one.open}
        draft.drop(lambda row: row.call_id in closed)
        if not draft.state.open_calls:
            draft.change(phase=TurnPhase.CALLS)
            closing._merge(draft)

    patch.setattr(closing, "count", count)


def deaths_that_do_not_count(patch: Patch) -> None:
    """A lease that ran out leaves no trace."""
    expired = lease.expired
    patch.setattr(
        lease, "expired", lambda state, event, now_s: expired(state, replace(event, death=False), now_s)
    )


def leases_expired_while_renewed(patch: Patch) -> None:
    """The keeper expires what it read, without looking at it again."""
    expired = lease.expired

    def hasty(state: RunState, event: LeaseExpired, now_s: float) -> Step:
        row = state.command(event.command_id)
        found = (
            event if row is None or row.token is None else replace(event, token=row.token, owner_gone=True)
        )
        return expired(state, found, now_s)

    patch.setattr(lease, "expired", hasty)


def cancels_of_running_effects(patch: Patch) -> None:
    """A cancel closes every open call, also those whose effect may have begun."""
    cancel = stop.cancel

    def all_of_them(state: RunState, event: Any, now_s: float) -> Step:
        return cancel(replace(state, calls=tuple(replace(c, entry=None) for c in state.calls)), event, now_s)

    patch.setattr(stop, "cancel", all_of_them)


def rows_dropped_with_the_outcome(patch: Patch) -> None:
    """An executor deletes the row of a call it has finished, instead of moving it to `results`."""

    def store(draft: Draft, row: CommandRow, one: Any, result: Any) -> None:
        draft.result(one, result)
        draft.drop(lambda old: old.id == row.id)

    patch.setattr(call, "store", store)
    patch.setattr(effect, "store", store)


def publish_before_commit(patch: Patch) -> None:
    """A decider sends the messages of a reply before the reply is stored."""

    async def apply(self: Decider, run_id: Any, event: Any) -> Any:
        if isinstance(event, ModelReplied):
            view = await self._store._store.run(run_id)  # type: ignore[attr-defined]
            step = MACHINE.reduce(view.state, event, self._clock.now_s())
            bodies = [
                Outgoing(row.queue, self._publisher._codec.encode(row.queue, message_for(due, 0.0)))
                for row in step.state.commands
                for due in [DueRow(run_id, row, {})]
            ]
            await self._publisher._publish(bodies)
        (applied,) = await commit(self._store, self._clock, [Transition(run_id, event)])
        if isinstance(event, ModelReplied):
            await self._store.mark_sent(
                [SentMark(d.row.id, d.row.due_at, applied.now_s) for d in applied.publish]
            )
        else:
            await self._publisher.rows(applied.publish)
        return applied

    patch.setattr(Decider, "_apply", apply)


def settle_before_store(patch: Patch) -> None:
    """A message is settled when it arrives, and then worked on."""
    read = Consumer._read

    async def nothing(_one: Any) -> None:
        """Settled already."""

    async def handle(self: Consumer, deliveries: Sequence[Any], _left: Any = None) -> None:
        received, done = await read(self, deliveries)
        await self._settle([*done, *(one.delivery for one in received)])
        try:
            if received:
                await self._role.accept(received, nothing)
        except StoreUnavailable:
            return  # as the real one: what was not done is still outstanding

    patch.setattr(Consumer, "handle", handle)


def hand_back_of_effects(patch: Patch) -> None:
    """A worker that stops gives back an effect that may have begun, as if it had not."""
    handed_back = lease.handed_back

    def given(state: RunState, event: Any, now_s: float) -> Step:
        return handed_back(
            replace(state, calls=tuple(replace(c, entry=None) for c in state.calls)), event, now_s
        )

    patch.setattr(lease, "handed_back", given)


def calls_without_a_deadline(patch: Patch) -> None:
    """The time of a call over all its attempts is never over."""
    patch.setattr(deadline, "over", lambda one, at_s: False)


def deadlines_while_people_are_asked(patch: Patch) -> None:
    """What people take to answer counts as time of the call."""
    patch.setattr(deadline, "_waited_s", lambda one, begun, now_s: 0.0)


def deadlines_of_what_is_out(patch: Patch) -> None:
    """An effect that is out ends as failed when the time of its call is over, in place of being asked for."""
    asked = effect.asked

    def late(state: RunState, event: Any, now_s: float) -> Step:
        one, row = state.call(event.command_id), state.command(event.command_id)
        if one is None or row is None or not deadline.over(one, now_s):
            return asked(state, event, now_s)
        draft = Draft(state, now_s)
        assert one.entry is not None
        free = draft.called(one.call_id, entry=replace(one.entry, state=EffectState.NOT_SENT))
        call.store(draft, row, free, deadline.timed_out(one))
        return draft.step()

    patch.setattr(effect, "asked", late)


def deadlines_while_an_equal_effect_is_out(patch: Patch) -> None:
    """A call that waits for an equal one to come to something fails when its own time is over."""
    meet = effect._meet_holder

    def running(draft: Draft, row: CommandRow, one: Any, key: str, holder: Any) -> None:
        meet(draft, row, one, key, holder)
        if draft.state.call(one.call_id).waits_key:  # type: ignore[union-attr]
            draft.set_call(one.call_id, deadline_at=deadline.taken(one, draft.now_s))

    patch.setattr(effect, "_meet_holder", running)


# Each with a word of the set-ups that are tried first: a hint that saves time, the others and the seeds follow.
MUTATIONS: dict[str, tuple[Callable[[Patch], None], str]] = {
    mutation.__name__: (mutation, word)
    for mutation, word in (
        (reply_without_its_token, "late model reply"),
        (last_outcome_wins, "cancel after"),
        (effects_begun_again, "death of an effect"),
        (effects_without_an_entry, "death of an effect"),
        (keys_nobody_holds, "equal effects"),
        (claims_in_runs_that_stop, "cancel after"),
        (sends_after_a_sleep, "wakes up"),
        (any_attempt_ends_an_effect, "word of an old attempt"),
        (no_quiet_time, "late, where the answer is final"),
        (every_answer_is_final, "nobody is sure"),
        (unknown_counts_as_nothing, "lost answer"),
        (doubt_forgotten, "after a lost attempt"),
        (nobody_is_asked, "nobody answers"),
        (one_person_is_enough, "two people"),
        (edits_keep_their_confirmations, "two people, other"),
        (leases_over_leases, "doubled messages"),
        (leases_before_due, "doubled messages"),
        (merges_without_a_phase, "last results"),
        (deaths_that_do_not_count, "three deaths"),
        (leases_expired_while_renewed, "three deaths"),
        (cancels_of_running_effects, "cancel after"),
        (rows_dropped_with_the_outcome, "answer of CallFinished"),
        (publish_before_commit, "without faults"),
        (settle_before_store, "killed before"),
        (hand_back_of_effects, "SIGTERM"),
        (calls_without_a_deadline, "deadline over"),
        (deadlines_while_people_are_asked, "somebody is asked"),
        (deadlines_of_what_is_out, "only after the deadline"),
        (deadlines_while_an_equal_effect_is_out, "equal effect is out"),
    )
}
