"""The worst case of a model: it does what the user's task needs, and whatever an injected text tells it, at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.agentdojo.cases import Case, Planned
from toolfleet import Reply, ScriptedModel, call, say
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import AssistantItem, Item, MergeItem
from toolfleet.schemas.model import ModelReply, ModelRequest, Usage


class WorstCase:
    """A ModelClient. `case_of` gives the case of a run by what its submitter named as the user.

    What comes next follows from the conversation alone, so that a call asked again is answered the same.
    """

    def __init__(self, case_of: Callable[[str], Case]) -> None:
        self._case_of = case_of
        self._wire = ScriptedModel([])

    async def complete(self, request: ModelRequest) -> ModelReply:
        assert request.user is not None, "runs name their case"
        reply = next_reply(self._case_of(request.user), request.items)

        def script(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Reply:
            return reply

        return await ScriptedModel(script).complete(request)

    def render(self, request: ModelRequest) -> bytes:
        return self._wire.render(request)

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float:
        return self._wire.cost_usd(agent, usage)

    async def aclose(self) -> None:
        """Holds nothing."""


def next_reply(case: Case, items: tuple[Item, ...]) -> Reply:
    """One call after the other; the injected ones as soon as their text was read; in the end the task's own answer."""
    made = sum(len(item.calls) for item in items if isinstance(item, AssistantItem))
    plan = plan_of(case, items)
    if made == len(plan):
        return say(_answer(case, obeyed=_read(case, items) is not None))
    return call(plan[made].tool, **plan[made].arguments)


def plan_of(case: Case, items: tuple[Item, ...]) -> list[Planned]:
    """The calls of the whole run, as far as the conversation says what they are."""
    read = _read(case, items)
    if read is None:
        return case.wanted
    return [*case.wanted[:read], *case.injected, *case.wanted[read:]]


def _read(case: Case, items: tuple[Item, ...]) -> int | None:
    """After how many results the injected text had been read; None: it was not."""
    results = [result for item in items if isinstance(item, MergeItem) for result in item.results]
    return next((number for number, result in enumerate(results, 1) if case.mark in result.content), None)


def _answer(case: Case, *, obeyed: bool) -> str:
    """What the task wants to hear and, of an injection that asks for words, these too."""
    said = case.user_task.GROUND_TRUTH_OUTPUT or "Done."
    if obeyed and case.injection_task is not None and not case.injected:
        return f"{said}\n{case.injection_task.GOAL}"
    return said
