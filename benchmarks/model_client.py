"""CPU of one model call, short and long conversation, over each wire (at most 1.5 ms, and flat: 42 messages and 20 tools
cost at most 1.5 times 2 messages and 3 tools).

    python benchmarks/model_client.py [--calls N] [--in-flight N] [--wire chat_completions|responses|messages]

The server is a process of its own, so that its CPU does not count; what does is the CPU of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from toolfleet.adapters.llm.anthropic_messages import AnthropicClient
from toolfleet.adapters.llm.openai_chat import OpenAIChatClient, OpenAIResponsesClient
from toolfleet.adapters.llm.profiles import Wire
from toolfleet.adapters.llm.wire_client import WireClient
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import AssistantItem, Item, ItemCall, ItemResult, MergeItem, UserItem
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.tools import ToolSpec

SERVER = """
import asyncio, sys
BODY = sys.argv[1].encode()
ANSWER = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(BODY) + BODY
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = next(int(line.split(b":")[1]) for line in head.split(b"\\r\\n") if line.lower().startswith(b"content-length"))
            await reader.readexactly(length)
            writer.write(ANSWER)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
ROUNDS = 5
CALL = {"id": "call_1", "type": "function", "function": {"name": "tool_1", "arguments": "{}"}}
FUNCTION_CALL = {
    "type": "function_call",
    "id": "fc",
    "call_id": "call_1",
    "name": "tool_1",
    "arguments": "{}",
}
TOOL_USE = {"type": "tool_use", "id": "call_1", "name": "tool_1", "input": {}}
BODIES: dict[Wire, Any] = {
    "chat_completions": {
        "model": "m",
        "choices": [
            {"index": 0, "message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}
        ],
        "usage": {"prompt_tokens": 900, "completion_tokens": 20, "total_tokens": 920},
    },
    "responses": {
        "object": "response",
        "status": "completed",
        "output": [FUNCTION_CALL],
        "usage": {"input_tokens": 900, "output_tokens": 20},
    },
    "messages": {
        "type": "message",
        "stop_reason": "tool_use",
        "content": [TOOL_USE],
        "usage": {"input_tokens": 900, "output_tokens": 20},
    },
}
CLIENTS: dict[Wire, type[WireClient]] = {
    "chat_completions": OpenAIChatClient,
    "responses": OpenAIResponsesClient,
    "messages": AnthropicClient,
}


def _tools(count: int) -> tuple[ToolSpec, ...]:
    parameters = {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": f"The {name} of what is asked for, as it was given."}
            for name in ("order_id", "customer_id", "reason", "note")
        },
        "required": ["order_id"],
    }
    return tuple(
        ToolSpec(name=f"tool_{n}", description="Does what it says. " * 8, parameters=parameters)
        for n in range(count)
    )


def _provider(wire: Wire, order: str) -> dict[str, Any]:
    """What a turn of the history is kept as: the arguments as models write them, strict ones with their nulls."""
    left_out = {"customer_id": None, "reason": None, "note": None}
    match wire:
        case "chat_completions":
            function = {"name": "tool_1", "arguments": f'{{"order_id": "{order}"}}'}
            return {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": function}]}
        case "responses":
            arguments = orjson.dumps({"order_id": order, **left_out}).decode()
            return {"output": [{**FUNCTION_CALL, "arguments": arguments}]}
        case "messages":
            return {"role": "assistant", "content": [{**TOOL_USE, "input": {"order_id": order, **left_out}}]}


def _items(messages: int, wire: Wire) -> tuple[Item, ...]:
    """A conversation of that many messages: one of the user, then turns of a call and its result, and one more."""
    items: list[Item] = [UserItem("Where is my order A-1?")]
    while len(items) + 2 <= messages - 1:
        wire_id, order = f"call_{len(items)}", f"A-{len(items)}"
        calls = (ItemCall(wire_id, wire_id, "tool_1", f'{{"order_id":"{order}"}}'),)
        items.append(AssistantItem(None, calls, wire=wire, provider=_provider(wire, order)))
        content = orjson.dumps(
            {"status": "success", "data": {"order": "A-1", "lines": ["x" * 40] * 10}}
        ).decode()
        items.append(MergeItem((ItemResult(wire_id, wire_id, CallOutcome.OK, content),)))
    while len(items) < messages:
        items.append(UserItem("And what now?"))
    return tuple(items)


async def _measure(client: WireClient, request: ModelRequest, calls: int, in_flight: int) -> float:
    """Seconds of CPU for one call."""
    left = calls

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await client.complete(request)

    started = time.process_time()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return (time.process_time() - started) / calls


def request_of(tool_count: int, messages: int, wire: Wire) -> ModelRequest:
    agent = AgentSpec(name="bench", model="m", instructions="Be kind. " * 50, tools=_tools(tool_count))
    return ModelRequest(agent, _items(messages, wire), agent.tools)


async def measured(
    port: int, wire: Wire, shapes: list[tuple[int, int]], calls: int, rounds: int
) -> list[float]:
    """Least seconds of CPU of one call, for each (tools, messages); the shapes take turns, so that a busy moment of the
    machine meets all of them."""
    client = CLIENTS[wire](f"http://127.0.0.1:{port}/v1")
    requests = [request_of(tools, messages, wire) for tools, messages in shapes]
    found: list[list[float]] = [[] for _ in shapes]
    for request in requests:
        await _measure(client, request, 20, 4)  # connections, caches
    for _ in range(rounds):
        for place, request in enumerate(requests):
            found[place].append(await _measure(client, request, calls, 4))
    await client.aclose()
    return [min(times) for times in found]


@contextmanager
def serving(wire: Wire) -> Iterator[int]:
    """A server of that wire in a process of its own; its port."""
    command = [sys.executable, "-c", SERVER, orjson.dumps(BODIES[wire]).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.terminate()


async def _run(port: int, calls: int, in_flight: int, wire: Wire) -> None:
    client = CLIENTS[wire](f"http://127.0.0.1:{port}/v1")
    for tool_count, messages in ((3, 2), (3, 42), (20, 2), (20, 42), (20, 200)):
        request = request_of(tool_count, messages, wire)
        size = len(client.render(request))
        await _measure(client, request, 50, in_flight)  # connections, caches
        rounds = [await _measure(client, request, calls, in_flight) for _ in range(ROUNDS)]
        started = time.process_time()
        for _ in range(200):
            client.render(request)
        render_s = (time.process_time() - started) / 200
        print(
            f"{tool_count:3} tools {messages:4} messages {size:7} bytes {in_flight:4} in flight: "
            f"{statistics.median(rounds) * 1e3:.2f} ms a call (min {min(rounds) * 1e3:.2f}), "
            f"of it rendering {render_s * 1e3:.3f} ms",
            flush=True,
        )
    await client.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=500, help="calls in each of five rounds")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--wire", choices=list(CLIENTS), help="one wire only")
    chosen = parser.parse_args()
    for wire in [chosen.wire] if chosen.wire else list(CLIENTS):
        print(wire)
        with serving(wire) as port:
            asyncio.run(_run(port, chosen.calls, chosen.in_flight, wire))


if __name__ == "__main__":
    main()
