"""The desk's records as they stand in the database, and the exception its rules refuse with.

Shapes only: where records come from is `initial`, how they are kept is `database`, what may happen to them is
`rules`. Amounts are whole or fractional US dollars, dates are `YYYY-MM-DD`, times are EST as the airline prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NotRequired, TypeAlias, TypedDict

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
Cabin: TypeAlias = Literal["basic_economy", "economy", "business"]
Table: TypeAlias = Literal["reservations", "users"]  # the tables that calls can change; flights never change


class FlightDay(TypedDict):
    """One flight on one date. Seats and prices exist while `status` is "available"."""

    status: str
    available_seats: NotRequired[dict[str, int]]
    prices: NotRequired[dict[str, int]]


class Flight(TypedDict):
    """A flight number with its timetable and all its dates."""

    flight_number: str
    origin: str
    destination: str
    scheduled_departure_time_est: str
    scheduled_arrival_time_est: str  # "03:00:00+1" lands on the next day
    dates: dict[str, FlightDay]


class LegChoice(TypedDict):
    """A flight as the caller names it."""

    flight_number: str
    date: str


class Leg(LegChoice):
    """A flight as it stands in a reservation; `price` is for one passenger."""

    origin: str
    destination: str
    price: int


class Passenger(TypedDict):
    """One traveller."""

    first_name: str
    last_name: str
    dob: str


class Payment(TypedDict):
    """One payment, or, with a negative amount, one refund."""

    payment_id: str
    amount: float


class Reservation(TypedDict):
    """One reservation; `status` appears when it is cancelled."""

    reservation_id: str
    user_id: str
    origin: str
    destination: str
    flight_type: str
    cabin: str
    flights: list[Leg]
    passengers: list[Passenger]
    payment_history: list[Payment]
    created_at: str
    total_baggages: int
    nonfree_baggages: int
    insurance: str
    status: NotRequired[str]


class PaymentMethod(TypedDict):
    """A stored way to pay. Credit cards have no `amount`: they are not limited here."""

    source: str
    id: str
    amount: NotRequired[float]
    brand: NotRequired[str]
    last_four: NotRequired[str]


class User(TypedDict):
    """A customer's profile."""

    name: dict[str, str]
    address: dict[str, str]
    email: str
    dob: str
    payment_methods: dict[str, PaymentMethod]
    saved_passengers: list[Passenger]
    membership: str
    reservations: list[str]


@dataclass(frozen=True, slots=True)
class InitialRecords:
    """The database before any call. Shared by every conversation of a process: never changed, copied when handed on."""

    flights: Mapping[str, Flight]
    reservations: Mapping[str, Reservation]
    users: Mapping[str, User]


class Refused(Exception):
    """The desk says no. `message` is what the model reads, word for word; `reason_code` is for programs."""

    def __init__(self, message: str, reason_code: str) -> None:
        super().__init__(message)
        self.message = message
        self.reason_code = reason_code
