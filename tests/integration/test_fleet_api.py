"""The Python face: submit, wait, cancel, events, chains, keys, and every way to hand in something wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.integration import slow_import_tools
from toolfleet import Fleet, Limits, RunRequest, RunStatus, ScriptedModel, call, calls, say, tool
from toolfleet.schemas.errors import (
    FleetBusy,
    IdempotencyConflict,
    InputError,
    InvalidDefinition,
    RunNotFinished,
    TooLarge,
    UnknownAgent,
    UnknownRun,
    UnsafeSettings,
)

WAIT_S = 60.0


@tool
async def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@tool(tier="irreversible", effect=True)
async def wipe() -> str:
    """Delete everything."""
    return "gone"


def _parrot(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    said = [m["content"] for m in messages if m["role"] == "user"]
    if said[-1] == "add" and messages[-1]["role"] == "user":
        return calls(call("add", a=1, b=2), call("add", a=3, b=4))
    return say(" | ".join(said))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(_parrot))
    made.agent("parrot", model="scripted", tools=[add])
    with made:
        yield made


def test_a_run_is_submitted_waited_for_and_watched(fleet: Fleet) -> None:
    run = fleet.submit("parrot", "add")
    result = run.wait(timeout_s=WAIT_S)

    assert result.ok and (result.model_calls, result.tool_calls, result.turns) == (2, 2, 2)
    events = list(run.events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[0].type == "run.accepted" and events[-1].type == "run.finished"
    assert [event.type for event in events].count("turn.merged") == 1


def test_a_conversation_is_a_chain_of_runs(fleet: Fleet) -> None:
    first = fleet.submit("parrot", "one")
    first.wait(timeout_s=WAIT_S)
    second = fleet.submit("parrot", "two", previous_run_id=first.id)
    second.wait(timeout_s=WAIT_S)
    third = fleet.submit("parrot", "three", previous_run_id=second.id)

    assert third.wait(timeout_s=WAIT_S).output == "one | two | three"


def test_one_key_makes_one_run(fleet: Fleet) -> None:
    first = fleet.submit("parrot", "hi", idempotency_key="k")
    again = fleet.submit("parrot", "hi", idempotency_key="k")

    assert first.id == again.id
    with pytest.raises(IdempotencyConflict, match="another request"):
        fleet.submit("parrot", "something else", idempotency_key="k")


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (RunRequest("nobody", "hi"), UnknownAgent, "Agents: parrot"),
        (RunRequest("parrot", " "), InputError, "not empty"),
        (RunRequest("parrot", "x" * 1_000_001), TooLarge, "1000001"),
        (RunRequest("parrot", "nul \x00"), InputError, "NUL"),
        (RunRequest("parrot", "hi", previous_run_id="run_nobody"), UnknownRun, "run_nobody"),
        (RunRequest("parrot", "hi", deadline_s=-1), InputError, "passed"),
        (RunRequest("parrot", "hi", context={"x": object()}), InputError, "JSON"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_bad_requests_are_refused_and_nothing_is_stored(
    fleet: Fleet, request_: RunRequest, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        fleet.submit_many([RunRequest("parrot", "good"), request_])

    client = fleet.client()
    assert fleet._run(client.store.runs(limit=10)) == []


def test_requests_of_other_types_are_named_and_nothing_is_stored(fleet: Fleet) -> None:
    for wrong in ("abc", None, [{"agent": "parrot", "input": "hi"}], [RunRequest([], "hi")]):  # type: ignore[arg-type]
        with pytest.raises(InputError):
            fleet.submit_many(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="'agent'"):
        fleet.submit([], "hi")  # type: ignore[arg-type]

    assert fleet._run(fleet.client().store.runs(limit=10)) == []


def test_an_unknown_run_is_named_wherever_it_is_asked_for(fleet: Fleet) -> None:
    for ask in (fleet.wait, fleet.cancel, lambda run: list(fleet.events(run))):
        with pytest.raises(UnknownRun, match="run_nobody"):
            ask("run_nobody")


def test_a_second_fleet_on_one_database_is_refused(fleet: Fleet) -> None:
    second = Fleet(fleet.settings.database, model=ScriptedModel(_parrot))

    with pytest.raises(FleetBusy, match="running already"):
        second.start()
    second.stop()


def test_a_cancel_stops_a_run_that_waits_for_a_slow_model(tmp_path: Path) -> None:
    asked, release = threading.Event(), threading.Event()

    async def slow(_messages: Any, _tools: Any) -> Any:
        asked.set()
        await asyncio.to_thread(release.wait, 30)
        return say("too late")

    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(slow))
    fleet.agent("slow", model="scripted")
    with fleet:
        run = fleet.submit("slow", "hi")
        assert asked.wait(30)
        with pytest.raises(RunNotFinished, match="deciding"):
            fleet.submit("slow", "next", previous_run_id=run.id)
        with pytest.raises(TimeoutError):
            run.wait(timeout_s=0.05)

        ack = run.cancel(by="tester")
        release.set()

        assert ack.status is RunStatus.CANCELLED and ack.running == ()
        assert run.wait(timeout_s=WAIT_S).output == "This request was cancelled."
        assert run.cancel().status is RunStatus.CANCELLED


def test_a_limit_is_told_with_the_partial_results(tmp_path: Path) -> None:
    def again(messages: list[dict[str, Any]], _tools: Any) -> Any:
        return call("add", a=len(messages), b=0)

    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(again))
    fleet.agent("loop", model="scripted", tools=[add], limits=Limits(turns_max=3))
    with fleet:
        result = fleet.submit("loop", "go").wait(timeout_s=WAIT_S)

    assert (result.status, result.reason) == (RunStatus.LIMIT_REACHED, "turns_max")
    assert len(result.results) == 3 and "limit of 3 model turns" in (result.output or "")


def test_a_run_may_tighten_its_limits_and_not_loosen_them(fleet: Fleet) -> None:
    tight = fleet.submit("parrot", "add", limits=Limits(turns_max=1)).wait(timeout_s=WAIT_S)
    loose = fleet.submit("parrot", "hi", limits=Limits(turns_max=500))

    assert tight.status is RunStatus.LIMIT_REACHED
    assert fleet._run(fleet.client().get(loose.id)).state.limits.turns_max == 8


def test_tools_above_medium_wait_for_somebody_unless_approvals_are_off(tmp_path: Path) -> None:
    """tests/integration/test_approvals.py has what comes of the question."""
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel([call("wipe"), say("done")]))
    fleet.agent("desk", model="scripted", tools=[wipe])
    with fleet:
        run = fleet.submit("desk", "go")
        wanted = "approval.requested"
        assert next(one for one in fleet.events(run) if one.type == wanted).data["tool"] == "wipe"
        fleet.cancel(run)
    fleet.configure(approvals="off")
    with fleet:
        assert fleet.submit("desk", "go").wait(timeout_s=WAIT_S).ok


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda f: f.agent("a", model="m", tools=["nothing"]), "'nothing' is no tool"),
        (lambda f: f.agent("parrot", model="m"), "two agents"),
        (lambda f: f.agent("a b", model="m"), "name"),
        (lambda f: f.tool(lambda x: x), "no type"),
        (lambda f: f.tool(tier="huge")(add.function), "tier"),
        (lambda f: f.tool(colour="blue")(add.function), "unknown option 'colour'"),
        (lambda f: f.tool(tier="low", effect=True)(add.function), "cannot be of tier low"),
        (
            lambda f: f.agent("big", model="m", tools=[tool(name=f"t{n}")(add.function) for n in range(129)]),
            "128",
        ),
    ],
)
def test_bad_definitions_say_what_is_wrong(
    tmp_path: Path, declare: Callable[[Fleet], object], says: str
) -> None:
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(_parrot))
    fleet.agent("parrot", model="scripted")

    with pytest.raises(InvalidDefinition, match=says):
        declare(fleet)


def test_what_a_step_leaves_behind_adds_up(fleet: Fleet) -> None:
    run = fleet.submit("parrot", "add")
    result = run.wait(timeout_s=WAIT_S)
    store = fleet.client().store
    steps = fleet._run(store.steps(run.id))  # type: ignore[arg-type]
    usage = fleet._run(store.usage(run.id))  # type: ignore[arg-type]

    assert [step.kind for step in steps] == ["decide", "call", "call", "merge", "decide"]
    assert sum(step.fields["input_tokens"] for step in steps if step.kind == "decide") == result.input_tokens
    assert [row["status"] for row in usage] == ["replied", "replied"]
    assert sum(row["output_tokens"] for row in usage) == result.output_tokens


@tool
async def interrupts() -> None:
    """Raise what usually ends a process."""
    raise KeyboardInterrupt


@tool
async def cancels() -> None:
    """Raise what usually stops a task."""
    raise asyncio.CancelledError


@tool
async def leaves() -> None:
    """Raise what closes a generator."""
    raise GeneratorExit


@tool
async def cancels_itself() -> None:
    """Cancel the task it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(30)


OVER = threading.Event()


@tool(timeout_s=0.2, attempts_max=1)
async def swallows() -> None:
    """Do not end when told to, until the test is over."""
    while not OVER.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "declared",
    [interrupts, cancels, leaves, cancels_itself, swallows],
    ids=lambda declared: str(declared.spec.name),
)
def test_whatever_a_coroutine_does_is_an_outcome(tmp_path: Path, declared: Any) -> None:
    OVER.clear()
    script = ScriptedModel([call(declared.spec.name), say("told")])
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=script)
    fleet.agent("desk", model="scripted", tools=[declared])
    with fleet:
        result = fleet.submit("desk", "go").wait(timeout_s=20)
        OVER.set()

    assert result.ok and result.results[0].outcome == "failed"


def test_an_effect_begins_only_in_a_child_that_is_ready(tmp_path: Path) -> None:
    script = ScriptedModel([call("pay"), say("told")])
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=script)
    fleet.agent("desk", model="scripted", tools=[slow_import_tools.pay])
    with fleet:
        run = fleet.submit("desk", "go", context={"ledger": str(tmp_path / "ledger")})
        next(event for event in run.events() if event.type == "turn.calls")

        ack = run.cancel()
        result = run.wait(timeout_s=20)

    assert ack.running == () and result.status is RunStatus.CANCELLED
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("name", ["sqlite:///{}/hard.db", "sqlite:///file:{}/fleet.db?uri=true"])
def test_other_names_of_a_database_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "fleet.db").touch()
    os.link(tmp_path / "fleet.db", tmp_path / "hard.db")
    fleet = Fleet(name.format(tmp_path), model=ScriptedModel(_parrot))

    with pytest.raises(UnsafeSettings, match=r"hard links|SQLite URI"):
        fleet.start()
    fleet.stop()


