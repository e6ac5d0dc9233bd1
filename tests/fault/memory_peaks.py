"""The highest memory of each kind of process, looked at from outside while a test goes on. Linux only (/proc)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from benchmarks.w3.measure import tree

SAMPLE_S: Final = 0.5
CHILD: Final = "tool child"
CHILD_MODULE: Final = "toolfleet.adapters.tools.child_main"
OTHER: Final = "other"


def role_of(words: Sequence[str]) -> str:
    """What a process of ours is, from its command line: `up`, `worker decide`, `batch submit`, `tool child`."""
    if CHILD_MODULE in words:
        return CHILD
    if "toolfleet" not in words:
        return OTHER
    told = [word for word in words[words.index("toolfleet") + 1 :] if not word.startswith("-")]
    return " ".join(told[: 2 if told[:1] in (["batch"], ["worker"]) else 1])


def pss_mb(pid: int) -> float:
    """Its memory; what n processes share counts 1/n for each. 0: it has ended, or may not be looked at."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


class Peaks:
    """A thread that looks at the watched processes, and at everything they started, twice a second.

    `phase` names what is going on; `mb[phase][role]` is the highest memory of one process of that role in it, and
    `servers_mb[phase][name]` that of a whole server. `samples` counts the looks.
    """

    def __init__(self, servers: Mapping[str, int]) -> None:
        self.phase = ""
        self.mb: dict[str, dict[str, float]] = {}
        self.servers_mb: dict[str, dict[str, float]] = {}
        self.samples = 0
        self._servers = dict(servers)
        self._roots: set[int] = set()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def watch(self, pid: int) -> None:
        with self._lock:
            self._roots.add(pid)

    def leave(self, pid: int) -> None:
        """It has ended and was reaped: its number may be somebody else's soon."""
        with self._lock:
            self._roots.discard(pid)

    def live(self) -> dict[str, list[int]]:
        """The processes there are now, by role."""
        found: dict[str, list[int]] = {}
        with self._lock:
            roots = sorted(self._roots)
        for pid in tree(roots):
            words = _command(pid)
            if words:
                found.setdefault(role_of(words), []).append(pid)
        return found

    def _sample(self) -> None:
        while not self._end.wait(SAMPLE_S):
            phase = self.phase
            for role, pids in self.live().items():
                _higher(self.mb.setdefault(phase, {}), role, max(map(pss_mb, pids)))
            for name, pid in self._servers.items():
                _higher(self.servers_mb.setdefault(phase, {}), name, sum(map(pss_mb, tree([pid]))))
            self.samples += 1


def _higher(peaks: dict[str, float], name: str, mb: float) -> None:
    peaks[name] = max(peaks.get(name, 0.0), mb)


def _command(pid: int) -> list[str]:
    """The words it was started with; none: it has ended and waits to be reaped, or is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []
