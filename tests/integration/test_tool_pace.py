"""What breakers, rates, places and serial keys do to the calls of a whole embedded fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests import servers
from toolfleet import BusinessError, Fleet, Limits, Retryable, ScriptedModel, call, calls, say, tool

RUNNING: dict[str, int] = {}
MOST: dict[str, int] = {}
CALLED: dict[str, int] = {}
ANSWERS: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for one in (RUNNING, MOST, CALLED, ANSWERS):
        one.clear()
    yield


async def _held(key: str) -> None:
    RUNNING[key] = RUNNING.get(key, 0) + 1
    MOST[key] = max(MOST.get(key, 0), RUNNING[key])
    CALLED[key] = CALLED.get(key, 0) + 1
    await asyncio.sleep(0.05)
    RUNNING[key] -= 1


@tool(attempts_max=1)
async def flaky(n: int) -> int:
    """Fails as it is told to."""
    CALLED["flaky"] = CALLED.get("flaky", 0) + 1
    if ANSWERS.get("flaky") is not None:
        raise ANSWERS["flaky"]
    return n


@tool(serial_key="order:{order}")
async def ship(order: int, n: int) -> int:
    """One at a time for each order."""
    await _held(f"order:{order}")
    return n


@tool(concurrent_max=2)
async def narrow(n: int) -> int:
    """Two at a time."""
    await _held("narrow")
    return n


@tool(rate_limit="3/s")
async def rated(n: int) -> float:
    """Three in a second."""
    CALLED["rated"] = CALLED.get("rated", 0) + 1
    return asyncio.get_running_loop().time()


def results_of(fleet: Fleet, run: Any) -> list[dict[str, Any]]:
    found = fleet._run(fleet.client().store.results(run.id))
    return [orjson.loads(result.content) for _, result in found]


def fleet_of(tmp_path: Path, script: Any, *tools: Any, cache: str | None = None, **settings: Any) -> Fleet:
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(script), cache=cache)
    fleet.configure(broker_prefix=f"t{abs(hash(str(tmp_path)))}", **settings)
    fleet.agent("a", model="scripted", tools=list(tools), limits=Limits(calls_max=100, turns_max=20))
    return fleet


def by_turn(turns: list[Any]) -> Any:
    def script(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        return turns[sum(1 for one in messages if one["role"] == "assistant")]

    return script


@pytest.mark.parametrize("shared", [False, True])
def test_a_tool_that_fails_too_often_is_unavailable_until_a_time_and_is_not_called(
    tmp_path: Path, request: pytest.FixtureRequest, shared: bool
) -> None:
    cache = servers.redis_url(request.getfixturevalue("redis")) if shared else None
    turns = [
        calls(*(call("flaky", n=n) for n in range(10))),
        calls(call("flaky", n=100)),
        say("done"),
    ]
    with fleet_of(tmp_path, by_turn(turns), flaky, cache=cache) as fleet:
        ANSWERS["flaky"] = Retryable("503")
        run = fleet.submit("a", "go")
        result = fleet.wait(run, timeout_s=60)
        contents = results_of(fleet, run)

    assert result.status == "completed"
    assert CALLED["flaky"] == 10
    assert [one["error_type"] for one in contents[:10]] == ["failed"] * 10
    assert contents[10]["error_type"] == "not_available"


@pytest.mark.parametrize("answer", [BusinessError("no such order"), None])
def test_what_a_working_tool_says_no_to_opens_no_breaker(tmp_path: Path, answer: Any) -> None:
    turns = [calls(*(call("flaky", n=n) for n in range(12))), calls(call("flaky", n=100)), say("done")]
    with fleet_of(tmp_path, by_turn(turns), flaky) as fleet:
        ANSWERS["flaky"] = answer
        fleet.wait(fleet.submit("a", "go"), timeout_s=60)

    assert CALLED["flaky"] == 13


def test_calls_with_one_serial_key_run_one_at_a_time_and_others_beside_them(tmp_path: Path) -> None:
    made = [call("ship", order=order, n=n) for n in range(4) for order in (1, 2)]
    with fleet_of(tmp_path, by_turn([calls(*made), say("done")]), ship) as fleet:
        result = fleet.wait(fleet.submit("a", "go"), timeout_s=60)

    assert result.status == "completed"
    assert MOST == {"order:1": 1, "order:2": 1}
    assert CALLED == {"order:1": 4, "order:2": 4}


def test_no_more_than_its_places_run_at_a_time(tmp_path: Path) -> None:
    made = [call("narrow", n=n) for n in range(8)]
    with fleet_of(tmp_path, by_turn([calls(*made), say("done")]), narrow) as fleet:
        result = fleet.wait(fleet.submit("a", "go"), timeout_s=60)

    assert result.status == "completed"
    assert MOST["narrow"] <= 2 and CALLED["narrow"] == 8


def test_a_rate_makes_calls_due_later_and_costs_no_attempt(tmp_path: Path) -> None:
    made = [call("rated", n=n) for n in range(7)]
    with fleet_of(tmp_path, by_turn([calls(*made), say("done")]), rated) as fleet:
        run = fleet.submit("a", "go")
        result = fleet.wait(run, timeout_s=60)
        started = sorted(one["data"] for one in results_of(fleet, run))
        deferred = [event for event in fleet.events(run, follow=False) if event.type == "call.deferred"]
        attempts = [result.attempt for _, result in fleet._run(fleet.client().store.results(run.id))]

    assert result.status == "completed" and CALLED["rated"] == 7
    assert all(later - sooner >= 0.95 for sooner, later in zip(started, started[3:], strict=False))
    assert deferred and {event.data["reason"] for event in deferred} == {"rate"}
    assert set(attempts) == {1}
