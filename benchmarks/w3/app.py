"""The fleet of W3, loaded by worker processes as `benchmarks.w3.app:fleet`. Settings come from the environment."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from benchmarks.w3.model_server import calls_of, shape_of, turn_of
from benchmarks.w3.shape import DESCRIPTIONS, FINAL_TEXT, INSTRUCTIONS, MODEL, SCRIPTED, TOOL_TURNS, result
from toolfleet import Fleet, Limits, Price, ScriptedModel, call, calls, say, tool
from toolfleet.adapters.llm.openai_chat import OpenAIChatClient
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.model import ModelReply, ModelRequest, Usage

PRICE = Price(input_usd=0.15, output_usd=0.60)  # so that budgets are reserved and booked as for a real model
WIDE_CALLS_MAX = 60  # two turns of thirty; the default of 24 is kept for everybody else


@tool(description=DESCRIPTIONS[0])
async def look_up_order(key: str, ms: int) -> str:
    return await _found(key, ms)


@tool(description=DESCRIPTIONS[1])
async def look_up_customer(key: str, ms: int) -> str:
    return await _found(key, ms)


@tool(description=DESCRIPTIONS[2])
async def look_up_stock(key: str, ms: int) -> str:
    return await _found(key, ms)


async def _found(key: str, ms: int) -> str:
    if ms:
        await asyncio.sleep(ms / 1000)
    return result(key)


def _script(messages: list[dict[str, Any]], _tools: list[dict[str, Any]]) -> Any:
    """What the model server says, without the server; so there is no latency."""
    shape = shape_of(messages)
    turn = turn_of(messages, shape)
    if turn == TOOL_TURNS:
        return say(FINAL_TEXT)
    return calls(*(call(name, **given) for name, given in calls_of(turn, shape)))


class Models:
    """The official client for everybody, and the script for the agents that name it."""

    def __init__(self) -> None:
        self._http = OpenAIChatClient(os.environ.get("OPENAI_BASE_URL"))
        self._script = ScriptedModel(_script)

    def _of(self, model: str) -> OpenAIChatClient | ScriptedModel:
        return self._script if model == SCRIPTED else self._http

    async def complete(self, request: ModelRequest) -> ModelReply:
        return await self._of(request.agent.model).complete(request)

    def render(self, request: ModelRequest) -> bytes:
        return self._of(request.agent.model).render(request)

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float:
        return self._of(agent.model).cost_usd(agent, usage)

    async def aclose(self) -> None:
        await self._http.aclose()


def declare(fleet: Fleet) -> Fleet:
    """The agents: by model, and one for wide turns, which need a higher limit of calls."""
    for name, model, limits in (
        ("w3", MODEL, Limits()),
        ("w3-wide", MODEL, Limits(calls_max=WIDE_CALLS_MAX)),
        ("w3-scripted", SCRIPTED, Limits()),
    ):
        fleet.agent(
            name,
            model=model,
            instructions=INSTRUCTIONS,
            tools=[look_up_order, look_up_customer, look_up_stock],
            parallel_tool_calls="on",
            limits=limits,
            price=PRICE,
        )
    return fleet


fleet = declare(Fleet(model=Models()))
