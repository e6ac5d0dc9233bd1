"""An open breaker in the next request of a whole fleet: the tool is not among what may be called, and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests import servers
from tests.integration.test_fleet_model_server import WAIT_S, _completion, _served
from toolfleet import Fleet, OpenAIChatClient, Retryable
from toolfleet.adapters.llm.profiles import OPENAI
from toolfleet.client import RunResult

OPEN_S = 2.0
SAID = {"content": "Later, then."}


def _calls(*names: str) -> dict[str, Any]:
    made = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": f'{{"n":{at}}}'}}
        for at, name in enumerate(names)
    ]
    return {"content": None, "tool_calls": made}


def _allowed(body: dict[str, Any]) -> set[str] | None:
    """What the request says may be called; None: everything."""
    choice = body["tool_choice"]
    if isinstance(choice, str):
        return None
    return {tool["function"]["name"] for tool in choice["allowed_tools"]["tools"]}


def _fleet(tmp_path: Path, url: str, works: Callable[[], bool], cache: str | None) -> tuple[Fleet, list[int]]:
    model = OpenAIChatClient(base_url=url, api_key="k", profile=OPENAI)
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=model, cache=cache)
    fleet.configure(broker_prefix=f"t{abs(hash(str(tmp_path)))}", breaker_calls_min=3, breaker_open_s=OPEN_S)
    called: list[int] = []

    @fleet.tool(attempts_max=1)
    async def flaky(n: int) -> int:
        """Fails while the other side is down."""
        called.append(n)
        if not works():
            raise Retryable("503")
        return n

    @fleet.tool
    async def steady(n: int) -> int:
        """Always works."""
        return n

    fleet.agent("desk", model="gpt-4o-mini", tools=["flaky", "steady"], parallel_tool_calls="on")
    return fleet, called


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "redis"])
def test_an_open_breaker_takes_the_tool_out_of_the_next_turn_and_gives_it_back(
    tmp_path: Path, request: pytest.FixtureRequest, shared: bool
) -> None:
    cache = servers.redis_url(request.getfixturevalue("redis")) if shared else None
    healed: list[bool] = []

    async def answer(request: web.Request, count: int) -> web.StreamResponse:
        body = received[count - 1]
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if not healed:
            message = [_calls("flaky", "flaky", "flaky"), _calls("flaky", "steady"), SAID][turn]
        else:
            message = SAID if turn or _allowed(body) is not None else _calls("flaky")
        return web.json_response(_completion(message))

    with _served(answer) as (url, received):
        fleet, called = _fleet(tmp_path, url, lambda: bool(healed), cache)
        with fleet:
            first = fleet.submit("desk", "Go").wait(timeout_s=WAIT_S)
            steps = fleet._run(fleet.client().store.steps(first.run_id))  # type: ignore[arg-type]
            opened, tried = len(called), list(received)
            healed.append(True)
            later = _until(
                lambda: fleet.submit("desk", "Again").wait(timeout_s=WAIT_S), lambda run: run.tool_calls
            )
            after = fleet.submit("desk", "And again").wait(timeout_s=WAIT_S)

    assert first.ok and opened == 3
    assert [_allowed(body) for body in tried] == [None, {"steady"}, {"steady"}]
    assert [sorted(tool["function"]["name"] for tool in body["tools"]) for body in tried] == [
        ["flaky", "steady"]
    ] * 3, "definitions stay as they are"
    assert tried[1]["messages"][:1] == tried[0]["messages"], "and so does the prefix"
    decided = [step.fields for step in steps if step.kind == "decide"]
    assert [step.get("excluded_tools") for step in decided] == [None, *[{"flaky": "breaker_open"}] * 2]
    assert [(one.outcome, one.reason) for one in first.results[3:]] == [
        ("not_available", "breaker_open"),
        ("ok", None),
    ]
    assert later.ok and [one.outcome for one in later.results] == ["ok"], "the probe went through"
    assert after.ok and after.tool_calls == 1 and len(called) == opened + 2


def _until(make: Callable[[], RunResult], good: Callable[[RunResult], object]) -> RunResult:
    """Runs one after the other until one is good; how long a breaker is open is the only wait."""
    deadline = time.monotonic() + WAIT_S
    while not good(result := make()):
        assert time.monotonic() < deadline, "the tool was never offered again"
    return result
