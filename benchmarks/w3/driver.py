"""The process that submits runs to a fleet and sees them end; the embedded fleet lives in it whole.

    python -m benchmarks.w3.driver          commands as lines of JSON on stdin, an answer to each on stdout

It sees a batch end by one cheap question every POLL_S, as a driver of any queue would; what `Fleet.wait` costs and adds
for each run is measured on its own (`batch` with `wait`, and `single`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg

from benchmarks.w3.shape import Shape
from toolfleet import Fleet, RunRequest

POLL_S: Final = 0.05
CHUNK: Final = 500  # runs in one transaction
WIDE_CALLS: Final = 24  # what the default limits allow in one run


class NotDone(Exception):
    """Runs did not end in time, or not well."""


class Rows:
    """A connection of the driver's own to the fleet's database, for questions about runs."""

    def __init__(self, url: str) -> None:
        if url.startswith("sqlite"):
            path = urlsplit(url).path.removeprefix("/")
            self._sqlite: Any = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
            self._postgres = None
        else:
            self._sqlite = None
            self._postgres = psycopg.connect(url, autocommit=True)

    def ask(self, statement: str, *values: Any) -> list[Any]:
        if self._sqlite is not None:
            return list(self._sqlite.execute(statement, values))
        assert self._postgres is not None
        return self._postgres.execute(statement.replace("?", "%s"), values).fetchall()

    def close(self) -> None:
        (self._sqlite or self._postgres).close()


def agent_of(shape: Shape) -> str:
    if shape.scripted:
        return "w3-scripted"
    return "w3-wide" if shape.calls > WIDE_CALLS else "w3"


def submit(fleet: Fleet, shape: Shape, n: int) -> list[str]:
    requests = [RunRequest(agent_of(shape), shape.text(number)) for number in range(n)]
    return [
        run.id for start in range(0, n, CHUNK) for run in fleet.submit_many(requests[start : start + CHUNK])
    ]


def batch(fleet: Fleet, rows: Rows, shape: Shape, *, n: int, limit_s: float, wait: bool) -> dict[str, Any]:
    """n runs at once. Seconds from before the submit to the end of each, by the time that is stored with it."""
    began_at = time.time()
    ids = submit(fleet, shape, n)
    submitted_s = time.time() - began_at
    if wait:
        fleet._run(_all(fleet, ids, limit_s))
    while rows.ask("SELECT count(*) FROM runs WHERE finished_at IS NULL")[0][0]:
        if time.time() - began_at > limit_s:
            raise NotDone(f"{rows.ask('SELECT status, count(*) FROM runs GROUP BY status')} in {limit_s:g} s")
        time.sleep(POLL_S)
    seen_s = time.time() - began_at
    ended = rows.ask("SELECT status, finished_at, model_calls FROM runs WHERE id >= ?", min(ids))
    bad = [status for status, *_ in ended if status != "completed"]
    if bad or len(ended) != n:
        raise NotDone(f"{len(ended)} of {n} runs ended, of them not well: {bad[:3]}")
    seconds = sorted(finished_at - began_at for _, finished_at, _ in ended)
    return {
        "wall_s": seconds[-1],
        "seen_s": seen_s,
        "submit_s": submitted_s,
        "seconds": seconds,
        "model_calls": sum(made for *_, made in ended),
    }


async def _all(fleet: Fleet, ids: list[str], limit_s: float) -> None:
    await asyncio.gather(*(fleet.wait_async(one, timeout_s=limit_s) for one in ids))


def single(fleet: Fleet, rows: Rows, shape: Shape, *, n: int, limit_s: float) -> dict[str, Any]:
    """One run after the other: until its end was stored, and until `wait` had come back with it."""
    stored, waited = [], []
    for _ in range(n):
        began_at = time.time()
        run = fleet.submit(agent_of(shape), shape.text(0))
        if not run.wait(timeout_s=limit_s).ok:
            raise NotDone(f"run {run.id} did not complete")
        waited.append(time.time() - began_at)
        stored.append(rows.ask("SELECT finished_at FROM runs WHERE id = ?", run.id)[0][0] - began_at)
    return {"seconds": sorted(stored), "waited_s": sorted(waited)}


def commits(fleet: Fleet) -> dict[str, Any]:
    """Write transactions of the store in this process (all of them, where the fleet is embedded)."""
    store: Any = fleet.client().store
    return {"commits": store.commits}


def answer(fleet: Fleet, rows: Rows, command: dict[str, Any]) -> dict[str, Any]:
    shape = Shape(**command.get("shape", {}))
    n, limit_s = command.get("n", 0), command.get("limit_s", 60.0)
    match command["op"]:
        case "batch":
            return batch(fleet, rows, shape, n=n, limit_s=limit_s, wait=command.get("wait", False))
        case "single":
            return single(fleet, rows, shape, n=n, limit_s=limit_s)
        case "commits":
            return commits(fleet)
        case unknown:
            raise ValueError(unknown)


def main() -> None:
    sys.path.insert(0, str(Path.cwd()))
    from benchmarks.w3.app import fleet

    if fleet.settings.broker.startswith("memory:"):
        fleet.start()
    else:
        fleet.client()
    with closing(Rows(fleet.settings.database)) as rows:
        print(json.dumps({"ready": os.getpid()}), flush=True)
        for line in sys.stdin:
            try:
                told = answer(fleet, rows, json.loads(line))
            except Exception as exc:  # noqa: BLE001 - whoever asked is told, and decides
                told = {"error": f"{type(exc).__name__}: {exc}"}
            print(json.dumps(told), flush=True)
    fleet.stop()


if __name__ == "__main__":
    main()
