"""A model that is a script: OpenAI's Chat Completions over HTTP on this machine, and nothing behind it.

It plays recorded and planned conversations (`scripts`), and it is a test as much as a server: a request with a wrong
pairing, a wrong order or a wrong result is answered 400, as the real API answers what it can see, and counted. It
keeps no state but its counters, so it may be stopped and started between any two requests.

    python -m toolfleet.examples.airline_desk.model_server --port 0 [--conversations FILE] --seed N

prints the base URL for a client. `GET /stats` tells the counters.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from toolfleet.examples.airline_desk.fanout import build_fanout_cases
from toolfleet.examples.airline_desk.pairing import BadRequest, checked_messages, text_of
from toolfleet.examples.airline_desk.recordings import STOP, RecordingsUnreadable, load_recordings
from toolfleet.examples.airline_desk.scripts import (
    END_TEXT,
    Mismatch,
    Place,
    ScriptBook,
    fanout_script,
    recorded_script,
    spoken,
)

MODEL: Final = "gpt-4o-recorded"
BODY_BYTES_MAX: Final = 32_000_000  # aiohttp's own limit of 1 MB is less than a long conversation may have
MISMATCHES_KEPT_MAX: Final = 1_000
START_TIMEOUT_S: Final = 30.0
_CREATED: Final = 1_715_803_200  # 2024-05-15 15:00 EST, when the recorded conversations take place
_BYTES_PER_TOKEN: Final = 4  # OpenAI's rule of thumb for English, good enough for made-up usage


@dataclass(slots=True)
class Counts:
    """What the server has done since it was started."""

    requests: int = 0
    recorded_turns: int = 0
    ends: int = 0
    fanout_turns: int = 0
    refused: int = 0
    result_mismatches: int = 0


class ScriptedModelServer:
    """The server, to be started in an event loop (`start`, `stop`), or in a thread by `served_in_thread`.

    `url` is the base URL for a client, `/v1` included; known once it is started.
    """

    def __init__(
        self,
        *,
        conversations: str | Path | None = None,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        latency_s: float = 0.0,
        enforced: bool = False,
    ) -> None:
        """Reads the scripts: the conversations of the file (or the carried ones) and the fan-out cases.

        `enforced`: calls may be refused for what must come first (`enforcement`)."""
        self._book = ScriptBook(
            [
                *(recorded_script(recording) for recording in load_recordings(conversations)),
                *(fanout_script(case) for case in build_fanout_cases(seed)),
            ]
        )
        self._host = host
        self._port = port
        self._latency_s = latency_s
        self._enforced = enforced
        self._counts = Counts()
        self._mismatches: dict[tuple[str, int], Mismatch] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> str:
        """Listens; the base URL. Raises OSError where the port is taken."""
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/stats", self._stats)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError:
            await self.stop()
            raise
        port = self._runner.addresses[0][1]
        self.url = f"http://{self._host}:{port}/v1"
        return self.url

    async def stop(self) -> None:
        """Closes all connections. Does nothing where nothing runs."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def stats(self) -> dict[str, Any]:
        """The counters, the mismatches (each result once, however often it was sent), and the ambiguous beginnings."""
        return {
            **asdict(self._counts),
            "mismatches": [asdict(mismatch) for mismatch in self._mismatches.values()],
            "ambiguous_beginnings": self._book.ambiguous_count,
        }

    async def _complete(self, request: web.Request) -> web.Response:
        self._counts.requests += 1
        raw = await request.read()
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        try:
            return web.json_response(self._completion(raw, request.headers.get("x-conversation")))
        except BadRequest as refusal:
            self._counts.refused += 1
            return web.json_response(refusal.body(), status=400)

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": _CREATED, "owned_by": "toolfleet-examples"}
        return web.json_response({"object": "list", "data": [model]})

    async def _stats(self, request: web.Request) -> web.Response:
        return web.json_response(self.stats())

    def _completion(self, raw: bytes, hint: str | None) -> dict[str, Any]:
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as exc:
            raise BadRequest(f"We could not parse the JSON body of your request: {exc}") from exc
        messages = spoken(checked_messages(body))
        place = self._place(messages, _hints(body, hint))
        turn = place.next_turn
        if place.script.kind == "fanout":
            self._counts.fanout_turns += 1
        elif turn is None:
            self._counts.ends += 1
        else:
            self._counts.recorded_turns += 1
        return _answer(body["model"], raw, turn or {"role": "assistant", "content": END_TEXT})

    def _place(self, messages: list[Mapping[str, Any]], hints: frozenset[str]) -> Place:
        if not messages or messages[-1]["role"] not in ("user", "tool"):
            raise BadRequest("The conversation has to end with a user message or a result.", param="messages")
        if messages[-1]["role"] == "user" and STOP in (text_of(messages[-1]["content"]) or ""):
            raise BadRequest(
                f"A user message with {STOP} ends the conversation: it starts no run.", param="messages"
            )
        place = self._book.find(messages, hints)
        if place is None:
            known = self._book.known_length(messages)
            raise BadRequest(
                f"No script has this conversation: its first {known} messages are known, and then it differs "
                "(instructions not counted).",
                param="messages",
                code="unknown_conversation",
            )
        mismatches = place.mismatches(messages, enforced=self._enforced)
        if mismatches:
            self._note(mismatches)
            first = mismatches[0]
            raise BadRequest(
                f"The result in message {first.index} of conversation {first.conversation!r} is wrong: "
                f"{first.reason}.",
                param="messages",
                code="wrong_result",
            )
        return place

    def _note(self, mismatches: list[Mismatch]) -> None:
        for mismatch in mismatches:
            key = (mismatch.conversation, mismatch.index)
            if key not in self._mismatches and len(self._mismatches) < MISMATCHES_KEPT_MAX:
                self._mismatches[key] = mismatch
                self._counts.result_mismatches += 1


