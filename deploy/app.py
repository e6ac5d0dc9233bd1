"""A small desk for orders that needs no key: what `docker compose up` serves until your own app takes its place.

The model is a function here and the tools change nothing outside, so the approvals may be off. It has a tool of each
tier, so that every executor has something to do. `python app.py 20` submits twenty requests and waits for them.
"""

from __future__ import annotations

import sys
from typing import Any

from toolfleet import Fleet, Reply, RunRequest, ScriptedModel, ToolContext, call, calls, say

AGENT = "orders"
WAIT_S = 120.0


def script(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Reply:
    """Stands in for a model: looks the order up, pays it back, closes the account, and says so."""
    order = next(message["content"] for message in messages if message["role"] == "user").split()[-1]
    match sum(message["role"] == "assistant" for message in messages):
        case 0:
            return calls(call("find_order", order=order), call("delivery_days", order=order))
        case 1:
            return calls(
                call("add_note", order=order, text="customer wants out"), call("refund", order=order)
            )
        case 2:
            return calls(call("close_account", order=order))
        case _:
            return say(f"Order {order} was paid back and the account is closed.")


fleet = Fleet(
    model=ScriptedModel(script), approvals="off"
)  # database and broker: TOOLFLEET_DATABASE, _BROKER


@fleet.tool(tier="low", timeout_s=5)
def find_order(order: str) -> dict[str, Any]:
    """What was ordered, and for how much. A plain function: it runs in a child process."""
    return {"order": order, "item": "lamp", "price_eur": 39}


@fleet.tool(tier="low", timeout_s=5)
async def delivery_days(order: str) -> dict[str, Any]:
    """How many days are left until the delivery. A coroutine: it runs on the worker's loop."""
    return {"order": order, "days": 3}


@fleet.tool(tier="medium", effect=True, idempotent=True, timeout_s=5)
async def add_note(order: str, text: str, context: ToolContext) -> dict[str, Any]:
    """Write a note on the order."""
    return {"order": order, "note": text, "key": context.idempotency_key}


@fleet.tool(tier="high", effect=True, idempotent=True, timeout_s=5)
async def refund(order: str, context: ToolContext) -> dict[str, Any]:
    """Pay the order back."""
    return {"order": order, "refunded": True, "key": context.idempotency_key}


@fleet.tool(tier="irreversible", effect=True, timeout_s=5)
async def close_account(order: str) -> dict[str, Any]:
    """Close the account of whoever ordered. Cannot be undone."""
    return {"order": order, "closed": True}


fleet.agent(
    AGENT,
    model="scripted",
    instructions="Answer briefly.",
    tools=[find_order, delivery_days, add_note, refund, close_account],
    parallel_tool_calls="on",
)


def __getattr__(name: str) -> Any:
    """`celery -A app:app worker -Q exec.low` finds the Celery app; it is made only where somebody asks for it."""
    if name == "app":
        return fleet.celery
    raise AttributeError(name)


def main(count: int) -> int:
    """Submit that many requests to the workers and print what came of each; 0 when every call of all was ok."""
    requests = [RunRequest(AGENT, f"Please cancel order {number}") for number in range(1, count + 1)]
    results = [run.wait(timeout_s=WAIT_S) for run in fleet.submit_many(requests)]
    fleet.stop()
    good = True
    for result in results:
        ok = sum(one.outcome == "ok" for one in result.results)
        good = good and result.ok and ok == result.tool_calls
        calls_ok = f"{ok} of {result.tool_calls} calls ok"
        sys.stdout.write(f"{result.run_id} {result.status}, {calls_ok}: {result.output}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
