"""What is printed is safe for a terminal, aligned without one, and JSON stays JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet.cli import run_command
from toolfleet.commands import exits
from toolfleet.commands.terminal import Column, cut, iso, note_json, print_json, print_table, printable
from toolfleet.schemas.errors import (
    FleetBusy,
    NewerSchema,
    NotMigrated,
    RunNotFinished,
    UnknownRun,
    UnsafeSettings,
)


@given(st.text())
def test_nothing_a_terminal_obeys_is_printed(text: str) -> None:
    for shown in (printable(text), printable(text, lines=True), cut(text, 20)):
        assert not any(c < " " and c not in "\n\t" for c in shown)
        assert not any("\x7f" <= c <= "\x9f" or c in "\u2028\u202e\u2066" for c in shown)
    assert "\n" not in printable(text)
    assert len(cut(text, 20)) <= 20


def test_harmless_text_stays_as_it_is() -> None:
    assert printable("Grüße, 東京 👩‍💻") == "Grüße, 東京 👩‍💻"
    assert printable("a\nb\tc", lines=True) == "a\nb\tc"
    assert printable("a\n\x1b[31m\u202e") == r"a\n\x1b[31m\u202e"


@given(st.text(), st.text())
def test_json_is_safe_to_look_at_and_means_the_same(one: str, other: str) -> None:
    document = {"one": one, "other": [other]}
    written: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolfleet.commands.terminal.print_text", written.append)
        patch.setattr("toolfleet.commands.terminal.note", written.append)
        print_json(document)
        note_json(document)

    assert [json.loads(text) for text in written] == [document, document]
    assert all(c >= " " and not "\x7f" <= c <= "\x9f" and c != "\u202e" for text in written for c in text)


def test_text_is_aligned_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (Column("NAME"), Column("N", number=True), Column("LAST", shrinks=True))

    print_table(columns, [["東京", "7", "x" * 300], ["b\x1b", "12", ""]], empty="none")

    header, first, second = capsys.readouterr().out.splitlines()
    assert header == "NAME    N  LAST"
    assert first == f"東京    7  {'x' * 300}"
    assert second == r"b\x1b  12"


def test_an_empty_table_says_so_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_table((Column("NAME"),), [], empty="no runs")

    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "no runs\n")


def test_times_are_utc() -> None:
    assert iso(0.25) == "1970-01-01T00:00:00.250000Z"
    assert iso(None) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownRun("x"), exits.USAGE),
        (RunNotFinished("x"), exits.USAGE),
        (FleetBusy("x"), exits.CANNOT_WORK),
        (NotMigrated("x"), exits.CANNOT_WORK),
        (NewerSchema("x"), exits.CANNOT_WORK),
        (UnsafeSettings("x"), exits.CANNOT_WORK),
        (exits.TimedOut("x", hint=""), exits.TIMED_OUT),
        (ValueError("x"), exits.BUG),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exits.exit_code_of(error) == code


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([]) == 0
    assert "Usage: toolfleet" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("toolfleet 0.")


def test_a_group_without_a_command_is_usage_and_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["runs"]) == 2
    printed = capsys.readouterr()
    assert "cancel" in printed.out + printed.err
    assert "error" not in printed.err


def test_debug_may_stand_anywhere_and_shows_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "up", "-A", ":x"], ["up", "-A", ":x", "--debug"]):
        assert run_command(arguments) == 2
        assert "Traceback" in capsys.readouterr().err


def test_a_usage_error_is_json_where_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["runs", "show", "--json"]) == 2

    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "usage"
    assert "RUN" in error["message"]
    assert "toolfleet runs show --help" in error["hint"]


def test_a_bug_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by\x1bzero")

    monkeypatch.setattr("toolfleet.loading.load_fleet", broken)

    assert run_command(["up", "-A", "x:y"]) == exits.BUG
    printed = capsys.readouterr().err
    assert printed.startswith("error: ZeroDivisionError: by\\x1bzero\n")
    assert "Traceback" not in printed
