"""Approvals through the whole fleet: who may say yes to what, what the model is told, and what is written down."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolfleet import CallOutcome, Fleet, RunStatus, ScriptedModel, Tool, ToolContext, call, tool
from toolfleet.fleet import Run
from toolfleet.schemas.errors import InputError, NotAllowed, UnknownApproval
from toolfleet.schemas.views import ApprovalView

WAIT_S = 60.0
PAID: list[tuple[str, int]] = []


@tool(
    tier="high",
    effect=True,
    runner="loop",
    approval_expires_s=3600,
    raise_tier=lambda amount, **_: "irreversible" if amount > 1000 else "high",
)
async def pay(to: str, amount: int, context: ToolContext) -> str:
    """Pay somebody."""
    PAID.append((to, amount))
    return f"paid {amount} to {to}"


@tool(tier="irreversible", effect=True, runner="loop", two_person=True)
async def wipe(disk: str, context: ToolContext) -> str:
    """Wipe a disk."""
    PAID.append((disk, 0))
    return "wiped"


@tool(tier="high", effect=True, runner="loop", double_confirm=True)
async def launch(what: str, context: ToolContext) -> str:
    """Launch something."""
    PAID.append((what, 1))
    return "launched"


@tool(tier="high", effect=True, runner="loop", approval_expires_s=0.2)
async def hurry(what: str, context: ToolContext) -> str:
    """Do it soon."""
    PAID.append((what, 2))
    return "done"


TOOLS: list[Tool[..., Any]] = [pay, wipe, launch, hurry]


class Desk:
    """A fleet whose agent makes the call a test names, and the people around it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.ann = fleet.add_approver("ann")
        self.bob = fleet.add_approver("bob")

    def ask(
        self, name: str, *, by: str = "carl", tenant: str = "default", **arguments: Any
    ) -> tuple[Run, ApprovalView]:
        said = json.dumps([name, arguments])
        run = self.fleet.submit("desk", said, tenant=tenant, context={"principal": by})
        return run, self.question(run)

    def question(self, run: Run) -> ApprovalView:
        ends = time.monotonic() + WAIT_S
        while time.monotonic() < ends:
            found = self.fleet.approvals(run_id=run.id)
            if found:
                return found[0]
        raise AssertionError("nobody was asked")

    def audits(self, view: ApprovalView) -> list[tuple[str, str, bool, str]]:
        found = self.fleet._run(self.fleet.client().store.audits(limit=100, call_id=view.call_id))
        return [(one.action, one.by, one.accepted, one.reason) for one in reversed(found)]


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    asked = next(one["content"] for one in messages if one["role"] == "user")
    results = [one for one in messages if one["role"] == "tool"]
    if results:
        return results[-1]["content"]
    name, arguments = json.loads(asked)
    return call(name, **arguments)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    PAID.clear()
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(_script))
    fleet.agent("desk", model="scripted", tools=TOOLS)
    with fleet:
        yield Desk(fleet)


def _ended(run: Run) -> tuple[RunStatus, CallOutcome, dict[str, Any]]:
    result = run.wait(timeout_s=WAIT_S)
    return result.status, result.results[0].outcome, json.loads(result.results[0].content)


def test_nothing_happens_before_the_yes_and_once_after_it(desk: Desk) -> None:
    run, view = desk.ask("pay", to="eve", amount=5)
    assert PAID == [] and json.loads(view.arguments) == {"to": "eve", "amount": 5}

    done = desk.fleet.approve(view.approval.id, token=desk.ann, reason="fine")

    assert done.approval.granted_by == ("ann",)
    assert _ended(run)[:2] == (RunStatus.COMPLETED, CallOutcome.OK)
    assert PAID == [("eve", 5)]
    assert desk.audits(view) == [("ask", "carl", True, "asked"), ("approve", "ann", True, "granted")]


def test_a_rejection_reaches_the_model_with_its_reason(desk: Desk) -> None:
    run, view = desk.ask("pay", to="eve", amount=5)

    desk.fleet.reject(view.approval.id, token=desk.ann, reason="not to eve")

    status, outcome, told = _ended(run)
    assert (status, outcome, PAID) == (RunStatus.COMPLETED, CallOutcome.REJECTED, [])
    assert "not to eve" in told["message"]


