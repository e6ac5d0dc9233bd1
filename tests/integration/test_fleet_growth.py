"""What a run costs, and that it does not grow: message bytes, memory, write transactions, request bytes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toolfleet import Fleet, Limits, RunRequest, ScriptedModel, call, calls, say, tool
from toolfleet.adapters.broker.memory import MemoryLayer
from toolfleet.schemas.ports import Outgoing

WAIT_S = 100.0
TURNS = 100


@tool(repeatable=True)
async def page(number: int) -> str:
    """Eight thousand characters of a book."""
    return f"{number:04} " * 1600


@tool
async def look(number: int) -> int:
    """One small reading."""
    return number


def test_message_bytes_do_not_grow_with_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, list[int]] = defaultdict(list)
    publish = MemoryLayer.publish

    async def noted(self: MemoryLayer, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            sizes[message.queue].append(len(message.body))
        await publish(self, messages)

    monkeypatch.setattr(MemoryLayer, "publish", noted)

    def read_on(messages: list[dict[str, Any]], _tools: Any) -> Any:
        turn = sum(1 for message in messages if message["role"] == "assistant")
        return call("page", number=turn) if turn < TURNS else say("read")

    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(read_on))
    limits = Limits(turns_max=TURNS + 1, calls_max=TURNS)
    fleet.agent("reader", model="scripted", tools=[page], limits=limits)
    with fleet:
        result = fleet.submit("reader", "read").wait(timeout_s=WAIT_S)

    assert result.ok and result.tool_calls == TURNS
    assert result.input_tokens > 200_000
    for queue, seen in sizes.items():
        assert max(seen) <= min(seen) * 1.05, (queue, min(seen), max(seen))
    assert set(sizes) == {"decide.interactive", "exec.low", "results"}


def test_a_turn_with_eight_reads_costs_at_most_four_write_transactions(tmp_path: Path) -> None:
    def eight(messages: list[dict[str, Any]], _tools: Any) -> Any:
        if messages[-1]["role"] == "user":
            return calls(*(call("look", number=number) for number in range(8)))
        return say("seen")

    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(eight))
    fleet.agent("eight", model="scripted", tools=[look])
    with fleet:
        store = fleet.client().store
        before = store.commits  # type: ignore[attr-defined]
        runs = fleet.submit_many([RunRequest("eight", "go")] * 20)
        results = [run.wait(timeout_s=WAIT_S) for run in runs]
        commits = store.commits - before  # type: ignore[attr-defined]

    assert all(result.tool_calls == 8 for result in results)
    assert commits <= 4 * 20, f"{commits} write transactions for 20 turns with 8 calls"


@pytest.mark.timeout(320)
def test_memory_does_not_grow_with_the_number_of_runs(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import gc, sys
        from toolfleet import Fleet, RunRequest, ScriptedModel, call, calls, say, tool

        @tool
        async def look(number: int) -> int:
            "One small reading."
            return number

        def model(messages, tools):
            if messages[-1]["role"] == "user":
                return calls(call("look", number=1), call("look", number=2))
            return say("seen")

        def rss():
            gc.collect()
            line = next(l for l in open("/proc/self/status") if l.startswith("VmRSS"))
            return int(line.split()[1])

        def batch(count):
            for _ in range(count // 50):
                runs = fleet.submit_many([RunRequest("eye", "go")] * 50)
                assert all(run.wait(timeout_s=100).ok for run in runs)

        fleet = Fleet("sqlite:///" + sys.argv[1], model=ScriptedModel(model))
        fleet.agent("eye", model="scripted", tools=[look])
        with fleet:
            batch(200)
            early = rss()
            batch(800)
            print(early, rss())
        """
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "fleet.db")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    early, late = map(int, done.stdout.split()[-2:])
    assert late <= early * 1.10, f"{early} kB after 200 runs, {late} kB after 1,000"
