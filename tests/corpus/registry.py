"""Which checker a file of cases has, and what comes of running it.

A checker is registered where it is written, in a module `tests/corpus/check_<part>.py`, which is found by its name:

    @checker("llm/errors.jsonl")
    def check_error(case: Case) -> Verdict:
        ...
        return PASSED                                 # or refused("rule-id"), or failed("what differs")

It is called with one case at a time. An AssertionError, or any other exception, is a failure with that text.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.corpus import cases
from tests.corpus.cases import Case

REASONS_SHOWN = 20
REASON_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one case. `reasons`: ids of the rules it was refused by, or what failed."""

    kind: Literal["passed", "refused", "failed"]
    reasons: tuple[str, ...] = ()


PASSED = Verdict("passed")


def refused(*rules: str) -> Verdict:
    """Refused with a reason, which is a right outcome; each rule is counted."""
    return Verdict("refused", rules)


def failed(*reasons: str) -> Verdict:
    return Verdict("failed", reasons)


Checker = Callable[[Case], Verdict]
_CHECKERS: dict[str, Checker] = {}


def checker(*names: str) -> Callable[[Checker], Checker]:
    """Register the decorated function for these files. Raises ValueError for a file that has one already."""

    def register(function: Checker) -> Checker:
        for name in names:
            if _CHECKERS.get(name, function) is not function:
                raise ValueError(f"{name} has a checker already")
            _CHECKERS[name] = function
        return function

    return register


def checkers() -> dict[str, Checker]:
    """All checkers there are, by the name of their file, in alphabetical order."""
    for path in sorted(Path(__file__).parent.glob("check_*.py")):
        importlib.import_module(f"tests.corpus.{path.stem}")
    return dict(sorted(_CHECKERS.items()))


@dataclass(slots=True)
class FileResult:
    """The counts of one file. `cases` is the sum of the other three."""

    cases: int = 0
    passed: int = 0
    refused: int = 0
    failed: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)

    def add(self, case: Case, verdict: Verdict) -> None:
        self.cases += 1
        match verdict.kind:
            case "passed":
                self.passed += 1
            case "refused":
                self.refused += 1
                self.refusals.update(verdict.reasons)
            case "failed":
                self.failed += 1
                if len(self.failures) < REASONS_SHOWN:
                    why = "; ".join(verdict.reasons)[:REASON_CHARS_MAX]
                    self.failures.append({"id": str(case.get("id", "")), "why": why})

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("cases", "passed", "refused", "failed")}
        return {**counts, "refusals": dict(self.refusals.most_common()), "failures": self.failures}


def run_file(name: str, check: Checker, root: Path | None = None) -> FileResult:
    """Every case of the file through its checker; a line that holds none is a failed one, under its number."""
    result = FileResult()
    for case in cases.lines(name, root):
        if isinstance(case, cases.Broken):
            result.add({"id": case.where}, failed(case.why))
        else:
            result.add(case, _verdict(check, case))
    return result


def _verdict(check: Checker, case: Case) -> Verdict:
    try:
        return check(case)
    except Exception as exc:  # noqa: BLE001 - whatever goes wrong is this case's failure; the others are still run
        return failed(f"{type(exc).__name__}: {exc}")
