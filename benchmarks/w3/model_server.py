"""A model server of its own process, as cheap as asyncio allows: its CPU is in no figure, but it shares the machine.

    python -m benchmarks.w3.model_server          prints its base URL, ends when its stdin ends

It speaks Chat Completions. A conversation must carry exactly the results of the calls it was given, in any order, each
with its own text; else the answer is 400 and it is counted. `GET /counts` tells what was asked since the start.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import orjson

from benchmarks.w3.shape import FINAL_TEXT, TOOL_NAMES, TOOL_TURNS, arguments, result

_USAGE: Final = {"prompt_tokens": 300, "completion_tokens": 60, "total_tokens": 360}


class Refused(Exception):
    """The conversation is not one this server began."""


class Counts:
    def __init__(self) -> None:
        self.model_calls = 0
        self.refused = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self.last_refusal = ""

    def told(self) -> dict[str, Any]:
        """The most in flight is that since the last question."""
        told = {
            "model_calls": self.model_calls,
            "refused": self.refused,
            "in_flight_max": self.in_flight_max,
            "last_refusal": self.last_refusal,
        }
        self.in_flight_max = self.in_flight
        return told


def turn_of(messages: list[dict[str, Any]], shape: dict[str, Any]) -> int:
    """How many tool turns are over. Raises Refused where a result is missing, too much, or another one's."""
    turns = 0
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message["role"] != "assistant":
            continue
        asked = {
            one["id"]: orjson.loads(one["function"]["arguments"])["key"] for one in message["tool_calls"]
        }
        if len(asked) != shape["fan"]:
            raise Refused(f"turn {turns} has {len(asked)} calls instead of {shape['fan']}")
        answered: set[str] = set()
        while at < len(messages) and messages[at]["role"] == "tool":
            wire_id = messages[at]["tool_call_id"]
            if wire_id in answered or wire_id not in asked:
                raise Refused(f"turn {turns}: the result of {wire_id} is repeated or of no call")
            if result(asked[wire_id]) not in messages[at]["content"]:
                raise Refused(f"turn {turns}: the result of {wire_id} is another one's")
            answered.add(wire_id)
            at += 1
        if len(answered) != len(asked):
            raise Refused(f"turn {turns}: {len(answered)} results of {len(asked)} calls")
        turns += 1
    return turns


def shape_of(messages: list[dict[str, Any]]) -> dict[str, Any]:
    asked = next(one["content"] for one in messages if one["role"] == "user")
    shape: dict[str, Any] = orjson.loads(asked)
    return shape


def calls_of(turn: int, shape: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The calls of a tool turn: (tool, arguments)."""
    return [
        (TOOL_NAMES[i % len(TOOL_NAMES)], arguments(turn, i, shape["tool_ms"])) for i in range(shape["fan"])
    ]


def completion(body: bytes) -> tuple[dict[str, Any], float]:
    """The answer and how long the model takes for it, seconds. Raises Refused."""
    asked = orjson.loads(body)
    messages = asked["messages"]
    shape = shape_of(messages)
    turn = turn_of(messages, shape)
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    if turn > TOOL_TURNS:
        raise Refused("the conversation is over")
    if turn == TOOL_TURNS:
        message["content"] = FINAL_TEXT
    else:
        message["tool_calls"] = [
            {
                "id": f"call_{turn}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": orjson.dumps(given).decode()},
            }
            for i, (name, given) in enumerate(calls_of(turn, shape))
        ]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "stop" if turn == TOOL_TURNS else "tool_calls",
    }
    answer = {
        "id": f"chatcmpl-{shape['n']}-{turn}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": asked["model"],
        "choices": [choice],
        "usage": _USAGE,
    }
    return answer, shape["model_ms"] / 1000


class Connection(asyncio.Protocol):
    """HTTP/1.1 with Content-Length, one request after the other."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            length = _content_length(head)
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /counts"):
            self._send(b"200 OK", self._counts.told())
            return
        counts = self._counts
        counts.model_calls += 1
        try:
            answer, latency_s = completion(body)
        except (Refused, LookupError, TypeError, ValueError) as exc:
            counts.refused += 1
            counts.last_refusal = f"{type(exc).__name__}: {exc}"
            self._send(b"400 Bad Request", {"error": {"message": str(exc), "type": "invalid_request_error"}})
            return
        counts.in_flight += 1
        counts.in_flight_max = max(counts.in_flight_max, counts.in_flight)
        if latency_s:
            asyncio.get_running_loop().call_later(latency_s, self._finish, answer)
        else:
            self._finish(answer)

    def _finish(self, answer: dict[str, Any]) -> None:
        self._counts.in_flight -= 1
        self._send(b"200 OK", answer)

    def _send(self, status: bytes, answer: dict[str, Any]) -> None:
        if self._transport is None:
            return  # who asked is gone
        body = orjson.dumps(answer)
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, len(body)) + body)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve() -> None:
    """Until stdin ends, so that it never outlives whoever started it."""
    loop = asyncio.get_running_loop()
    counts = Counts()
    server = await loop.create_server(lambda: Connection(counts), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
