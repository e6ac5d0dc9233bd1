"""A worker is killed with -9 at every named point, in a fleet of real processes with work in its hands.

The steady worker of the victim's role is frozen meanwhile, so that the victim meets the work; then it goes on with
what the victim left. What came of the runs is compared item by item with a run nobody disturbed.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

import pytest

from tests.fault.conftest import OpenStack
from tests.fault.matrix import POINT_CELLS, SELECTED, note_cell
from tests.fault.stack import Process, Stack, wait_until
from toolfleet.schemas.ids import RunId

RUNS = 40
OPEN_AT_LEAST = 20
INPUTS = [f"work {n}" for n in range(RUNS)]
ROLE_OF = {"decide": "decide", "exec": "exec", "collect": "collect", "keeper": "keep"}


@dataclass(slots=True)
class Ground:
    """A stack with a steady worker of each role, and the stories of runs nobody disturbed."""

    stack: Stack
    steady: dict[str, Process]
    stories: list[tuple[str, ...]]


@pytest.fixture(scope="module")
def grounds(open_stack: OpenStack) -> dict[str, Ground]:
    return {}


def _ground(kind: str, grounds: dict[str, Ground], open_stack: OpenStack) -> Ground:
    if kind not in grounds:
        stack = open_stack(kind)
        steady = stack.start_all()
        runs = stack.submit(INPUTS)
        stack.wait_all()
        stories = [stack.story(run) for run in runs]
        assert all(story[0].startswith("completed") for story in stories), stories[0]
        grounds[kind] = Ground(stack, steady, stories)
    return grounds[kind]


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        pytest.param(kind, point, marks=() if (kind, point) in SELECTED else pytest.mark.slow)
        for kind, point in POINT_CELLS
    ],
)
@pytest.mark.timeout(400)
def test_a_worker_killed_at_a_point_costs_no_run_and_no_effect(
    kind: str, point: str, grounds: dict[str, Ground], open_stack: OpenStack
) -> None:
    ground = _ground(kind, grounds, open_stack)
    stack = ground.stack
    if kind == "embedded":
        runs = _killed_embedded(ground, point)
    else:
        runs = _killed(ground, ROLE_OF[point.partition(".")[0]], point)

    stack.wait_all()
    assert [stack.story(run) for run in runs] == ground.stories
    asked = stack.effects()
    keys = [key for key in asked if any(run.removeprefix("run_") in key for run in runs)]
    assert len(keys) == RUNS
    assert sum(asked[key] - 1 for key in keys) <= RUNS  # an idempotent one may be asked again, with its key
    merges = stack.query("SELECT run_id, turn FROM items WHERE kind = 'merge'")
    assert len(merges) == len(set(merges))
    stack.assert_nothing_is_left()
    note_cell(point, kind)


def _killed(ground: Ground, role: str, point: str) -> list[str]:
    """Freeze the steady worker of the role, let a victim meet the work, see it die, and let the steady one go on."""
    stack, steady = ground.stack, ground.steady[role]
    steady.signal(signal.SIGSTOP)
    try:
        if point == "keeper.after_reset":
            _lose_marker(stack)
        unpublished = role == "keep"
        runs = stack.submit_unpublished(INPUTS) if unpublished else []
        victim = stack.start(role, extra={"TOOLFLEET_FAULT_POINT": point}, wait=False)
        runs = runs or stack.submit(INPUTS)
        assert victim.ended() == -signal.SIGKILL, victim.tail()
        assert stack.open_runs() >= OPEN_AT_LEAST
        stack.end(victim)
    finally:
        steady.signal(signal.SIGCONT)
    return runs


def _killed_embedded(ground: Ground, point: str) -> list[str]:
    """The one process is the victim; the next start goes on with all of it."""
    stack = ground.stack
    stack.end(*ground.steady.values())
    runs = stack.submit(INPUTS)
    victim = stack.start("all", extra={"TOOLFLEET_FAULT_POINT": point}, wait=False)
    assert victim.ended() == -signal.SIGKILL, victim.tail()
    assert stack.open_runs() >= OPEN_AT_LEAST
    stack.end(victim)
    ground.steady = stack.start_all()
    return runs


def _lose_marker(stack: Stack) -> None:
    """As a broker that is new: no marker of ours."""
    fleet = stack.fleet()
    fleet.client()
    layer = fleet._layer
    assert layer is not None
    fleet._run(layer.set_marker("somebody else's"))
    wait_until(lambda: fleet._run(layer.marker()) == "somebody else's", "the marker is foreign")


def test_ids_of_effects_hold_the_run(grounds: dict[str, Ground]) -> None:
    """What the count of effects above relies on."""
    from toolfleet.schemas.ids import call_id_of, idempotency_key_of

    run = RunId("run_" + "a" * 32)
    assert "a" * 32 in idempotency_key_of(call_id_of(run, 1, 0))
