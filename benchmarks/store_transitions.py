"""Microseconds per transition of the SQLite store (WAL, synchronous=FULL, fsync), by the size of the batch.

    .venv/bin/python benchmarks/store_transitions.py

A round takes runs through their life by the real machine: lease a decision, reply with two calls, settle them, lease,
reply with text. `transact` is called with `batch` transitions, of as many runs; one call is one transaction.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.events import (
    CallsSettled,
    DecisionLeased,
    Event,
    ModelReplied,
    ProposedCall,
    StepFacts,
)
from toolfleet.schemas.ids import LeaseToken, RunId, decide_command_id, new_run_id
from toolfleet.schemas.limits import DEFAULT_LIMITS
from toolfleet.schemas.model import Finish, ModelReply, RawCall, Usage
from toolfleet.schemas.outcomes import CallOutcome, Lane, Tier
from toolfleet.schemas.ports import Applied, RunStore, Transition
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import NewRun
from toolfleet.workers.machine import MACHINE

BATCHES = (1, 10, 100)
TRANSITIONS = 2_000  # for each size of batch, so that fsync noise averages out
SUBMIT = "submit"
CONTENT = '{"status":"success","data":"' + "x" * 500 + '"}'
CALLS = tuple(
    ProposedCall(i, "look_up", Tier.LOW, '{"id":"A1"}', f"signature-{i}", f"w{i}") for i in range(2)
)


def new_run() -> NewRun:
    return NewRun(new_run_id(), "agent", "v1", "p1", "t1", "What now?", Lane.BATCH, DEFAULT_LIMITS)


def _lease(run_id: RunId, turn: int) -> Event:
    return DecisionLeased(
        decide_command_id(run_id, turn), LeaseToken(f"{run_id}-{turn}"), "bench", 30.0, "model"
    )


def _reply(run_id: RunId, turn: int, *, calls: tuple[ProposedCall, ...], text: str | None) -> Event:
    token = LeaseToken(f"{run_id}-{turn}")
    provider = {"role": "assistant", "content": text}
    finish: Finish = "tool_calls" if calls else "stop"
    raw = tuple(RawCall(call.wire_id, call.tool, call.arguments) for call in calls)
    reply = ModelReply(text, raw, finish, "chat_completions", provider, "model-1", Usage(900, 60))
    return ModelReplied(decide_command_id(run_id, turn), token, reply, calls, True, StepFacts(owner="bench"))


def _settle(applied: Applied) -> Event:
    assert applied.state is not None
    calls = applied.state.calls
    return CallsSettled(tuple(CallResult(c.call_id, c.index, CallOutcome.OK, CONTENT) for c in calls))


async def life(store: RunStore, runs: Sequence[NewRun], note: Callable[[str, float], None]) -> None:
    """A model call that asks for two calls, their results, and one that answers. `note` hears what each step is called,
    and its seconds."""

    async def step(name: str, events: Callable[[int], Event]) -> Sequence[Applied]:
        transitions = [Transition(new.run_id, events(n)) for n, new in enumerate(runs)]
        started = time.perf_counter()
        applied = await store.transact(transitions)
        note(name, time.perf_counter() - started)
        assert all(one.missed is None for one in applied)
        return applied

    started = time.perf_counter()
    await store.submit(runs)
    note(SUBMIT, time.perf_counter() - started)
    await step("claim a decision", lambda n: _lease(runs[n].run_id, 1))
    replied = await step(
        "store a reply with calls", lambda n: _reply(runs[n].run_id, 1, calls=CALLS, text=None)
    )
    await step("settle calls and merge", lambda n: _settle(replied[n]))
    await step("claim a decision", lambda n: _lease(runs[n].run_id, 2))
    await step("store the last reply", lambda n: _reply(runs[n].run_id, 2, calls=(), text="Done."))


async def _transitions(store: RunStore, batch: int) -> list[float]:
    """Seconds of each of the five calls of `transact`."""
    seconds: list[float] = []

    def note(name: str, took: float) -> None:
        if name != SUBMIT:
            seconds.append(took)

    await life(store, [new_run() for _ in range(batch)], note)
    return seconds


async def _measure(folder: Path) -> list[str]:
    url = f"sqlite:///{folder / 'bench.db'}"
    upgrade(url)
    store = SqlStore(url, MACHINE)
    await _transitions(store, 10)  # statements are compiled once
    figures: list[str] = []
    for batch in BATCHES:
        rounds = max(3, TRANSITIONS // (5 * batch))
        cpu, wall = time.process_time(), time.perf_counter()
        seconds = [s for _ in range(rounds) for s in await _transitions(store, batch)]
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        count = rounds * 5 * batch
        p50 = statistics.median(seconds)
        figures.append(
            f"batch {batch}: {sum(seconds) / count * 1e6:.0f} us wall, "
            f"{cpu / count * 1e6:.0f} us cpu (its share of submit included), transaction p50 {p50 * 1e3:.2f} ms"
        )
    await store.aclose()
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(
            "store_transitions, a transition of SQLite synchronous=FULL: "
            + "; ".join(asyncio.run(_measure(Path(folder))))
        )


if __name__ == "__main__":
    main()
