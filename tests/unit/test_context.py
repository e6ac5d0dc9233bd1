"""What of a conversation is sent: never half an exchange, within the budget, the same beginning over several turns."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.context import ContextPolicy
from toolfleet.schemas.conversation import (
    AssistantItem,
    Item,
    ItemCall,
    ItemResult,
    MergeItem,
    NoticeItem,
    UserItem,
)
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.workers.decision.context import (
    LEFT_OUT,
    SUMMARY,
    Fitted,
    TooLong,
    fit,
    request_tokens,
    sections,
    tighter_than,
    with_summary,
)
from toolfleet.workers.decision.tokens import counter_for, estimating

COUNTER = estimating()


def _agent(tokens_max: int | None = 1000, **fields: Any) -> AgentSpec:
    policy = ContextPolicy(tokens_max=tokens_max, **fields)
    return AgentSpec(name="desk", model="m", instructions="Be brief.", context=policy)


def _turn(number: int, size: int = 300, calls: int = 1) -> list[Item]:
    made = tuple(
        ItemCall(f"call_{number}_{at}", f"w{at}", "look", json.dumps({"n": number})) for at in range(calls)
    )
    content = json.dumps({"status": "success", "data": "x" * size})
    results = tuple(ItemResult(c.call_id, c.wire_id, CallOutcome.OK, content) for c in made)
    return [AssistantItem(None, made), MergeItem(results)]


def _run(number: int, turns: int = 1, size: int = 300) -> list[Item]:
    items: list[Item] = [UserItem(f"question {number}")]
    for turn in range(turns):
        items += _turn(number * 100 + turn, size)
    return [*items, AssistantItem(f"answer {number}")]


def _fitted(agent: AgentSpec, items: list[Item], **fields: Any) -> Fitted:
    fitted = fit(agent, items, COUNTER, **fields)
    assert isinstance(fitted, Fitted), fitted
    return fitted


def check_whole(items: tuple[Item, ...]) -> None:
    """No result without its call and no call without its result (B007)."""
    waiting: tuple[str, ...] = ()
    for item in items:
        if isinstance(item, MergeItem):
            assert tuple(result.call_id for result in item.results) == waiting, "a result without its call"
            waiting = ()
        else:
            assert waiting == (), "a call without its result"
            waiting = tuple(c.call_id for c in item.calls) if isinstance(item, AssistantItem) else ()
    assert waiting == ()


def test_without_a_budget_everything_is_sent_and_nothing_is_counted() -> None:
    items = [item for number in range(50) for item in _run(number)]

    fitted = _fitted(_agent(None), items)

    assert fitted.items == tuple(items) and fitted.facts.fields == {}


def test_what_fits_stays_as_it_is() -> None:
    items = _run(1)

    fitted = _fitted(_agent(), items)

    assert fitted.items == tuple(items) and fitted.dropped == ()
    assert fitted.facts.tokens == request_tokens(_agent(), items, COUNTER)
    assert fitted.facts.fields["context"]["dropped_items"] == 0


def test_results_of_older_turns_become_references_before_anything_is_dropped() -> None:
    items: list[Item] = [UserItem("question"), *_turn(1, 2400), *_turn(2), *_turn(3)]

    fitted = _fitted(_agent(), items)

    assert fitted.dropped == () and fitted.facts.replaced == ("call_1_0",)
    merge = fitted.items[2]
    assert isinstance(merge, MergeItem)
    content = json.loads(merge.results[0].content)
    assert content["data_omitted"] is True and content["reference"] == "call_1_0"
    assert content["status"] == "success"
    assert fitted.items[3:] == tuple(items[3:]), "the newest results stay"


def test_the_oldest_turns_are_left_out_whole_and_the_model_is_told() -> None:
    # B007: an assistant turn with calls and its results go together or not at all.
    items = [*[item for number in range(30) for item in _run(number)], UserItem("and now?")]

    fitted = _fitted(_agent(), items)

    check_whole(fitted.items)
    assert fitted.items[0] == NoticeItem(LEFT_OUT)
    assert isinstance(fitted.items[1], UserItem), "a history begins with the user"
    assert fitted.items[-1] == UserItem("and now?")
    assert len(fitted.dropped) == fitted.facts.dropped_items > 0
    assert fitted.facts.tokens <= 1000


def test_of_a_long_run_the_middle_is_left_out_and_its_question_stays() -> None:
    items: list[Item] = [UserItem("the question"), *[i for n in range(20) for i in _turn(n, 250)]]

    fitted = _fitted(_agent(), items)

    check_whole(fitted.items)
    assert fitted.items[0] == UserItem("the question") and fitted.items[1] == NoticeItem(LEFT_OUT)
    assert fitted.items[-2:] == tuple(items[-2:])


def test_newest_results_become_references_where_nothing_else_is_left() -> None:
    items: list[Item] = [UserItem("question"), *_turn(1, 20_000)]

    fitted = _fitted(_agent(), items)

    assert fitted.facts.replaced == ("call_1_0",) and fitted.facts.tokens <= 1000


def test_what_cannot_be_made_to_fit_is_said_with_what_to_do() -> None:
    too_long = fit(_agent(), [UserItem("x" * 40_000)], COUNTER)

    assert isinstance(too_long, TooLong)
    assert "context.tokens_max" in too_long.message


def test_the_cut_stays_where_it_is_for_several_turns() -> None:
    agent, history = _agent(4000), [item for number in range(60) for item in _run(number)]
    beginnings = []
    for more in range(12):
        items = [*history, UserItem("now"), *[i for n in range(more) for i in _turn(900 + n, 60)]]
        beginnings.append(repr(_fitted(agent, items).items[:6]))

    moves = sum(before != after for before, after in pairwise(beginnings))
    assert moves <= 2, "between two cuts the provider sees the same bytes and its cache holds"


def test_a_summary_stands_in_the_place_of_what_was_left_out_and_in_its_room() -> None:
    items = [*[item for number in range(30) for item in _run(number)], UserItem("and now?")]
    fitted = _fitted(_agent(summariser="sum_up"), items)

    summed = with_summary(fitted, "They asked eight questions. " * 200, COUNTER)

    notice = summed.items[0]
    assert isinstance(notice, NoticeItem) and notice.text.startswith(SUMMARY)
    assert summed.facts.summarised and summed.facts.tokens <= 1000
    assert summed.facts.tokens == request_tokens(_agent(), summed.items, COUNTER)


def test_a_request_the_provider_refused_is_halved() -> None:
    agent, items = _agent(None), [item for number in range(30) for item in _run(number)]
    fitted = _fitted(agent, items)

    tighter = tighter_than(agent, fitted, COUNTER)

    assert tighter == request_tokens(agent, items, COUNTER) // 2
    again = _fitted(agent, items, tighter=tighter)
    assert again.facts.tokens <= tighter and again.facts.budget == tighter


def test_what_cannot_be_halved_is_not_tried_again() -> None:
    agent, items = _agent(None), [UserItem("x" * 9000)]

    assert tighter_than(agent, _fitted(agent, items), COUNTER) is None


def test_sections_are_counted_one_by_one() -> None:
    counted = sections(_agent(), COUNTER)

    assert counted["rules"] > 0 and counted["schemas"] == counted["few_shot"] == 0


@pytest.mark.parametrize(("model", "name"), [("gpt-4o-mini", "o200k_base"), ("gpt-4", "cl100k_base")])
def test_tokens_are_counted_by_the_encoding_of_the_model(model: str, name: str) -> None:
    counter = counter_for(model)

    assert counter.name == name
    assert counter.count("hello world") == 2 and counter.count("") == 0
    assert counter.count("<|endoftext|>") > 1, "a text is never a control token"


@given(st.text(max_size=200))
def test_the_estimate_is_not_below_the_count_of_bytes_by_three(text: str) -> None:
    assert COUNTER.count(text) >= len(text.encode(errors="replace")) / 3


_sizes = st.integers(0, 900)
_turns = st.lists(st.tuples(_sizes, st.integers(1, 3)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    earlier=st.lists(_turns, max_size=4),
    now=_turns,
    budget=st.integers(256, 3000),
    kept=st.integers(0, 3),
)
def test_whatever_the_conversation_the_request_is_whole_and_within_its_budget(
    earlier: list[list[tuple[int, int]]], now: list[tuple[int, int]], budget: int, kept: int
) -> None:
    items: list[Item] = []
    for number, turns in enumerate(earlier):
        items.append(UserItem(f"question {number}"))
        for at, (size, calls) in enumerate(turns):
            items += _turn(number * 10 + at, size, calls)
        items.append(AssistantItem(f"answer {number}"))
    items.append(UserItem("the question of this run"))
    for at, (size, calls) in enumerate(now):
        items += _turn(900 + at, size, calls)
    agent = _agent(budget, results_kept=kept)

    fitted = fit(agent, items, COUNTER)

    if isinstance(fitted, TooLong):
        return
    check_whole(fitted.items)
    assert request_tokens(agent, fitted.items, COUNTER) == fitted.facts.tokens <= budget
    assert UserItem("the question of this run") in fitted.items
    assert len(fitted.items) - bool(fitted.dropped) + len(fitted.dropped) == len(items)
    assert fit(agent, items, COUNTER) == fitted
