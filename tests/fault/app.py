"""The fleet of the fault tests: three decisions, two turns of three calls side by side, one of them an effect.

Loaded by the worker processes as `tests.fault.app:fleet`. Effects are written down in an SQLite file (FAULT_WORLD),
which is the outside world: it takes a key once, and it counts how often it was asked.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from typing import Any

from toolfleet import Fleet, Lane, Retryable, ScriptedModel, ToolContext, call, calls, say, tool

AGENT = "steady"


@tool
async def look(n: int) -> int:
    """Read on the loop."""
    await asyncio.sleep(0.02)
    return 2 * n


@tool
def compute(n: int) -> int:
    """Read in a child process."""
    return n * n


@tool(tier="medium", effect=True, idempotent=True)
def record(ctx: ToolContext, n: int) -> int:
    """Write once under the key."""
    with closing(sqlite3.connect(os.environ["FAULT_WORLD"], timeout=30)) as world, world:
        world.execute("CREATE TABLE IF NOT EXISTS asked (key TEXT, at REAL)")
        world.execute("CREATE TABLE IF NOT EXISTS done (key TEXT PRIMARY KEY, n INTEGER)")
        world.execute("INSERT INTO asked VALUES (?, ?)", (ctx.idempotency_key, time.time()))
        world.execute("INSERT OR IGNORE INTO done VALUES (?, ?)", (ctx.idempotency_key, n))
    return n


@tool
async def nap(n: int) -> float:
    """Sleep a second; says when it began."""
    began = time.time()
    await asyncio.sleep(1.0)
    return began


@tool(tier="high")
async def alarm(n: int) -> int:
    """A read of tier high that takes a while."""
    await asyncio.sleep(0.5)
    return n


def _asked(key: str) -> int:
    """How often the outside world was asked under this key, this time included."""
    with closing(sqlite3.connect(os.environ["FAULT_WORLD"], timeout=30)) as world, world:
        world.execute("CREATE TABLE IF NOT EXISTS asked (key TEXT, at REAL)")
        world.execute("INSERT INTO asked VALUES (?, ?)", (key, time.time()))
        return int(world.execute("SELECT count(*) FROM asked WHERE key = ?", (key,)).fetchone()[0])


@tool(timeout_s=60.0)
async def long(ctx: ToolContext, n: int) -> int:
    """Read for longer than any lease or claim here."""
    asked = _asked(ctx.idempotency_key)
    await asyncio.sleep(7.0)
    return asked


@tool(tier="medium", effect=True, timeout_s=60.0)
def long_record(ctx: ToolContext, n: int) -> int:
    """Write, for longer than any lease or claim here; not idempotent."""
    time.sleep(7.0)  # the work itself: longer than the lease of 3 s and the claim of 2 s
    return _asked(ctx.idempotency_key)


@tool(retry_share=None)
async def later(ctx: ToolContext, n: int) -> int:
    """Works at the second try, n seconds later."""
    asked = _asked(ctx.idempotency_key)
    if asked == 1:
        raise Retryable("busy", retry_after_s=n)
    return asked


@tool(timeout_s=30.0)
def kill_me(n: int) -> int:
    """Poison: the process that runs it is gone."""
    os.kill(os.getpid(), 9)
    return n


@tool(runner="loop", timeout_s=30.0)
async def kill_worker(n: int) -> int:
    """Poison on the loop: the worker that runs it is gone."""
    os.kill(os.getpid(), 9)
    return n


@tool(runner="loop", timeout_s=30.0)
async def block_worker(n: int) -> int:
    """Poison on the loop: the worker that runs it does nothing else any more."""
    time.sleep(600)  # noqa: ASYNC251 - what must not be done on a loop; the watchdog of the worker ends it
    return n


@tool(timeout_s=2.0, attempts_max=1)
def hang(n: int) -> int:
    """Does not come back."""
    time.sleep(600)  # a tool that hangs: its deadline of 2 s ends it
    return n


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    asked = [message["content"] for message in messages if message["role"] == "user"][-1]
    since = messages[max(i for i, message in enumerate(messages) if message["role"] == "user") :]
    turns = sum(message["role"] == "assistant" for message in since)
    word, _, number = asked.partition(" ")
    if word == "say":
        return say(number)
    n = int(number)
    if word != "work":
        return calls(call(word, n=n), call("look", n=n)) if turns == 0 else say(f"{word} {n} is over")
    if turns == 0:
        return calls(call("look", n=n), call("look", n=n + 1), call("compute", n=n))
    if turns == 1:
        return calls(call("look", n=n + 2), call("compute", n=n + 1), call("record", n=n))
    return say(f"{n} is done")


fleet = Fleet(model=ScriptedModel(_script))
fleet.agent(
    AGENT,
    model="scripted",
    tools=[
        look,
        compute,
        record,
        nap,
        long,
        long_record,
        later,
        alarm,
        kill_me,
        kill_worker,
        block_worker,
        hang,
    ],
    parallel_tool_calls="on",
    lane=Lane.BATCH,
)
if not os.environ.get("TOOLFLEET_BROKER", "memory:").startswith("memory:"):
    app = fleet.celery
