"""Only has to type-check: the public API as users write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from toolfleet import (
    CancelAck,
    Fleet,
    Limits,
    Run,
    RunResult,
    RunStatus,
    ScriptedModel,
    Tool,
    ToolContext,
    say,
    tool,
)
from toolfleet.schemas.views import RunEvent

fleet = Fleet("sqlite:///x.db", model=ScriptedModel([say("hi")]), approvals="off")


@fleet.tool
def plain(a: int, b: str = "x") -> dict[str, int]:
    return {b: a}


@fleet.tool(tier="medium", effect=True, idempotent=True, timeout_s=3)
async def effect(ctx: ToolContext, order: str) -> str:
    return ctx.idempotency_key + order


@tool(repeatable=True)
def standalone(number: int) -> float:
    return number / 2


assert_type(plain(1, b="y"), dict[str, int])
assert_type(standalone(3), float)
kept: Tool[[int], float] = standalone
fleet.agent("a", model="m", tools=[plain, effect, standalone], limits=Limits(turns_max=3))


def use() -> None:
    run = fleet.submit("a", "hello", metadata={"user": "u"}, deadline_s=5.0)
    assert_type(run, Run)
    result = run.wait(timeout_s=1)
    assert_type(result, RunResult)
    assert_type(result.status, RunStatus)
    assert_type(run.cancel(), CancelAck)
    assert_type(fleet.events(run), Iterator[RunEvent])


async def use_async() -> None:
    run_id = await fleet.submit_async("a", "hello")
    assert_type(run_id, str)
    assert_type(await fleet.wait_async(run_id), RunResult)
