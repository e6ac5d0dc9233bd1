"""`toolfleet agents`: versions as they were registered, what changed between two of them, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolfleet import ExampleTurn, Fleet, ScriptedModel, say
from toolfleet.cli import run_command
from toolfleet.commands import exits

APP = """
from toolfleet import Fleet, ScriptedModel, say

fleet = Fleet(model=ScriptedModel([say("hi")]))
fleet.agent("desk", model="gpt-4o-mini", instructions="The rules of the app.")
"""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database in which two versions of an agent were registered, and the newer one was used once."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    for rules in ("Be brief.", "Be kind and be brief."):
        fleet = Fleet(url, model=ScriptedModel(lambda messages, tools: say("hi")))

        @fleet.tool
        async def look(n: int) -> str:
            """Look something up."""
            return str(n)

        fleet.agent(
            "desk",
            model="gpt-4o-mini",
            instructions=rules,
            selection_rules="Look before you speak.",
            tools=[look],
            examples=[ExampleTurn(user="hello", answer="hi")],
        )
        with fleet:
            fleet.submit("desk", "hello").wait(timeout_s=60)
    return url


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run_command([*arguments, "--json"]) == exits.OK
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_agents_are_listed_with_what_a_run_is_pinned_to(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = _json(capsys, "agents", "ls", "--database", database)["agents"]
    every = _json(capsys, "agents", "ls", "--all", "--database", database)["agents"]

    assert one["agent"] == "desk" and one["tools"] == ["look"] and one["registered_at"]
    assert len(every) == 2 and every[0] == one
    assert every[0]["toolset_version"] == every[1]["toolset_version"], "only the prompt changed"
    assert every[0]["prompt_version"] != every[1]["prompt_version"]


def test_a_version_is_shown_by_the_beginning_of_its_name(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old = _json(capsys, "agents", "ls", "--all", "--database", database)["agents"][1]["version"]

    shown = _json(capsys, "agents", "show", f"desk@{old[:8]}", "--database", database)

    assert shown["version"] == old and shown["definition"]["instructions"] == "Be brief."
    assert shown["tool_band"] == "fine"


def test_a_diff_shows_what_the_last_registration_changed(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = _json(capsys, "agents", "diff", "desk", "--database", database)
    assert run_command(["agents", "diff", "desk", "--database", database]) == exits.OK
    text = capsys.readouterr().out

    assert changed["changed"] == ["instructions"]
    assert '-  "instructions": "Be brief."' in text and '+  "instructions": "Be kind' in text


def test_a_diff_with_the_app_shows_what_a_deployment_would_change(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "desk_app.py").write_text(APP)

    place = ("-A", "desk_app.py:fleet", "--database", database)
    found = _json(capsys, "agents", "diff", "desk@app", "desk", *place)

    assert set(found["changed"]) >= {"instructions", "tools", "examples"}
    assert found["new"]["registered_at"] is None


def test_tokens_are_counted_by_section(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    counted = _json(capsys, "agents", "tokens", "desk", "--database", database)
    assert run_command(["agents", "tokens", "desk", "--database", database]) == exits.OK
    text = capsys.readouterr().out

    assert counted["counter"] == "o200k_base" and counted["model_calls"] == 1
    assert list(counted["sections"]) == ["rules", "schemas", "few_shot", "dynamic"]
    assert all(counted["sections"][name] > 0 for name in ("rules", "schemas", "few_shot"))
    assert counted["cached_share"] == 0 and "few_shot" in text and "o200k_base" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "nobody"), "no agent is called 'nobody'"),
        (("show", "desk@zzz"), "no version of 'desk' begin"),
        (("show", "desk@app"), "no app is given"),
        (("diff", "desk@{old}"), "was registered before"),
    ],
)
def test_what_is_not_there_is_said(
    database: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    old = _json(capsys, "agents", "ls", "--all", "--database", database)["agents"][1]["version"]

    code = run_command(["agents", *(one.replace("{old}", old) for one in arguments), "--database", database])

    assert code == exits.USAGE
    assert told in capsys.readouterr().err
