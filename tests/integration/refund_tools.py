"""The chain a refund has to go through, as five narrow tools; what they did is a line in the run's ledger file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from toolfleet import From, Injected, Prerequisite, tool

Ledger = Annotated[str, Injected("context.ledger")]
OrderId = Annotated[str, From("user", "upstream")]
SAME_ORDER = {"order_id": "order_id"}


def _note(ledger: str, line: str) -> None:
    with Path(ledger).open("a") as file:
        file.write(f"{line}\n")


@tool
def get_order_detail(order_id: OrderId, ledger: Ledger) -> dict[str, Any]:
    """Look up one order."""
    _note(ledger, f"get {order_id}")
    return {"order_id": order_id, "state": "delivered", "amount": 120.5}


@tool(requires=Prerequisite(tool="get_order_detail", same=SAME_ORDER))
def check_refund_eligibility(order_id: OrderId, ledger: Ledger) -> dict[str, Any]:
    """Say whether an order may be refunded."""
    _note(ledger, f"check {order_id}")
    return {"order_id": order_id, "eligible": order_id != "W-13"}


@tool(
    tier="medium",
    effect=True,
    requires=Prerequisite(tool="check_refund_eligibility", same=SAME_ORDER, result={"eligible": True}),
)
def create_refund_draft(order_id: OrderId, ledger: Ledger) -> dict[str, Any]:
    """Prepare a refund; nothing is paid."""
    _note(ledger, f"draft {order_id}")
    return {"draft": {"id": f"D-{order_id}"}}


@tool(
    tier="irreversible",
    effect=True,
    requires=Prerequisite(tool="create_refund_draft", same={"draft_id": "result.draft.id"}),
    enters_stage="submitted",
)
def submit_refund(draft_id: Annotated[str, From("upstream")], ledger: Ledger) -> dict[str, Any]:
    """Pay out a prepared refund."""
    _note(ledger, f"submit {draft_id}")
    return {"refund_id": f"R-{draft_id}"}


@tool(stages="submitted")
def query_refund_status(ledger: Ledger) -> str:
    """Say where the refund of this conversation is."""
    _note(ledger, "status")
    return "paid"


CHAIN = (get_order_detail, check_refund_eligibility, create_refund_draft, submit_refund, query_refund_status)
