"""Whose beats count for a child of `up`."""

from __future__ import annotations

from toolfleet.schemas.views import WorkerBeat, WorkerView
from toolfleet.supervisor import FIRST_S, SILENT_S, Child, hanging, silence_of

PID = 4


class Process:
    pid = PID


def _child(began_at: float) -> Child:
    child = Child("exec 1", ["true"], {}, began_at=began_at)
    child.process = Process()  # type: ignore[assignment]
    return child


def _view(started_at: float, silent_s: float, pid: int = PID) -> WorkerView:
    beat = WorkerBeat(f"host:{pid}:{started_at}", "host", pid, ("exec.low",), "1", started_at, {})
    return WorkerView(beat, started_at, silent_s)


def test_an_earlier_process_of_the_same_number_does_not_count() -> None:
    """In a container every start gives its processes the same numbers, and rows of dead ones stay for a day."""
    assert silence_of(_child(1000.0), [_view(900.0, silent_s=61.0)]) is None
    assert silence_of(_child(1000.0), [_view(900.0, silent_s=61.0), _view(1002.0, silent_s=1.0)]) == 1.0


def test_a_child_that_fell_silent_is_seen() -> None:
    assert silence_of(_child(1000.0), [_view(1002.0, silent_s=99.0), _view(1002.0, 1.0, pid=5)]) == 99.0


def test_a_child_that_never_began_to_work_hangs_too() -> None:
    child = _child(1000.0)
    child.started_at = 50.0

    assert not hanging(child, None, now_s=50.0 + FIRST_S)
    assert "not begun" in hanging(child, None, now_s=51.0 + FIRST_S)
    assert not hanging(child, SILENT_S, now_s=1e6)
    assert "nothing for" in hanging(child, SILENT_S + 1, now_s=1e6)
