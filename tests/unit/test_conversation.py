"""Items are trimmed in units: a call is never parted from its result."""

from __future__ import annotations

import pytest

from toolfleet.schemas.conversation import (
    AssistantItem,
    Item,
    ItemCall,
    ItemResult,
    MergeItem,
    UserItem,
    trimmed,
)
from toolfleet.schemas.outcomes import CallOutcome


def _history(turns: int) -> list[Item]:
    items: list[Item] = [UserItem("go")]
    for turn in range(turns):
        ids = [f"{turn}-{index}" for index in range(2)]
        items.append(AssistantItem(None, tuple(ItemCall(one, one, "t", "{}") for one in ids)))
        items.append(MergeItem(tuple(ItemResult(one, one, CallOutcome.OK, "{}") for one in ids)))
    return items


@pytest.mark.parametrize("cut", range(62))
def test_no_cut_leaves_a_call_without_its_result(cut: int) -> None:  # B007
    kept = trimmed(_history(30), keep_from=cut)

    asked = {call.call_id for item in kept if isinstance(item, AssistantItem) for call in item.calls}
    answered = {result.call_id for item in kept if isinstance(item, MergeItem) for result in item.results}
    assert asked == answered
    assert len(kept) >= 61 - cut - 1
