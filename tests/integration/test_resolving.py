"""Before an effect nobody could tell of is said not to have happened, its tool is asked once more; and what an operator
is shown of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toolfleet import (
    CallOutcome,
    DidNotHappen,
    Fleet,
    Happened,
    NoAnswer,
    ScriptedModel,
    call,
    tool,
)
from toolfleet.cli import app as cli
from toolfleet.schemas.errors import NotAllowed, UnknownEffect
from toolfleet.schemas.views import EffectView

WAIT_S = 60.0
KNOWN: dict[str, str] = {}  # what the other side says of an order
ASKED: list[tuple[str, str]] = []


def look_up(order: str, key: str) -> Happened | DidNotHappen | NoAnswer:
    ASKED.append((order, key))
    match KNOWN.get(order):
        case "paid":
            return Happened({"refund": f"R-{order}"})
        case "nothing":
            return DidNotHappen()
        case "away":
            raise ConnectionError("nobody there")
        case _:
            return NoAnswer()


@tool(
    tier="medium",
    effect=True,
    runner="loop",
    timeout_s=0.2,
    business_key="refund:{order}",
    reconcile=look_up,
)
async def refund(order: str) -> str:
    """Pay back."""
    raise RuntimeError("the line went dead")


@tool(tier="medium", effect=True, runner="loop", timeout_s=0.2)
async def post(order: str) -> str:
    """Send a letter; nobody can be asked."""
    raise RuntimeError("the line went dead")


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    name, order = messages[-1]["content"].split()
    return call(name, order=order)


def the_fleet(database: str) -> Fleet:
    fleet = Fleet(database, model=ScriptedModel(_script))
    fleet.agent("desk", model="scripted", tools=[refund, post])
    return fleet


fleet = the_fleet("sqlite:///toolfleet.db")  # for -A, with --database


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    KNOWN.clear()
    ASKED.clear()
    for name in ("SEND_BY_S", "QUIET_S"):
        monkeypatch.setattr(f"toolfleet.workers.machine.effect.{name}", 0.0)
    monkeypatch.setattr("toolfleet.workers.machine.effect.QUIET_MARGIN_S", 0.01)
    monkeypatch.setattr("toolfleet.approving.QUIET_S", 0.0)
    monkeypatch.setattr("toolfleet.workers.executor.effects.SEND_BY_S", 60.0)
    made = the_fleet(f"sqlite:///{tmp_path / 'fleet.db'}")
    with made:
        yield made


def _lost(desk: Fleet, what: str) -> EffectView:
    """An effect that ended `needs_human`: it was lost, and where it was asked for, it had not happened yet."""
    KNOWN[what.split()[1]] = "nothing"
    run = desk.submit("desk", what, context={"principal": "ann"})
    (result,) = run.wait(timeout_s=WAIT_S).results
    assert result.outcome is CallOutcome.NEEDS_HUMAN
    ASKED.clear()
    return desk._run(desk.approving().effect(result.call_id))


def _resolve(desk: Fleet, view: EffectView, *, happened: bool = False, confirmed: bool = False) -> EffectView:
    token = desk.add_approver("op")
    return desk.resolve(view.call_id, happened=happened, token=token, note="rang them", confirmed=confirmed)


def _last_audit(desk: Fleet, view: EffectView) -> tuple[bool, str, dict[str, Any]]:
    audit = desk._run(desk.approving().effect_file(view.call_id)).audits[-1]
    return audit.accepted, audit.reason, audit.data


def test_what_happened_after_all_is_not_made_again_by_hand(desk: Fleet) -> None:
    view = _lost(desk, "refund o1")
    KNOWN["o1"] = "paid"

    for confirmed in (False, True):
        with pytest.raises(NotAllowed, match=r"it happened \(as of 20.*R-o1") as caught:
            _resolve(desk, view, confirmed=confirmed)
        assert caught.value.reason == "it_happened"

    assert len(ASKED) == 2 and ASKED[0][0] == "o1" and view.call_id.removeprefix("call_") in ASKED[0][1]
    assert _last_audit(desk, view)[:2] == (False, "it_happened")
    assert desk.effects(state="needs_human")[0].call_id == view.call_id, "its key is held"
    assert _resolve(desk, view, happened=True).entry.state.value == "happened"


def test_what_the_other_side_has_not_heard_of_may_be_made_again(desk: Fleet) -> None:
    view = _lost(desk, "refund o2")

    assert _resolve(desk, view).entry.state.value == "did_not_happen"

    accepted, _, data = _last_audit(desk, view)
    assert accepted and data["asked_again"].startswith("reconcile: did not happen, as of 20")
    with pytest.raises(NotAllowed) as caught:
        _resolve(desk, view)
    assert caught.value.reason == "not_waiting" and len(ASKED) == 1


@pytest.mark.parametrize(
    ("what", "known", "why"),
    [
        ("post o3", None, "has no reconcile"),
        ("refund o4", "away", r"could not be asked \(ConnectionError\)"),
        ("refund o5", "silent", "cannot tell now"),
    ],
)
def test_where_nobody_can_be_asked_it_takes_a_confirmation(
    desk: Fleet, what: str, known: str | None, why: str
) -> None:
    view = _lost(desk, what)
    KNOWN[what.split()[1]] = known or ""

    with pytest.raises(NotAllowed, match=f"{why}.*as of 20") as caught:
        _resolve(desk, view)
    assert caught.value.reason == "not_confirmed"
    assert _resolve(desk, view, confirmed=True).entry.state.value == "did_not_happen"
    accepted, _, data = _last_audit(desk, view)
    assert accepted and data["asked_again"].startswith("confirmed; nobody could be asked")


def test_a_request_that_may_be_on_its_way_is_waited_for(desk: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    view = _lost(desk, "refund o6")
    monkeypatch.setattr("toolfleet.approving.QUIET_S", 3600.0)

    for confirmed in (False, True):
        with pytest.raises(NotAllowed, match="still be on its way") as caught:
            _resolve(desk, view, confirmed=confirmed)
        assert caught.value.reason == "too_early"
    assert ASKED == []
    assert _resolve(desk, view, happened=True).entry.state.value == "happened", "that frees no key"


def test_whoever_may_not_answer_asks_nobody(desk: Fleet) -> None:
    view = _lost(desk, "refund o7")
    other = desk.add_approver("mallory", tools=["post"])

    for token, reason in (("tfa_nobody", "unknown_token"), (other, "not_allowed")):
        with pytest.raises(NotAllowed) as caught:
            desk.resolve(view.call_id, happened=False, token=token, note="", confirmed=True)
        assert caught.value.reason == reason
        assert _last_audit(desk, view)[:2] == (False, reason)
    assert ASKED == []
    with pytest.raises(UnknownEffect):
        desk.resolve("call_nothing", happened=False, token=other, note="")


def test_an_operator_is_shown_all_of_it_and_the_command_line_asks_again(desk: Fleet, tmp_path: Path) -> None:
    view = _lost(desk, "refund o8")
    token = desk.add_approver("op")

    def toolfleet(*words: str) -> Any:
        options = ["--database", f"sqlite:///{tmp_path / 'fleet.db'}"]
        environment = {"TOOLFLEET_APPROVER_TOKEN": token}
        return CliRunner().invoke(cli, ["effects", *words, *options], env=environment)

    shown = json.loads(toolfleet("show", view.call_id, "--json").stdout)
    assert shown["arguments"] == {"order": "o8"} and shown["principal"] == "ann"
    assert shown["key"] == "default/refund:o8"
    assert view.call_id.removeprefix("call_") in shown["idempotency_key"]
    assert shown["outcome"] == "needs_human" and "Do not try it again" in shown["told"]
    assert {one["type"] for one in shown["events"]} >= {"effect.dispatched", "effect.reconciling"}
    assert shown["as_of"] and shown["sent_by"] and shown["at_work_until"] and len(shown["now"]) == 2

    said = ("resolve", view.call_id, "did_not_happen", "--note", "rang them")
    unasked = toolfleet(*said)
    assert isinstance(unasked.exception, NotAllowed) and "name the fleet with -A" in str(unasked.exception)
    KNOWN["o8"] = "paid"
    refused = toolfleet(*said, "--yes", "-A", f"{__name__}:fleet")
    assert isinstance(refused.exception, NotAllowed) and "R-o8" in str(refused.exception)
    KNOWN["o8"] = "nothing"
    done = toolfleet(*said, "-A", f"{__name__}:fleet", "--json")
    assert json.loads(done.stdout)["state"] == "did_not_happen"
    later = json.loads(toolfleet("show", view.call_id, "--json").stdout)
    assert [one["reason"] for one in later["decisions"]] == [
        "outcome_unknown",
        "not_confirmed",
        "it_happened",
        "did_not_happen",
    ]
    assert later["now"] == [] and later["resolved_by"] == "op"
