"""What the desk does to reservations and users: one function per tool with an effect, over a draft.

The behaviour is the recorded desk's, inferred from its results, and it is not the policy: the desk checks what it
checks, and the agent is told to make sure of the rest. What it never does is as recorded too: a booking takes no
seat, a new cabin is paid for and not written into the reservation, a cancellation does not fill a gift card up again.
All or nothing: a function that raises Refused leaves a draft that is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final, Protocol

from toolfleet.examples.airline_desk.records import (
    Flight,
    FlightDay,
    Leg,
    LegChoice,
    Passenger,
    Payment,
    PaymentMethod,
    Refused,
    Reservation,
    User,
)

BAG_USD: Final = 50
INSURANCE_USD: Final = 30  # for each passenger
NOW: Final = (
    "2024-05-15T15:00:00"  # the recorded conversations all take place at this moment (policy, first line)
)
_FIRST_CERTIFICATE: Final = 3221322
_LIMITED_SOURCES: Final = ("certificate", "gift_card")


class Draft(Protocol):
    """The records of one conversation, to be read and rewritten. What is read is the caller's own copy."""

    @property
    def flights(self) -> Mapping[str, Flight]: ...
    def user(self, user_id: str) -> User | None: ...
    def reservation(self, reservation_id: str) -> Reservation | None: ...
    def put_user(self, user_id: str, user: User) -> None: ...
    def put_reservation(self, reservation: Reservation) -> None: ...


def book(
    draft: Draft,
    *,
    user_id: str,
    origin: str,
    destination: str,
    flight_type: str,
    cabin: str,
    flights: Sequence[LegChoice],
    passengers: Sequence[Passenger],
    payment_methods: Sequence[Payment],
    total_baggages: int,
    nonfree_baggages: int,
    insurance: str,
) -> Reservation:
    """The new reservation: flights are checked first, then each payment, then their sum; then all is paid."""
    user = existing_user(draft, user_id)
    legs = [_new_leg(draft, choice, cabin, len(passengers)) for choice in flights]
    for payment in payment_methods:
        _require_balance(user, payment)
    price = (
        sum(leg["price"] for leg in legs) * len(passengers)
        + (INSURANCE_USD * len(passengers) if insurance == "yes" else 0)
        + BAG_USD * nonfree_baggages
    )
    paid = sum(payment["amount"] for payment in payment_methods)
    if price != paid:
        raise Refused(
            f"Error: payment amount does not add up, total price is {price}, but paid {paid}",
            "payment_mismatch",
        )
    for payment in payment_methods:
        _take(user, payment)
    reservation: Reservation = {
        "reservation_id": next(name for name in _reservation_ids() if draft.reservation(name) is None),
        "user_id": user_id,
        "origin": origin,
        "destination": destination,
        "flight_type": flight_type,
        "cabin": cabin,
        "flights": legs,
        "passengers": list(passengers),
        "payment_history": list(payment_methods),
        "created_at": NOW,
        "total_baggages": total_baggages,
        "nonfree_baggages": nonfree_baggages,
        "insurance": insurance,
    }
    user["reservations"].append(reservation["reservation_id"])
    draft.put_user(user_id, user)
    draft.put_reservation(reservation)
    return reservation


def cancel(draft: Draft, *, reservation_id: str) -> Reservation:
    """The reservation, cancelled: every entry of its payment history is followed by its opposite."""
    reservation = existing_reservation(draft, reservation_id)
    refunds: list[Payment] = [
        {"payment_id": payment["payment_id"], "amount": -payment["amount"]}
        for payment in reservation["payment_history"]
    ]
    reservation["payment_history"] += refunds
    reservation["status"] = "cancelled"
    draft.put_reservation(reservation)
    return reservation


def change_flights(
    draft: Draft, *, reservation_id: str, cabin: str, flights: Sequence[LegChoice], payment_id: str
) -> Reservation:
    """The reservation with these flights; the difference in price is paid, or refunded, by `payment_id`.

    A flight that is kept in its cabin keeps its price and is not looked up again.
    """
    reservation = existing_reservation(draft, reservation_id)
    passenger_count = len(reservation["passengers"])
    legs = [
        _kept_leg(reservation, choice, cabin) or _new_leg(draft, choice, cabin, passenger_count)
        for choice in flights
    ]
    before = sum(leg["price"] for leg in reservation["flights"])
    difference = (sum(leg["price"] for leg in legs) - before) * passenger_count
    _settle(draft, reservation, payment_id, difference)
    reservation["flights"] = legs
    draft.put_reservation(reservation)
    return reservation


def change_baggages(
    draft: Draft, *, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
) -> Reservation:
    """The reservation with these bags; bags to pay for that it did not have are paid by `payment_id`."""
    reservation = existing_reservation(draft, reservation_id)
    added = max(0, nonfree_baggages - reservation["nonfree_baggages"])
    _settle(draft, reservation, payment_id, BAG_USD * added)
    reservation["total_baggages"] = total_baggages
    reservation["nonfree_baggages"] = nonfree_baggages
    draft.put_reservation(reservation)
    return reservation


