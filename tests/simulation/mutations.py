"""Guards taken out one at a time: proof that the oracle bites. Each must be found by aimed set-ups or by seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from toolfleet.queues.routing import message_for
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.events import CallsSettled, LeaseExpired, ModelReplied
from toolfleet.schemas.outcomes import TurnPhase
from toolfleet.schemas.ports import Outgoing, SentMark, Transition
from toolfleet.schemas.records import Step, StoreResult
from toolfleet.schemas.run import RunState
from toolfleet.schemas.views import DueRow
from toolfleet.workers.consumer import Consumer
from toolfleet.workers.decision.handle import Decider
from toolfleet.workers.executor import handle as executor
from toolfleet.workers.leases import commit
from toolfleet.workers.machine import MACHINE, call, closing, lease, stop, turn
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
    leased = call.leased

    def again(state: RunState, event: Any, now_s: float) -> Step:
        forgotten = tuple(replace(one, dispatched=False) for one in state.calls)
        return leased(replace(state, calls=forgotten), event, now_s)

    patch.setattr(call, "leased", again)


def effects_without_a_mark(patch: Patch) -> None:
    """Taking the lease of an effect does not say that it may have begun."""
    leased = call.leased

    def unmarked(state: RunState, event: Any, now_s: float) -> Step:
        step = leased(state, event, now_s)
        calls = tuple(replace(one, dispatched=False) for one in step.state.calls)
        return replace(step, state=replace(step.state, calls=calls))

    patch.setattr(call, "leased", unmarked)


def leases_over_leases(patch: Patch) -> None:
    """R8 without the question whether somebody has it."""

    def refusal(row: CommandRow | None, now_s: float) -> str | None:
        if row is None:
            return "row gone"
        return "not yet due" if row.due_at > now_s else None

    patch.setattr(turn, "refusal_of", refusal)
    patch.setattr(call, "refusal_of", refusal)


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
        return cancel(
            replace(state, calls=tuple(replace(c, dispatched=False) for c in state.calls)), event, now_s
        )

    patch.setattr(stop, "cancel", all_of_them)


def rows_dropped_with_the_outcome(patch: Patch) -> None:
    """An executor deletes the row of a call it has finished, instead of moving it to `results`."""

    def store(draft: Draft, row: CommandRow, one: Any, result: Any) -> None:
        draft.result(one, result)
        draft.drop(lambda old: old.id == row.id)

    patch.setattr(call, "_store", store)


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
            replace(state, calls=tuple(replace(c, dispatched=False) for c in state.calls)), event, now_s
        )

    patch.setattr(lease, "handed_back", given)


# Each with a word of the set-ups that are tried first: a hint that saves time, the others and the seeds follow.
MUTATIONS: dict[str, tuple[Callable[[Patch], None], str]] = {
    mutation.__name__: (mutation, word)
    for mutation, word in (
        (reply_without_its_token, "late model reply"),
        (last_outcome_wins, "cancel after"),
        (effects_begun_again, "death of an effect"),
        (effects_without_a_mark, "death of an effect"),
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
    )
}
