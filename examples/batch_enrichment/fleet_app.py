"""The fleet of the example: an agent that looks a customer up, decides what a ticket is about, and files it once.

The model is a script, so it needs no key; leave `model=` out and name a real one to use yours. `filed.txt` in the folder
the fleet runs in stands for the ticket system: one line for each ticket that was filed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from toolfleet import Fleet, ScriptedModel, ToolContext, call, calls, say
from toolfleet.settings import load_settings

FILED = "filed.txt"
PLANS = {"c-1": "free", "c-2": "team", "c-3": "enterprise"}


def _script(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    """What a model would do: look the customer up, file the ticket, say how it was filed."""
    answered = [one for one in messages if one["role"] == "tool"]
    asked = next(one["content"] for one in messages if one["role"] == "user")
    ticket, customer, text = asked.split("|", 2)
    topic = "billing" if "invoice" in text or "charged" in text else "bug" if "error" in text else "question"
    if not answered:
        return calls(call("look_up_customer", customer_id=customer))
    if len(answered) == 1:
        return calls(call("file_ticket", ticket_id=ticket, topic=topic))
    return say(f"{ticket}: {topic}")


fleet = Fleet(settings=load_settings(unpriced="ok"), model=ScriptedModel(_script))


@fleet.tool(tier="low")
async def look_up_customer(customer_id: str) -> dict[str, str]:
    """The plan of one customer. Use it before a ticket is filed."""
    return {"customer_id": customer_id, "plan": PLANS.get(customer_id, "unknown")}


@fleet.tool(tier="medium", effect=True)
async def file_ticket(ticket_id: str, topic: str, ctx: ToolContext) -> dict[str, str]:
    """File one ticket under its topic. Each ticket is filed once."""
    _append(f"{ticket_id} {topic} {ctx.run_id}\n")
    return {"ticket_id": ticket_id, "topic": topic}


def _append(line: str) -> None:
    with Path(FILED).open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


fleet.agent(
    "triage",
    model="scripted",
    instructions="Look the customer up, then file the ticket under billing, bug or question.",
    tools=[look_up_customer, file_ticket],
)
