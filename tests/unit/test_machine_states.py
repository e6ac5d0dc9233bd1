"""Every event in every state: the invariants hold, and what follows is what the tables say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.machine_explorer import explore
from toolfleet.schemas.outcomes import CallWaiting, RunStatus, TurnPhase
from toolfleet.workers.machine.call_table import BEGUN, CALL_TABLE, CLOSED, MISS, Next
from toolfleet.workers.machine.table import EVENTS, PHASE_TABLE, STATUSES, TABLE


@pytest.mark.parametrize(("of", "table"), [("run", TABLE), ("turn", PHASE_TABLE), ("call", CALL_TABLE)])
def test_what_follows_every_event_in_every_state_is_what_the_table_says(
    of: str, table: Mapping[str, Mapping[str, Next]]
) -> None:
    found, states = explore()

    assert states >= 1_000
    observed = {
        where: {
            name: found[of, where, name] for name in EVENTS if found.get((of, where, name), {MISS}) != {MISS}
        }
        for where in table
    }
    assert observed == {
        where: {name: frozenset(followers) for name, followers in row.items()} for where, row in table.items()
    }


def test_every_status_phase_and_event_is_met_and_described() -> None:
    found, _ = explore()

    assert set(TABLE) == set(STATUSES) == set(RunStatus) and set(PHASE_TABLE) == set(TurnPhase)
    assert {name for _, _, name in found} == set(EVENTS)
    never_reached = {RunStatus.NEEDS_INPUT}  # the agent cannot ask back yet
    assert {where for of, where, _ in found if of == "run"} == set(RunStatus) - never_reached
    assert {where for of, where, _ in found if of == "turn"} == set(TurnPhase)
    assert {where for of, where, _ in found if of == "call"} == {*CallWaiting, BEGUN, CLOSED}
