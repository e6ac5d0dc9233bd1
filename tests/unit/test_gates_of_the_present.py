"""The gates of the present, one by one: permission, precheck, tier, approval, and what they hold."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.unit.machine_builders import gated, question, with_calls
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.effects import ApprovalStatus, StandingApproval
from toolfleet.schemas.ids import CommandId
from toolfleet.schemas.outcomes import CallOutcome, Tier
from toolfleet.schemas.ports import ToolAnswer, ToolFailed, ToolReturned
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import CallFacts, ToolContext, ToolSpec
from toolfleet.schemas.views import CallView
from toolfleet.schemas.vocabulary import ResultEnvelope
from toolfleet.workers.executor import gate, time_left
from toolfleet.workers.executor.gate import Ask, Asked, Later, Outcome, Raised, Stopped, Waiting, pass_gates
from toolfleet.workers.machine import reduce

SPEC = ToolSpec(
    name="tool0", description="", parameters={"type": "object"}, tier=Tier.HIGH, effect=True,
    permissions=("refunds:write",), parts=("precheck",),
)  # fmt: skip


class _Place:
    def __init__(self, said: ToolAnswer) -> None:
        self.said = said

    async def run(self, *_: Any, part: str | None = None, **__: Any) -> ToolAnswer:
        assert part == "precheck"
        return self.said


class _Store:
    def __init__(self, *found: StandingApproval) -> None:
        self.found = list(found)

    async def standing(self, tenant: str, tool: str) -> list[StandingApproval]:
        return self.found


FINE = ToolReturned(b"null", 0.1)


def _asked(
    call: CallState | None = None,
    *,
    now_s: float = 6.0,
    permissions: tuple[str, ...] = ("refunds:write",),
    said: ToolAnswer = FINE,
    tier: Tier = Tier.HIGH,
    standing: tuple[StandingApproval, ...] = (),
    context: dict[str, Any] | None = None,
) -> Asked:
    state, _ = with_calls([gated(0)])
    call = call or state.calls[0]
    row = CommandRow(CommandId(call.call_id), "exec.high", 1, 0.0, call.call_id)
    view = CallView(
        row,
        call,
        state.run_id,
        "waiting",
        1,
        "a",
        "v",
        "acme",
        "c",
        context or {},
        {},
        now_s,
        "ann",
        permissions,
    )
    told = ToolContext("r", 1, call.call_id, 1, "k", "acme", "a", "c", 0.0)
    facts = CallFacts(None, tier, "summary")
    return Asked(view, call, SPEC, {"n": 1}, told, _Place(said), _Store(*standing), True, facts)  # type: ignore[arg-type]


def _stopped(asked: Asked) -> Stopped | None:
    return asyncio.run(pass_gates(asked))


def _outcome(stopped: Stopped | None) -> CallOutcome:
    assert isinstance(stopped, Outcome)
    return stopped.result.outcome


def _decided(status: ApprovalStatus) -> CallState:
    state, _ = with_calls([gated(0)])
    call = reduce(state, question(state.calls[0]), 5.0).state.calls[0]
    assert call.approval is not None
    return replace(call, approval=replace(call.approval, status=status, reason="too much"))


def test_a_missing_permission_is_denied_whatever_else_would_be_said() -> None:
    refused = ToolFailed("raised", "no", 0.1, code="business_error")

    assert _outcome(_stopped(_asked(permissions=(), said=refused))) is CallOutcome.DENIED
    assert _outcome(_stopped(_asked(permissions=("refunds:read",)))) is CallOutcome.DENIED
    given = {"permissions": ["refunds:write"]}  # a context that came later, or from elsewhere, grants nothing
    assert _outcome(_stopped(_asked(permissions=(), context=given))) is CallOutcome.DENIED


def _grantable(call: CallState | None = None) -> CallState:
    call = call or with_calls([gated(0)])[0].calls[0]
    return replace(call, terms=replace(call.terms, grantable=True))


def test_a_missing_permission_that_may_be_granted_is_asked_for_with_the_approval() -> None:
    standing = StandingApproval("std_1", "acme", "tool0", {}, 100.0, "bob")
    refused = ToolFailed("raised", "no", 0.1, code="business_error")

    asked = _stopped(_asked(_grantable(), permissions=(), standing=(standing,), said=refused))

    assert asked == Ask("summary", SPEC.approval_expires_s, None, ("refunds:write",)), (
        "by nobody's standing yes"
    )


@pytest.mark.parametrize(
    ("status", "now_s", "comes"),
    [
        (ApprovalStatus.GRANTED, 6.0, None),
        (ApprovalStatus.PENDING, 6.0, Waiting()),
        (ApprovalStatus.GRANTED, 500.0, CallOutcome.APPROVAL_EXPIRED),
        (ApprovalStatus.PENDING, 500.0, CallOutcome.APPROVAL_EXPIRED),
        (ApprovalStatus.REJECTED, 6.0, CallOutcome.REJECTED),
    ],
)
def test_what_became_of_a_grant_is_looked_at_when_the_call_is_due(
    status: ApprovalStatus, now_s: float, comes: Any
) -> None:
    decided = _grantable(_decided(status))
    assert decided.approval is not None
    granted = replace(decided, approval=replace(decided.approval, permissions=("refunds:write",)))

    found = _stopped(_asked(granted, permissions=(), now_s=now_s))

    assert _outcome(found) is comes if isinstance(comes, CallOutcome) else found == comes
    lesser = replace(decided, approval=replace(decided.approval, permissions=("refunds:read",)))
    assert isinstance(_stopped(_asked(lesser, permissions=(), now_s=6.0)), Ask), "of another permission"


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (ToolFailed("raised", "sold out", 0.1, code="business_error"), CallOutcome.BUSINESS_ERROR),
        (ToolFailed("raised", "not yours", 0.1, code="denied"), CallOutcome.DENIED),
        (ToolFailed("timed_out", "", 1.0), CallOutcome.FAILED),
        (ToolFailed("died", "", 1.0), CallOutcome.FAILED),
        (ToolFailed("raised", "", 1.0, "ValueError"), CallOutcome.FAILED),
    ],
)
def test_a_call_that_is_not_right_now_is_not_run(said: ToolAnswer, outcome: CallOutcome) -> None:
    assert _outcome(_stopped(_asked(said=said))) is outcome


def test_arguments_raise_a_tier_before_anything_is_asked() -> None:
    assert _stopped(_asked(tier=Tier.IRREVERSIBLE)) == Raised(Tier.IRREVERSIBLE)
    assert _stopped(_asked(tier=Tier.LOW)) == Ask("summary", SPEC.approval_expires_s), "never lowered"


def test_what_was_decided_about_these_arguments_counts_while_it_is_alive() -> None:
    granted = _decided(ApprovalStatus.GRANTED)

    assert _stopped(_asked(granted)) is None
    assert _outcome(_stopped(_asked(granted, now_s=105.0))) is CallOutcome.APPROVAL_EXPIRED
    assert isinstance(_stopped(_asked(replace(granted, arguments='{"n":2}'))), Ask), "other arguments"
    pending = _decided(ApprovalStatus.PENDING)
    assert _stopped(_asked(pending)) == Waiting()
    assert _outcome(_stopped(_asked(pending, now_s=105.0))) is CallOutcome.APPROVAL_EXPIRED
    rejected = _stopped(_asked(_decided(ApprovalStatus.REJECTED)))
    assert _outcome(rejected) is CallOutcome.REJECTED
    assert isinstance(rejected, Outcome) and "too much" in rejected.result.content


@pytest.mark.parametrize(
    ("pattern", "tier_max", "covered"),
    [({"n": 1}, Tier.HIGH, True), ({}, Tier.HIGH, True), ({"n": 2}, Tier.HIGH, False),
     ({"n": 1, "m": 1}, Tier.HIGH, False), ({"n": 1}, Tier.MEDIUM, False)],
)  # fmt: skip
def test_a_standing_approval_covers_what_has_its_values(
    pattern: dict[str, Any], tier_max: Tier, covered: bool
) -> None:
    one = StandingApproval("std_1", "acme", "tool0", pattern, 1e9, "bob", tier_max=tier_max)

    stopped = _stopped(_asked(standing=(one,)))

    assert isinstance(stopped, Ask) and stopped.standing == ("std_1" if covered else None)


def test_what_a_gate_holds_is_given_back_when_a_later_one_stops_the_call() -> None:
    given: list[ToolAnswer | None] = []

    async def holds(asked: Asked) -> None:
        async def give_back(answer: ToolAnswer | None) -> None:
            given.append(answer)

        asked.afterwards(give_back)

    async def stops(_asked: Asked) -> Stopped:
        return Later(2.0, "rate")

    asked = _asked()
    assert asyncio.run(pass_gates(asked, (holds, stops))) == Later(2.0, "rate") and given == [None]
    assert asyncio.run(pass_gates(asked, (holds,))) is None
    asyncio.run(asked.ended(FINE))
    assert given == [None, FINE] and gate.PRESENT_GATES[2] is gate.permission


def _timed(call: CallState | None = None, deadline_at: float | None = 16.0) -> CallState:
    call = call or with_calls([gated(0)])[0].calls[0]
    return replace(call, call_timeout_s=10.0, deadline_at=deadline_at)


def test_a_call_whose_time_is_over_is_failed_before_anything_else_is_said() -> None:
    late = _asked(_timed(), now_s=16.0, permissions=(), tier=Tier.IRREVERSIBLE)

    stopped = _stopped(late)

    assert isinstance(stopped, Outcome) and stopped.result.reason == "call_timeout"
    assert stopped.result.outcome is CallOutcome.FAILED
    told = orjson.loads(stopped.result.content)
    ResultEnvelope.model_validate(told)
    assert told["message"] == "tool0 was not run: the 10 s it has for all its attempts are over."
    assert told["retryable"] and not told["retryable_by_model"]


def test_a_call_that_has_time_left_or_none_declared_passes_on_to_the_other_gates() -> None:
    for call in (_timed(), _timed(deadline_at=None), with_calls([gated(0)])[0].calls[0]):
        assert isinstance(_stopped(_asked(call, now_s=15.9)), Ask)


@pytest.mark.parametrize(
    ("status", "comes_to"),
    [(ApprovalStatus.PENDING, Waiting), (ApprovalStatus.REJECTED, CallOutcome.REJECTED)],
)
def test_what_people_say_or_may_still_say_is_not_hidden_by_the_time(
    status: ApprovalStatus, comes_to: object
) -> None:
    call = _decided(status)
    assert call.approval is not None
    call = replace(call, approval=replace(call.approval, expires_at=900.0))

    stopped = _stopped(_asked(_timed(call), now_s=800.0))

    found = _outcome(stopped) if isinstance(stopped, Outcome) else type(stopped)
    assert found == comes_to


def test_nobody_answered_is_told_as_that_and_not_as_a_time_that_is_over() -> None:
    call = _timed(_decided(ApprovalStatus.PENDING))

    assert _outcome(_stopped(_asked(call, now_s=800.0))) is CallOutcome.APPROVAL_EXPIRED


class _Clock:
    """Only what is asked for: how long it is since the call was read."""

    def __init__(self, monotonic_s: float) -> None:
        self._now = monotonic_s

    def monotonic_s(self) -> float:
        return self._now


@pytest.mark.parametrize(
    ("deadline_at", "since_s", "may_take_s"),
    [
        (None, 0.0, 7.0),  # its first attempt, which is taken now: 10 s, and 7 s are declared for an attempt
        (None, 4.0, 6.0),  # of which the gates have used 4 s
        (16.0, 0.0, 7.0),
        (12.5, 0.0, 6.5),
        (12.5, 3.0, 3.5),
        (12.5, 60.0, 0.01),
    ],
)
def test_an_attempt_is_cut_to_what_is_left(
    deadline_at: float | None, since_s: float, may_take_s: float
) -> None:
    view = replace(_asked(_timed(deadline_at=deadline_at)).view, read_at=100.0)

    left = time_left.timeout_s(view, view.call, _Clock(100.0 + since_s), 7.0)  # type: ignore[arg-type]

    assert left == pytest.approx(may_take_s)


def test_an_attempt_of_a_call_without_a_time_of_its_own_has_what_is_declared() -> None:
    view = _asked().view

    assert time_left.timeout_s(view, view.call, _Clock(9_999.0), 7.0) == 7.0  # type: ignore[arg-type]
