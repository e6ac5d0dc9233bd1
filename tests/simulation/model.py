"""A model that says what the plan wrote down, and fails as model servers do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tests.simulation.faults import Faults
from tests.simulation.outside import Ledger
from tests.simulation.plan import RunPlan
from tests.simulation.process import Killed, Process
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import AssistantItem, Item, NoticeItem, UserItem
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage

FAULTS = {
    "rate_limited": ModelFault("rate_limited", "429", retryable=True, retry_after_s=3.0, status=429),
    "unavailable": ModelFault("unavailable", "503", retryable=True, status=503),
    "timeout": ModelFault("timeout", "no answer", retryable=True),
    "connection": ModelFault("connection", "cut off", retryable=True),
    "bad_reply": ModelFault("bad_reply", "no choices", retryable=True, status=200),
    "bad_request": ModelFault("bad_request", "400", retryable=False, status=400),
    "auth": ModelFault("auth", "401", retryable=False, status=401),
    "not_found": ModelFault("not_found", "404", retryable=False, status=404),
}


class ScriptedModel:
    """The model client of one process. What it says depends on run and turn alone."""

    def __init__(
        self, process: Process, plans: Mapping[int, RunPlan], faults: Faults, ledger: Ledger
    ) -> None:
        self._process = process
        self._plans = plans
        self._faults = faults
        self._ledger = ledger

    async def complete(self, request: ModelRequest) -> ModelReply:
        await self._process.gate()
        plan, turn = self._place(request.items)
        asked = self._ledger.ask(self._process.name, plan.run_id, turn)
        if plan.poison_decision:
            self._ledger.decision_kills[plan.run_id] += 1
            self._faults.poison(self._process, f"decision of {plan.run_id}")
            raise Killed(self._process.name)
        await asyncio.sleep(self._faults.model_latency_s(request.timeout_s))
        await self._process.gate()
        fault = self._faults.model_fault(asked)
        if fault is not None:
            raise ModelError(FAULTS[fault])
        said = plan.reply(turn)
        return ModelReply(
            text=said.text,
            calls=said.calls,
            finish=said.finish,  # type: ignore[arg-type]
            wire="chat_completions",
            provider={"role": "assistant", "content": said.text},
            model="m-1",
            usage=Usage(input_tokens=100 + len(request.items), output_tokens=10),
        )

    def render(self, request: ModelRequest) -> bytes:
        return repr(request).encode()

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float:
        return (usage.input_tokens + usage.output_tokens) * 1e-6

    async def aclose(self) -> None:
        """Nothing is open."""

    def _place(self, items: tuple[Item, ...]) -> tuple[RunPlan, int]:
        """The run by what its user said last, the turn by what was said since."""
        turn = 1
        for item in reversed(items):
            if isinstance(item, UserItem):
                return self._plans[int(item.text)], turn
            if isinstance(item, AssistantItem | NoticeItem):
                turn += 1
        raise AssertionError("a request without a user")
