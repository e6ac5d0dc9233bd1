"""A model server that misbehaves, through the real client and the whole embedded fleet."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from toolfleet import Fleet, Limits, OpenAIChatClient, RunStatus
from toolfleet.client import RunResult

WAIT_S = 60.0
Handler = Callable[[web.Request, int], Awaitable[web.StreamResponse]]


def _completion(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "test-model",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


@contextmanager
def _served(handler: Handler) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server on loopback in a thread; its base URL and the bodies it has received."""
    received: list[dict[str, Any]] = []
    loop = asyncio.new_event_loop()

    async def answer(request: web.Request) -> web.StreamResponse:
        received.append(orjson.loads(await request.read()))
        return await handler(request, len(received))

    async def start() -> tuple[web.AppRunner, int]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield f"http://127.0.0.1:{port}/v1", received
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def _run(tmp_path: Path, url: str, **limits: Any) -> tuple[RunResult, list[Any]]:
    fleet = Fleet(
        f"sqlite:///{tmp_path / 'fleet.db'}", model=OpenAIChatClient(base_url=url, api_key="sk-secret")
    )
    fleet.agent("desk", model="test-model", limits=Limits(**limits))
    with fleet:
        run = fleet.submit("desk", "hello")
        result = run.wait(timeout_s=WAIT_S)
        return result, list(run.events(follow=False))


def _always(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Handler:
    async def handler(_request: web.Request, _count: int) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return handler


@pytest.mark.parametrize(("status", "asked"), [(400, 1), (401, 1), (404, 1), (429, 3), (500, 3)])
def test_an_error_status_ends_the_run_with_its_reason(tmp_path: Path, status: int, asked: int) -> None:
    error = {"error": {"message": "secret payload", "type": "x", "code": "some_code", "param": None}}

    with _served(_always(status, error, {"retry-after-ms": "5"})) as (url, received):
        result, events = _run(tmp_path, url, model_attempts_max=3)

    assert result.status is RunStatus.FAILED and result.reason == "model_error"
    assert len(received) == asked
    (failed,) = [event.data for event in events if event.type == "model.failed"]
    assert str(status) in failed["message"] and "secret" not in failed["message"]


def test_a_server_that_is_busy_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    async def handler(_request: web.Request, count: int) -> web.StreamResponse:
        if count < 3:
            return web.json_response({"error": {"message": "busy"}}, status=503, headers={"retry-after": "0"})
        return web.json_response(_completion({"content": "hi"}))

    with _served(handler) as (url, received):
        result, _ = _run(tmp_path, url)

    assert result.ok and result.output == "hi" and result.model_calls == 1
    assert len(received) == 3


def test_a_server_that_is_down_ends_the_run(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

    result, events = _run(tmp_path, f"http://127.0.0.1:{port}/v1", model_attempts_max=2)

    assert result.status is RunStatus.FAILED and result.reason == "model_error"
    assert [event.type for event in events].count("turn.retry") == 1


def test_a_server_that_is_too_slow_is_given_up(tmp_path: Path) -> None:
    never = threading.Event()

    async def handler(_request: web.Request, _count: int) -> web.StreamResponse:
        await asyncio.to_thread(never.wait, 5)
        return web.json_response({})

    with _served(handler) as (url, _):
        result, _ = _run(tmp_path, url, model_timeout_s=0.2, model_attempts_max=2)
        never.set()

    assert result.status is RunStatus.FAILED and result.reason == "model_error"


def test_a_server_that_cuts_the_connection_is_asked_again(tmp_path: Path) -> None:
    async def handler(request: web.Request, count: int) -> web.StreamResponse:
        if count == 1:
            response = web.StreamResponse(headers={"content-length": "1000"})
            await response.prepare(request)
            await response.write(b'{"choices": [')
            assert request.transport is not None
            request.transport.close()
            return response
        return web.json_response(_completion({"content": "whole"}))

    with _served(handler) as (url, received):
        result, _ = _run(tmp_path, url)

    assert result.output == "whole" and len(received) == 2


@pytest.mark.parametrize(
    "body", [{"choices": []}, {"choices": None}, {"object": "chat.completion"}, {"choices": [{"index": 0}]}]
)
def test_an_answer_without_a_choice_is_no_reply(tmp_path: Path, body: dict[str, Any]) -> None:
    with _served(_always(200, body)) as (url, received):
        result, _ = _run(tmp_path, url, model_attempts_max=2)

    assert result.status is RunStatus.FAILED and len(received) == 2


def test_an_empty_reply_is_asked_again_once(tmp_path: Path) -> None:
    async def handler(_request: web.Request, count: int) -> web.StreamResponse:
        return web.json_response(_completion({"content": ""} if count == 1 else {"content": "now"}))

    with _served(handler) as (url, received):
        result, _ = _run(tmp_path, url)

    assert result.output == "now" and result.corrections == 1 and len(received) == 2


@pytest.mark.parametrize("calls", [[], None], ids=["empty", "absent"])
def test_no_calls_in_either_spelling_ends_the_run(tmp_path: Path, calls: Any) -> None:  # B034
    message = {"content": "done"} if calls is None else {"content": "done", "tool_calls": calls}

    with _served(_always(200, _completion(message))) as (url, received):
        result, events = _run(tmp_path, url)

    assert result.ok and len(received) == 1
    assert not [event for event in events if event.type in ("turn.calls", "turn.merged")]


@pytest.mark.parametrize(
    ("message", "finish", "status", "reason"),
    [
        ({"content": None, "refusal": "I cannot do that"}, "stop", RunStatus.FAILED, "refusal"),
        ({"content": None}, "content_filter", RunStatus.FAILED, "content_filter"),
        ({"content": "half a sen"}, "length", RunStatus.LIMIT_REACHED, "truncated_output"),
    ],
)
def test_final_states_have_their_own_reason(
    tmp_path: Path, message: dict[str, Any], finish: str, status: RunStatus, reason: str
) -> None:
    with _served(_always(200, _completion(message, finish))) as (url, received):
        result, _ = _run(tmp_path, url)

    assert (result.status, result.reason) == (status, reason) and len(received) == 1
