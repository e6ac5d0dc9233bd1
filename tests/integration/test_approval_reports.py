"""What users of other systems reported about approvals, and every decision that must not count: refused and audited."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolfleet import CallOutcome, Fleet, RunStatus, ScriptedModel, Tool, ToolContext, call, calls, tool
from toolfleet.app import open_store
from toolfleet.approving import Approving
from toolfleet.fleet import Run
from toolfleet.queues.envelope import Codec, KeyRing
from toolfleet.schemas.commands import EXEC_QUEUES, RESULTS_QUEUE
from toolfleet.schemas.conversation import AssistantItem
from toolfleet.schemas.effects import Audit
from toolfleet.schemas.errors import InputError, NotAllowed
from toolfleet.schemas.ids import CallId, RunId, call_command_id
from toolfleet.schemas.messages import ExecMessage, InlineResult, ResultMessage
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.ports import Outgoing
from toolfleet.schemas.views import ApprovalView

WAIT_S = 60.0
DONE: list[tuple[str, Any]] = []


@tool(tier="high", effect=True, runner="loop")
async def refund(cents: int, context: ToolContext) -> str:
    """Pay money back."""
    DONE.append(("refund", cents))
    return f"paid {cents}"


@tool(runner="loop")
async def run_check(host: str, context: ToolContext) -> str:
    """Look how full a disk is."""
    DONE.append(("run_check", host))
    return "ok 23%"


@tool(tier="high", effect=True, runner="loop")
async def cleanup(host: str, context: ToolContext) -> str:
    """Empty a folder."""
    DONE.append(("cleanup", host))
    return "emptied"


@tool(
    tier="high",
    effect=True,
    runner="loop",
    raise_tier=lambda to, **_: "irreversible" if to.startswith("all-") else None,
)
async def send_mail(to: str, body: str, context: ToolContext) -> str:
    """Send a mail."""
    DONE.append(("send_mail", to))
    return "sent"


@tool(tier="irreversible", effect=True, runner="loop")
async def elevate(account: str, context: ToolContext) -> str:
    """Give an account all rights."""
    DONE.append(("elevate", account))
    return "done"


TOOLS: list[Tool[..., Any]] = [refund, run_check, cleanup, send_mail, elevate]


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    """The calls the input names, all in one turn; then the results as text."""
    results = [one["content"] for one in messages if one["role"] == "tool"]
    if results:
        return json.dumps(results)
    asked = next(one["content"] for one in messages if one["role"] == "user")
    return calls(*(call(name, **arguments) for name, arguments in json.loads(asked)))


class Desk:
    """A fleet, and two people who may decide."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(f"sqlite:///{folder / 'fleet.db'}", model=ScriptedModel(_script))
        self.fleet.agent("desk", model="scripted", tools=TOOLS, parallel_tool_calls="on")
        self.fleet.start()

    def people(self, *names: str) -> list[str]:
        return [self.fleet.add_approver(name) for name in names]

    def ask(self, *calls: tuple[str, dict[str, Any]], by: str = "u1") -> tuple[Run, list[ApprovalView]]:
        """The run, and its questions in call order."""
        run = self.fleet.submit("desk", json.dumps(calls), context={"principal": by})
        wanted = sum(1 for name, _ in calls if name != "run_check")
        return run, self.questions(run, wanted)

    def questions(self, run: Run, wanted: int = 1) -> list[ApprovalView]:
        ends = time.monotonic() + WAIT_S
        while time.monotonic() < ends:
            found = self.fleet.approvals(run_id=run.id)
            if len(found) == wanted:
                return sorted(found, key=lambda one: one.call_id)
        raise AssertionError(f"{wanted} questions were expected")

    def audits(self, view: ApprovalView) -> list[Audit]:
        found = self.fleet._run(self.fleet.client().store.audits(limit=100, call_id=view.call_id))
        return list(reversed(found))

    def refused(self, decide: Callable[[], object]) -> NotAllowed:
        with pytest.raises(NotAllowed) as caught:
            decide()
        return caught.value


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    DONE.clear()
    made = Desk(tmp_path)
    yield made
    made.fleet.stop()


def _outcomes(run: Run) -> list[CallOutcome]:
    result = run.wait(timeout_s=WAIT_S)
    assert result.status is RunStatus.COMPLETED
    return [one.outcome for one in result.results]


