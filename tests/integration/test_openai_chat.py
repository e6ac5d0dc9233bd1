"""The Chat Completions client against real HTTP servers on loopback that behave, and that do not."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from toolfleet.adapters.llm import wire_client
from toolfleet.adapters.llm.openai_chat import OpenAIChatClient
from toolfleet.schemas.agents import AgentSpec, Price
from toolfleet.schemas.conversation import UserItem
from toolfleet.schemas.errors import ModelError, UnsafeSettings
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, RawCall, Usage
from toolfleet.schemas.tools import ToolSpec

KEY = "sk-very-secret-key"
SECRET_WORDS = "the customer's secret words"
LOOK = ToolSpec(name="look", description="d", parameters={"type": "object", "properties": {}})
AGENT = AgentSpec(name="desk", model="model-1", instructions="Be kind.", tools=(LOOK,))
REQUEST = ModelRequest(AGENT, (UserItem(SECRET_WORDS),), AGENT.tools, timeout_s=20.0)
ENOUGH_S = 20.0  # for things that happen at once; only a failure takes that long

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def completion(text: str | None = "Hello", **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "model": "model-1-dated",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
    }


@dataclass
class Server:
    """A model server whose next answer is `handler`; keeps what it was sent."""

    handler: Handler
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    host: str = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        return await self.handler(request)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[tuple[Server, OpenAIChatClient]]:
    server = Server(handler)
    app = web.Application(client_max_size=10**8)
    app.router.add_post("/v1/chat/completions", server.serve)
    # a handler that nobody waits for any more is cancelled, so that it can be seen that nobody does
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.host = f"127.0.0.1:{runner.addresses[0][1]}"
    server.url = f"http://{server.host}/v1"
    client = OpenAIChatClient(server.url, KEY)
    try:
        yield server, client
    finally:
        await client.aclose()
        await runner.cleanup()


def answering(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(
            body=raw, status=status, headers={"content-type": "application/json", **(headers or {})}
        )

    return handler


def ask(handler: Handler, request: ModelRequest = REQUEST) -> ModelReply:
    async def asking() -> ModelReply:
        async with serving(handler) as (_, client):
            return await client.complete(request)

    return asyncio.run(asking())


def fault_of(handler: Handler, request: ModelRequest = REQUEST) -> tuple[ModelFault, Server]:
    """The fault of one attempt, after the checks that hold for each of them."""

    async def asking() -> tuple[ModelError, Server]:
        async with serving(handler) as (server, client):
            with pytest.raises(ModelError) as caught:
                await client.complete(request)
            return caught.value, server

    error, server = asyncio.run(asking())
    assert len(server.bodies) == 1, "one attempt; the scheduler decides about the next"
    assert server.host in error.fault.message
    assert KEY not in repr(error.fault) and SECRET_WORDS not in repr(error.fault)
    assert error.__cause__ is None and error.__context__ is None, "the SDK's errors hold request and key"
    return error.fault, server


def test_a_reply_comes_back_with_text_usage_and_ids() -> None:
    reply = ask(answering(completion(), headers={"x-request-id": "req_1"}))

    assert (reply.text, reply.calls, reply.finish) == ("Hello", (), "stop")
    assert (reply.wire, reply.model, reply.request_id) == ("chat_completions", "model-1-dated", "req_1")
    assert reply.usage == Usage(20, 2, 16, 0)
    assert reply.provider == {"role": "assistant", "content": "Hello"}


def test_calls_come_back_as_they_were_sent() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": '}}

    reply = ask(answering(completion(None, tool_calls=[call])))

    assert reply.calls == (RawCall("c1", "look", '{"a": '),)
    assert reply.finish == "tool_calls"


def test_the_bytes_received_are_the_bytes_rendered_with_key_and_type_in_the_headers() -> None:
    async def asking() -> None:
        async with serving(answering(completion())) as (server, client):
            await client.complete(REQUEST)

            assert server.bodies == [client.render(REQUEST)]
            sent = server.headers[0]
            assert sent["Authorization"] == f"Bearer {KEY}" and sent["Content-Type"] == "application/json"
            assert int(sent["Content-Length"]) == len(server.bodies[0])
            assert "OpenAI-Organization" not in sent

    asyncio.run(asking())


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "bad_request", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (408, "timeout", True),
        (409, "unavailable", True),
        (422, "bad_request", False),
        (429, "rate_limited", True),
        (500, "unavailable", True),
        (503, "unavailable", True),
        (529, "unavailable", True),
    ],
)
def test_each_status_is_its_own_fault(status: int, kind: str, retryable: bool) -> None:
    body = {
        "error": {
            "message": f"You said: {SECRET_WORDS} with {KEY}",
            "type": "some_error",
            "code": "some_code",
        }
    }

    fault, _ = fault_of(answering(body, status, {"x-request-id": "req_9", "retry-after": "3"}))

    assert (fault.kind, fault.retryable, fault.status, fault.request_id) == (kind, retryable, status, "req_9")
    assert fault.retry_after_s == (3.0 if retryable else None)
    assert str(status) in fault.message and "some_code" in fault.message


def test_an_error_page_of_a_proxy_is_classed_by_its_status() -> None:
    fault, _ = fault_of(answering(b"<html>Bad Gateway</html>", 502, {"content-type": "text/html"}))

    assert (fault.kind, fault.retryable, fault.status) == ("unavailable", True, 502)


def test_a_redirect_is_not_followed() -> None:
    fault, _ = fault_of(answering(b"", 307, {"location": "/v1/chat/completions"}))

    assert (fault.kind, fault.retryable, fault.status) == ("bad_request", False, 307)
    assert "base URL" in fault.message


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"choices": []}, "without choices"),
        ({**completion(), "choices": [{"index": 0, "message": None}]}, "without a message"),
        (b"<!doctype html><html></html>", "web page"),
        (b"", "empty answer"),
        (b"data: {}\n\ndata: [DONE]\n\n", "without choices"),
        (b'{"choices": [{"message": {"content": "Hel', "cut off"),
    ],
)
def test_what_is_no_reply_may_be_asked_again(body: Any, what: str) -> None:
    fault, _ = fault_of(answering(body))

    assert (fault.kind, fault.retryable, fault.status) == ("bad_reply", True, None)
    assert what in fault.message


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_client, "REPLY_BYTES_MAX", 100_000)

    fault, _ = fault_of(answering(b" " * 10_000_000))

    assert (fault.kind, fault.retryable) == ("bad_reply", True) and "more than 100000 bytes" in fault.message


async def _cut_at_once(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def _cut_in_the_middle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def _cut_in_an_error(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=500, headers={"Content-Length": "1000"})
    await response.prepare(request)
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.mark.parametrize("handler", [_cut_at_once, _cut_in_the_middle, _cut_in_an_error])
def test_a_cut_connection_is_no_timeout_and_no_reply(handler: Handler) -> None:
    fault, _ = fault_of(handler)

    assert (fault.kind, fault.retryable, fault.status) == ("connection", True, None)
    assert "closed the connection" in fault.message


async def _never(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def _begun_and_never_ended(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    return await _never(request)


@pytest.mark.parametrize("handler", [_never, _begun_and_never_ended])
def test_a_server_slower_than_the_deadline_is_given_up(handler: Handler) -> None:
    request = ModelRequest(AGENT, REQUEST.items, AGENT.tools, timeout_s=1.0)

    fault, _ = fault_of(handler, request)

    assert (fault.kind, fault.retryable, fault.status) == ("timeout", True, None)
    assert "1 s" in fault.message


def test_a_server_that_is_down_is_a_fault_of_the_connection() -> None:
    with (
        socket.socket() as taken
    ):  # bound and not listening: nobody else can have the port, and nobody answers
        taken.bind(("127.0.0.1", 0))
        client = OpenAIChatClient(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")

        async def asking() -> ModelFault:
            try:
                with pytest.raises(ModelError) as caught:
                    await client.complete(REQUEST)
            finally:
                await client.aclose()
            return caught.value.fault

        fault = asyncio.run(asking())

    assert (fault.kind, fault.retryable, fault.status) == ("connection", True, None)
    assert "connection refused" in fault.message and "server up" in fault.message


def test_a_server_that_does_not_speak_http_is_a_bad_reply() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def asking() -> ModelFault:
        listener = await asyncio.start_server(babble, "127.0.0.1", 0)
        client = OpenAIChatClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1")
        try:
            with pytest.raises(ModelError) as caught:
                await client.complete(REQUEST)
        finally:
            await client.aclose()
            listener.close()
            await listener.wait_closed()
        return caught.value.fault

    fault = asyncio.run(asking())

    assert (fault.kind, fault.retryable) == ("bad_reply", True)


@pytest.mark.parametrize("handler", [_never, _begun_and_never_ended])
def test_a_cancelled_call_closes_its_connection_and_the_client_goes_on(handler: Handler) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def noticing(request: web.Request) -> web.StreamResponse:
        arrived.set()
        try:
            return await handler(request)
        finally:
            gone.set()

    async def asking() -> ModelReply:
        async with serving(noticing) as (server, client):
            call = asyncio.create_task(client.complete(REQUEST))
            async with asyncio.timeout(ENOUGH_S):
                await arrived.wait()
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                await gone.wait()  # the server sees that nobody waits any more
            server.handler = answering(completion("after"))
            return await client.complete(REQUEST)

    assert asyncio.run(asking()).text == "after"


def test_a_hundred_calls_at_a_time_get_each_their_own_reply() -> None:
    together = asyncio.Event()
    waiting = 0

    async def echo(request: web.Request) -> web.StreamResponse:
        nonlocal waiting
        waiting += 1
        if waiting == 100:
            together.set()
        async with asyncio.timeout(ENOUGH_S):
            await (
                together.wait()
            )  # nobody is answered before all have come: they really are in flight together
        body = await request.json()
        return web.json_response(completion(body["messages"][-1]["content"]))

    async def asking() -> list[ModelReply]:
        requests = [ModelRequest(AGENT, (UserItem(f"n{number}"),), AGENT.tools) for number in range(100)]
        async with serving(echo) as (_, client):
            return await asyncio.gather(*(client.complete(request) for request in requests))

    replies = asyncio.run(asking())

    assert [reply.text for reply in replies] == [f"n{number}" for number in range(100)]


def test_a_client_works_in_another_loop_after_it_was_closed_in_the_first() -> None:
    async def asking(client: OpenAIChatClient) -> str | None:
        try:
            return (await client.complete(REQUEST)).text
        finally:
            await client.aclose()
            await client.aclose()

    async def both_ways() -> list[str | None]:
        async with serving(answering(completion("x"))) as (server, _):
            client = OpenAIChatClient(server.url)
            elsewhere = await asyncio.to_thread(lambda: asyncio.run(asking(client)))
            return [elsewhere, await asking(client)]

    assert asyncio.run(both_ways()) == ["x", "x"]


def test_nothing_of_the_request_or_the_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    fault_of(answering({"error": {"message": SECRET_WORDS}}, 500))

    assert caplog.records and KEY not in caplog.text and SECRET_WORDS not in caplog.text


@pytest.mark.parametrize(
    ("url", "key", "why"),
    [
        (None, None, "no API key for api.openai.com"),
        ("https://models.example/v1", " ", "no API key for models.example"),
        ("https://user:pass@models.example/v1", None, "no API key for models.example"),
        (None, f"{KEY}\nx", "characters no key has"),
        (None, f"Bearer {KEY}", "characters no key has"),
        (None, "s\u212aret", "characters no key has"),
        ("models.example/v1", KEY, "base URL"),
        ("ftp://models.example", KEY, "base URL"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_start_without_quoting_them(
    url: str | None, key: str | None, why: str
) -> None:
    with pytest.raises(UnsafeSettings) as caught:
        OpenAIChatClient(url, key)

    assert why in str(caught.value)
    assert KEY not in str(caught.value) and "user:pass" not in str(caught.value)


def test_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "from-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def asking() -> Server:
        async with serving(answering(completion())) as (server, _):
            client = OpenAIChatClient(server.url)
            await client.complete(REQUEST)
            await client.aclose()
            return server

    server = asyncio.run(asking())

    assert "from-the-environment" not in str(server.headers)


def test_costs_are_the_agent_s_price_or_the_table_s_or_nothing() -> None:
    client = OpenAIChatClient("http://127.0.0.1:9/v1")
    usage = Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=400_000)

    def cost(**agent: Any) -> float:
        return client.cost_usd(AgentSpec(name="a", **agent), usage)

    assert cost(model="x", price=Price(input_usd=1, output_usd=10, cached_input_usd=0.5)) == pytest.approx(
        1.8
    )
    assert cost(model="x", price=Price(input_usd=1, output_usd=10)) == pytest.approx(2.0)
    assert cost(model="nobody-knows-it") == 0.0
    assert client.price_known(AgentSpec(name="a", model="gpt-4o"))
    assert not client.price_known(AgentSpec(name="a", model="nobody-knows-it"))


@pytest.mark.parametrize(
    "model", ["gpt-4o", "gpt-5-mini", "gemini-2.5-pro", "claude-sonnet-4-5", "deepseek-chat"]
)
@pytest.mark.parametrize("size", [1000, 150_000, 250_000])
def test_rates_taken_from_the_table_give_what_the_table_gives(model: str, size: int) -> None:
    import genai_prices

    usage = Usage(size, 500, 100)
    counted = genai_prices.Usage(input_tokens=size, output_tokens=500, cache_read_tokens=100)

    ours = OpenAIChatClient("http://127.0.0.1:9/v1").cost_usd(AgentSpec(name="a", model=model), usage)

    assert ours == pytest.approx(float(genai_prices.calc_price(counted, model).total_price))