def test_an_edit_is_checked_and_the_model_is_told_what_really_ran(desk: Desk) -> None:
    run, view = desk.ask("pay", to="eve", amount=5)
    with pytest.raises(InputError, match="do not fit"):
        desk.fleet.edit(view.approval.id, token=desk.ann, arguments={"to": "eve", "amount": "five"})
    with pytest.raises(InputError):
        desk.fleet.edit(view.approval.id, token=desk.ann, arguments={"to": "eve", "amount": 5, "extra": 1})

    desk.fleet.edit(view.approval.id, token=desk.ann, arguments={"to": "eve", "amount": 3})

    status, outcome, told = _ended(run)
    assert (status, outcome, PAID) == (RunStatus.COMPLETED, CallOutcome.OK, [("eve", 3)])
    assert '"amount":3' in json.dumps(told, separators=(",", ":")).replace("\\", "")


def test_an_edit_that_raises_the_tier_is_asked_for_again(desk: Desk) -> None:
    run, view = desk.ask("pay", by="ann", to="eve", amount=5)

    desk.fleet.edit(view.approval.id, token=desk.ann, arguments={"to": "eve", "amount": 5000})

    again = _another(desk, run, view)
    assert PAID == [] and again.approval.tier.value == "irreversible"
    with pytest.raises(NotAllowed, match="may not approve"):
        desk.fleet.approve(again.approval.id, token=desk.ann)
    desk.fleet.approve(again.approval.id, token=desk.bob)
    assert _ended(run)[1] is CallOutcome.OK and PAID == [("eve", 5000)]


def _another(desk: Desk, run: Run, first: ApprovalView) -> ApprovalView:
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        found = [one for one in desk.fleet.approvals(run_id=run.id) if one.approval.id != first.approval.id]
        if found:
            return found[0]
    raise AssertionError("nobody was asked again")


def test_two_clicks_are_one_decision(desk: Desk) -> None:
    run, view = desk.ask("pay", to="eve", amount=5)
    desk.fleet.approve(view.approval.id, token=desk.ann)

    with pytest.raises(NotAllowed) as caught:
        desk.fleet.approve(view.approval.id, token=desk.bob)

    assert caught.value.reason in ("already_granted", "call_closed")
    _ended(run)
    assert PAID == [("eve", 5)]


def test_two_people_are_two_names_and_neither_is_the_requester(desk: Desk) -> None:
    second_token_of_ann = desk.fleet.add_approver("ann")
    run, view = desk.ask("wipe", by="bob", disk="d1")

    with pytest.raises(NotAllowed, match="acts for"):
        desk.fleet.approve(view.approval.id, token=desk.bob)
    desk.fleet.approve(view.approval.id, token=desk.ann)
    with pytest.raises(NotAllowed, match="another person"):
        desk.fleet.approve(view.approval.id, token=second_token_of_ann)
    assert PAID == []
    desk.fleet.approve(view.approval.id, token=desk.fleet.add_approver("dora"))

    assert _ended(run)[1] is CallOutcome.OK and PAID == [("d1", 0)]
    assert [one[3] for one in desk.audits(view)] == [
        "asked",
        "requester",
        "pending",
        "same_person",
        "granted",
    ]


def test_a_double_confirmation_is_of_one_person(desk: Desk) -> None:
    run, view = desk.ask("launch", what="r1")
    desk.fleet.approve(view.approval.id, token=desk.ann)
    with pytest.raises(NotAllowed, match="confirm again"):
        desk.fleet.approve(view.approval.id, token=desk.bob)
    assert PAID == []
    desk.fleet.approve(view.approval.id, token=desk.ann)

    assert _ended(run)[1] is CallOutcome.OK and PAID == [("r1", 1)]


def test_after_its_time_nobody_can_say_yes_and_nobody_is_said_to_have_said_no(desk: Desk) -> None:
    run, view = desk.ask("hurry", what="x")

    assert _ended(run)[:2] == (RunStatus.COMPLETED, CallOutcome.APPROVAL_EXPIRED)
    with pytest.raises(NotAllowed):
        desk.fleet.approve(view.approval.id, token=desk.ann)
    assert PAID == []


