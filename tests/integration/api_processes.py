"""Replicas of the HTTP API as processes, for the tests of the API."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 90.0


class Replica:
    """One `toolfleet serve`."""

    def __init__(self, folder: Path, database: str, name: str) -> None:
        self.out = folder / f"{name}.txt"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TOOLFLEET")}
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "toolfleet", "serve", "--database", database, "--port", "0"],
                cwd=folder,
                env={**environment, "TOOLFLEET_DRAIN_S": str(DEADLINE_S)},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    @property
    def url(self) -> str:
        """Once it is ready."""
        ends = time.monotonic() + DEADLINE_S
        while "ready\n" not in (text := self.out.read_text()):
            assert self.process.poll() is None and time.monotonic() < ends, text
            time.sleep(0.05)  # between two looks at what another process has written
        found = re.search(r" at (http://\S+)", text)
        assert found is not None, text
        return found[1]


@contextlib.contextmanager
def replicas(folder: Path, database: str, count: int) -> Iterator[list[Replica]]:
    started = [Replica(folder, database, f"replica{n}") for n in range(count)]
    try:
        yield started
    finally:
        for one in started:
            one.process.kill()
            one.process.wait()
