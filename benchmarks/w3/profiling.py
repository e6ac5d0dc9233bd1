"""Where the CPU of the worker processes goes: py-spy on a decide, an exec and a collect worker while rounds go on.

Samples of the thread that holds the GIL: what waits for a server, for a lock or for the GIL itself is in none. A C
function is counted with the Python function that called it. One sample is 1/RATE s, so shares become ms per run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.w3 import rounds
from benchmarks.w3.shape import Shape
from benchmarks.w3.stacks import Stack

ROLES: Final = ("decide", "exec", "collect")
RATE: Final = 100
TOP: Final = 15
OURS: Final = ("toolfleet",)  # told as folder/module of ours, so it is the only library with a slash
_PLACE: Final = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*?)(:\d+)?\)$")


class NoProfiler(Exception):
    """py-spy is not on this machine."""


@dataclass(frozen=True, slots=True)
class Profile:
    """ms per run: by library and by function that were on top, and ours by what they and their callees took."""

    role: str
    ms: float
    libraries: list[tuple[str, float]]
    functions: list[tuple[str, float]]
    ours: list[tuple[str, float]]


def program() -> str:
    """Raises NoProfiler."""
    found = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if found is None:
        raise NoProfiler("there is no py-spy here: install it beside the project, it is no part of it")
    return found


def profile(stack: Stack, model: rounds.Model, shape: Shape, n: int, seconds: float) -> list[Profile]:
    """Rounds of n runs for so long, watched."""
    spy = program()
    rounds.batch(stack, model, shape, 20)
    with ExitStack() as open_:
        watching: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        for worker in stack.workers:
            if worker.kind not in ROLES or worker.kind in watching:
                continue
            out = stack.folder / f"profile-{worker.kind}.txt"
            command = [
                spy,
                "record",
                "-p",
                str(worker.popen.pid),
                "-d",
                str(int(seconds)),
                "-r",
                str(RATE),
                "--gil",
            ]
            popen = open_.enter_context(
                subprocess.Popen(
                    [*command, "-f", "raw", "-o", str(out)],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            watching[worker.kind] = popen, out
        ends = time.monotonic() + seconds
        runs = 0
        while time.monotonic() < ends:
            rounds.batch(stack, model, shape, n)
            runs += n
    workers = Counter(worker.kind for worker in stack.workers)
    return [
        folded(role, out.read_text().splitlines(), runs // workers[role])
        for role, (_, out) in watching.items()
    ]


def folded(role: str, lines: Iterable[str], runs: int) -> Profile:
    """Of py-spy's raw form: `frame;frame;frame count`, the outermost first. `runs`: this process's part of all."""
    libraries: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    ours: Counter[str] = Counter()
    total = 0

    def ms(count: int) -> float:
        return count / RATE * 1000 / runs

    for line in lines:
        stack, _, number = line.rpartition(" ")
        count = int(number)
        frames = [_place(frame) for frame in stack.split(";")]
        total += count
        libraries["toolfleet" if "/" in frames[-1][0] else frames[-1][0]] += count
        functions[_named(*frames[-1])] += count
        for frame in set(frames):
            if "/" in frame[0]:
                ours[_named(*frame)] += count
    told = [
        [(name, ms(count)) for name, count in one.most_common(TOP)] for one in (libraries, functions, ours)
    ]
    return Profile(role, ms(total), *told)


def _place(frame: str) -> tuple[str, str]:
    """(library, function) of a frame."""
    found = _PLACE.match(frame)
    if found is None:
        return "?", frame
    path, function = found["file"].rpartition("site-packages/")[2], found["function"]
    parts = path.split("/")
    if len(parts) == 1:
        return "python", f"{function} ({path})"
    if parts[0] in OURS:
        return "/".join(parts[1:]).removesuffix(".py"), function
    return parts[0], function


def _named(library: str, function: str) -> str:
    return f"{library}: {function}"


def as_json(profiles: list[Profile]) -> list[dict[str, Any]]:
    return [
        {
            "role": one.role,
            "ms": one.ms,
            "libraries": one.libraries,
            "functions": one.functions,
            "ours": one.ours,
        }
        for one in profiles
    ]


def told(profiles: list[Profile]) -> str:
    """For people."""
    lines = []
    for one in profiles:
        lines.append(f"\n{one.role}: {one.ms:.2f} ms per run")
        for title, shares in (
            ("self time by library", one.libraries),
            ("self time by function", one.functions),
            ("ours, with what they call", one.ours),
        ):
            lines.append(f"  {title}")
            lines += [f"    {share:7.3f}  {name}" for name, share in shares]
    return "\n".join(lines)
