"""A run that is started again keeps the scope of its effects: an equal effect is shared, never made a second time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolfleet import CallOutcome, Fleet, RunStatus, ScriptedModel, ToolContext, call, tool
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.fleet import Run
from toolfleet.schemas.errors import InputError, RunNotFinished

WAIT_S = 60.0
DONE: Counter[str] = Counter()


@tool(tier="medium", effect=True, runner="loop")
async def pay(to: str) -> str:
    """Pay somebody."""
    DONE[f"pay {to}"] += 1
    return f"paid {to}"


@tool(tier="medium", effect=True, runner="loop", timeout_s=0.2)
async def vague(to: str) -> str:
    """Pay, and say nothing anybody could read."""
    DONE[f"vague {to}"] += 1
    raise RuntimeError("the line went dead")


@tool(tier="medium", effect=True, runner="loop", repeatable=True)
async def ring(who: str, context: ToolContext) -> str:
    """Ring somebody; ringing twice is two rings."""
    DONE[f"ring {who}"] += 1
    return f"rang {who}"


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    name, arguments = json.loads(next(one["content"] for one in messages if one["role"] == "user"))
    return call(name, **arguments)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    DONE.clear()
    monkeypatch.setattr("toolfleet.workers.machine.effect.SEND_BY_S", 0.0)  # nobody waits for a lost sender
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(_script))
    fleet.agent("desk", model="scripted", tools=[pay, vague, ring])
    with fleet:
        yield fleet


def _first(fleet: Fleet, name: str, **arguments: Any) -> Run:
    run = fleet.submit("desk", json.dumps([name, arguments]), context={"principal": "ann"})
    assert run.wait(timeout_s=WAIT_S).status is RunStatus.COMPLETED
    return run


def _told(run: Run) -> tuple[CallOutcome, str | None, str]:
    (result,) = run.wait(timeout_s=WAIT_S).results
    return result.outcome, result.reason, result.content


def test_an_effect_that_happened_is_shared_by_the_run_started_again_and_by_the_one_after(
    fleet: Fleet,
) -> None:
    first = _first(fleet, "pay", to="eve")

    second = fleet.retry(first)
    outcome, reason, content = _told(second)
    third = _told(fleet.retry(second))

    assert (outcome, reason) == (CallOutcome.OK, "shared_effect") and "paid eve" in content
    assert third[:2] == (CallOutcome.OK, "shared_effect")
    assert DONE == {"pay eve": 1}
    assert fleet._run(fleet.client().get(second.id)).info.effect_scope == first.id


def test_an_effect_nobody_can_tell_of_is_not_tried_by_starting_the_run_again(fleet: Fleet) -> None:
    first = _first(fleet, "vague", to="eve")
    assert _told(first)[0] is CallOutcome.NEEDS_HUMAN

    assert _told(fleet.retry(first))[0] is CallOutcome.NEEDS_HUMAN
    assert DONE == {"vague eve": 1}

    token = fleet.add_approver("op")
    call_id = first.result().results[0].call_id
    resolved = fleet.approving().resolve(call_id, happened=True, token=token, note="their log", answer="paid")
    fleet._run(resolved)

    outcome, _, content = _told(fleet.retry(first))
    assert outcome is CallOutcome.OK and '"data":"paid"' in content
    assert DONE == {"vague eve": 1}


def test_what_may_be_repeated_is_repeated_only_when_that_is_said(fleet: Fleet) -> None:
    first = _first(fleet, "ring", who="bob")

    with pytest.raises(InputError, match=r"ring \(happened\)"):
        fleet.retry(first)
    assert DONE == {"ring bob": 1}
    assert _told(fleet.retry(first, repeat_effects=True))[0] is CallOutcome.OK
    assert DONE == {"ring bob": 2}

    paid = _first(fleet, "pay", to="eve")
    assert _told(fleet.retry(paid, repeat_effects=True))[1] is None
    assert DONE["pay eve"] == 2


def test_a_run_that_has_not_ended_is_not_started_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    upgrade(url)
    fleet = Fleet(url, model=ScriptedModel(_script))  # no workers, so it stays where it is
    fleet.agent("desk", model="scripted", tools=[pay])
    fleet._run(fleet.client().store.register_agents(list(fleet.registry.agents.values())))
    run = fleet.submit("desk", json.dumps(["pay", {"to": "eve"}]))

    with pytest.raises(RunNotFinished, match="only a run that has ended"):
        fleet.retry(run)
    fleet.stop()
