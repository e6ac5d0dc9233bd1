"""How fast runs are handed in: over HTTP, by one client and by many at once; and as a file, from the command line.

Into a database of its own on the stack's server, with queues of its own that nobody reads: nothing but taking runs in is
measured. What comes back is an answer to a run that is stored, never less.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.w3.measure import cpu_s, quantile
from benchmarks.w3.stacks import START_S, Process, Stack, StackFailed
from tests import servers
from toolfleet.access import Access
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.agents import AgentSpec
from toolfleet.workers.machine import MACHINE

AGENT: Final = "w3"
CLIENTS: Final = 16
WARM: Final = 20
FILE_S: Final = 300.0


def submits(stack: Stack, posts: int, lines: int) -> dict[str, Any]:
    """Runs a second and milliseconds, with `posts` requests and a file of that many lines."""
    if stack.kind == "embedded":
        database = f"sqlite:///{stack.folder / 'submits.db'}"
    else:
        database = servers.new_database(stack.servers["postgresql"], migrated=False)
    upgrade(database)
    token = asyncio.run(_prepared(database))
    theirs = {"TOOLFLEET_DATABASE": database, "TOOLFLEET_BROKER_PREFIX": "submits"}
    with _serving(stack, theirs) as (url, pid):
        asyncio.run(_posted(url, token, WARM, 1))
        alone = asyncio.run(_posted(url, token, posts // 10, 1))
        before, began = cpu_s([pid]), time.monotonic()
        many = asyncio.run(_posted(url, token, posts, CLIENTS))
        took, cpu = time.monotonic() - began, cpu_s([pid]) - before
    file = _file(stack, theirs, lines)
    return {
        "posts": posts,
        "clients": CLIENTS,
        "alone_p50_ms": quantile(alone, 0.5) * 1000,
        "alone_p95_ms": quantile(alone, 0.95) * 1000,
        "posts_per_s": posts / took,
        "p50_ms": quantile(many, 0.5) * 1000,
        "p95_ms": quantile(many, 0.95) * 1000,
        "server_cpu_ms": cpu / posts * 1000,
        **file,
    }


async def _prepared(database: str) -> str:
    """An agent, and the token of a key."""
    store = SqlStore(database, MACHINE)
    try:
        await store.register_agents([AgentSpec(name=AGENT, model="w3-model")])
        return (await Access(store).create("bench", tenants=["default"])).token
    finally:
        await store.aclose()


@contextmanager
def _serving(stack: Stack, theirs: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """`toolfleet serve`: its address and its process id."""
    process = stack.spawn("serve", ["-m", "toolfleet", "serve", "--port", "0"], extra=theirs)
    try:
        yield _address(process), process.popen.pid
    finally:
        process.end()


def _address(process: Process) -> str:
    give_up = time.monotonic() + START_S
    while "ready\n" not in (said := process.log.read_text(errors="replace")):
        if process.popen.poll() is not None or time.monotonic() > give_up:
            raise StackFailed(f"serve did not start: {process.tail()}")
        time.sleep(0.05)  # between two looks at what another process has written
    found = re.search(r" at (http://\S+)", said)
    if found is None:
        raise StackFailed(f"serve says no address: {said[-500:]}")
    return found[1]


async def _posted(url: str, token: str, count: int, clients: int) -> list[float]:
    """Seconds of each answer. Raises StackFailed for one that is not 2xx."""
    seconds: list[float] = []
    left = iter(range(count))
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def client() -> None:
            for n in left:
                started = time.perf_counter()
                body = {"agent": AGENT, "input": f"order {n}"}
                async with session.post(f"{url}/api/v1/runs", json=body) as answer:
                    said = await answer.text()
                    if answer.status >= 300:
                        raise StackFailed(f"POST /api/v1/runs: {answer.status} {said[:300]}")
                seconds.append(time.perf_counter() - started)

        await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


def _file(stack: Stack, theirs: Mapping[str, str], lines: int) -> dict[str, Any]:
    """`toolfleet batch submit`, from its start to its end."""
    path = Path(stack.folder, "submits.jsonl")
    with path.open("w", encoding="utf-8") as out:
        out.writelines(
            json.dumps({"custom_id": f"line-{n}", "input": f"order {n}"}) + "\n" for n in range(lines)
        )
    command = ["-m", "toolfleet", "batch", "submit", str(path), "--agent", AGENT, "--json"]
    began = time.monotonic()
    process = stack.spawn("submit", command, extra=theirs)
    status, cpu, peak_kb = _ended(process)
    took = time.monotonic() - began
    if status != 0:
        raise StackFailed(f"batch submit ended with {status}: {process.tail()}")
    return {
        "lines": lines,
        "file_s": took,
        "lines_per_s": lines / took,
        "line_cpu_ms": cpu / lines * 1000,
        "file_rss_mb": peak_kb / 1024,
    }


def _ended(process: Process) -> tuple[int, float, int]:
    """Exit status, seconds of CPU, the most memory (kB)."""
    give_up = time.monotonic() + FILE_S
    while True:
        pid, status, used = os.wait4(process.popen.pid, os.WNOHANG)
        if pid:
            process.popen.returncode = os.waitstatus_to_exitcode(status)
            return process.popen.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss
        if time.monotonic() > give_up:
            process.end()
            raise StackFailed(f"batch submit did not end in {FILE_S:g} s: {process.tail()}")
        time.sleep(0.02)  # between two looks at another process
