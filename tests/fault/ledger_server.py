"""A payment provider of its own process: it misbehaves as it is told to, and it alone knows what really happened.

`python -m tests.fault.ledger_server` prints its port. POST /plan says how to treat which orders; POST /refunds asks for a
refund; GET /refunds/ORDER asks what became of one; GET /ledger gives every request and every act, by order.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

HELD_S: Final = 30.0  # longer than any caller waits
LATE_S: Final = 2.5  # after the caller's deadline, and before anybody may believe that nothing comes any more
RETRY_AFTER_S: Final = 0.3

BEHAVIOURS: Final = (
    "answers",
    "hangs",
    "hangs, then acts",
    "drops before acting",
    "drops after acting",
    "429",
    "500 before acting",
    "500 after acting",
)


@dataclass
class Order:
    """What is planned for an order, and what came. `times`: how many requests meet the behaviour, the others are answered;
    `silent`: how many questions are dropped."""

    does: str = "answers"
    times: int = 0
    silent: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    acts: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    dropped_questions: int = 0

    def act(self, key: str, *, keyed: bool) -> None:
        """The refund happens; under a key it has seen, a provider that takes keys does nothing."""
        if not (keyed and any(one["key"] == key for one in self.acts)):
            self.acts.append({"key": key, "at": time.time()})


class Provider:
    """Orders by their number; unknown ones are treated well."""

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}
        self.later: set[asyncio.Task[None]] = set()

    def order(self, number: str) -> Order:
        return self.orders.setdefault(number, Order())

    async def plan(self, request: web.Request) -> web.Response:
        for number, told in (await request.json()).items():
            self.orders[number] = Order(**told)
        return web.json_response({})

    async def refund(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        order, key, keyed = self.order(body["order"]), body["key"], bool(body["keyed"])
        does = order.does if len(order.requests) < order.times else "answers"
        order.requests.append({"key": key, "call": body["call"], "did": does, "at": time.time()})
        if does in ("answers", "drops after acting", "500 after acting"):
            order.act(key, keyed=keyed)
        if does == "hangs, then acts":
            task = asyncio.create_task(self._act_late(order, key, keyed))
            self.later.add(task)
            task.add_done_callback(self.later.discard)
        match does:
            case "answers":
                return web.json_response({"refund": f"R-{body['order']}"})
            case "429":
                return web.json_response({}, status=429, headers={"Retry-After": str(RETRY_AFTER_S)})
            case "500 before acting" | "500 after acting":
                return web.json_response({}, status=500)
            case "hangs" | "hangs, then acts":
                await asyncio.sleep(HELD_S)
        return _dropped(request)

    async def _act_late(self, order: Order, key: str, keyed: bool) -> None:
        await asyncio.sleep(LATE_S)
        order.act(key, keyed=keyed)

    async def ask(self, request: web.Request) -> web.StreamResponse:
        order = self.order(request.match_info["order"])
        order.asked += 1
        if order.asked <= order.silent:
            order.dropped_questions += 1
            return _dropped(request)
        happened = bool(order.acts)
        return web.json_response({"happened": happened, "refund": f"R-{request.match_info['order']}"})

    async def ledger(self, request: web.Request) -> web.Response:
        told = {
            number: {
                "does": order.does,
                "requests": order.requests,
                "acts": order.acts,
                "asked": order.asked,
                "dropped_questions": order.dropped_questions,
            }
            for number, order in self.orders.items()
        }
        return web.json_response(told)


def _dropped(request: web.Request) -> web.StreamResponse:
    """The connection is cut; nobody hears anything."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def serve() -> None:
    provider = Provider()
    app = web.Application()
    app.router.add_post("/plan", provider.plan)
    app.router.add_post("/refunds", provider.refund)
    app.router.add_get("/refunds/{order}", provider.ask)
    app.router.add_get("/ledger", provider.ledger)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
