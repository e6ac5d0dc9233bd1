"""Walks over the states of the machine, breadth first, feeding every event to every state it finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from tests.unit.machine_builders import (
    LEASE_S,
    awaiting,
    check_invariants,
    effect,
    events_for,
    lease_decision,
    proposed,
    submitted,
    with_calls,
)
from toolfleet.schemas.events import CallLeased, CancelRequested, Event
from toolfleet.schemas.ids import LeaseToken
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.outcomes import CallWaiting, RunStatus
from toolfleet.schemas.run import RunState
from toolfleet.workers.machine import reduce

MISS = "miss"
STATES_MAX = 1_500
DEPTH = 9
Found = dict[tuple[RunStatus, str], frozenset[str]]


@cache
def explore() -> tuple[Found, int]:
    """What followed each event in each status, and the number of states that were met. Checks every step."""
    followed: dict[tuple[RunStatus, str], set[str]] = defaultdict(set)
    seen: set[RunState] = set()
    frontier = list(_beginnings())
    for depth in range(DEPTH):
        reached: list[RunState] = []
        for state in frontier:
            for now in (3.0 + depth, 103.0 + depth):  # leases hold; leases and deadline are over
                for event in events_for(state, now):
                    step = reduce(state, event, now)
                    check_invariants(state, step, now)
                    key = (state.status, type(event).__name__)
                    followed[key].add(MISS if step.missed is not None else step.state.status.value)
                    shape = _shape(step.state)
                    if step.missed is None and shape not in seen and len(seen) < STATES_MAX:
                        seen.add(shape)
                        reached.append(step.state)
        frontier = reached
    return {key: frozenset(statuses) for key, statuses in followed.items()}, len(seen)


def _beginnings() -> Iterator[RunState]:
    yield submitted(Limits(turns_max=3, calls_max=4), deadline_s=40.0)
    waiting, _ = with_calls([proposed(0), effect(1)])
    for why in CallWaiting:
        yield awaiting(waiting, why)
    yield from _poisoned(submitted(), lambda state: lease_decision(state))
    for made in (proposed(0), effect(0)):
        lone, _ = with_calls([made])
        leases = [CallLeased(lone.commands[0].id, LeaseToken("c"), "me", LEASE_S)]
        yield from _poisoned(lone, lambda _state, leases=leases: leases[0])
        both, _ = with_calls([made], Limits(turns_max=1))
        yield from _poisoned(both, lambda _state, leases=leases: leases[0])
    dispatched = reduce(lone, leases[0], 3.0).state
    yield _twice_dead(reduce(dispatched, CancelRequested(), 3.0).state)


def _poisoned(state: RunState, lease: Callable[[RunState], Event]) -> Iterator[RunState]:
    """Leased, and dead twice already: one more death gives the step up."""
    yield _twice_dead(reduce(state, lease(state), 3.0).state)


def _twice_dead(state: RunState) -> RunState:
    return replace(state, commands=tuple(replace(row, deaths=2) for row in state.commands))


def _shape(state: RunState) -> RunState:
    """The state without what only counts up, so that states that behave alike are walked once."""
    return replace(state, item_count=0, event_count=0, turn_started_at=0.0, window=())
