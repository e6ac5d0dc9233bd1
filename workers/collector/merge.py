"""PURE: n outcomes become one provider-neutral item, in the order of the calls, whatever order they came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolfleet.schemas.conversation import ItemResult, MergeItem
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState


def merge(calls: Sequence[CallState], results: Mapping[str, CallResult]) -> MergeItem:
    """One item with a result for each call (`results` by call id); a call without one is a programmer's error."""
    ordered = sorted(calls, key=lambda call: call.index)
    assert set(results) == {call.call_id for call in ordered}, (
        "a merge needs exactly the results of its calls"
    )
    return MergeItem(
        tuple(
            ItemResult(
                call.call_id, call.wire_id, results[call.call_id].outcome, results[call.call_id].content
            )
            for call in ordered
        )
    )
