"""A fleet for worker processes under test: a scripted model, three reads in the first turn, an answer in the second."""

from __future__ import annotations

import os
from typing import Any

from toolfleet import Fleet, ScriptedModel, call, calls, say, tool


@tool
async def look_up(order: int) -> dict[str, int]:
    """Look an order up."""
    return {"order": order}


def script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] == "user":
        return calls(*(call("look_up", order=i) for i in range(3)))
    return say("done")


fleet = Fleet(model=ScriptedModel(script))  # database, broker and telemetry: the environment
fleet.agent("desk", model="scripted", tools=[look_up])
app = fleet.celery
app.conf.worker_pool = os.environ.get("TEST_POOL", "solo")  # -P prefork does not override a configured pool
