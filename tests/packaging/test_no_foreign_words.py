"""No file names a machine, a place where packages come from, or a key: the project is at home anywhere.

The patterns are written with one-letter classes (`[/]`, `[.]`, `[ ]`), so that none of them matches its own text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOREIGN = {
    "a folder of one machine": re.compile(
        r"(?<![\w.~-])([/]home[/]\w|[/]Users[/]\w|[/]root[/]|[/]work[/](main|shared)\b|[A-Za-z]:[\\]+Users[\\])"
    ),
    "a folder beside the project": re.compile(r"[.][.][/]shared\b"),
    "a package registry": re.compile(
        r"\b(pypi[.]org|pythonhosted[.]org|pypi[.]python[.]org|registry[.]npmjs|npmjs[.](org|com)|crates[.]io"
        r"|proxy[.]golang[.]org|rubygems[.]org|deb[.]debian[.]org|archive[.]ubuntu[.]com|repo1?[.]maven"
        r"|ghcr[.]io|docker[.]io|quay[.]io|hub[.]docker[.]com|conda[.]anaconda[.]org)\b",
        re.IGNORECASE,
    ),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE[ ]KEY"),
    "a live token": re.compile(
        r"\b(sk-(proj-)?[A-Za-z0-9]{32,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36})\b"
    ),
}

PLANTED = {
    "a folder of one machine": [
        "see " + "/home" + "/ana/toolfleet",
        "path='" + "/root" + "/x'",
        "C:" + "\\Users\\ana",
    ],
    "a folder beside the project": ["read .." + "/shared/DESIGN.md"],
    "a package registry": ["--index-url https://" + "pypi" + ".org/simple", "FROM " + "ghcr" + ".io/x/y"],
    "a private key": ["-----BEGIN" + " RSA PRIVATE" + " KEY-----"],
    "a live token": ["sk" + "-" + "a1" * 20],
}

INNOCENT = [
    "tree/root/leaf",
    "https://example.org/home/",
    "the root of the tree",
    "sk-test",
]


def foreign_words(text: str) -> list[str]:
    """One line of the form `line number: what it is: the words` for each place."""
    return [
        f"{number}: {kind}: {found.group()}"
        for number, line in enumerate(text.splitlines(), start=1)
        for kind, pattern in FOREIGN.items()
        for found in pattern.finditer(line)
    ]


def test_no_file_holds_a_foreign_word(root: Path, project_files: list[Path]) -> None:
    texts = {file: _text(root / file) for file in project_files}

    found = [f"{file}:{word}" for file, text in texts.items() if text for word in foreign_words(text)]

    assert sum(text is not None for text in texts.values()) > 20, "hardly a file was read"
    assert found == []


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind, lines in PLANTED.items() for line in lines]
)
def test_a_planted_word_is_found(kind: str, line: str) -> None:
    assert [word.split(": ")[1] for word in foreign_words("first\n" + line)] == [kind]


@pytest.mark.parametrize("line", INNOCENT)
def test_an_innocent_line_is_left_alone(line: str) -> None:
    assert foreign_words(line) == []


def _text(file: Path) -> str | None:
    """None for what is no text: packed data, and links."""
    if file.is_symlink() or not file.is_file():
        return None
    raw = file.read_bytes()
    if b"\0" in raw[:8192]:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
