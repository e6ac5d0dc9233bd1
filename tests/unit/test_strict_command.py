"""`toolfleet tools schema --provider`: the strict forms of an app's tools, and why one has none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from toolfleet.cli import run_command

APP = '''
from typing import Literal

from toolfleet import Fleet

fleet = Fleet()


@fleet.tool
async def find_order(order_id: str, status: Literal["open", "closed"] | None = None) -> str:
    """Find an order."""
    return order_id


@fleet.tool
async def move_point(point: tuple[int, str]) -> str:
    """Move a point."""
    return str(point)

'''


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "strict_command_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "strict_command_app", raising=False)
    return "strict_command_app:fleet"


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_one_tool_is_refused_by_name_and_the_other_shown(
    provider: str, app: str, capsys: pytest.CaptureFixture[str]
) -> None:  # B019
    assert run_command(["tools", "schema", "-A", app, "--provider", provider, "--json"]) == 1

    document = json.loads(capsys.readouterr().out)
    find, move = document["tools"]
    assert not document["ok"]
    assert find["parameters"]["required"] == ["order_id", "status"]
    assert find["parameters"]["properties"]["status"]["enum"] == ["open", "closed", None]
    assert [one["rule"] for one in find["notes"]] == ["optional"]
    assert (move["refused"]["path"], move["refused"]["rule"]) == ("properties.point", "tuple")


def test_a_tool_with_a_strict_form_ends_with_0_and_is_printed_whole(
    app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["tools", "schema", "find_order", "-A", app, "--provider", "openai"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "strict: find_order"
    assert lines[1].startswith("    properties.status: ") and lines[1].endswith("[optional]")
    assert json.loads("".join(lines[2:]))["additionalProperties"] is False


def test_a_refusal_is_one_line_with_its_place_and_rule(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tools", "schema", "-A", app, "--provider", "anthropic"]) == 1

    printed = capsys.readouterr()
    assert "refused: move_point properties.point: " in printed.out
    assert "1 with a strict form for anthropic, 1 without" in printed.err


def test_a_profile_there_is_not_is_bad_input(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["tools", "schema", "-A", app, "--provider", "openai", "--dated", "1999-01"]

    assert run_command(line) == 2
    assert "openai-2024-08" in capsys.readouterr().err
