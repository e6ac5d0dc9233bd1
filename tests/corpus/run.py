"""`make corpus`: every file of cases through its checker; prints the counts and writes them as JSON.

    python -m tests.corpus.run [--out corpus.json]

Exit 0: nothing failed. Exit 1: a case failed, or no file of the folder has a checker.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.corpus import cases
from tests.corpus.registry import FileResult, checkers, run_file


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("corpus.json"), help="where the counts are written")
    options = parser.parse_args(arguments)
    try:
        present = cases.names()
    except FileNotFoundError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    known = checkers()
    results = {name: run_file(name, known[name]) for name in present if name in known}
    unchecked = [name for name in present if name not in known]
    missing = [name for name in known if name not in present]
    _print(results, unchecked, missing)
    report = {
        "files": {name: result.as_json() for name, result in results.items()},
        "unchecked": unchecked,
        "missing": missing,
    }
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if not results or any(result.failed for result in results.values()) else 0


def _print(results: dict[str, FileResult], unchecked: list[str], missing: list[str]) -> None:
    print(f"{'file':40} {'cases':>7} {'passed':>7} {'refused':>7} {'failed':>7}")
    for name, result in results.items():
        print(f"{name:40} {result.cases:7} {result.passed:7} {result.refused:7} {result.failed:7}")
        for rule, count in result.refusals.most_common():
            print(f"    refused {count:5} {rule}")
        for failure in result.failures:
            print(f"    FAILED  {failure['id']}: {failure['why']}")
    for name in unchecked:
        print(f"{name:40} has no checker")
    for name in missing:
        print(f"{name:40} is not in the folder")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
