"""What the fleet relies on of every model client: over the real one against a server, and the scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from toolfleet.adapters.llm.anthropic_messages import AnthropicClient
from toolfleet.adapters.llm.openai_chat import OpenAIChatClient, OpenAIResponsesClient
from toolfleet.adapters.llm.scripted import Call, Reply, ScriptedModel, call, calls, say
from toolfleet.schemas.agents import AgentSpec, Price
from toolfleet.schemas.conversation import AssistantItem, ItemCall, ItemResult, MergeItem, UserItem
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.ports import ModelClient
from toolfleet.schemas.tools import ToolSpec

LOOK = ToolSpec(name="look", description="d", parameters={"type": "object", "properties": {"at": {}}})
AGENT = AgentSpec(
    name="desk", model="m", tools=(LOOK,), price=Price(input_usd=1, output_usd=2, cached_input_usd=0)
)
REFUSED = "refuse this"


def _script(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str | Reply:
    """Looks twice, at what it was asked for, and then says what it saw."""
    last = messages[-1]
    if last["content"] == REFUSED:
        raise ModelError(ModelFault("bad_request", "refused.", retryable=False, status=400))
    if last["role"] == "user" and tools:
        return calls(call("look", at=last["content"]), call("look", at="elsewhere"))
    results = [message for message in messages if message["role"] == "tool"]
    return say(f"{len(results)} results, last {orjson.loads(last['content'])['data']}")


async def _serve(request: web.Request) -> web.Response:
    body = await request.json()
    try:
        reply = _script(body["messages"], body.get("tools", []))
    except ModelError:
        return web.json_response({"error": {"code": "refused"}}, status=400)
    reply = Reply(reply) if isinstance(reply, str) else reply
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        message["tool_calls"] = [
            {"id": f"c{index}", "function": {"name": c.name, "arguments": orjson.dumps(c.arguments).decode()}}
            for index, c in enumerate(reply.calls)
        ]
    usage = {"prompt_tokens": len(body["messages"]), "completion_tokens": 1}
    return web.json_response({"model": body["model"], "choices": [{"message": message}], "usage": usage})


def _as_chat(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation of a request of any wire, as the script reads it."""
    messages: list[dict[str, Any]] = []
    for entry in body.get("input", body.get("messages", [])):
        content = entry.get("content")
        if entry.get("type") == "function_call_output":
            messages.append({"role": "tool", "content": entry["output"]})
        elif isinstance(content, list):
            for block in content:
                text = block["content"] if block["type"] == "tool_result" else block.get("text")
                role = "tool" if block["type"] == "tool_result" else entry["role"]
                messages.append({"role": role, "content": text})
        elif "role" in entry:
            messages.append({"role": entry["role"], "content": content})
    return messages


async def _serve_responses(request: web.Request) -> web.Response:
    body = await request.json()
    try:
        reply = _script(_as_chat(body), body.get("tools", []))
    except ModelError:
        return web.json_response({"error": {"code": "refused"}}, status=400)
    reply = Reply(reply) if isinstance(reply, str) else reply
    output: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": f"fc{index}",
            "call_id": f"c{index}",
            "name": c.name,
            "arguments": orjson.dumps(c.arguments).decode(),
        }
        for index, c in enumerate(reply.calls)
    ]
    if reply.text:
        output.append(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": reply.text}]}
        )
    usage = {"input_tokens": len(body["input"]), "output_tokens": 1}
    return web.json_response(
        {
            "object": "response",
            "model": body["model"],
            "status": "completed",
            "output": output,
            "usage": usage,
        }
    )


async def _serve_messages(request: web.Request) -> web.Response:
    assert request.headers["x-api-key"] and "authorization" not in request.headers
    body = await request.json()
    try:
        reply = _script(_as_chat(body), body.get("tools", []))
    except ModelError:
        return web.json_response({"type": "error", "error": {"type": "invalid_request_error"}}, status=400)
    reply = Reply(reply) if isinstance(reply, str) else reply
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    content += [
        {"type": "tool_use", "id": f"c{index}", "name": c.name, "input": c.arguments}
        for index, c in enumerate(reply.calls)
    ]
    usage = {"input_tokens": len(body["messages"]), "output_tokens": 1}
    made = {
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "usage": usage,
    }
    return web.json_response({**made, "stop_reason": "tool_use" if reply.calls else "end_turn"})