def change_passengers(draft: Draft, *, reservation_id: str, passengers: Sequence[Passenger]) -> Reservation:
    """The reservation with these passengers, who must be as many as before."""
    reservation = existing_reservation(draft, reservation_id)
    if len(passengers) != len(reservation["passengers"]):
        raise Refused("Error: number of passengers does not match", "passenger_count")
    reservation["passengers"] = list(passengers)
    draft.put_reservation(reservation)
    return reservation


def send_certificate(draft: Draft, *, user_id: str, amount: float) -> str:
    """The sentence that names the new certificate in the user's profile."""
    user = existing_user(draft, user_id)
    methods = user["payment_methods"]
    numbered = (f"certificate_{number}" for number in count(_FIRST_CERTIFICATE))
    certificate_id = next(name for name in numbered if name not in methods)
    methods[certificate_id] = {"source": "certificate", "amount": amount, "id": certificate_id}
    draft.put_user(user_id, user)
    return f"Certificate {certificate_id} added to user {user_id} with amount {amount}."


def existing_user(draft: Draft, user_id: str) -> User:
    """The user; Refused where there is none."""
    user = draft.user(user_id)
    if user is None:
        raise Refused("Error: user not found", "user_not_found")
    return user


def existing_reservation(draft: Draft, reservation_id: str) -> Reservation:
    """The reservation; Refused where there is none."""
    reservation = draft.reservation(reservation_id)
    if reservation is None:
        raise Refused("Error: reservation not found", "reservation_not_found")
    return reservation


def _new_leg(draft: Draft, choice: LegChoice, cabin: str, passenger_count: int) -> Leg:
    number = choice["flight_number"]
    flight = draft.flights.get(number)
    if flight is None:
        raise Refused(f"Error: flight {number} not found", "flight_not_found")
    on_day = _bookable_day(flight, choice["date"])
    if on_day["available_seats"][cabin] < passenger_count:
        raise Refused(f"Error: not enough seats on flight {number}", "not_enough_seats")
    return {
        **choice,
        "price": on_day["prices"][cabin],
        "origin": flight["origin"],
        "destination": flight["destination"],
    }


def _bookable_day(flight: Flight, day: str) -> FlightDay:
    on_day = flight["dates"].get(day)
    if on_day is None:
        raise Refused(f"Error: flight {flight['flight_number']} not found on date {day}", "flight_not_found")
    if on_day["status"] != "available":
        raise Refused(
            f"Error: flight {flight['flight_number']} not available on date {day}", "flight_not_available"
        )
    return on_day


def _kept_leg(reservation: Reservation, choice: LegChoice, cabin: str) -> Leg | None:
    if cabin != reservation["cabin"]:
        return None
    for leg in reservation["flights"]:
        if (leg["flight_number"], leg["date"]) == (choice["flight_number"], choice["date"]):
            return {
                **choice,
                "price": leg["price"],
                "origin": leg["origin"],
                "destination": leg["destination"],
            }
    return None


def _settle(draft: Draft, reservation: Reservation, payment_id: str, amount: float) -> None:
    """Takes `amount` (below zero: gives it back) from a method of the reservation's user, and notes it."""
    user = existing_user(draft, reservation["user_id"])
    method = user["payment_methods"].get(payment_id)
    if method is None:
        raise Refused("Error: payment method not found", "payment_method_not_found")
    if method["source"] == "certificate":
        raise Refused("Error: certificate cannot be used to update reservation", "payment_method_not_allowed")
    if method["source"] == "gift_card" and method["amount"] < amount:
        raise Refused("Error: gift card balance is not enough", "balance_too_low")
    if amount == 0:
        return
    if method["source"] == "gift_card":
        method["amount"] -= amount
        draft.put_user(reservation["user_id"], user)
    reservation["payment_history"].append({"payment_id": payment_id, "amount": amount})


def _require_balance(user: User, payment: Payment) -> PaymentMethod:
    payment_id = payment["payment_id"]
    method = user["payment_methods"].get(payment_id)
    if method is None:
        raise Refused(f"Error: payment method {payment_id} not found", "payment_method_not_found")
    if method["source"] in _LIMITED_SOURCES and method["amount"] < payment["amount"]:
        raise Refused(f"Error: not enough balance in payment method {payment_id}", "balance_too_low")
    return method


def _take(user: User, payment: Payment) -> None:
    """Pays: a gift card keeps what is left of it, a certificate is used up whole."""
    # Looked at again: one method may be named twice in a booking, and its first use may have emptied it.
    method = _require_balance(user, payment)
    match method["source"]:
        case "gift_card":
            method["amount"] -= payment["amount"]
        case "certificate":
            del user["payment_methods"][payment["payment_id"]]


def _reservation_ids() -> Iterator[str]:
    """The ids new reservations get, in order: HATHAT, HATHAU, HATHAV and so on, without an end."""
    yield from (f"HATHA{letter}" for letter in "TUVWXYZ")
    yield from (f"HATHA{number}" for number in count(1))