def test_a_cancel_withdraws_the_question(desk: Desk) -> None:
    run, view = desk.ask("pay", to="eve", amount=5)
    desk.fleet.cancel(run)

    with pytest.raises(NotAllowed):
        desk.fleet.approve(view.approval.id, token=desk.ann)
    assert run.wait(timeout_s=WAIT_S).status is RunStatus.CANCELLED and PAID == []
    assert desk.fleet.approvals(run_id=run.id) == []


def test_a_yes_to_other_arguments_does_not_count(desk: Desk) -> None:
    run, view = desk.ask("pay", to="eve", amount=5)

    with pytest.raises(NotAllowed, match="not those you have seen"):
        desk.fleet.approve(view.approval.id, token=desk.ann, arguments_hash="0" * 64)

    assert PAID == [] and desk.audits(view)[-1] == ("approve", "ann", False, "arguments_changed")
    desk.fleet.cancel(run)


@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        ({"tenants": ["other"]}, "not_this_tenant"),
        ({"tools": ["wipe"]}, "not_this_tool"),
        ({"tiers": ["low"]}, "not_this_tier"),
    ],
)
def test_who_is_not_entitled_is_refused_and_written_down(
    desk: Desk, scope: dict[str, Any], reason: str
) -> None:
    token = desk.fleet.add_approver("mallory", **scope)
    run, view = desk.ask("pay", to="eve", amount=5)

    for decide in (
        lambda: desk.fleet.approve(view.approval.id, token=token),
        lambda: desk.fleet.reject(view.approval.id, token=token, reason="no"),
        lambda: desk.fleet.edit(view.approval.id, token=token, arguments={"to": "eve", "amount": 1}),
    ):
        with pytest.raises(NotAllowed) as caught:
            decide()
        assert caught.value.reason == reason
    assert [one[3] for one in desk.audits(view)] == ["asked", reason, reason, reason]
    assert PAID == [] and desk.question(run).approval.granted_by == ()
    desk.fleet.cancel(run)


def test_a_wrong_or_revoked_token_and_an_unknown_question_are_named(desk: Desk) -> None:
    run, view = desk.ask("pay", to="eve", amount=5)
    approving = desk.fleet.approving()
    ann = next(one for one in desk.fleet._run(approving.approvers()) if one.name == "ann")
    desk.fleet._run(approving.revoke_approver(ann.id))

    for token in ("tfa_nobody", "", desk.ann):
        with pytest.raises(NotAllowed, match="no approver"):
            desk.fleet.approve(view.approval.id, token=token)
    with pytest.raises(UnknownApproval, match="apr_nothing"):
        desk.fleet.approve("apr_nothing", token=desk.bob)
    with pytest.raises(InputError, match="could be revoked"):
        desk.fleet._run(approving.revoke_approver("apv_nobody"))
    with pytest.raises(InputError, match="status"):
        desk.fleet.approvals(status="open")
    assert PAID == []
    desk.fleet.cancel(run)


def test_a_standing_approval_covers_what_it_names_and_nothing_else(desk: Desk) -> None:
    desk.fleet.add_standing("pay", arguments={"to": "eve"}, tenant="default", valid_s=3600, token=desk.ann)

    said = json.dumps(["pay", {"to": "eve", "amount": 5}])
    covered = desk.fleet.submit("desk", said).wait(timeout_s=WAIT_S)
    assert covered.results[0].outcome is CallOutcome.OK and PAID == [("eve", 5)]

    for arguments in ({"to": "mallory", "amount": 5}, {"to": "eve", "amount": 5000}):
        run, view = desk.ask("pay", **arguments)
        assert view.approval.standing is None
        desk.fleet.cancel(run)
    run, _ = desk.ask("pay", tenant="other", to="eve", amount=5)
    desk.fleet.cancel(run)
    assert PAID == [("eve", 5)]


def test_a_run_that_waits_outlives_its_fleet(tmp_path: Path) -> None:
    PAID.clear()

    def opened() -> Fleet:
        fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(_script))
        fleet.agent("desk", model="scripted", tools=TOOLS)
        return fleet

    with opened() as fleet:
        run, view = Desk(fleet).ask("pay", to="eve", amount=5)
    with opened() as fleet:
        fleet.approve(view.approval.id, token=fleet.add_approver("ann"))
        assert fleet.wait(run.id, timeout_s=WAIT_S).results[0].outcome is CallOutcome.OK
    assert PAID == [("eve", 5)]
