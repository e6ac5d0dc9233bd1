"""The one place that decides what of a conversation a model is sent. Pure; what is left out is said and recorded.

In this order, each only as far as the budget asks: results of older turns become references; the oldest turns are left
out, whole, never a call without its result; the newest results become references too. What the user asked in this
run, and the newest turn, always stay. Cuts are made in steps of a quarter of the budget, so that the same cut holds
for several turns and the beginning of the request stays the same bytes for the provider's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

import orjson

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.context import ContextFacts
from toolfleet.schemas.conversation import (
    AssistantItem,
    Item,
    ItemResult,
    MergeItem,
    NoticeItem,
    UserItem,
    groups,
)
from toolfleet.schemas.envelopes import omitted, success
from toolfleet.workers.decision.tokens import TokenCounter

ITEM_TOKENS: Final = 8  # what a wire adds to each message and call: role, ids, separators
STEPS: Final = 4  # parts of the budget in which is cut
SUMMARY_SHARE: Final = 0.1  # of the budget, for the summary of what was left out
BUDGET_MIN: Final = 256
LEFT_OUT: Final = "Earlier parts of this conversation were left out to save room."
SUMMARY: Final = "Summary of earlier parts of this conversation, which were left out to save room:\n"


@dataclass(frozen=True, slots=True)
class Fitted:
    """What is sent. `dropped` are the items left out, for a summary; `place` is where the notice about them stands."""

    items: tuple[Item, ...]
    facts: ContextFacts
    dropped: tuple[Item, ...] = ()
    place: int = 0


@dataclass(frozen=True, slots=True)
class TooLong:
    """What has to stay is longer than the budget: there is no request to send."""

    message: str


def fit(
    agent: AgentSpec, items: Sequence[Item], counter: TokenCounter, *, tighter: int | None = None
) -> Fitted | TooLong:
    """The items of one request within the agent's budget, or within `tighter` where that is less.

    Without a budget everything is sent and nothing is counted.
    """
    budgets = [one for one in (agent.context.tokens_max, tighter) if one is not None]
    if not budgets:
        return Fitted(tuple(items), ContextFacts())
    budget = min(budgets)
    cut = _Cut(agent, items, counter, budget)
    return cut.fitted()


def request_tokens(agent: AgentSpec, items: Sequence[Item], counter: TokenCounter) -> int:
    """Tokens of a request with these items."""
    return sum(sections(agent, counter).values()) + sum(_tokens(item, counter) for item in items)


def tighter_than(agent: AgentSpec, fitted: Fitted, counter: TokenCounter) -> int | None:
    """The budget to try when the provider found these items too long: half of them; None where half cannot be."""
    sent = fitted.facts.tokens or request_tokens(agent, fitted.items, counter)
    half = max(BUDGET_MIN, sent // 2)
    again = fit(agent, fitted.items, counter, tighter=half)
    return None if isinstance(again, TooLong) or again.facts.tokens >= sent else half


def sections(agent: AgentSpec, counter: TokenCounter) -> dict[str, int]:
    """Tokens of what stands before the history, by section: rules, schemas (tools and output), few_shot."""
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in agent.tools
    ]
    schemas = _json(tools) if tools else ""
    if agent.output is not None:
        schemas += _json(agent.output.schema_)
    shots = 0
    for example in agent.examples:
        texts = [example.user, example.answer]
        for call in example.calls:
            texts += [call.name + _json(call.arguments), success(_json(call.result), provenance=call.name)]
        shots += sum(counter.count(text) + ITEM_TOKENS for text in texts)
    rules = counter.count(agent.system_text) + ITEM_TOKENS if agent.system_text else 0
    return {"rules": rules, "schemas": counter.count(schemas) if schemas else 0, "few_shot": shots}


def with_summary(fitted: Fitted, text: str, counter: TokenCounter) -> Fitted:
    """The same with the summary in the place of the notice, cut to the room that was left for it."""
    assert fitted.facts.budget is not None and fitted.dropped, "there is something to sum up"
    room = int(fitted.facts.budget * SUMMARY_SHARE)
    while text and counter.count(SUMMARY + text) > room:
        text = text[: len(text) * room // (counter.count(SUMMARY + text) + 1)]
    items = list(fitted.items)
    old, items[fitted.place] = items[fitted.place], NoticeItem(SUMMARY + text)
    tokens = fitted.facts.tokens + _tokens(items[fitted.place], counter) - _tokens(old, counter)
    return replace(fitted, items=tuple(items), facts=replace(fitted.facts, tokens=tokens, summarised=True))


class _Cut:
    """One decision; used up by `fitted`."""

    def __init__(self, agent: AgentSpec, items: Sequence[Item], counter: TokenCounter, budget: int) -> None:
        self._units = groups(items)
        self._counter = counter
        self._budget = budget
        self._prefix = sum(sections(agent, counter).values())
        self._policy = agent.context
        self._sizes = [sum(_tokens(item, counter) for item in unit) for unit in self._units]
        self._replaced: list[str] = []
        self._first_kept = 0
        self._gap: tuple[int, int] | None = None  # units [a, b) of this run that are left out as well

    def fitted(self) -> Fitted | TooLong:
        summing = self._policy.summariser is not None
        reserve = (
            int(self._budget * SUMMARY_SHARE) if summing else self._counter.count(LEFT_OUT) + ITEM_TOKENS
        )
        if self._over(0) > 0:
            self._replace_results(self._merges()[: self._older()])
        if self._over(0) > 0:
            self._drop(reserve)
        if self._over(self._noticed(reserve)) > 0:
            self._replace_results(self._merges())
        if (over := self._over(self._noticed(reserve))) > 0:
            return TooLong(
                f"the request is {over} tokens over its budget of {self._budget}, and nothing in it can be left out: "
                f"{self._prefix} are instructions, tools and examples. Raise context.tokens_max or shorten those."
            )
        return self._result()

    def _noticed(self, reserve: int) -> int:
        return reserve if self._dropped_units() else 0

    def _total(self) -> int:
        return self._prefix + sum(size for at, size in enumerate(self._sizes) if not self._is_dropped(at))

    def _over(self, reserve: int) -> int:
        return self._total() + reserve - self._budget

    def _goal(self, reserve: int) -> int:
        """Tokens to take away now: what is over, rounded up so that the next turns need no other cut."""
        step = max(1, self._budget // STEPS)
        return math.ceil(self._over(reserve) / step) * step

    def _merges(self) -> list[int]:
        """The units with results, oldest first."""
        return [
            at
            for at, unit in enumerate(self._units)
            if isinstance(unit[-1], MergeItem) and not self._is_dropped(at)
        ]

    def _older(self) -> int:
        return max(0, len(self._merges()) - self._policy.results_kept)

    def _replace_results(self, units: Sequence[int]) -> None:
        """Oldest first, until the goal is reached; a reference takes room as well, so small results stay."""
        goal = self._goal(0)
        for at in units:
            if goal <= 0:
                return
            goal -= self._replace_in(at)

    def _replace_in(self, at: int) -> int:
        unit = self._units[at]
        merge = unit[-1]
        assert isinstance(merge, MergeItem)
        results = tuple(self._reference(result) for result in merge.results)
        new, size = MergeItem(results), self._sizes[at]
        self._units[at] = [*unit[:-1], new]
        self._sizes[at] += _tokens(new, self._counter) - _tokens(merge, self._counter)
        return size - self._sizes[at]

    def _reference(self, result: ItemResult) -> ItemResult:
        content = omitted(result.content, reference=result.call_id)
        if self._counter.count(content) >= self._counter.count(result.content):
            return result
        self._replaced.append(result.call_id)
        return replace(result, content=content)

    def _asked(self) -> int:
        """The unit of what the user said last: this run's input."""
        return max((at for at, unit in enumerate(self._units) if isinstance(unit[0], UserItem)), default=0)

    def _drop(self, reserve: int) -> None:
        """Whole turns, oldest first: those of earlier runs, then those of this one but the newest."""
        goal, asked, last = self._goal(reserve), self._asked(), len(self._units) - 1
        while self._first_kept < asked and goal > 0:
            goal -= self._sizes[self._first_kept]
            self._first_kept += 1
        # A history does not begin in the middle of an exchange: providers want the user first.
        while 0 < self._first_kept < asked and not isinstance(self._units[self._first_kept][0], UserItem):
            goal -= self._sizes[self._first_kept]
            self._first_kept += 1
        end = asked + 1
        while end < last and goal > 0:
            goal -= self._sizes[end]
            end += 1
        self._gap = (asked + 1, end)

    def _is_dropped(self, at: int) -> bool:
        return at < self._first_kept or (self._gap is not None and self._gap[0] <= at < self._gap[1])

    def _dropped_units(self) -> list[list[Item]]:
        return [unit for at, unit in enumerate(self._units) if self._is_dropped(at)]

    def _result(self) -> Fitted:
        kept: list[Item] = []
        place = None
        for at, unit in enumerate(self._units):
            if not self._is_dropped(at):
                kept.extend(unit)
            elif place is None:
                place = len(kept)
                kept.append(NoticeItem(LEFT_OUT))
        dropped = tuple(item for unit in self._dropped_units() for item in unit)
        gone = {result.call_id for item in dropped if isinstance(item, MergeItem) for result in item.results}
        facts = ContextFacts(
            budget=self._budget,
            tokens=self._prefix + sum(_tokens(item, self._counter) for item in kept),
            counter=self._counter.name,
            dropped_items=len(dropped),
            replaced=tuple(call_id for call_id in self._replaced if call_id not in gone),
        )
        return Fitted(tuple(kept), facts, dropped, place or 0)


def _tokens(item: Item, counter: TokenCounter) -> int:
    return sum(counter.count(text) + ITEM_TOKENS for text in _texts(item))


def _texts(item: Item) -> Iterator[str]:
    match item:
        case UserItem(text=text) | NoticeItem(text=text):
            yield text
        case AssistantItem():
            yield item.text or ""
            yield from (call.name + call.arguments for call in item.calls)
            if item.provider is not None and (kept := _reasoning(item.provider)):
                yield kept
        case MergeItem(results=results):
            yield from (result.content for result in results)
        case _:
            assert_never(item)


def _reasoning(provider: dict[str, object]) -> str:
    """What the provider's own form carries beside text and calls, for it is sent back with it."""
    known = ("content", "tool_calls", "role", "refusal", "function_call")
    rest = {key: value for key, value in provider.items() if key not in known and value not in (None, [], "")}
    return _json(rest) if rest else ""


def _json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers beyond 64 bits: orjson has none, and a count needs no exact text
        return repr(value)
