"""The chain of an agent's models through a whole fleet: when the next one is asked, and that it can read what was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from aiohttp import web
from anthropic.types import message_create_params
from pydantic import TypeAdapter

from tests.integration.test_fleet_model_server import WAIT_S, _completion
from toolfleet import Fleet, Limits
from toolfleet.adapters.llm.model_servers import DEFAULT, ModelServer, ModelServers
from toolfleet.client import RunResult

PRIMARY, SECOND, THIRD = "gpt-4o-mini", "claude:claude-sonnet-4-5", "third:gpt-4o"
CHAIN = (SECOND, THIRD)
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
USAGE = {"input_tokens": 3, "output_tokens": 2}
OVERLOADED = (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
NO_QUOTA = (429, {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "Pay."}})
BAD_REQUEST = (400, {"error": {"type": "invalid_request_error", "message": "Your schema is wrong."}})

Answer = tuple[int, Any]
Script = Callable[
    [str, dict[str, Any], int], Answer | None
]  # (server, body, its how many-eth) -> answer; None: never


@contextmanager
def servers(script: Script) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Three servers behind one address; who was asked what, in order."""
    asked: list[tuple[str, dict[str, Any]]] = []
    loop = asyncio.new_event_loop()

    async def answer(request: web.Request) -> web.StreamResponse:
        name, body = request.match_info["server"], await request.json()
        asked.append((name, body))
        made = script(name, body, sum(one == name for one, _ in asked))
        if made is None:
            await asyncio.Event().wait()
        assert made is not None
        return web.json_response(made[1], status=made[0])

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/{server}/v1/{tail:.*}", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def said(wire: str, text: str) -> Answer:
    if wire == "claude":
        content = [{"type": "text", "text": text}]
        return 200, {"type": "message", "content": content, "stop_reason": "end_turn", "usage": USAGE}
    return 200, _completion({"content": text})


def play(
    tmp_path: Path, script: Script, *, fallback: tuple[str, ...] = CHAIN, **limits: Any
) -> tuple[RunResult, list[tuple[str, dict[str, Any]]]]:
    with servers(script) as (url, asked):
        known = {
            DEFAULT: ModelServer(f"{url}/primary/v1", "k"),
            "claude": ModelServer(f"{url}/claude/v1", "k", profile="anthropic"),
            "third": ModelServer(f"{url}/third/v1", "k", profile="openai"),
        }
        fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ModelServers(known))

        @fleet.tool
        async def look(n: int) -> str:
            """Look something up."""
            return f"seen {n}"

        fleet.agent(
            "desk",
            model=PRIMARY,
            fallback_models=fallback,
            instructions="Be kind.",
            tools=["look"],
            limits=Limits(**limits),
        )
        with fleet:
            return fleet.submit("desk", "Look at 1").wait(timeout_s=WAIT_S), asked


@pytest.mark.parametrize("failure", [OVERLOADED, None], ids=["529", "timeout"])
def test_a_model_that_fails_twice_in_a_turn_is_left_for_the_next_which_reads_what_was_said(
    tmp_path: Path, failure: Answer | None
) -> None:
    def script(server: str, body: dict[str, Any], count: int) -> Answer | None:
        if server == "claude":
            return said("claude", "Seen it.")
        return (
            (200, _completion({"content": None, "tool_calls": [CALL]}, "tool_calls"))
            if count == 1
            else failure
        )

    result, asked = play(tmp_path, script, model_timeout_s=2.0)

    assert result.ok and result.output == "Seen it." and result.tool_calls == 1
    assert [server for server, _ in asked] == ["primary"] * 3 + ["claude"]
    body = asked[-1][1]
    TypeAdapter(message_create_params.MessageCreateParamsNonStreaming).validate_python(body)
    user, assistant, results = body["messages"]
    assert user == {"role": "user", "content": [{"type": "text", "text": "Look at 1"}]}
    (call,) = assistant["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "look", {"n": 1})
    (block,) = results["content"]
    assert (block["type"], block["tool_use_id"]) == ("tool_result", call["id"])
    assert json.loads(block["content"])["data"] == "seen 1"
    assert body["model"] == "claude-sonnet-4-5" and body["system"][0]["text"] == "Be kind."


def test_a_used_up_quota_is_left_at_once_and_the_turn_after_does_not_go_back_to_it(tmp_path: Path) -> None:
    def script(server: str, body: dict[str, Any], count: int) -> Answer | None:
        if server == "primary":
            return NO_QUOTA
        if server == "claude":
            block = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 1}}
            thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
            made = {"type": "message", "content": [thought, block], "stop_reason": "tool_use", "usage": USAGE}
            return (200, made) if count == 1 else NO_QUOTA
        return said("third", "Seen it.")

    result, asked = play(tmp_path, script)

    assert result.ok and result.output == "Seen it."
    assert [server for server, _ in asked] == ["primary", "claude", "claude", "third"]
    sent = asked[-1][1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool"]
    assert "Hm." not in json.dumps(sent), "a thought of another provider's is not sent to this one"
    assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"] == "toolu_1"


def test_at_the_end_of_the_chain_the_run_ends_with_the_reason(tmp_path: Path) -> None:
    result, asked = play(tmp_path, lambda server, body, count: NO_QUOTA)

    assert not result.ok and result.reason == "model_error"
    assert [server for server, _ in asked] == ["primary", "claude", "third"]


def test_a_refused_request_is_our_own_fault_and_no_other_model_is_asked(tmp_path: Path) -> None:
    result, asked = play(tmp_path, lambda server, body, count: BAD_REQUEST)

    assert not result.ok and result.reason == "model_error"
    assert [server for server, _ in asked] == ["primary"]