def test_a_link_to_the_database_is_the_same_fleet(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "alias.db").symlink_to(tmp_path / "fleet.db")
    second = Fleet(f"sqlite:///{tmp_path / 'alias.db'}", model=ScriptedModel(_parrot))

    with pytest.raises(FleetBusy):
        second.start()
    second.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": None},
        {"metadata": [1]},
        {"context": None},
        {"tenant": None},
        {"lane": [1]},
        {"deadline_s": 10**400},
        {"deadline_s": 1e300},
        {"metadata": {"user": 7}},
        {"metadata": {"x": "y" * 20_000}},
        {"deadline_s": "5"},
        {"deadline_s": float("nan")},
        {"previous_run_id": 5},
        {"lane": "bogus"},
        {"limits": {"turns_max": 1}},
        {"idempotency_key": "\ud800"},
        {"idempotency_key": ""},
        {"tenant": 5},
        {"context": {"a": float("nan")}},
        {"context": {"a": "x" * 1_100_000}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_bad_options_of_a_submit_are_named(fleet: Fleet, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        fleet.submit("parrot", "hi", **options)


@tool
async def book(day: date) -> str:
    """Book a day."""
    return day.isoformat()


def test_arguments_that_fit_the_schema_and_not_the_function_go_back_to_the_model(tmp_path: Path) -> None:
    script = ScriptedModel([call("book", day="the day after tomorrow"), say("told")])
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=script)
    fleet.agent("desk", model="scripted", tools=[book])
    with fleet:
        result = fleet.submit("desk", "go").wait(timeout_s=WAIT_S)

    assert result.ok and result.results[0].outcome == "invalid_arguments"
