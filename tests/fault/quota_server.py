"""A model server that enforces requests and tokens in every window of a period, as a process of its own.

`python -m tests.fault.quota_server REQUESTS TOKENS PERIOD_S ANSWER_S` prints its port. POST /v1/chat/completions uses the
tokens its last message names; GET /counts says what it let through and what it refused; POST /forget begins anew.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque

from aiohttp import web

INPUT_TOKENS = 100


class Enforced:
    """At most so many requests and tokens in any window; what is refused does not count."""

    def __init__(self, requests: int, tokens: int, period_s: float, answer_s: float) -> None:
        self.requests, self.tokens = requests, tokens
        self.period_s, self.answer_s = period_s, answer_s
        self.anew()

    def anew(self) -> None:
        self.window: deque[tuple[float, int]] = deque()
        self.used = 0
        self.let: list[tuple[float, int]] = []
        self.refused = 0

    def admit(self, tokens: int) -> float | None:
        """None: admitted. Else seconds until there is room."""
        now = time.monotonic()
        while self.window and self.window[0][0] <= now - self.period_s:
            self.used -= self.window.popleft()[1]
        if len(self.window) + 1 > self.requests or self.used + tokens > self.tokens:
            self.refused += 1
            return self.window[0][0] + self.period_s - now
        self.window.append((now, tokens))
        self.used += tokens
        self.let.append((now, tokens))
        return None

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        tokens = int(body["messages"][-1]["content"])
        wait_s = self.admit(tokens)
        headers = {
            "x-ratelimit-limit-requests": str(self.requests),
            "x-ratelimit-remaining-requests": str(self.requests - len(self.window)),
            "x-ratelimit-limit-tokens": str(self.tokens),
            "x-ratelimit-remaining-tokens": str(self.tokens - self.used),
        }
        if wait_s is not None:
            headers["retry-after-ms"] = str(int(wait_s * 1000) + 1)
            error = {"error": {"type": "requests", "code": "rate_limit_exceeded", "message": "slow down"}}
            return web.json_response(error, status=429, headers=headers)
        await asyncio.sleep(self.answer_s)
        usage = {
            "prompt_tokens": INPUT_TOKENS,
            "completion_tokens": tokens - INPUT_TOKENS,
            "total_tokens": tokens,
        }
        message = {"role": "assistant", "content": "done"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        reply = {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": choices,
        }
        return web.json_response({**reply, "usage": usage}, headers=headers)

    async def counts(self, request: web.Request) -> web.Response:
        first = self.let[0][0] if self.let else 0.0
        return web.json_response(
            {"let": [(at - first, tokens) for at, tokens in self.let], "refused": self.refused}
        )

    async def forget(self, request: web.Request) -> web.Response:
        self.anew()
        return web.json_response({})


async def serve(enforced: Enforced) -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", enforced.complete)
    app.router.add_get("/counts", enforced.counts)
    app.router.add_post("/forget", enforced.forget)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    requests, tokens, period_s, answer_s = sys.argv[1:]
    asyncio.run(serve(Enforced(int(requests), int(tokens), float(period_s), float(answer_s))))
