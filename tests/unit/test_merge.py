"""The merge: all results of a turn as one item, in call order, whatever order they came in."""

from __future__ import annotations

import itertools

import pytest

from toolfleet.schemas.envelopes import error, success
from toolfleet.schemas.ids import RunId, call_id_of
from toolfleet.schemas.outcomes import CallOutcome, Tier
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState
from toolfleet.workers.collector.merge import merge

RUN = RunId("run_m")


def _call(index: int) -> CallState:
    return CallState(
        call_id_of(RUN, 1, index), index, f"tool{index}", Tier.LOW, "{}", f"s{index}", f"wire{index}"
    )


def _result(call: CallState, outcome: CallOutcome = CallOutcome.OK) -> CallResult:
    good = outcome is CallOutcome.OK
    content = success(f'{{"n":{call.index}}}') if good else error(outcome=outcome, message="no")
    return CallResult(call.call_id, call.index, outcome, content)


def test_the_item_is_the_same_for_every_order_of_calls_and_results() -> None:  # B005
    calls = [_call(index) for index in range(4)]
    expected = merge(calls, {call.call_id: _result(call) for call in calls})

    for order in itertools.permutations(calls):
        assert merge(calls, {call.call_id: _result(call) for call in order}) == expected
        assert merge(order, {call.call_id: _result(call) for call in calls}) == expected
    assert [result.wire_id for result in expected.results] == ["wire0", "wire1", "wire2", "wire3"]


def test_each_result_stands_beside_the_ids_of_its_own_call() -> None:  # B001
    calls = [_call(0), _call(1)]
    results = {
        calls[1].call_id: _result(calls[1], CallOutcome.REJECTED),
        calls[0].call_id: _result(calls[0]),
    }

    item = merge(calls, results)

    assert [(r.call_id, r.wire_id, r.outcome) for r in item.results] == [
        (calls[0].call_id, "wire0", CallOutcome.OK),
        (calls[1].call_id, "wire1", CallOutcome.REJECTED),
    ]
    assert [r.content for r in item.results] == [results[call.call_id].content for call in calls]


def test_a_tenth_call_comes_after_the_ninth() -> None:
    calls = [_call(index) for index in range(64)]

    item = merge(calls, {call.call_id: _result(call) for call in reversed(calls)})

    assert [r.wire_id for r in item.results] == [f"wire{index}" for index in range(64)]


def test_a_missing_or_a_strange_result_is_a_programmers_error() -> None:
    calls = [_call(0), _call(1)]
    both = {call.call_id: _result(call) for call in calls}

    with pytest.raises(AssertionError, match="exactly the results of its calls"):
        merge(calls, {calls[0].call_id: both[calls[0].call_id]})
    with pytest.raises(AssertionError, match="exactly the results of its calls"):
        merge(calls[:1], both)
