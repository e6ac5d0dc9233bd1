"""Where the cases of the corpus are, and how a file of them is read.

The folder is TOOLFLEET_CASES, or tests/data/cases. A file is `<part>/<name>.jsonl`, one object a line, or the same
with `.gz` behind it.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN_FOLDER = Path(__file__).parents[1] / "data" / "cases"

Case = dict[str, Any]


def folder() -> Path:
    """The folder in use. Raises FileNotFoundError where TOOLFLEET_CASES names none."""
    given = os.environ.get("TOOLFLEET_CASES")
    if not given:
        return OWN_FOLDER
    path = Path(given)
    if not path.is_dir():
        raise FileNotFoundError(
            f"TOOLFLEET_CASES names {given!r}, which is no folder; name one of cases, or unset it"
        )
    return path


def path_of(name: str, root: Path | None = None) -> Path | None:
    """The file of that name (`schemas/mcp_tools.jsonl`), plain or compressed, or None where the folder has none."""
    root = folder() if root is None else root
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def names(root: Path | None = None) -> list[str]:
    """Every file of cases in the folder, by its name without `.gz`, in alphabetical order."""
    root = folder() if root is None else root
    found = (path.relative_to(root).as_posix().removesuffix(".gz") for path in root.glob("*/*.jsonl*"))
    return sorted({name for name in found if name.endswith(".jsonl")})


@dataclass(frozen=True, slots=True)
class Broken:
    """A place of a file that holds no case: `line 3`, and why."""

    where: str
    why: str


def read(name: str, root: Path | None = None) -> Iterator[Case]:
    """The cases of one file, in its order. Raises FileNotFoundError, and ValueError with the line that is no case."""
    for case in lines(name, root):
        if isinstance(case, Broken):
            raise ValueError(f"{name}, {case.where}: {case.why}")  # noqa: TRY004 - the text is wrong, no type
        yield case


def lines(name: str, root: Path | None = None) -> Iterator[Case | Broken]:
    """The same with what is broken in its place. Raises FileNotFoundError."""
    path = path_of(name, root)
    if path is None:
        raise FileNotFoundError(f"no {name} in the folder of cases")
    number = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _case(line, number)
        except (EOFError, OSError, zlib.error) as exc:
            yield Broken(f"behind line {number}", f"the file cannot be read on: {exc}")


def _case(line: bytes, number: int) -> Case | Broken:
    try:
        case = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        return Broken(f"line {number}", f"no JSON: {exc}")
    return case if isinstance(case, dict) else Broken(f"line {number}", "a case has to be an object")
