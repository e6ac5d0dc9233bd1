"""`run.py --seeds N` runs N seeds and says what they found; `run.py --seed N --story` tells what happened in one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

if __name__ == "__main__":  # run as a script: this folder gives way to the root of the project
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.simulation.world import Report, simulate

LINES_SHOWN = 60


def replay(seed: int) -> str:
    """The command that runs this seed again."""
    return f"python tests/simulation/run.py --seed {seed} --story"


def told(report: Report, lines: int | None = LINES_SHOWN) -> str:
    """What happened, the end of it, and how to see it again."""
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(report.faults.items()))
    shown = report.lines if lines is None else report.lines[-lines:]
    left_out = len(report.lines) - len(shown)
    return "\n".join(
        [
            f"seed {report.seed}: {len(report.violations)} violation(s)",
            f"{report.virtual_s:.0f} virtual seconds, {report.commits} commits, story {report.digest}",
            f"injected: {faults or 'nothing'}",
            *([f"... {left_out} lines before; all of them: {replay(report.seed)}"] if left_out else []),
            *shown,
            *(f"VIOLATION {violation}" for violation in report.violations),
            f"replay: {replay(report.seed)}",
        ]
    )


def summary(reports: Sequence[Report], seconds: float) -> str:
    """One line, and one with the kinds."""
    faults: Counter[str] = sum((report.faults for report in reports), Counter())
    statuses: Counter[str] = sum((report.statuses for report in reports), Counter())
    bad = sum(bool(report.violations) for report in reports)
    kinds = ", ".join(f"{kind} {count}" for kind, count in faults.most_common())
    return (
        f"{len(reports)} seeds, {bad} violations, mean faults {faults.total() / max(1, len(reports)):.1f}, "
        f"{sum(r.commits for r in reports)} commits, runs {dict(statuses.most_common())}, "
        f"late acts {sum(r.late_acts for r in reports)}, {len(reports) / seconds:.1f} seeds/s\ninjected: {kinds}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--story", action="store_true", help="tell everything that happened")
    parser.add_argument("--seeds", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to run them in")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        report = simulate(asked.seed)
        print(told(report, None if asked.story else LINES_SHOWN))
        return bool(report.violations)
    began = time.monotonic()
    reports = list(_all(range(asked.start, asked.start + asked.seeds), asked.jobs))
    for report in reports:
        if report.violations:
            print(told(report), end="\n\n")
    print(summary(reports, time.monotonic() - began))
    return any(report.violations for report in reports)


def _all(seeds: range, jobs: int) -> Iterator[Report]:
    if jobs <= 1:
        yield from map(_one, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_one, seeds, chunksize=5)


def _one(seed: int) -> Report:
    """Lines are kept only where somebody will read them."""
    report = simulate(seed)
    return report if report.violations else report.without_lines()


if __name__ == "__main__":
    sys.exit(main())