@contextmanager
def served_in_thread(server: ScriptedModelServer) -> Iterator[str]:
    """The base URL of the server while it runs in a thread of its own with its own event loop."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stopping = asyncio.Event()
        try:
            url = await server.start()
        except (OSError, OverflowError, RuntimeError) as exc:
            started.set_exception(exc)
            return
        started.set_result((url, asyncio.get_running_loop(), stopping))
        await stopping.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="scripted-model", daemon=True)
    thread.start()
    url, loop, stopping = started.result(START_TIMEOUT_S)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(START_TIMEOUT_S)


def _hints(body: Mapping[str, Any], header: str | None) -> frozenset[str]:
    """Texts in the request that may name its conversation; looked at only where its words fit several."""
    metadata = body.get("metadata")
    given = [header, body.get("user"), body.get("safety_identifier")]
    given += metadata.values() if isinstance(metadata, dict) else []
    return frozenset(text for text in given if isinstance(text, str))


def _answer(model: str, raw: bytes, turn: Mapping[str, Any]) -> dict[str, Any]:
    calls = turn.get("tool_calls")
    message: dict[str, Any] = {"role": "assistant", "content": turn.get("content"), "refusal": None}
    if calls:
        message["tool_calls"] = calls
    prompt_tokens = 1 + len(raw) // _BYTES_PER_TOKEN
    completion_tokens = 1 + len(json.dumps(turn)) // _BYTES_PER_TOKEN
    return {
        # the same request is answered with the same id, before and after a restart
        "id": f"chatcmpl-{hashlib.blake2b(raw, digest_size=15).hexdigest()}",
        "object": "chat.completion",
        "created": _CREATED,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": "tool_calls" if calls else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def main(arguments: list[str] | None = None) -> int:
    """Serves until it is interrupted; 0, or 2 where it cannot begin."""
    parser = argparse.ArgumentParser(prog="python -m toolfleet.examples.airline_desk.model_server")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--conversations", type=Path, help="JSON Lines instead of the carried recordings")
    parser.add_argument("--seed", type=int, default=0, help="as given to the demo; decides finishing orders")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="how long the model thinks, each time")
    chosen = parser.parse_args(arguments)
    try:
        server = ScriptedModelServer(
            conversations=chosen.conversations,
            seed=chosen.seed,
            port=chosen.port,
            latency_s=chosen.latency_ms / 1000,
        )
        with served_in_thread(server) as url:
            print(url, flush=True)
            threading.Event().wait()
    except (RecordingsUnreadable, OSError, OverflowError) as exc:
        print(f"model_server: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
