"""Every event in every state: the invariants hold, and what follows is what the table says."""

from __future__ import annotations

from tests.unit.machine_explorer import MISS, explore
from toolfleet.schemas.outcomes import RunStatus
from toolfleet.workers.machine.table import EVENTS, STATUSES, TABLE


def test_what_follows_every_event_in_every_state_is_what_the_table_says() -> None:
    found, states = explore()

    assert states >= 1_000
    observed = {
        status: {name: found[status, name] for name in EVENTS if found.get((status, name), {MISS}) != {MISS}}
        for status in RunStatus
    }
    assert observed == {
        status: {name: frozenset(str(next_) for next_ in row) for name, row in rows.items()}
        for status, rows in TABLE.items()
    }


def test_every_status_and_every_event_is_met_and_described() -> None:
    found, _ = explore()

    assert set(TABLE) == set(STATUSES) == set(RunStatus)
    assert {name for _, name in found} == set(EVENTS)
    never_reached = {RunStatus.NEEDS_INPUT}  # the agent cannot ask back yet
    assert {status for status, _ in found} == set(RunStatus) - never_reached
