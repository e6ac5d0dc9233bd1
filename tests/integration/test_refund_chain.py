"""A refund through the whole fleet, with a model that calls what it likes: only the chain in its order has effects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.refund_tools import CHAIN
from toolfleet import CallOutcome, Fleet, RunStatus, ScriptedModel, call, calls
from toolfleet.client import RunResult

WAIT_S = 60.0
IN_ORDER = (
    call("get_order_detail", order_id="W-12"),
    call("check_refund_eligibility", order_id="W-12"),
    call("create_refund_draft", order_id="W-12"),
    call("submit_refund", draft_id="D-W-12"),
    call("query_refund_status"),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def _run(
    tmp_path: Path, ledger: Path, script: list[Any], *, text: str = "refund W-12", **options: Any
) -> RunResult:
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(script), approvals="off")
    fleet.agent("desk", model="scripted", tools=CHAIN, **options)
    with fleet:
        return fleet.submit("desk", text, context={"ledger": str(ledger)}).wait(timeout_s=WAIT_S)


def _acted(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def _reasons(result: RunResult) -> list[str | None]:
    return [json.loads(one.content).get("reason_code") for one in result.results]


def test_the_chain_in_its_order_goes_through(tmp_path: Path, ledger: Path) -> None:
    result = _run(tmp_path, ledger, [*IN_ORDER, "refunded"])

    assert result.status is RunStatus.COMPLETED and _reasons(result) == [None] * 5
    assert _acted(ledger) == ["get W-12", "check W-12", "draft W-12", "submit D-W-12", "status"]


def test_an_impatient_model_pays_nothing_and_is_told_what_comes_first(tmp_path: Path, ledger: Path) -> None:
    script = [
        call("query_refund_status"),
        call("create_refund_draft", order_id="W-12"),
        call("check_refund_eligibility", order_id="W-12"),
        IN_ORDER[0],
        call("create_refund_draft", order_id="W-12"),
        "I could not refund it.",
    ]

    result = _run(tmp_path, ledger, script)

    assert result.status is RunStatus.COMPLETED
    assert _reasons(result) == ["stage", "prerequisite", "prerequisite", None, "prerequisite"]
    assert [one.outcome for one in result.results].count(CallOutcome.NOT_AVAILABLE) == 4
    assert _acted(ledger) == ["get W-12"]
    first = json.loads(result.results[4].content)
    assert first["suggested_action"] == "call_check_refund_eligibility_first"


def test_a_draft_nobody_made_cannot_be_submitted(tmp_path: Path, ledger: Path) -> None:
    result = _run(tmp_path, ledger, [*IN_ORDER[:3], call("submit_refund", draft_id="D-W-99"), "sorry"])

    assert _reasons(result)[-1] == "invented_argument"
    assert "submit" not in " ".join(_acted(ledger))


def test_an_order_that_is_not_eligible_gets_no_draft(tmp_path: Path, ledger: Path) -> None:
    script = [
        call("get_order_detail", order_id="W-13"),
        call("check_refund_eligibility", order_id="W-13"),
        call("create_refund_draft", order_id="W-13"),
        "not eligible",
    ]

    result = _run(tmp_path, ledger, script, text="refund W-13")

    assert _reasons(result) == [None, None, "prerequisite"] and _acted(ledger) == ["get W-13", "check W-13"]


def test_the_whole_chain_in_one_turn_is_its_first_step(tmp_path: Path, ledger: Path) -> None:
    everything = calls(*IN_ORDER[:3])

    result = _run(tmp_path, ledger, [everything, "sorry"], parallel_tool_calls="on")

    assert _reasons(result) == [None, "prerequisite", "prerequisite"] and _acted(ledger) == ["get W-12"]


def test_an_invented_order_is_not_looked_up_and_the_correction_may_ask_the_user(
    tmp_path: Path, ledger: Path
) -> None:
    result = _run(
        tmp_path, ledger, [call("get_order_detail", order_id="W-77"), "Which order?"], text="refund it"
    )

    assert result.status is RunStatus.COMPLETED and result.corrections == 1
    assert _reasons(result) == ["invented_argument"] and "W-77" not in result.results[0].content
    assert _acted(ledger) == []
