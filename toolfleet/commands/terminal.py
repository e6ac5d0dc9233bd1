"""How things are printed: tables on a terminal, plain aligned text elsewhere, one JSON document with --json.

Text of users, models and tools is never trusted with the terminal: control characters are shown, not sent. Results
go to stdout; notes, events and errors go to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from toolfleet.commands.exits import PIPE_CLOSED

# They change the order in which a terminal shows what follows: CVE-2021-42574.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, *, lines: bool = False) -> str:
    """The text with every control character written out (`\\x1b`); with `lines`, newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if _harmless(c, lines=lines) else c.encode("unicode_escape").decode() for c in text)


def _harmless(character: str, *, lines: bool) -> bool:
    if lines and character in "\n\t":
        return True
    return character not in _BIDI and unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")


def cut(text: str, width: int) -> str:
    """One line of at most `width` characters, safe to print."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= width else f"{line[: width - 1]}…"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, whether it holds numbers, whether it may be shortened to fit a terminal."""

    title: str
    number: bool = False
    shrinks: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """A table on a terminal; else aligned text with a header line, nothing shortened. No rows: `empty` on stderr."""
    if not rows:
        note(empty)
        return
    safe = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print_text(_aligned([[column.title for column in columns], *safe], columns))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.number else "left",
            no_wrap=True,
            overflow="ellipsis" if column.shrinks else "fold",
            min_width=None if column.shrinks else max(len(row[columns.index(column)]) for row in safe),
        )
    for row in safe:
        table.add_row(*(Text(cell) for cell in row))
    with _pipe():
        Console(file=sys.stdout, color_system=None if os.environ.get("NO_COLOR") else "auto").print(table)


def _aligned(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> str:
    from rich.cells import cell_len

    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(columns))]
    lines = []
    for row in rows:
        cells = []
        for cell, width, column in zip(row, widths, columns, strict=True):
            gap = " " * (width - cell_len(cell))
            cells.append(gap + cell if column.number else cell + gap)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def print_text(text: str) -> None:
    """One text and a newline on stdout."""
    with _pipe():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def print_json(document: Any) -> None:
    """One JSON document on stdout: indented on a terminal, one line elsewhere."""
    print_text(_json_text(document, indent=2 if sys.stdout.isatty() else None))


def _json_text(document: Any, *, indent: int | None = None) -> str:
    """JSON in which text reads as it is, and what a terminal would obey is written as \\u escapes."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if _harmless(c, lines=True) else f"\\u{ord(c):04x}" for c in text)


def note(text: str) -> None:
    """One line for the person who looks on, on stderr."""
    with contextlib.suppress(BrokenPipeError):  # nobody looks on
        sys.stderr.write(f"{printable(text, lines=True)}\n")
        sys.stderr.flush()


def note_json(document: Any) -> None:
    """One JSON line on stderr."""
    note(_json_text(document))


def print_error(code: str, message: str, hint: str, *, as_json: bool) -> None:
    """`error: what` and what to do now; with --json one JSON object. On stderr."""
    if as_json:
        note_json({"error": {"code": code, "message": message, "hint": hint}})
        return
    note(f"error: {message}")
    if hint:
        note(hint)


def iso(at_s: float | None) -> str | None:
    """Seconds since the epoch as UTC, ISO 8601 with microseconds."""
    if at_s is None:
        return None
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment(at_s: float | None) -> str:
    """Seconds since the epoch for people: UTC, to the second."""
    return "" if at_s is None else datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@contextlib.contextmanager
def _pipe() -> Iterator[None]:
    """A reader that has gone (`| head`) ends the command quietly."""
    try:
        yield
    except BrokenPipeError:
        # What is still buffered goes nowhere, or the interpreter would complain about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED) from None
