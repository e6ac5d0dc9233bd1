"""What becomes of a tool's refusal when an earlier attempt of the same effect was lost."""

from __future__ import annotations

import pytest

from toolfleet.schemas.outcomes import CallOutcome, Tier
from toolfleet.schemas.ports import ToolFailed
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.executor.projection import failed

SPEC = ToolSpec(name="refund", description="", parameters={"type": "object"}, tier=Tier.MEDIUM, effect=True)
REFUSED = ToolFailed("raised", "no seats", 0.1, error_type="BusinessError", code="business_error")
NOTHING_DONE = ToolFailed(
    "raised", "no seats", 0.1, error_type="BusinessError", code="business_error", fields={"no_effect": True}
)
DENIED = ToolFailed("raised", "not yours", 0.1, error_type="PermissionDenied", code="denied")


def _call(attempt: int, *, effect: bool = True, idempotent: bool = False) -> CallState:
    return CallState(
        call_id="run_1:1:0",
        index=0,
        tool="refund",
        tier=Tier.MEDIUM,
        arguments="{}",
        signature="s",
        wire_id="w",
        effect=effect,
        idempotent=idempotent,
        attempt=attempt,
    )


@pytest.mark.parametrize(
    ("attempt", "idempotent", "answer", "outcome"),
    [
        (1, False, REFUSED, CallOutcome.BUSINESS_ERROR),
        (1, True, REFUSED, CallOutcome.BUSINESS_ERROR),
        (2, True, NOTHING_DONE, CallOutcome.BUSINESS_ERROR),  # it answers for the lost attempt as well
        (2, True, REFUSED, CallOutcome.NEEDS_HUMAN),  # "already refunded" may be about the lost attempt
        (2, False, NOTHING_DONE, CallOutcome.NEEDS_HUMAN),  # without a key it cannot know
    ],
)
def test_a_refusal_after_a_lost_attempt_is_believed_where_the_tool_answers_for_both(
    attempt: int, idempotent: bool, answer: ToolFailed, outcome: CallOutcome
) -> None:
    verdict = failed(_call(attempt, idempotent=idempotent), SPEC, answer)

    assert verdict.result.outcome is outcome


def test_a_permission_that_is_missing_now_says_nothing_about_a_lost_attempt() -> None:
    verdict = failed(_call(2, idempotent=True), SPEC, DENIED)

    assert verdict.result.outcome is CallOutcome.NEEDS_HUMAN