def test_three_clicks_are_one_decision_one_execution_and_one_result(desk: Desk) -> None:  # B059
    u2, u3 = desk.people("u2", "u3")
    run, (view,) = desk.ask(("refund", {"cents": 500}))
    asked = view.approval.id

    async def two_processes() -> list[object]:
        """Each with connections of its own, at the same moment."""
        doors = [Approving(open_store(desk.fleet.settings)) for _ in range(2)]
        answers = await asyncio.gather(
            *(door.approve(asked, token=u2) for door in doors), return_exceptions=True
        )
        for door in doors:
            await door.store.aclose()
        return answers

    answers = asyncio.run(two_processes())
    assert [type(one) for one in sorted(answers, key=lambda one: isinstance(one, Exception))] == [
        ApprovalView,
        NotAllowed,
    ]
    assert _outcomes(run) == [CallOutcome.OK]
    first = desk.fleet._run(desk.fleet.approving().approval(asked)).approval

    late = desk.refused(lambda: desk.fleet.approve(asked, token=u3))  # the run has finished
    other = desk.refused(lambda: desk.fleet.reject(asked, token=u3, reason="no"))

    for refused in (late, other, *(one for one in answers if isinstance(one, NotAllowed))):
        assert refused.reason == "already_granted"
        assert refused.fields["by"] == ["u2"] and refused.fields["decision"] == "granted"
        assert refused.fields["decided_at"] == first.decided_at
    assert desk.fleet._run(desk.fleet.approving().approval(asked)).approval == first
    assert DONE == [("refund", 500)] and len(run.result().results) == 1
    assert [(one.action, one.by, one.accepted, one.reason) for one in desk.audits(view)] == [
        ("ask", "u1", True, "asked"),
        ("approve", "u2", True, "granted"),
        ("approve", "u2", False, "already_granted"),
        ("approve", "u3", False, "already_granted"),
        ("reject", "u3", False, "already_granted"),
    ]


def test_a_click_after_a_rejection_is_told_who_rejected(desk: Desk) -> None:
    u2, u3 = desk.people("u2", "u3")
    run, (view,) = desk.ask(("refund", {"cents": 500}))
    desk.fleet.reject(view.approval.id, token=u2, reason="no")

    for _ in range(2):  # while its run goes on, or after; then after
        refused = desk.refused(lambda: desk.fleet.approve(view.approval.id, token=u3))
        assert (refused.reason, refused.fields["by"]) == ("already_rejected", ["u2"])
        assert _outcomes(run) == [CallOutcome.REJECTED]
    assert DONE == []


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(("small", "big"))))
def test_each_decision_reaches_the_call_it_names(  # B061
    desk: Desk, order: tuple[str, str], swapped: bool
) -> None:
    (u2,) = desk.people("u2")
    cents = {"small": 500, "big": 900_000}
    asked = [("refund", {"cents": cents[one]}) for one in sorted(cents, reverse=swapped)]
    run, views = desk.ask(*asked)
    of = {json.loads(one.arguments)["cents"]: one.approval.id for one in views}

    for one in order:
        if one == "small":
            desk.fleet.approve(of[500], token=u2)
        else:
            desk.fleet.reject(of[900_000], token=u2, reason="too much")

    result = run.wait(timeout_s=WAIT_S)
    assert DONE == [("refund", 500)]
    told = {
        json.loads(view.arguments)["cents"]: one.outcome
        for view in views
        for one in result.results
        if one.call_id == view.call_id
    }
    assert told == {500: CallOutcome.OK, 900_000: CallOutcome.REJECTED}


@pytest.mark.parametrize("gated_first", [False, True])
def test_what_ran_freely_is_in_the_merge_that_waited_for_an_approval(  # B063
    tmp_path: Path, gated_first: bool
) -> None:
    DONE.clear()
    calls: list[tuple[str, dict[str, Any]]] = [("run_check", {"host": "h"}), ("cleanup", {"host": "h"})]
    if gated_first:
        calls.reverse()
    before = Desk(tmp_path)
    run, (view,) = before.ask(*calls)
    _until(lambda: ("run_check", "h") in DONE)
    before.fleet.stop()

    after = Desk(tmp_path)  # every process is another one now
    try:
        after.fleet.approve(view.approval.id, token=after.people("u2")[0])
        result = after.fleet.wait(run.id, timeout_s=WAIT_S)
    finally:
        after.fleet.stop()

    wanted = ["ok 23%", "emptied"] if not gated_first else ["emptied", "ok 23%"]
    assert [json.loads(one)["data"] for one in json.loads(result.output)] == wanted
    assert sorted(DONE) == [("cleanup", "h"), ("run_check", "h")]


def test_an_edit_is_what_runs_is_checked_and_is_tiered_again(desk: Desk) -> None:  # B065
    u2, u3 = desk.people("u2", "u3")
    proposed = {"to": "a@example.com", "body": "hi"}
    run, (view,) = desk.ask(("send_mail", proposed))
    with pytest.raises(InputError, match="do not fit"):
        desk.fleet.edit(view.approval.id, token=u2, arguments={"to": 7})
    assert DONE == [] and desk.questions(run)[0].approval.granted_by == ()

    decided = {"to": "b@example.com", "body": "hi"}
    desk.fleet.edit(view.approval.id, token=u2, arguments=decided)

    result = run.wait(timeout_s=WAIT_S)
    assert DONE == [("send_mail", "b@example.com")]
    assert "b@example.com" in result.results[0].content and "a@example.com" not in result.results[0].content
    assert _proposed(desk, run) == proposed
    edit = desk.audits(view)[-1].data
    assert (json.loads(edit["arguments_before"]), json.loads(edit["arguments"])) == (proposed, decided)
    effect = desk.fleet._run(desk.fleet.approving().effect(view.call_id))
    assert json.loads(effect.arguments) == decided

    run, (view,) = desk.ask(("send_mail", proposed))
    desk.fleet.edit(view.approval.id, token=u2, arguments={"to": "all-staff@example.com", "body": "hi"})
    again = desk.questions(run)[0]
    assert (again.approval.tier, again.approval.granted_by) == (Tier.IRREVERSIBLE, ())
    desk.fleet.approve(again.approval.id, token=u3)
    assert _outcomes(run) == [CallOutcome.OK] and DONE[-1] == ("send_mail", "all-staff@example.com")


