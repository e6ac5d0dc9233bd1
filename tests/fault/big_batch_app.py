"""The fleet of the tests of large batches: a line asks for an answer, or for one act in the world outside.

Loaded by worker processes as `tests.fault.big_batch_app:fleet`. BATCH_LEDGER is the world outside: a file that holds the
name of a line as often as its act was made, whoever was killed meanwhile.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from toolfleet import Fleet, ScriptedModel, call, say, tool

AGENT = "clerk"
GATE = Path(os.environ.get("BATCH_GATE", "gate"))
GATE_FROM = os.environ.get(
    "BATCH_GATE_FROM", ""
)  # the lines after this one are answered once that file is gone
GATED = GATE_FROM.rpartition("-")[0] + "-"
MODEL_S = float(os.environ.get("BATCH_MODEL_S", "0"))  # what the model takes for an answer


@tool(tier="medium", effect=True)
def act(name: str) -> str:
    """Act once for a line. Not idempotent, and nobody can be asked afterwards whether it happened."""
    ledger = os.open(os.environ["BATCH_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(ledger, f"{name}\n".encode())
    finally:
        os.close(ledger)
    return f"acted {name}"


def _gate_is_there() -> bool:
    return GATE.exists()


async def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    """One decision for a line that asks to be heard, two for one that asks for an act."""
    asked = next(one["content"] for one in messages if one["role"] == "user")
    word, name, _ = asked.split(" ", 2)
    await asyncio.sleep(MODEL_S)
    while name > GATE_FROM and name.startswith(GATED) and _gate_is_there():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.1)
    if word == "say":
        return say(f"heard {name}")
    answers = [one["content"] for one in messages if one["role"] == "tool"]
    if not answers:
        return call("act", name=name)
    return say(f"acted {name}" if f"acted {name}" in answers[-1] else f"nobody knows of {name}")


fleet = Fleet(model=ScriptedModel(_script))
fleet.agent(AGENT, model="scripted", tools=[act])
if not os.environ.get("TOOLFLEET_BROKER", "memory:").startswith("memory:"):
    app = fleet.celery
