"""The 14 tools of the airline desk, as the fleet is given them: tiers, effects, and where each finds its database.

A tool is a plain function that runs in a child process. It takes the desk's file and the conversation from the
run's context, calls the rules, and hands back JSON. What the recorded desk answered as an "Error: ..." text is a
business error here, with that text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

from toolfleet import BusinessError, ToolContext, tool
from toolfleet.examples.airline_desk import rules
from toolfleet.examples.airline_desk.arithmetic import calculated
from toolfleet.examples.airline_desk.database import DeskDatabaseError, apply_effect, reading
from toolfleet.examples.airline_desk.initial import initial_records, tool_definitions
from toolfleet.examples.airline_desk.records import (
    JsonValue,
    LegChoice,
    Passenger,
    Payment,
    Refused,
    Reservation,
)
from toolfleet.examples.airline_desk.timetable import AIRPORTS, direct_flights, one_stop_flights


def _declared(name: str) -> dict[str, Any]:
    """What the recorded model was told about the tool, word for word."""
    definition = tool_definitions()[name]
    return {"description": definition["description"], "parameters": definition["parameters"]}


@tool(tier="low", **_declared("get_user_details"))
def get_user_details(ctx: ToolContext, user_id: str) -> JsonValue:
    with _desk_refusals(), reading(*_place(ctx)) as view:
        return cast("JsonValue", rules.existing_user(view, user_id))


@tool(tier="low", **_declared("get_reservation_details"))
def get_reservation_details(ctx: ToolContext, reservation_id: str) -> JsonValue:
    with _desk_refusals(), reading(*_place(ctx)) as view:
        return cast("JsonValue", rules.existing_reservation(view, reservation_id))


@tool(tier="low", **_declared("list_all_airports"))
def list_all_airports() -> JsonValue:
    return dict(AIRPORTS)


@tool(tier="low", **_declared("search_direct_flight"))
def search_direct_flight(origin: str, destination: str, date: str) -> JsonValue:
    found = direct_flights(initial_records().flights, origin=origin, destination=destination, day=date)
    return cast("JsonValue", found)


# 25,030 bytes is the longest answer the timetable has (Atlanta to Phoenix)
@tool(tier="low", result_bytes_to_model=64_000, **_declared("search_onestop_flight"))
def search_onestop_flight(origin: str, destination: str, date: str) -> JsonValue:
    found = one_stop_flights(initial_records().flights, origin=origin, destination=destination, day=date)
    return cast("JsonValue", found)


@tool(tier="low", **_declared("calculate"))
def calculate(expression: str) -> JsonValue:
    with _desk_refusals():
        return calculated(expression)


@tool(tier="low", **_declared("think"))
def think(thought: str) -> JsonValue:
    return ""  # the thought stands in the conversation already


@tool(tier="low", **_declared("transfer_to_human_agents"))
def transfer_to_human_agents(summary: str) -> JsonValue:
    return "Transfer successful"


@tool(tier="high", effect=True, idempotent=True, **_declared("book_reservation"))
def book_reservation(
    ctx: ToolContext,
    user_id: str,
    origin: str,
    destination: str,
    flight_type: str,
    cabin: str,
    flights: list[LegChoice],
    passengers: list[Passenger],
    payment_methods: list[Payment],
    total_baggages: int,
    nonfree_baggages: int,
    insurance: str,
) -> JsonValue:
    booking = partial(
        rules.book,
        user_id=user_id,
        origin=origin,
        destination=destination,
        flight_type=flight_type,
        cabin=cabin,
        flights=flights,
        passengers=passengers,
        payment_methods=payment_methods,
        total_baggages=total_baggages,
        nonfree_baggages=nonfree_baggages,
        insurance=insurance,
    )
    return _once(ctx, "book_reservation", booking)


@tool(tier="irreversible", effect=True, idempotent=True, **_declared("cancel_reservation"))
def cancel_reservation(ctx: ToolContext, reservation_id: str) -> JsonValue:
    return _once(ctx, "cancel_reservation", partial(rules.cancel, reservation_id=reservation_id))


@tool(tier="high", effect=True, idempotent=True, **_declared("update_reservation_flights"))
def update_reservation_flights(
    ctx: ToolContext, reservation_id: str, cabin: str, flights: list[LegChoice], payment_id: str
) -> JsonValue:
    change = partial(
        rules.change_flights,
        reservation_id=reservation_id,
        cabin=cabin,
        flights=flights,
        payment_id=payment_id,
    )
    return _once(ctx, "update_reservation_flights", change)


@tool(tier="high", effect=True, idempotent=True, **_declared("update_reservation_baggages"))
def update_reservation_baggages(
    ctx: ToolContext, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
) -> JsonValue:
    change = partial(
        rules.change_baggages,
        reservation_id=reservation_id,
        total_baggages=total_baggages,
        nonfree_baggages=nonfree_baggages,
        payment_id=payment_id,
    )
    return _once(ctx, "update_reservation_baggages", change)


@tool(tier="high", effect=True, idempotent=True, **_declared("update_reservation_passengers"))
def update_reservation_passengers(
    ctx: ToolContext, reservation_id: str, passengers: list[Passenger]
) -> JsonValue:
    change = partial(rules.change_passengers, reservation_id=reservation_id, passengers=passengers)
    return _once(ctx, "update_reservation_passengers", change)


@tool(tier="high", effect=True, idempotent=True, **_declared("send_certificate"))
def send_certificate(ctx: ToolContext, user_id: str, amount: float) -> JsonValue:
    return _once(ctx, "send_certificate", partial(rules.send_certificate, user_id=user_id, amount=amount))


TOOLS: Final = (
    book_reservation,
    calculate,
    cancel_reservation,
    get_reservation_details,
    get_user_details,
    list_all_airports,
    search_direct_flight,
    search_onestop_flight,
    send_certificate,
    think,
    transfer_to_human_agents,
    update_reservation_baggages,
    update_reservation_flights,
    update_reservation_passengers,
)  # in the order of the recorded definitions


def _once(ctx: ToolContext, name: str, change: partial[Reservation] | partial[str]) -> JsonValue:
    """Makes the change once under the call's idempotency key; its result, or its refusal, each time."""
    with _desk_refusals():
        return apply_effect(
            *_place(ctx),
            tool=name,
            arguments=change.keywords,
            idempotency_key=ctx.idempotency_key,
            change=lambda view: cast("JsonValue", change(view)),
        )


@contextmanager
def _desk_refusals() -> Iterator[None]:
    try:
        yield
    except Refused as refusal:
        # What came of the first request with this key is what is answered again, refusals too.
        raise BusinessError(refusal.message, reason_code=refusal.reason_code, no_effect=True) from refusal


def _place(ctx: ToolContext) -> tuple[str, str]:
    """The desk's file and the conversation, from what the submitter gave the run."""
    try:
        return str(ctx.context["desk_db"]), str(ctx.context["conversation"])
    except KeyError as exc:
        raise DeskDatabaseError(
            f"the run's context has no {exc.args[0]!r}; submit runs of this agent with "
            'context={"desk_db": path of the desk\'s file, "conversation": id of the conversation}'
        ) from exc
