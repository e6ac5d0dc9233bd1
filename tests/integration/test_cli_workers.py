"""`toolfleet workers ls`: who is there, who fell silent, and who did so long ago."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

from toolfleet.adapters.store.migrate import upgrade
from toolfleet.cli import run_command
from toolfleet.commands import exits

SILENT_S = {"alive": 1.0, "silent": 120.0, "long-gone": 7200.0}


@pytest.fixture
def database(tmp_path: Path) -> str:
    """One with a worker that is there, one that was killed just now, and one that was killed hours ago."""
    file = tmp_path / "fleet.db"
    upgrade(f"sqlite:///{file}")
    connection = sqlite3.connect(file)
    for pid, (host, silent_s) in enumerate(SILENT_S.items(), start=1):
        seen_at = time.time() - silent_s
        row = (f"{host}:{pid}:x", host, pid, '["exec.low"]', "1", seen_at, seen_at, "{}")
        connection.execute("INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    return f"sqlite:///{file}"


def test_who_fell_silent_long_ago_is_only_counted(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["workers", "ls", "--database", database]) == exits.OK
    told = capsys.readouterr().out

    assert "alive:1" in told and "silent:2" in told and "silent for" in told
    assert "long-gone" not in told
    assert "1 more fell silent over ten minutes ago: --all" in told


@pytest.mark.parametrize(
    ("asked", "expected"), [([], ["alive", "silent"]), (["--all"], ["alive", "long-gone", "silent"])]
)
def test_all_of_them_can_be_had(
    asked: list[str], expected: list[str], database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["workers", "ls", "--json", *asked, "--database", database]) == exits.OK

    assert sorted(one["host"] for one in json.loads(capsys.readouterr().out)) == expected
