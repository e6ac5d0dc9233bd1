"""What a tool's answer says of an effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from toolfleet.schemas.effects import EffectState
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.ports import ToolFailed, ToolReturned
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.executor.projection import effect_of, failed

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
    ("idempotent", "answer", "came", "no_effect"),
    [
        (False, REFUSED, EffectState.BUSINESS_ERROR, False),
        (True, REFUSED, EffectState.BUSINESS_ERROR, False),
        (True, NOTHING_DONE, EffectState.BUSINESS_ERROR, True),  # it answers for a lost attempt as well
        (False, NOTHING_DONE, EffectState.BUSINESS_ERROR, False),  # without a key it cannot know
        (True, DENIED, EffectState.REFUSED, False),
        (False, ToolFailed("timed_out", "", 1.0), EffectState.RECONCILING, False),
        (True, ToolFailed("died", "", 1.0), EffectState.RECONCILING, False),
        (False, ToolFailed("raised", "", 1.0, "ConnectionError"), EffectState.RECONCILING, False),
        (False, ToolFailed("not_json", "NaN", 1.0), EffectState.RECONCILING, False),  # it ran to its end
        (False, ToolFailed("result_invalid", "id: is required", 1.0), EffectState.HAPPENED, False),
        (False, ToolFailed("raised", "", 1.0, "NotSent", "not_sent"), EffectState.NOT_SENT, False),
        (False, ToolFailed("died", "busy", 0.0, began=False), EffectState.NOT_SENT, False),
    ],
)
def test_what_is_known_of_an_effect_after_one_attempt(
    idempotent: bool, answer: ToolFailed, came: EffectState, no_effect: bool
) -> None:
    ended = effect_of(_call(2, idempotent=idempotent), SPEC, answer)

    assert (ended.came, ended.no_effect) == (came, no_effect)
    assert ended.again == (came is EffectState.NOT_SENT)
    assert ended.died == (answer.kind == "died" and answer.began)


def test_a_refusal_says_when_it_may_be_tried_again() -> None:
    answer = ToolFailed("raised", "429", 0.1, "Refused", "refused", {"retry_after_s": 7})

    ended = effect_of(_call(1), SPEC, answer)

    assert (ended.came, ended.again, ended.delay_s) == (EffectState.REFUSED, True, 7.0)


def test_the_model_is_told_what_an_approver_made_of_its_call() -> None:
    call = replace(_call(1), edited=True, arguments='{"amount":5}')

    ended = effect_of(call, SPEC, ToolReturned(b'"done"', 0.1))

    assert "an approver changed the arguments" in ended.result.content
    assert 'refund({\\"amount\\":5})' in ended.result.content


@pytest.mark.parametrize("began", [True, False])
def test_a_process_that_could_not_be_started_is_no_death_of_the_call(began: bool) -> None:
    """Three deaths give a call up; a machine that starts no processes must not use them up."""
    verdict = failed(_call(1, effect=False), SPEC, ToolFailed("died", "", 1.0, began=began))

    assert (verdict.passing, verdict.died) == (True, began)
