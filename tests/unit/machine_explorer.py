"""Walks over the states of the machine, breadth first, feeding every event to every state it finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from tests.unit.machine_builders import (
    LEASE_S,
    ask,
    awaiting,
    came_to,
    claim,
    decide,
    effect,
    ended,
    events_for,
    gated,
    lease_decision,
    proposed,
    question,
    submitted,
    timed,
    with_calls,
)
from tests.unit.machine_invariants import check_invariants
from toolfleet.schemas.effects import EffectState
from toolfleet.schemas.events import (
    CallDeferred,
    CallLeased,
    CallsSettled,
    CancelRequested,
    DeadlineReached,
    Event,
)
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, Tier
from toolfleet.schemas.records import Step, StoreResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import reduce
from toolfleet.workers.machine.call_table import BEGUN, CLOSED, MISS

STATES_MAX = 1_100
DEPTH = 9
WHOLE_TURN = (CallsSettled, CancelRequested, DeadlineReached)  # these concern every call
Found = dict[tuple[str, str, str], frozenset[str]]  # (what of, where it was, event) -> where it went


@cache
def explore() -> tuple[Found, int]:
    """What followed each event: of runs by status, of turns by phase, of calls by what they wait for; and the number of
    states that were met. Checks every step."""
    followed: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    seen: set[RunState] = set()
    frontier = list(_beginnings())
    for depth in range(DEPTH):
        reached: list[RunState] = []
        for state in frontier:
            for now in (3.0 + depth, 103.0 + depth):  # leases hold; leases and deadline are over
                for event in events_for(state, now):
                    step = reduce(state, event, now)
                    check_invariants(state, event, step, now)
                    _note(followed, state, event, step)
                    shape = _shape(step.state)
                    if step.missed is None and shape not in seen and len(seen) < STATES_MAX:
                        seen.add(shape)
                        reached.append(step.state)
        frontier = reached
    return {key: frozenset(followers) for key, followers in followed.items()}, len(seen)


def _note(followed: dict[tuple[str, str, str], set[str]], before: RunState, event: Event, step: Step) -> None:
    name, missed = type(event).__name__, step.missed is not None
    followed["run", before.status, name].add(MISS if missed else step.state.status)
    followed["turn", before.phase, name].add(MISS if missed else step.state.phase)
    closed = {record.result.call_id for record in step.records if isinstance(record, StoreResult)}
    meant = {getattr(event, "command_id", ""), getattr(event, "call_id", "")}
    for call in before.calls:
        if call.call_id in meant or isinstance(event, WHOLE_TURN):
            now = step.state.call(call.call_id) if step.state.turn == before.turn else None
            gone = now is None or call.call_id in closed
            followed["call", stage(call), name].add(
                MISS if missed else CLOSED if gone or now is None else stage(now)
            )


def stage(call: CallState) -> str:
    """Where a call stands: what it waits for, or that its effect has begun, or that it is closed."""
    if not call.open:
        return CLOSED
    return BEGUN if call.dispatched else call.waiting


def _beginnings() -> Iterator[RunState]:
    yield submitted(Limits(turns_max=3, calls_max=4), deadline_s=40.0)
    waiting, _ = with_calls([proposed(0), effect(1)])
    waiting = replace(waiting, deadline_at=40.0)
    yield from _idempotent()
    for why in CallWaiting:
        yield awaiting(waiting, why)
    yield from _poisoned(submitted(), lambda state: lease_decision(state))
    for made in (proposed(0), effect(0)):
        lone, _ = with_calls([made])
        first = lone.calls[0]
        taken: Event = CallLeased(lone.commands[0].id, LeaseToken("c"), "me", LEASE_S)
        leases = [claim(first) if first.effect else taken]
        yield from _poisoned(lone, lambda _state, leases=leases: leases[0])
        both, _ = with_calls([made], Limits(turns_max=1))
        yield from _poisoned(both, lambda _state, leases=leases: leases[0])
    dispatched = reduce(lone, leases[0], 3.0).state
    yield _twice_dead(reduce(dispatched, CancelRequested(), 3.0).state)
    yield awaiting(reduce(dispatched, CancelRequested(), 3.0).state, CallWaiting.AWAITING_CALLBACK)
    yield awaiting(dispatched, CallWaiting.AWAITING_CALLBACK)
    asked, _ = with_calls([proposed(0)], Limits(turns_max=1))
    yield awaiting(asked, CallWaiting.AWAITING_CLIENT)
    yield from _denied_beside_a_poisoned_one()
    yield from _two_effects_under_a_cancel()
    for made in (proposed(0), effect(0), effect(0, idempotent=True), gated(0)):
        yield with_calls([timed(made)])[0]
    yield _granted_and_deferred()
    yield from _asked()
    yield from _reconciled()


def _asked() -> Iterator[RunState]:
    """Calls somebody has to approve, before and after the question, and with all but the last confirmation."""
    for made in (gated(0), gated(0, Tier.IRREVERSIBLE), gated(0, two_person=True)):
        state, _ = with_calls([made], Limits(turns_max=2))
        state = replace(state, deadline_at=40.0)
        yield state
        asked = reduce(state, question(state.calls[0], by="ann"), 3.0).state
        yield asked
        yield reduce(asked, decide(asked.calls[0], by="bob"), 3.5).state
        yield reduce(asked, decide(asked.calls[0], "reject", by="bob"), 3.5).state
        yield reduce(asked, CancelRequested(), 3.5).state


def _reconciled() -> Iterator[RunState]:
    """Effects nobody knows of, of every kind of tool, at the first question and at the last one."""
    for terms in ({}, {"reconciles": True}, {"reconciles": True, "reconcile_is_final": True}):
        for attempts_max in (1, 3):
            made = replace(effect(0, **terms), attempts_max=attempts_max)
            state, _ = with_calls([made], Limits(turns_max=2))
            state = reduce(state, claim(state.calls[0]), 3.0).state
            unknown = reduce(state, ended(state.calls[0], EffectState.RECONCILING), 3.0).state
            yield unknown
            yield reduce(unknown, CancelRequested(), 3.0).state
            for tries, send_by in ((0, -200.0), (3, 8.0)):
                yield _with_entry(unknown, tries=tries, send_by=send_by, asked_at=3.0)
                started = reduce(unknown, ask(unknown.calls[0]), 3.0).state
                yield _with_entry(started, tries=tries, send_by=send_by, asked_at=3.0)
    human = reduce(unknown, CallsSettled(()), 3.0).state
    yield human


def _with_entry(state: RunState, **fields: float) -> RunState:
    (call,) = state.calls
    assert call.entry is not None
    changed = replace(call, entry=replace(call.entry, **fields))  # type: ignore[arg-type]
    return replace(state, calls=(changed,))


def _idempotent() -> Iterator[RunState]:
    state, _ = with_calls([effect(0, idempotent=True)])
    state = replace(state, deadline_at=40.0)
    yield state
    state = reduce(state, claim(state.calls[0]), 3.0).state
    yield state
    yield replace(state, calls=tuple(replace(call, attempts_max=1) for call in state.calls))


def _denied_beside_a_poisoned_one() -> Iterator[RunState]:
    state, _ = with_calls([proposed(0), proposed(1)])
    denied = came_to(state.calls[0], CallOutcome.DENIED)
    state = _twice_dead(reduce(state, CallsSettled((denied,)), 3.0).state)
    yield state
    yield reduce(state, CallLeased(state.commands[0].id, LeaseToken("c"), "me", LEASE_S), 3.0).state


def _two_effects_under_a_cancel() -> Iterator[RunState]:
    state, _ = with_calls([effect(0), effect(1)])
    for call in state.calls:
        state = reduce(state, claim(call, f"c{call.index}"), 3.0).state
    state = reduce(state, CancelRequested(), 3.0).state
    yield state
    yield awaiting(state, CallWaiting.AWAITING_CALLBACK)


def _poisoned(state: RunState, lease: Callable[[RunState], Event]) -> Iterator[RunState]:
    """Leased, and dead twice already: one more death gives the step up."""
    yield _twice_dead(reduce(state, lease(state), 3.0).state)


def _granted_and_deferred() -> RunState:
    state, _ = with_calls([gated(0)])
    state = reduce(state, question(state.calls[0]), 2.0).state
    state = reduce(state, decide(state.calls[0]), 2.0).state
    return reduce(state, CallDeferred(state.commands[0].id, None, 1, 0.0, "rate"), 2.0).state


def _twice_dead(state: RunState) -> RunState:
    return replace(state, commands=tuple(replace(row, deaths=2) for row in state.commands))


def _shape(state: RunState) -> RunState:
    """The state without what only counts up, so that states that behave alike are walked once."""
    return replace(state, item_count=0, event_count=0, turn_started_at=0.0, window=())