@asynccontextmanager
async def _serving(path: str, handler: Any, kind: Any) -> AsyncIterator[ModelClient]:
    app = web.Application()
    app.router.add_post(f"/v1{path}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = kind(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    try:
        yield client
    finally:
        await client.aclose()
        await runner.cleanup()


def _openai_chat() -> AbstractAsyncContextManager[ModelClient]:
    return _serving("/chat/completions", _serve, OpenAIChatClient)


def _openai_responses() -> AbstractAsyncContextManager[ModelClient]:
    return _serving("/responses", _serve_responses, OpenAIResponsesClient)


def _anthropic() -> AbstractAsyncContextManager[ModelClient]:
    return _serving("/messages", _serve_messages, AnthropicClient)


@asynccontextmanager
async def _scripted() -> AsyncIterator[ModelClient]:
    model = ScriptedModel(_script)
    yield model
    await model.aclose()


Making = Callable[[], AbstractAsyncContextManager[ModelClient]]
every_client = pytest.mark.parametrize(
    "making",
    [_openai_chat, _openai_responses, _anthropic, _scripted],
    ids=["openai_chat", "openai_responses", "anthropic", "scripted"],
)


def _asked(making: Making, *requests: ModelRequest) -> list[ModelReply]:
    async def asking() -> list[ModelReply]:
        async with making() as client:
            return [await client.complete(request) for request in requests]

    return asyncio.run(asking())


def _request(*more: Any, text: str = "Rome") -> ModelRequest:
    return ModelRequest(AGENT, (UserItem(text), *more), AGENT.tools)


def _after(reply: ModelReply) -> ModelRequest:
    """The request that carries the results of all calls of the reply."""
    items = tuple(
        ItemCall(f"our{i}", f"w{i}", c.name, c.arguments or "{}") for i, c in enumerate(reply.calls)
    )
    merge = MergeItem(
        tuple(
            ItemResult(item.call_id, item.wire_id, CallOutcome.OK, f'{{"status":"success","data":{number}}}')
            for number, item in enumerate(items)
        )
    )
    return _request(AssistantItem(reply.text, items, wire=reply.wire, provider=reply.provider), merge)


@every_client
def test_calls_come_in_order_with_usage_and_a_message_to_replay(making: Making) -> None:
    (reply,) = _asked(making, _request())

    assert [orjson.loads(call.arguments or "") for call in reply.calls] == [
        {"at": "Rome"},
        {"at": "elsewhere"},
    ]
    assert len({call.provider_id for call in reply.calls}) == 2
    assert (reply.finish, reply.model) == ("tool_calls", "m")
    assert reply.usage.known and reply.usage.input_tokens > 0
    assert reply.wire and reply.provider


@every_client
def test_a_turn_with_results_is_taken_back(making: Making) -> None:
    (reply,) = _asked(making, _request())

    (answer,) = _asked(making, _after(reply))

    assert (answer.text, answer.calls, answer.finish) == ("2 results, last 1", (), "stop")


@every_client
def test_a_fault_is_the_only_thing_that_is_raised(making: Making) -> None:
    with pytest.raises(ModelError) as caught:
        _asked(making, _request(text=REFUSED))

    assert (caught.value.fault.kind, caught.value.fault.retryable) == ("bad_request", False)


@every_client
def test_rendering_needs_no_connection_and_costs_come_from_the_agent(making: Making) -> None:
    async def looking() -> tuple[bytes, bytes, float]:
        async with making() as client:
            cost = client.cost_usd(AGENT, Usage(1_000_000, 1_000_000, 500_000))
            return client.render(_request()), client.render(_request()), cost

    first, second, cost = asyncio.run(looking())

    assert first == second and _as_chat(orjson.loads(first))[-1] == {"role": "user", "content": "Rome"}
    assert cost == pytest.approx(2.5)


def test_a_list_is_played_by_what_was_said_so_far_so_that_repetitions_change_nothing() -> None:
    model = ScriptedModel([call("look", at="Rome"), "It is sunny."])
    said = AssistantItem("x")

    async def asking() -> list[ModelReply]:
        return [await model.complete(_request(*items)) for items in [(), (), (said,), ()]]

    replies = asyncio.run(asking())

    assert [reply.text for reply in replies] == [None, None, "It is sunny.", None]
    assert replies[0] == replies[1] == replies[3] and model.requests == 4


def test_a_list_that_is_over_is_a_fault_that_says_so() -> None:
    with pytest.raises(ModelError, match="has 1 replies and was asked for number 2"):
        asyncio.run(ScriptedModel([say("x")]).complete(_request(AssistantItem("x"))))


def test_a_script_may_be_async_and_may_play_a_model_that_writes_nonsense() -> None:
    async def script(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Reply:
        return Reply(calls=(Call("look", '{"at": '),), finish="length")

    reply = asyncio.run(ScriptedModel(script).complete(_request()))

    assert (reply.calls[0].arguments, reply.finish) == ('{"at": ', "length")


def test_a_scripted_call_may_have_a_parameter_called_name() -> None:
    assert call("look", name="x").calls == (Call("look", {"name": "x"}),)
