"""Looking flights up: pure functions over the airline's flights, which no call changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

from toolfleet.examples.airline_desk.records import Flight, FlightDay, JsonValue

AIRPORTS: dict[str, str] = {
    "SFO": "San Francisco",
    "JFK": "New York",
    "LAX": "Los Angeles",
    "ORD": "Chicago",
    "DFW": "Dallas",
    "DEN": "Denver",
    "SEA": "Seattle",
    "ATL": "Atlanta",
    "MIA": "Miami",
    "BOS": "Boston",
    "PHX": "Phoenix",
    "IAH": "Houston",
    "LAS": "Las Vegas",
    "MCO": "Orlando",
    "EWR": "Newark",
    "CLT": "Charlotte",
    "MSP": "Minneapolis",
    "DTW": "Detroit",
    "PHL": "Philadelphia",
    "LGA": "LaGuardia",
}
_NEXT_DAY = "+1"


def direct_flights(
    flights: Mapping[str, Flight], *, origin: str, destination: str, day: str
) -> list[dict[str, JsonValue]]:
    """Flights from `origin` to `destination` that can be booked on `day`, in the order of the flight list."""
    return [
        _offer(flight, on_day)
        for flight in flights.values()
        if flight["origin"] == origin and flight["destination"] == destination
        for on_day in _bookable(flight, day)
    ]


def one_stop_flights(
    flights: Mapping[str, Flight], *, origin: str, destination: str, day: str
) -> list[list[dict[str, JsonValue]]]:
    """Pairs of bookable flights with one change between them, the first on `day`; each flight carries its date.

    A first flight that lands on the next day connects with the flights of that day; the seats and prices shown for
    such a second flight are those of `day` all the same, as the recorded desk shows them.
    """
    pairs: list[list[dict[str, JsonValue]]] = []
    for first in (flight for flight in flights.values() if flight["origin"] == origin):
        second_day = _day_of_arrival(first, day)
        for second in flights.values():
            if second["origin"] != first["destination"] or second["destination"] != destination:
                continue
            if first["scheduled_arrival_time_est"] > second["scheduled_departure_time_est"]:
                continue  # compared as printed: nobody changes over midnight in no time at all
            if _bookable(second, second_day):
                pairs.extend(
                    [{**_offer(first, one), "date": day}, {**_offer(second, other), "date": second_day}]
                    for one in _bookable(first, day)
                    for other in _bookable(second, day)
                )
    return pairs


def _bookable(flight: Flight, day: str) -> list[FlightDay]:
    """The flight's seats and prices on that day: one, or none where it cannot be booked."""
    on_day = flight["dates"].get(day)
    return [on_day] if on_day is not None and on_day["status"] == "available" else []


def _offer(flight: Flight, on_day: FlightDay) -> dict[str, JsonValue]:
    offer: dict[str, JsonValue] = {
        "flight_number": flight["flight_number"],
        "origin": flight["origin"],
        "destination": flight["destination"],
        "scheduled_departure_time_est": flight["scheduled_departure_time_est"],
        "scheduled_arrival_time_est": flight["scheduled_arrival_time_est"],
        "status": on_day["status"],
        "available_seats": {cabin: seats for cabin, seats in on_day["available_seats"].items()},
        "prices": {cabin: price for cabin, price in on_day["prices"].items()},
    }
    return offer


def _day_of_arrival(flight: Flight, day: str) -> str:
    if not flight["scheduled_arrival_time_est"].endswith(_NEXT_DAY):
        return day
    try:
        return (date.fromisoformat(day) + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        return day  # not a date: no flight is listed under it either
