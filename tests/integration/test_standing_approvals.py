"""Standing approvals: made with a whole scope or not at all, listed, ended, and written down, by whom and what for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from toolfleet import CallOutcome, Fleet, ScriptedModel, call, tool
from toolfleet.cli import app as cli
from toolfleet.schemas.errors import InputError, NotAllowed, UnknownApproval

WAIT_S = 60.0
SENT: list[str] = []


@tool(tier="high", effect=True, runner="loop", repeatable=True)
async def send(to: str, copies: int = 1) -> str:
    """Send a parcel to somebody."""
    SENT.append(to)
    return "sent"


@tool(tier="irreversible", effect=True, runner="loop")
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    raise NotImplementedError


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    return "done" if messages[-1]["role"] == "tool" else call("send", to="eve")


def _fleet(tmp_path: Path) -> Fleet:
    SENT.clear()
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(_script))
    fleet.agent("desk", model="scripted", tools=[send, wipe])
    return fleet


def _audits(fleet: Fleet) -> list[tuple[str, bool, str, str]]:
    found = fleet._run(fleet.client().store.audits(limit=100))
    return [
        (one.action, one.accepted, one.reason, one.by)
        for one in reversed(found)
        if one.action.startswith("standing_")
    ]


def test_one_is_made_listed_and_ended_and_then_calls_are_asked_for_again(tmp_path: Path) -> None:
    with _fleet(tmp_path) as fleet:
        ann, bob = fleet.add_approver("ann"), fleet.add_approver("bob", tools=["wipe"])
        made = fleet.add_standing("send", arguments={"to": "eve"}, tenant="default", valid_s=3600, token=ann)
        covered = fleet.submit("desk", "go").wait(timeout_s=WAIT_S)
        assert covered.results[0].outcome is CallOutcome.OK and SENT == ["eve"]
        assert [one.id for one in fleet.standing()] == [made.id]
        assert fleet.standing(tenant="other") == fleet.standing(tool="wipe") == []
        for token, reason in ((bob, "not_this_tool"), ("tfa_nobody", "unknown_token")):
            with pytest.raises(NotAllowed) as refused:
                fleet.end_standing(made.id, token=token)
            assert refused.value.reason == reason

        ended = fleet.end_standing(made.id, token=ann)

        assert ended.expires_at < made.expires_at and fleet.standing() == []
        assert [one.id for one in fleet.standing(ended=True)] == [made.id]
        with pytest.raises(InputError, match="over already"):
            fleet.end_standing(made.id, token=ann)
        with pytest.raises(UnknownApproval, match="std_nothing"):
            fleet.end_standing("std_nothing", token=ann)
        run = fleet.submit("desk", "go")
        while not fleet.approvals(run_id=run.id):
            assert SENT == ["eve"]
        fleet.cancel(run)
        assert _audits(fleet) == [
            ("standing_add", True, "added", "ann"),
            ("standing_end", False, "not_this_tool", "bob"),
            ("standing_end", False, "unknown_token", ""),
            ("standing_end", True, "ended", "ann"),
        ]


@pytest.mark.parametrize(
    ("name", "said", "why"),
    [
        ("send", {"arguments": {}}, "any values would be no scope"),
        ("send", {"arguments": {"too": "eve"}}, "no argument 'too'"),
        ("send", {"tenant": "*"}, "one tool and one tenant"),
        ("send", {"tenant": ""}, "one tool and one tenant"),
        ("send", {"valid_s": 0}, "how long it holds"),
        ("send", {"valid_s": float("inf")}, "how long it holds"),
        ("send", {"arguments": {"to": {1, 2}}}, "no JSON"),
        ("wipe", {"arguments": {"disk": "a"}}, "irreversible"),
        ("snd", {}, "no registered agent has a tool 'snd'"),
    ],
)
def test_a_scope_that_is_not_explicit_or_covers_nothing_is_refused(
    tmp_path: Path, name: str, said: dict[str, Any], why: str
) -> None:
    with _fleet(tmp_path) as fleet:
        token = fleet.add_approver("ann")
        whole = {"arguments": {"to": "eve"}, "tenant": "default", "valid_s": 60, "token": token}
        with pytest.raises(InputError, match=why):
            fleet.add_standing(name, **{**whole, **said})
        with pytest.raises(NotAllowed, match="no approver"):
            fleet.add_standing("send", **{**whole, "token": "tfa_nobody"})
        assert fleet.standing(ended=True) == []
        assert _audits(fleet) == [("standing_add", False, "unknown_token", "")]


def test_the_command_line_makes_lists_and_ends_them(tmp_path: Path) -> None:
    with _fleet(tmp_path) as fleet:
        token = fleet.add_approver("ann")
    database = f"sqlite:///{tmp_path / 'fleet.db'}"

    def run(*words: str, env: str = token) -> Any:
        return CliRunner().invoke(
            cli,
            ["approvals", "standing", *words, "--database", database],
            env={"TOOLFLEET_APPROVER_TOKEN": env},
        )

    scope = ["--tenant", "default", "--arguments", '{"to": "eve"}', "--expires", "12h"]
    made = json.loads(run("add", "send", *scope, "--json").stdout)
    assert (made["tool"], made["tenant"], made["arguments"]) == ("send", "default", {"to": "eve"})
    assert (made["created_by"], made["tier_max"]) == ("ann", "high")
    assert made["id"] in run("ls").stdout
    assert run("add", "send", "--tenant", "default", "--expires", "1h").exit_code != 0  # no arguments
    assert isinstance(run("end", made["id"], env="tfa_nobody").exception, NotAllowed)
    assert json.loads(run("end", made["id"], "--json").stdout)["id"] == made["id"]
    assert json.loads(run("ls", "--json").stdout) == {"standing": []}
    assert [one["id"] for one in json.loads(run("ls", "--ended", "--json").stdout)["standing"]] == [
        made["id"]
    ]
