"""Models of several servers in one fleet: which server is asked, how, and what a missing key or wrong setting says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from toolfleet import AgentSpec, Fleet
from toolfleet.adapters.llm.anthropic_messages import PAUSES_MAX, AnthropicClient
from toolfleet.adapters.llm.model_servers import DEFAULT, ModelServer, ModelServers, profile_of
from toolfleet.adapters.llm.prices import PriceTable
from toolfleet.adapters.llm.profiles import ANTHROPIC, split_model
from toolfleet.models import open_models
from toolfleet.schemas.conversation import UserItem
from toolfleet.schemas.errors import ModelError, UnsafeSettings
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]
USAGE = {
    "input_tokens": 3,
    "output_tokens": 2,
    "cache_read_input_tokens": 4,
    "cache_creation_input_tokens": 5,
}


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/{tail:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def message(*content: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    return {"type": "message", "model": "c", "content": list(content), "stop_reason": stop, "usage": USAGE}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def request(model: str = "c") -> ModelRequest:
    agent = AgentSpec(name="desk", model=model)
    return ModelRequest(agent, (UserItem("Hello"),), agent.tools, timeout_s=20)


def asked(handler: Handler, **more: Any) -> ModelReply | ModelFault:
    async def asking() -> ModelReply | ModelFault:
        async with serving(handler) as url:
            client = AnthropicClient(url, "sk-ant", **more)
            try:
                return await client.complete(request())
            except ModelError as error:
                return error.fault
            finally:
                await client.aclose()

    return asyncio.run(asking())


def test_each_model_is_asked_at_its_server_by_its_own_name_and_with_its_own_key() -> None:
    seen: list[tuple[str, str, str | None]] = []

    async def handler(incoming: web.Request) -> web.Response:
        body = await incoming.json()
        key = incoming.headers.get("x-api-key") or incoming.headers["authorization"]
        seen.append((incoming.path, body["model"], key))
        if incoming.path.endswith("/messages"):
            return web.json_response(message(said("from messages")))
        if incoming.path.endswith("/responses"):
            part = {"type": "message", "content": [{"type": "output_text", "text": "from responses"}]}
            return web.json_response({"object": "response", "status": "completed", "output": [part]})
        return web.json_response({"choices": [{"message": {"content": "from chat"}}]})

    async def asking() -> list[str | None]:
        async with serving(handler) as url:
            servers = ModelServers(
                {
                    DEFAULT: ModelServer(url, "k0"),
                    "anthropic": ModelServer(url),
                    "openai-responses": ModelServer(url, "k2"),
                    "lab": ModelServer(url, "k3", profile="vllm"),
                },
                {"ANTHROPIC_API_KEY": "k1"}.get,
            )
            models = ("gpt-x", "anthropic:claude-x", "openai-responses:gpt-y", "lab:qwen:3b", "llama3.2:3b")
            found = [(await servers.complete(request(model))).text for model in models]
            fingerprints = {servers.credential_of(AgentSpec(name="a", model=model)) for model in models}
            await servers.aclose()
            assert len(fingerprints) == 4
            return found

    assert asyncio.run(asking()) == ["from chat", "from messages", "from responses", "from chat", "from chat"]
    assert seen == [
        ("/v1/chat/completions", "gpt-x", "Bearer k0"),
        ("/v1/messages", "claude-x", "k1"),
        ("/v1/responses", "gpt-y", "Bearer k2"),
        ("/v1/chat/completions", "qwen:3b", "Bearer k3"),
        ("/v1/chat/completions", "llama3.2:3b", "Bearer k0"),
    ]


def test_a_key_that_is_missing_is_said_at_the_start_and_not_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GROQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}")
    fleet.agent("desk", model="anthropic:claude-x", instructions="Hi.")

    with pytest.raises(UnsafeSettings, match=r"no API key for api\.anthropic\.com") as caught:
        open_models(fleet.settings, fleet.registry)
    assert "ANTHROPIC_API_KEY" in (caught.value.hint or "")

    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    servers = open_models(fleet.settings, fleet.registry)  # nobody needs the key of a server nobody asks
    assert servers.client("anthropic:claude-x").host == "api.anthropic.com"
    with pytest.raises(ModelError) as fault:
        asyncio.run(servers.complete(request("groq:llama")))
    assert (fault.value.fault.kind, fault.value.fault.retryable) == ("auth", False)
    assert "GROQ_API_KEY" in fault.value.fault.message


def test_a_server_of_the_settings_has_options_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "lab": {
            "base_url": "http://127.0.0.1:9/v1",
            "profile": "vllm",
            "api_key_env": "LAB_KEY",
            "options": {"stream": True, "output_limit": "max_completion_tokens", "call_ids": "nine"},
        }
    }
    monkeypatch.setenv("LAB_KEY", "sekret")
    monkeypatch.setenv("TOOLFLEET_MODEL_SERVERS", json.dumps(given))
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}")
    fleet.agent("desk", model="lab:qwen", instructions="Hi.")

    client = open_models(fleet.settings, fleet.registry).client("lab:qwen")

    body = json.loads(client.render(request("lab:qwen")))
    assert (body["model"], body["stream"], body["max_completion_tokens"]) == ("qwen", True, 4096)
    assert client.profile.call_ids == "nine" and "sekret" not in repr(fleet.settings)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (ModelServer("http://127.0.0.1:9/v1", profile="nonesuch"), "no profile 'nonesuch'"),
        (ModelServer("http://127.0.0.1:9/v1", options={"streams": True}), "has no streams"),
        (ModelServer("http://127.0.0.1:9/v1", options={"call_ids": "ten"}), "option call_ids"),
    ],
)
def test_a_wrong_setting_is_named(server: ModelServer, words: str) -> None:
    with pytest.raises(UnsafeSettings, match=words) as caught:
        profile_of("lab", server)
    assert "lab" in caught.value.message and caught.value.hint


def test_a_server_without_an_address_is_named() -> None:
    with pytest.raises(UnsafeSettings, match="'lab' has no base_url"):
        ModelServers({"lab": ModelServer()}).client("lab:qwen")


def test_usage_counts_what_was_read_from_the_cache_and_written_to_it() -> None:
    async def handler(incoming: web.Request) -> web.Response:
        assert incoming.headers["anthropic-version"] and incoming.headers["anthropic-beta"] == "b1"
        return web.json_response(message(said("Hi")), headers={"request-id": "req_1"})

    reply = asked(handler, headers={"anthropic-beta": "b1"})

    assert isinstance(reply, ModelReply)
    usage = Usage(input_tokens=12, output_tokens=2, cached_tokens=4, cache_written_tokens=5)
    assert (reply.usage, reply.request_id) == (usage, "req_1")


def test_the_price_of_a_model_is_that_of_its_own_server_and_its_cache() -> None:
    agent = AgentSpec(name="a", model="anthropic:claude-sonnet-4-5")
    prices = PriceTable("https://api.openai.com/v1")
    million = 1_000_000

    assert split_model(agent.model) == (ANTHROPIC, "claude-sonnet-4-5")
    fresh = prices.cost_usd(agent, Usage(input_tokens=100_000))
    stored = prices.cost_usd(agent, Usage(input_tokens=100_000, cache_written_tokens=100_000))
    cached = prices.cost_usd(agent, Usage(input_tokens=100_000, cached_tokens=100_000))
    assert 0 < cached < fresh < stored and fresh < million


def test_a_stream_is_read_to_its_end_and_a_cut_one_is_none() -> None:
    events = [
        {"type": "message_start", "message": {**message(), "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": said("")},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    whole = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()

    def sending(raw: bytes) -> Handler:
        async def handler(incoming: web.Request) -> web.StreamResponse:
            assert (await incoming.json())["stream"] is True
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(incoming)
            for place in range(0, len(raw), 7):
                await response.write(raw[place : place + 7])
            await response.write_eof()
            return response

        return handler

    streaming = profile_of("anthropic", ModelServer(options={"stream": True}))
    reply, cut = asked(sending(whole), profile=streaming), asked(sending(whole[:-1]), profile=streaming)

    assert isinstance(reply, ModelReply) and (reply.text, reply.finish) == ("Hi", "stop")
    assert isinstance(cut, ModelFault) and (cut.kind, cut.retryable) == ("connection", True)


def test_a_paused_turn_is_sent_back_as_it_is_and_gone_on_with() -> None:
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
    bodies: list[dict[str, Any]] = []

    async def handler(incoming: web.Request) -> web.Response:
        bodies.append(await incoming.json())
        first = len(bodies) == 1
        return web.json_response(message(search, stop="pause_turn") if first else message(said("Found.")))

    async def never_ending(incoming: web.Request) -> web.Response:
        bodies.append(await incoming.json())
        return web.json_response(message(search, stop="pause_turn"))

    reply = asked(handler)

    assert isinstance(reply, ModelReply)
    assert (reply.text, reply.finish, reply.usage.output_tokens) == ("Found.", "stop", 4)
    assert reply.provider["content"] == [search, said("Found.")]
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": [search]}
    bodies.clear()
    endless = asked(never_ending)
    assert isinstance(endless, ModelFault) and endless.retryable
    assert len(bodies) == PAUSES_MAX + 1


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "invalid_request_error", False),
        (401, "authentication_error", False),
        (404, "not_found_error", False),
        (413, "request_too_large", False),
        (429, "rate_limit_error", True),
        (500, "api_error", True),
        (529, "overloaded_error", True),
    ],
)
def test_an_error_of_this_wire_is_classed_and_names_no_words_of_the_server(
    status: int, kind: str, retryable: bool
) -> None:
    async def handler(incoming: web.Request) -> web.Response:
        error = {
            "type": "error",
            "error": {"type": kind, "message": "your secret prompt"},
            "request_id": "req_9",
        }
        return web.json_response(error, status=status, headers={"retry-after": "3"} if retryable else {})

    fault = asked(handler)

    assert isinstance(fault, ModelFault)
    assert (fault.status, fault.retryable, fault.request_id) == (status, retryable, "req_9")
    assert fault.retry_after_s == (3.0 if retryable else None)
    assert kind in fault.message and "secret" not in fault.message


def test_a_redirect_is_not_followed_with_the_key() -> None:
    async def handler(incoming: web.Request) -> web.Response:
        return web.Response(status=307, headers={"location": "http://127.0.0.1:9/elsewhere"})

    fault = asked(handler)

    assert isinstance(fault, ModelFault) and (fault.status, fault.retryable) == (307, False)
