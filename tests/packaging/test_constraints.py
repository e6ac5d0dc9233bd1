"""`make setup` installs the same versions everywhere: each package that is asked for is pinned, by name only."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def test_each_line_pins_one_package_and_says_nothing_of_this_machine(root: Path) -> None:
    lines = (root / "constraints.txt").read_text().splitlines()

    odd = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)]

    assert odd == []


def test_every_package_that_is_asked_for_is_pinned(root: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    asked = settings["project"]["dependencies"] + settings["dependency-groups"]["dev"]
    lines = (root / "constraints.txt").read_text().splitlines()
    pinned = {_plain(line) for line in lines if not line.startswith("#")}

    assert [name for name in asked if _plain(name) not in pinned] == [], "run: make constraints"
    assert _plain("toolfleet") not in pinned


def _plain(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()
