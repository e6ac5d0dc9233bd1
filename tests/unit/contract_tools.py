"""Tools with whole contracts, at the top level of a module so that child processes find them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from toolfleet import From, Injected, Prerequisite, Secret, Untrusted, narrow, tool


class Line(BaseModel):
    sku: str
    remark: Annotated[str, Untrusted(chars_max=20)] = ""


class Order(BaseModel):
    order_id: str
    can_refund: bool
    note: Annotated[str, Untrusted(chars_max=40)]
    courier_token: Annotated[str, Secret()]
    lines: list[Line] = []
    next_actions: list[str] = []


@tool(
    description="Looks up one order.",
    use_when="the user asks about the state of an order",
    not_when=("the user wants to change, cancel or refund it", "only a customer is known"),
    returns_not="the customer's address or payment data",
    edge_cases="an unknown order_id is answered with reason_code order_not_found",
    examples=[{"order_id": "W-2378156"}],
)
def get_order(
    order_id: Annotated[str, From("user", "upstream"), Field(description="The order's number.")],
    tenant: Annotated[str, Injected("tenant")],
    api_key: Annotated[str, Injected("credential:orders")],
) -> Order:
    raise NotImplementedError  # these tools are declared and never run


@tool(
    tier="irreversible",
    effect=True,
    sources={"order_id": ("user", "upstream")},
    requires=Prerequisite(tool="get_order", same={"order_id": "order_id"}, result={"can_refund": True}),
    stages="checked",
)
def submit_refund(order_id: str, reason: str) -> str:
    """Pays one order back."""
    raise NotImplementedError


@tool(enters_stage="checked", requires="get_order")
def check_refund(order_id: str) -> bool:
    """Says whether an order may be paid back."""
    raise NotImplementedError


@tool(tier="high", effect=True, untrusted=True)
def update_order(order_id: str, action: str, value: str = "", urgent: bool = False) -> Any:
    """Changes an order: address, remark or status."""
    return {"order_id": order_id, "action": action, "value": value, "urgent": urgent}


update_address = narrow(
    update_order,
    name="update_order_address",
    description="Changes the delivery address of one order.",
    fixed={"action": "address"},
    arguments=["order_id", "value"],
)
