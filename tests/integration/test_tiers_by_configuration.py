"""Tiers that configuration raises: queue, approval and audit follow; what would lower one is refused at start."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from toolfleet import CallOutcome, Fleet, ScriptedModel, Tool, ToolContext, call, tool
from toolfleet.cli import run_command
from toolfleet.fleet import Run
from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.views import ApprovalView
from toolfleet.settings import load_settings

WAIT_S = 60.0
SENT: list[str] = []


@tool(tier="medium", effect=True, runner="loop")
async def send_mail(to: str, context: ToolContext) -> str:
    """Send a mail."""
    SENT.append(to)
    return "sent"


@tool(tier="high", effect=True, runner="loop")
async def close_account(name: str, context: ToolContext) -> str:
    """Close an account."""
    SENT.append(name)
    return "closed"


@tool(runner="loop")
async def look(name: str, context: ToolContext) -> str:
    """Look somebody up."""
    return name


TOOLS: list[Tool[..., Any]] = [send_mail, close_account, look]


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    if any(one["role"] == "tool" for one in messages):
        return "done"
    name, arguments = json.loads(next(one["content"] for one in messages if one["role"] == "user"))
    return call(name, **arguments)


def _fleet(folder: Path, **tiers: str) -> Fleet:
    settings = load_settings(tool_tiers=tiers, database=f"sqlite:///{folder / 'fleet.db'}")
    fleet = Fleet(model=ScriptedModel(_script), settings=settings)
    fleet.agent("desk", model="scripted", tools=TOOLS)
    return fleet


def _question(fleet: Fleet, run: Run) -> ApprovalView:
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        if found := fleet.approvals(run_id=run.id):
            return found[0]
    raise AssertionError("nobody was asked")


def test_a_raised_tool_is_asked_for_and_audited_as_one_that_was_declared_so(tmp_path: Path) -> None:
    SENT.clear()
    with _fleet(tmp_path, send_mail="irreversible", look="high") as fleet:
        run = fleet.submit("desk", json.dumps(["send_mail", {"to": "eve"}]), principal="ann")
        view = _question(fleet, run)
        assert (view.approval.tier, view.approval.by_another, SENT) == (Tier.IRREVERSIBLE, True, [])
        row = fleet._run(fleet.client().get(run.id)).state.command(view.call_id)
        assert row is not None and row.queue == "exec.irreversible"
        fleet.approve(view.approval.id, token=fleet.add_approver("bob"))
        assert run.wait(timeout_s=WAIT_S).results[0].outcome is CallOutcome.OK and SENT == ["eve"]

        read = fleet.submit("desk", json.dumps(["look", {"name": "eve"}]))
        assert _question(fleet, read).approval.tier is Tier.HIGH, "a read as well"
        fleet.cancel(read)
    assert send_mail.spec.tier is Tier.MEDIUM, "another fleet of this process has its own settings"


def test_what_was_accepted_before_the_tier_was_raised_is_raised_too(tmp_path: Path) -> None:
    SENT.clear()
    before = _fleet(tmp_path)
    with before:
        before.submit("desk", json.dumps(["look", {"name": "eve"}])).wait(timeout_s=WAIT_S)
    waiting = before.submit("desk", json.dumps(["send_mail", {"to": "eve"}]))
    before.stop()

    with _fleet(tmp_path, send_mail="high") as after:
        view = _question(after, Run(waiting.id, after))
        assert view.approval.tier is Tier.HIGH and SENT == []
        after.reject(view.approval.id, token=after.add_approver("bob"), reason="no")
        assert after.wait(waiting.id, timeout_s=WAIT_S).results[0].outcome is CallOutcome.REJECTED


@pytest.mark.parametrize(
    ("tiers", "said"),
    [
        ({"close_account": "medium"}, "would lower close_account from high to medium"),
        ({"send_mail": "high", "close_account": "low"}, "would lower close_account from high to low"),
        ({"send_mial": "high"}, "no tool is called 'send_mial'"),
    ],
)
def test_a_tier_is_never_lowered_and_a_misspelt_tool_is_named(
    tmp_path: Path, tiers: dict[str, str], said: str
) -> None:
    fleet = _fleet(tmp_path, **tiers)
    with pytest.raises(UnsafeSettings, match=said):
        fleet.start()
    assert fleet.registry.tools["send_mail"].spec.tier is Tier.MEDIUM, "all of it, or nothing"


APP = """
from toolfleet import Fleet
fleet = Fleet()

@fleet.tool(tier="medium", effect=True)
def send_mail(to: str) -> str:
    \"\"\"Send a mail.\"\"\"
    return "sent"
"""


def test_the_command_line_shows_what_is_in_force_and_what_was_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app, other = (["-A", f"{tmp_path / name}.py:fleet"] for name in ("raised_app", "lowered_app"))
    for name in ("raised_app", "lowered_app"):  # settings are read once in a process, and for each app
        (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.setenv("TOOLFLEET_TOOL_TIERS", '{"send_mail": "high"}')

    assert run_command(["tools", "ls", *app]) == 0
    assert "high (declared medium)" in capsys.readouterr().out
    assert run_command(["tools", "show", "send_mail", *app, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tier"], shown["raised_from"]) == ("high", "medium")

    monkeypatch.setenv("TOOLFLEET_TOOL_TIERS", '{"send_mail": "low"}')
    assert run_command(["tools", "ls", *other]) != 0
    assert "would lower send_mail from medium to low" in capsys.readouterr().err
