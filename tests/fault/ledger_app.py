"""The fleet of the ledger-server tests: one call of a refund tool a run, each of a tool with other promises.

Loaded by worker processes as `tests.fault.ledger_app:fleet`; LEDGER_SERVER is the provider's address. The times of the
ledger are shortened for those processes, so that what takes minutes takes seconds.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

import aiohttp

from toolfleet import (
    DidNotHappen,
    Fleet,
    Happened,
    Lane,
    NoAnswer,
    Refused,
    ScriptedModel,
    ToolContext,
    call,
    say,
    tool,
)
from toolfleet.workers.executor import effects as executor_effects
from toolfleet.workers.machine import effect as ledger

AGENT = "refunder"
TIMEOUT_S = 2.0
SEND_BY_S = 2.0
BUSINESS_KEY = "refund:{order}"

if "LEDGER_SERVER" in os.environ:  # in the workers only, not in the process of the tests
    ledger.SEND_BY_S = executor_effects.SEND_BY_S = SEND_BY_S
    ledger.QUIET_S = 3.0
    ledger.RECONCILE_WAITS_S = (0.5, 1.0, 2.0)
    ledger.KEY_WAIT_S = 2.0


def _address(path: str) -> str:
    return f"{os.environ['LEDGER_SERVER']}{path}"


def _body(context: ToolContext, order: str, *, keyed: bool = False) -> dict[str, Any]:
    return {"order": order, "key": context.idempotency_key, "call": context.call_id, "keyed": keyed}


async def _post(body: dict[str, Any]) -> str:
    """Ask the provider from the loop."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(_address("/refunds"), json=body) as answer,
    ):
        if answer.status == 429:
            raise Refused("too many requests", retry_after_s=float(answer.headers["Retry-After"]))
        answer.raise_for_status()
        return str((await answer.json())["refund"])


def _send(body: dict[str, Any]) -> str:
    """Ask the provider from a child process."""
    request = urllib.request.Request(
        _address("/refunds"), json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.load(answer)["refund"])
    except urllib.error.HTTPError as exc:
        if exc.code == 429:
            raise Refused("too many requests", retry_after_s=float(exc.headers["Retry-After"])) from None
        raise


async def look_up(order: str) -> Happened | DidNotHappen | NoAnswer:
    """What the provider knows of the refund."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(_address(f"/refunds/{order}")) as answer,
        ):
            said = await answer.json()
    except aiohttp.ClientError:
        return NoAnswer()
    return Happened(said["refund"]) if said["happened"] else DidNotHappen()


@tool(
    tier="medium",
    effect=True,
    timeout_s=TIMEOUT_S,
    business_key=BUSINESS_KEY,
    retry_share=None,
    reconcile=look_up,
)
async def refund(order: str, context: ToolContext) -> str:
    """Refund an order; the provider can be asked, and may still be at work when it has not heard of it."""
    return await _post(_body(context, order))


def look_up_finally(order: str) -> Happened | DidNotHappen | NoAnswer:
    """As `look_up`, from a child process."""
    try:
        with urllib.request.urlopen(_address(f"/refunds/{order}"), timeout=60) as answer:
            said = json.load(answer)
    except OSError:
        return NoAnswer()
    return Happened(said["refund"]) if said["happened"] else DidNotHappen()


@tool(
    tier="medium",
    effect=True,
    timeout_s=TIMEOUT_S,
    business_key=BUSINESS_KEY,
    retry_share=None,
    reconcile=look_up_finally,
    reconcile_is_final=True,
)
def refund_final(order: str, context: ToolContext) -> str:
    """Refund an order; what the provider has not heard of by then will never happen."""
    return _send(_body(context, order))


@tool(tier="medium", effect=True, timeout_s=TIMEOUT_S, business_key=BUSINESS_KEY, retry_share=None)
async def refund_blind(order: str, context: ToolContext) -> str:
    """Refund an order; nobody can be asked."""
    return await _post(_body(context, order))


@tool(
    tier="medium",
    effect=True,
    idempotent=True,
    timeout_s=TIMEOUT_S,
    business_key=BUSINESS_KEY,
    retry_share=None,
)
def refund_keyed(order: str, context: ToolContext) -> str:
    """Refund an order; the provider takes our key and does nothing twice under it."""
    return _send(_body(context, order, keyed=True))


TOOLS = (refund, refund_final, refund_blind, refund_keyed)
ASKED = ("refund", "refund_final")


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] == "tool":
        return say("done")
    name, _, order = messages[-1]["content"].partition(" ")
    return call(name, order=order)


fleet = Fleet(model=ScriptedModel(_script))
fleet.agent(AGENT, model="scripted", tools=list(TOOLS), lane=Lane.BATCH)