def _proposed(desk: Desk, run: Run) -> Any:
    items = desk.fleet._run(desk.fleet.client().store.items(RunId(run.id)))
    first = next(one.item for one in items if isinstance(one.item, AssistantItem) and one.item.calls)
    return json.loads(first.calls[0].arguments)


def test_who_asked_may_withdraw_the_call_and_not_approve_it(desk: Desk) -> None:  # B067
    u1, u2 = desk.people("u1", "u2")
    run, (view,) = desk.ask(("elevate", {"account": "a"}), by="u1")
    second_token_of_u1 = desk.fleet.add_approver("u1")

    for token in (u1, second_token_of_u1):
        refused = desk.refused(lambda token=token: desk.fleet.approve(view.approval.id, token=token))
        assert refused.reason == "requester"
    refused = desk.refused(lambda: desk.fleet.edit(view.approval.id, token=u1, arguments={"account": "b"}))
    assert refused.reason == "requester" and DONE == []
    assert [one.reason for one in desk.audits(view) if not one.accepted] == ["requester"] * 3

    desk.fleet.reject(view.approval.id, token=u1, reason="I thought better of it")
    assert _outcomes(run) == [CallOutcome.REJECTED] and DONE == []

    run, (view,) = desk.ask(("elevate", {"account": "a"}), by="u1")
    desk.fleet.approve(view.approval.id, token=u2)
    assert _outcomes(run) == [CallOutcome.OK] and DONE == [("elevate", "a")]


def test_a_queue_message_approves_nothing(desk: Desk) -> None:
    (u2,) = desk.people("u2")
    run, (view,) = desk.ask(("refund", {"cents": 500}))
    workers = desk.fleet._workers
    assert workers is not None
    publisher = workers.publisher
    row_id = call_command_id(CallId(view.call_id))
    begin = ExecMessage(
        run_id=run.id, turn=1, command_id=row_id, call_id=view.call_id, published_at=time.time()
    )
    queue = EXEC_QUEUES[Tier.HIGH]
    bare = {**begin.model_dump(), "approval": {"id": view.approval.id, "status": "granted"}}
    foreign = Codec(KeyRing.parse("k9:" + "cd" * 32), time.time).encode(queue, begin)
    forged = [Outgoing(queue, json.dumps(bare).encode()), Outgoing(queue, foreign)]
    done = InlineResult(index=0, outcome=CallOutcome.OK, content='{"status":"success","data":"paid"}')
    outcome = ResultMessage(
        run_id=run.id, turn=1, command_id=row_id, call_id=view.call_id, published_at=time.time(), result=done
    )

    desk.fleet._run(publisher._layer.publish(forged))
    desk.fleet._run(publisher.message(queue, begin))  # signed by somebody who has the keys, as is this:
    desk.fleet._run(publisher.message(RESULTS_QUEUE, outcome))

    store = desk.fleet.client().store
    _until(lambda: len(desk.fleet._run(store.dead(limit=10))) == 2)
    _until(lambda: len(desk.audits(view)) == 2)
    buried = {(one.queue, one.reason) for one in desk.fleet._run(store.dead(limit=10))}
    assert buried == {("exec.high", "malformed_message"), ("exec.high", "unsigned_message")}
    noted = desk.audits(view)[-1]
    assert (noted.action, noted.accepted, noted.reason) == ("result", False, "outcome_in_message")
    assert DONE == [] and desk.questions(run)[0].approval == view.approval
    desk.fleet.approve(view.approval.id, token=u2)
    assert _outcomes(run) == [CallOutcome.OK] and DONE == [("refund", 500)]


def test_a_late_click_and_a_click_after_a_cancel_are_written_down(desk: Desk) -> None:
    (u2,) = desk.people("u2")
    run, (view,) = desk.ask(("refund", {"cents": 500}))
    desk.fleet.cancel(run)
    run.wait(timeout_s=WAIT_S)

    refused = desk.refused(lambda: desk.fleet.approve(view.approval.id, token=u2))

    assert refused.reason == "already_withdrawn" and DONE == []
    assert (desk.audits(view)[-1].by, desk.audits(view)[-1].reason) == ("u2", "already_withdrawn")


def _until(found: Callable[[], object]) -> None:
    ends = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < ends, "it did not come"
