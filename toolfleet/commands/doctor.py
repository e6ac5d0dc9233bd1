"""`toolfleet doctor`: is everything there that a fleet needs here, and what to do where it is not."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import typer

from toolfleet.commands import exits, options
from toolfleet.commands.terminal import Column, print_json, print_table, print_text

if TYPE_CHECKING:
    from toolfleet.commands.checks import Finding, Report

COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}
SETTINGS_COLUMNS = (Column("SETTING"), Column("VALUE"), Column("FROM"))


def doctor(
    app: options.App = None, database: options.Database = None, as_json: options.AsJson = False
) -> None:
    """Check this machine, the database and the settings. Ends with 5 if anything FAILs."""
    from toolfleet.commands.checks import examine

    report = asyncio.run(examine(app, database))
    if as_json:
        print_json(report.document())
    else:
        _print(report)
    raise typer.Exit(exits.OK if report.ok else exits.CANNOT_WORK)


def _print(report: Report) -> None:
    width = max(len(finding.name) for finding in report.findings)
    print_text("\n".join(_line(finding, width) for finding in report.findings))
    if report.settings:
        print_text("")
        print_table(
            SETTINGS_COLUMNS, [[s.name, s.value, s.source] for s in report.settings], empty="no settings"
        )


def _line(finding: Finding, width: int) -> str:
    from toolfleet.commands.terminal import printable

    status = f"{finding.status:4}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        status = typer.style(status, fg=COLOURS[finding.status], bold=True)
    fix = f"\n{'':{width + 8}}fix: {printable(finding.fix)}" if finding.fix else ""
    return f"{status}  {finding.name:{width}}  {printable(finding.detail)}{fix}"
