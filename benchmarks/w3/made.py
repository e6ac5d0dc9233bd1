"""Where and with what figures were made: versions, the machine, how fast it is right now."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from benchmarks.w3.measure import fdatasync_ms
from benchmarks.w3.stacks import ROOT
from tests import servers

PACKAGES: Final = (
    "aiohttp",
    "celery",
    "hiredis",
    "kombu",
    "openai",
    "orjson",
    "psycopg",
    "pydantic",
    "redis",
    "sqlalchemy",
    "toolfleet",
)
LOOPS: Final = 1_000_000


def made() -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _said("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "packages": {name: _version(name) for name in PACKAGES},
        "servers": {kind: _server(kind) for kind in servers.KINDS},
        "fdatasync_ms": fdatasync_ms(),
        "load": os.getloadavg()[0],
        "loop_ms": loop_ms(),
    }


def loop_ms() -> float:
    """CPU of a fixed loop of plain Python: says how much dearer a busy neighbour makes the same work. Best of three."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        total = 0
        for i in range(LOOPS):
            total += i * i % 7
        best = min(best, time.process_time() - began)
    return best * 1000


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _server(kind: str) -> str:
    program = servers.find(kind)
    if program is None:
        return "not installed"
    if kind == "rabbitmq":
        found = sorted(Path(program).parent.parent.glob("lib/rabbitmq_server-*"))
        return found[-1].name.rpartition("-")[2] if found else "unknown"
    found = re.search(r"\d+\.\d[\d.]*", _said(program, "--version"))
    return found.group() if found else "unknown"


def _said(*command: str) -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=30).stdout.strip()
    return "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
