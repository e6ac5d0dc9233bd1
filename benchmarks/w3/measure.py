"""What the kernel says: CPU and memory of processes, load, the disk. Linux only (/proc)."""

from __future__ import annotations

import json
import os
import select
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")
SAMPLE_S: Final = 0.5
SYNCS: Final = 200


def tree(roots: Iterable[int]) -> list[int]:
    """The processes and everything they started, as far as the parents live."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = list(roots)
    for one in found:
        found.extend(children.get(one, ()))
    return found


def cpu_s(roots: Iterable[int]) -> float:
    """utime + stime of the processes and their children, dead ones included where their parent has reaped them."""
    ticks = 0
    for pid in tree(roots):
        with suppress(OSError):  # it ended meanwhile: its parent counts it from now on
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(fields[at]) for at in (11, 12, 13, 14))
    return ticks / TICKS


def pss_mb(roots: Iterable[int]) -> float:
    """Memory of the processes; what n of them share counts 1/n for each."""
    kilobytes = 0
    for pid in tree(roots):
        with suppress(OSError):  # it ended meanwhile, or may not be looked at
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kilobytes += int(line.split()[1])
    return kilobytes / 1024


def machine_busy_s() -> float:
    """Seconds of CPU the whole machine has worked since its start."""
    fields = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


@dataclass(frozen=True, slots=True)
class Moment:
    """What was used up to a moment, by kind of process."""

    at: float
    by_kind: Mapping[str, float]
    busy_s: float

    def since(self, before: Moment) -> dict[str, float]:
        return {kind: used - before.by_kind.get(kind, 0.0) for kind, used in self.by_kind.items()}


def moment(groups: Mapping[str, Iterable[int]]) -> Moment:
    return Moment(time.monotonic(), {kind: cpu_s(roots) for kind, roots in groups.items()}, machine_busy_s())


def fdatasync_ms(folder: str | None = None) -> float:
    """The median time of one 4 kB append and fdatasync where the servers keep their files."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        seconds = []
        for _ in range(SYNCS):
            started = time.perf_counter()
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1000


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least that share of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def watch(roots: list[int]) -> None:
    """Prints the largest memory seen until stdin ends; a process of its own, so that it is in no figure."""
    peak = 0.0
    while True:
        peak = max(peak, pss_mb(roots))
        if select.select([sys.stdin], [], [], SAMPLE_S)[0]:
            print(json.dumps({"peak_mb": peak}))
            return


if __name__ == "__main__":
    watch([int(one) for one in sys.argv[1:]])
