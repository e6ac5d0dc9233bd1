"""A copy of the project that is one release newer: its messages have the next version."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CODE = ("toolfleet", "workers", "queues", "adapters", "schemas", "examples")


def next_release(folder: Path) -> Path:
    """The folder with the newer code; `tests` in it is the one there is."""
    folder.mkdir(parents=True)
    skip = shutil.ignore_patterns("__pycache__", "data")
    for name in CODE:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=skip)
    (folder / "tests").symlink_to(ROOT / "tests")
    messages = folder / "schemas" / "messages.py"
    text, count = re.subn(r"MESSAGE_VERSION: Final = (\d+)", _next, messages.read_text())
    assert count == 1, "the version of messages is where it was"
    messages.write_text(text)
    return folder


def _next(found: re.Match[str]) -> str:
    return f"MESSAGE_VERSION: Final = {int(found.group(1)) + 1}"
