"""Whether a worker gets on is judged by what it settles, looks at and takes."""

from __future__ import annotations

import dataclasses

import pytest

from toolfleet.schemas.views import QueueLoad
from toolfleet.workers.progress import LOOK_S, STEP_MARGIN_S, WAITING_S, Progress, stuck

LONGEST_S = 120.0
LONG_S = LONGEST_S + STEP_MARGIN_S + 1.0
CALM = Progress(
    queues=("exec.low",),
    slots=4,
    in_flight=4,
    taken=9,
    settled=5,
    looked_s=0.5,
    taken_s=0.5,
    settled_s=0.5,
    oldest_s=0.5,
)


def _stuck(**changes: float) -> str | None:
    return stuck(dataclasses.replace(CALM, **changes), [], longest_s=LONGEST_S)  # type: ignore[arg-type]


def test_a_step_that_waits_its_turn_while_others_are_settled_is_no_hang() -> None:
    assert _stuck(oldest_s=10 * LONG_S, settled_s=3.0) is None


def test_a_worker_that_settles_nothing_though_it_holds_something_hangs() -> None:
    assert "nothing has been settled" in (_stuck(oldest_s=LONG_S, settled_s=LONG_S) or "")
    assert _stuck(oldest_s=3.0, settled_s=10 * LONG_S) is None, "what it holds, it has only just taken"
    assert _stuck(in_flight=0, oldest_s=0.0, settled_s=10 * LONG_S) is None, "it is idle"


@pytest.mark.parametrize(("in_flight", "hangs"), [(1, True), (4, False)])
def test_who_has_room_looks_at_the_broker(in_flight: int, hangs: bool) -> None:
    assert bool(_stuck(in_flight=in_flight, looked_s=LOOK_S + 1)) is hangs


def test_work_that_waits_while_nothing_is_taken_is_seen() -> None:
    load = QueueLoad(queue="exec.low", rows=3, leased=0, oldest_s=LONG_S + WAITING_S)
    idle = dataclasses.replace(CALM, in_flight=0, taken_s=LONG_S + WAITING_S)

    assert "nothing was taken" in (stuck(idle, [load], longest_s=LONGEST_S) or "")
    assert stuck(dataclasses.replace(idle, taken_s=1.0), [load], longest_s=LONGEST_S) is None
