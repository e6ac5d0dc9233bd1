"""A fleet with two tenants and the HTTP API in front of it, on a real socket, for the tests of the API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from toolfleet import Fleet, ScriptedModel, ToolContext, call, calls, say, tool
from toolfleet.access import Access
from toolfleet.api.server import ApiServer
from toolfleet.app import open_store
from toolfleet.cache import open_cache
from toolfleet.client import Client, RunRequest
from toolfleet.schemas.access import Quota
from toolfleet.schemas.views import DeadLetter
from toolfleet.settings import Settings, load_settings

T = TypeVar("T")

WAIT_S = 60.0
BODY_BYTES_MAX = 100_000
BODY_S = 0.7


@tool(tier="high", effect=True, runner="loop")
async def pay(to: str, amount: int, context: ToolContext) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


@tool(tier="medium", effect=True, runner="loop", permissions=["notes:write"])
async def note(text: str, context: ToolContext) -> str:
    """Write a note."""
    return f"{context.principal} wrote {text}"


@tool(runner="loop")
async def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


async def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] == "tool":
        return say("done")
    said = next(one["content"] for one in reversed(messages) if one["role"] == "user")
    if said.startswith("[["):
        return calls(*(call(name, **arguments) for name, arguments in json.loads(said)))
    if said.startswith("["):
        name, arguments = json.loads(said)
        return call(name, **arguments)
    return say(f"hello: {said}")


class World:
    """`keys`: tokens by name. `url`: where the API is. Everything asynchronous is done on one loop of its own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        database = f"sqlite:///{folder / 'fleet.db'}"
        self.settings: Settings = load_settings(
            database=database,
            http_port=0,
            http_body_bytes_max=BODY_BYTES_MAX,
            http_body_s=BODY_S,
            drain_s=1.0,
            **settings,
        )
        self.fleet = Fleet(model=ScriptedModel(_script), settings=self.settings)
        self.fleet.agent(
            "desk", model="scripted", tools=[pay, note, look], instructions="the operator's secret"
        )
        self.fleet.agent("bank", model="scripted", tools=[pay])
        self.keys: dict[str, str] = {}
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    @contextlib.contextmanager
    def serving(self) -> Iterator[World]:
        with self.fleet:
            self._thread.start()
            self.client = Client(open_store(self.settings))
            self.cache = open_cache(self.settings)
            self.access = Access(self.client.store)
            self.server = ApiServer(self.settings, self.client, self.cache)
            self.run(self.server.start())
            self.url = self.server.address
            try:
                self.run(self._make_keys())
                yield self
            finally:
                self.run(self._close())
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()

    async def _make_keys(self) -> None:
        every = ("submit", "read", "approve", "admin")
        for name, given in {
            "acme": {"tenants": ["acme"], "scopes": every, "permissions": ["notes:write"]},
            "other": {"tenants": ["other"], "scopes": every},
            "reader": {"tenants": ["acme"], "scopes": ["read"]},
            "desk only": {"tenants": ["acme"], "agents": ["desk"]},
            "operator": {"tenants": ["*"], "scopes": every},
            "two": {"tenants": ["acme", "other"], "scopes": ["read"]},
            "approver": {"tenants": ["acme"], "scopes": ["approve"]},
        }.items():
            self.keys[name] = (await self.access.create(name, **given)).token  # type: ignore[arg-type]

    async def _close(self) -> None:
        await self.server.stop()
        await self.cache.aclose()
        await self.client.aclose()

    def ask(self, method: str, path: str, key: str | None = "acme", **given: Any) -> httpx2.Response:
        headers = dict(given.pop("headers", {}))
        if key is not None:
            headers["Authorization"] = f"Bearer {self.keys.get(key, key)}"
        url = path if path.startswith("/health") else f"/api/v1{path}"
        return httpx2.request(method, self.url + url, headers=headers, timeout=WAIT_S, **given)

    def submitted(self, text: str = "hi", key: str = "acme", **more: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/runs", key, json={"agent": "desk", "input": text, **more})
        assert answer.status_code == 202, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def ended(self, run_id: str, key: str = "acme") -> dict[str, Any]:
        document: dict[str, Any] = self.ask("GET", f"/runs/{run_id}?wait=30", key).json()
        assert document["finished"], document
        return document

    def asked(self, run_id: str, key: str = "acme") -> dict[str, Any]:
        """The question of that run, once there is one."""
        return until(lambda: self.ask("GET", f"/approvals?run_id={run_id}", key).json()["data"])[0]

    def quota(self, quota: Quota) -> None:
        self.run(self.access.set_quota(quota))

    def add_dead(self, dead_id: str, tenant: str | None, run_id: str | None = None) -> None:
        letter = DeadLetter(
            dead_id, "step", "decide.interactive", "worker_lost", 0.0, run_id=run_id, tenant=tenant
        )
        self.run(self.client.store.add_dead(letter))

    def accept(self, *requests: RunRequest) -> list[str]:
        return self.run(self.client.submit(requests))


def until(look: Callable[[], T]) -> T:
    """What `look` gives, once it is something."""
    ends = time.monotonic() + WAIT_S
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < ends, "it did not happen in time"


def problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The document of an error; its form is checked here for all of them."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert (document["status"], document["error"]["code"]) == (status, code), document
    assert document["type"] == f"urn:toolfleet:problem:{code}"
    assert document["detail"] == document["error"]["message"] and document["title"]
    assert document["request_id"] == answer.headers["x-request-id"]
    return document
