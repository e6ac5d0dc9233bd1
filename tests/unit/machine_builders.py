"""States, events and invariants of the machine, for its tests: built by driving `reduce`, never by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from toolfleet.schemas.commands import RESULTS_QUEUE
from toolfleet.schemas.effects import EffectState, Entry, Holder, Terms, arguments_hash
from toolfleet.schemas.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallAnswered,
    CallDeferred,
    CallFinished,
    CallLeased,
    CallRefused,
    CallRetry,
    CallsSettled,
    CallWoken,
    CancelRequested,
    DeadlineReached,
    DecisionDeferred,
    DecisionLeased,
    EffectClaimed,
    EffectEnded,
    EffectResolved,
    Event,
    HandedBack,
    LeaseExpired,
    ModelFailed,
    ModelReplied,
    ProposedCall,
    ReconcileAnswered,
    ReconcileStarted,
    RunUnworkable,
    StepFacts,
    Submitted,
    TierRaised,
)
from toolfleet.schemas.ids import CallId, CommandId, LeaseToken, RunId, call_id_of
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.model import ModelFault, ModelReply, RawCall, Usage
from toolfleet.schemas.outcomes import (
    TERMINAL_STATUSES,
    CallOutcome,
    CallWaiting,
    Lane,
    ReasonCode,
    RunStatus,
    Tier,
    TurnPhase,
)
from toolfleet.schemas.records import AppendEvent, AppendItem, AppendMerge, ReuseResult, Step, StoreResult
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.workers.machine import reduce

RUN = RunId("run_1")
LEASE_S = 30.0
STALE = LeaseToken("stale")


def submitted(
    limits: Limits | None = None, *, deadline_s: float | None = None, reserve_usd: float = 0.0
) -> RunState:
    new = NewRun(
        run_id=RUN,
        agent="a",
        agent_version="v",
        prompt_version="p",
        toolset_version="t",
        input="hello",
        lane=Lane.INTERACTIVE,
        limits=limits or Limits(),
        deadline_s=deadline_s,
        reserve_usd=reserve_usd,
    )
    return reduce(None, Submitted(new), 0.0).state


def lease_decision(state: RunState, token: str = "d") -> DecisionLeased:
    return DecisionLeased(state.commands[0].id, LeaseToken(token), "me", LEASE_S, "m")


def proposed(index: int, **fields: object) -> ProposedCall:
    base = ProposedCall(
        index, f"tool{index}", Tier.LOW, "{}", f"signature{index}", f"w{index}", attempts_max=3
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def timed(made: ProposedCall, call_timeout_s: float = 20.0) -> ProposedCall:
    """That call, with an end to all its attempts together."""
    return replace(made, timeout_s=10.0, call_timeout_s=call_timeout_s)


def invalid(index: int) -> ProposedCall:
    answer = CallResult(CallId("x"), index, CallOutcome.INVALID_ARGUMENTS, "{}", reason="validation")
    return proposed(index, answer=answer)


def effect(index: int, *, idempotent: bool = False, **terms: bool) -> ProposedCall:
    return proposed(index, tier=Tier.MEDIUM, effect=True, idempotent=idempotent, terms=Terms(**terms))


def gated(index: int, tier: Tier = Tier.HIGH, **terms: bool) -> ProposedCall:
    """An effect that somebody has to approve."""
    return proposed(index, tier=tier, effect=True, terms=Terms(asks=True, **terms))


def key_of(call: CallState) -> str:
    return f"key/{call.tool}/{call.arguments}"


def claim(call: CallState, token: str = "c", holder: Holder | None = None) -> EffectClaimed:
    """T10 of an executor that looked at its gates and took no lease before."""
    return EffectClaimed(
        CommandId(call.call_id),
        LeaseToken(token),
        "me",
        LEASE_S,
        key_of(call),
        arguments_hash(call.arguments),
        holder,
    )


def ended(
    call: CallState,
    came: EffectState = EffectState.HAPPENED,
    outcome: CallOutcome = CallOutcome.OK,
    **fields: object,
) -> EffectEnded:
    """T11 of the sender of the attempt that is out."""
    return EffectEnded(CommandId(call.call_id), call.attempt, came, came_to(call, outcome), **fields)  # type: ignore[arg-type]


_CAME = {
    CallOutcome.OK: EffectState.HAPPENED,
    CallOutcome.BUSINESS_ERROR: EffectState.BUSINESS_ERROR,
    CallOutcome.DENIED: EffectState.REFUSED,
}


def begin(call: CallState, token: str = "c") -> Event:
    """Its executor begins: a claim, or for a read the lease."""
    if call.effect:
        return claim(call, token)
    return CallLeased(CommandId(call.call_id), LeaseToken(token), "me", LEASE_S)


def finish(call: CallState, token: str | None = "c", outcome: CallOutcome = CallOutcome.OK) -> Event:
    """Its executor says what it came to; of an effect, everything without a clear word is unknown."""
    if call.effect:
        return ended(call, _CAME.get(outcome, EffectState.RECONCILING), outcome)
    held = None if token is None else LeaseToken(token)
    return CallFinished(CommandId(call.call_id), held, call.attempt, came_to(call, outcome))


def ask(call: CallState, token: str = "q") -> ReconcileStarted:
    return ReconcileStarted(CommandId(call.call_id), LeaseToken(token), "me", LEASE_S)


def answer(
    call: CallState, came: EffectState, token: str = "q", outcome: CallOutcome = CallOutcome.OK
) -> ReconcileAnswered:
    return ReconcileAnswered(
        CommandId(call.call_id), LeaseToken(token), call.attempt, came, came_to(call, outcome)
    )


def question(call: CallState, *, by: str = "", expires_s: float = 100.0) -> ApprovalRequested:
    hash_ = arguments_hash(call.arguments)
    return ApprovalRequested(CommandId(call.call_id), None, hash_, expires_s, by, "summary")


def decide(call: CallState, answer_: str = "approve", by: str = "ann", **fields: object) -> ApprovalDecided:
    assert call.approval is not None
    asked = call.approval
    return ApprovalDecided(call.call_id, asked.id, answer_, by, asked.arguments_hash, **fields)  # type: ignore[arg-type]


def replied(
    state: RunState,
    calls: Iterable[ProposedCall] = (),
    *,
    text: str | None = None,
    finish: str = "stop",
    refusal: str | None = None,
    parallel: bool = True,
    token: LeaseToken | None = None,
    cost_usd: float = 0.0,
    next_reserve_usd: float = 0.0,
    model_s: float = 0.0,
) -> ModelReplied:
    """The reply to the outstanding decision, under its own lease unless another token is given."""
    row = state.commands[0]
    made = tuple(calls)
    raw = tuple(RawCall(call.wire_id, call.tool, call.arguments) for call in made)
    reply = ModelReply(
        text,
        raw,
        "tool_calls" if made and finish == "stop" else finish,
        "w",
        {},
        "m",
        Usage(1, 1),
        refusal,  # type: ignore[arg-type]
    )
    facts = StepFacts(cost_usd=cost_usd, next_reserve_usd=next_reserve_usd, model_s=model_s)
    held = token if token is not None else (row.token or STALE)
    return ModelReplied(row.id, held, reply, made, parallel, facts)


def ok(call: CallState, *, tool_s: float = 0.0) -> CallResult:
    return CallResult(call.call_id, call.index, CallOutcome.OK, "{}", attempt=call.attempt, tool_s=tool_s)


def came_to(call: CallState, outcome: CallOutcome) -> CallResult:
    return CallResult(call.call_id, call.index, outcome, "{}", attempt=call.attempt)


def with_calls(
    calls: Iterable[ProposedCall], limits: Limits | None = None, *, parallel: bool = True
) -> tuple[RunState, Step]:
    """A run whose first turn has just made these calls, and the step that made them."""
    state = reduce(submitted(limits), lease_decision(submitted(limits)), 1.0).state
    step = reduce(state, replied(state, calls, parallel=parallel), 2.0)
    return step.state, step


def next_turn(state: RunState, calls: Iterable[ProposedCall], *, now: float = 5.0) -> tuple[RunState, Step]:
    """Settle all open calls with `ok`, and reply to the next decision with these calls."""
    if state.open_calls:
        state = reduce(state, CallsSettled(tuple(ok(call) for call in state.open_calls)), now).state
    leased = reduce(state, lease_decision(state, f"d{state.turn}"), now)
    step = reduce(leased.state, replied(leased.state, calls), now)
    return step.state, step


def merges(steps: Iterable[Step]) -> list[AppendMerge]:
    return [record for step in steps for record in step.records if isinstance(record, AppendMerge)]


def events_for(state: RunState, now: float) -> Iterator[Event]:
    """Every kind of event, as it can meet this state: in time, stale, repeated."""
    row_id = state.commands[0].id if state.commands else f"{RUN}/{state.turn}"
    for row in state.commands:
        if row.token is not None:
            yield LeaseExpired(row.id, row.token)
            yield LeaseExpired(row.id, row.token, owner_gone=True, death=False)
            yield HandedBack(row.id, row.token)
    yield LeaseExpired(row_id, STALE)  # type: ignore[arg-type]
    yield HandedBack(row_id, STALE)  # type: ignore[arg-type]
    yield CancelRequested("somebody")
    yield DeadlineReached()
    yield DecisionLeased(row_id, LeaseToken(f"d{now}"), "me", LEASE_S)  # type: ignore[arg-type]
    yield from _decision_events(state, row_id)
    for call in state.calls or (_nobody(state),):
        yield from _call_events(state, call, now)
    yield CallsSettled(())
    yield CallsSettled(tuple(ok(call) for call in state.calls))


def _decision_events(state: RunState, row_id: str) -> Iterator[Event]:
    row = state.command(row_id)
    token = row.token if row is not None and row.token is not None else STALE
    carrier = state if state.commands else replace(state, commands=submitted().commands)
    for fields in (
        {"text": "done"},
        {"text": ""},
        {"finish": "length", "text": "half"},
        {"finish": "content_filter"},
        {"refusal": "no", "finish": "refusal"},
        {"calls": (proposed(0), effect(1))},
        {"calls": (invalid(0),)},
        {"calls": (proposed(0), proposed(1)), "parallel": False},
    ):
        yield replace(replied(carrier, **fields), command_id=row_id, token=token)  # type: ignore[arg-type]
    passing = ModelFault("unavailable", "503", retryable=True, status=503)
    yield ModelFailed(row_id, token, passing, 1.0, StepFacts())  # type: ignore[arg-type]
    yield ModelFailed(row_id, token, replace(passing, retryable=False), 1.0, StepFacts())  # type: ignore[arg-type]
    yield ModelFailed(row_id, token, passing, 1.0, StepFacts(), next_model=True)  # type: ignore[arg-type]
    yield DecisionDeferred(row_id, token, 7.0, "quota")  # type: ignore[arg-type]
    yield DecisionDeferred(row_id, token, 0.0, "paused", next_model=True)  # type: ignore[arg-type]
    yield RunUnworkable(row_id, token, "agent_not_loaded", "gone")  # type: ignore[arg-type]


def _call_events(state: RunState, call: CallState, now: float) -> Iterator[Event]:
    command_id = CommandId(call.call_id)
    row = state.command(command_id)
    token = row.token if row is not None else None
    yield CallLeased(command_id, LeaseToken(f"c{now}"), "me", LEASE_S)
    if call.effect:
        yield from _effect_events(call, token, now)
    else:
        for outcome in (CallOutcome.OK, CallOutcome.DENIED):
            yield CallFinished(command_id, token, call.attempt, came_to(call, outcome))
        yield CallFinished(command_id, STALE, call.attempt + 1, ok(call))
        failed = came_to(call, CallOutcome.FAILED)
        for died in (False, True):
            yield CallRetry(command_id, token, call.attempt, 1.0, died, failed)
        yield CallRetry(command_id, STALE, call.attempt, 1.0, False, failed)
    refused = came_to(call, CallOutcome.BUSINESS_ERROR)
    yield CallRefused(command_id, token, call.attempt, refused)
    yield CallRefused(command_id, STALE, call.attempt, refused)
    yield CallRefused(command_id, token, call.attempt, came_to(call, CallOutcome.REJECTED))
    yield CallRefused(command_id, token, call.attempt, came_to(call, CallOutcome.APPROVAL_EXPIRED))
    late = replace(came_to(call, CallOutcome.FAILED), reason=ReasonCode.CALL_TIMEOUT)
    yield CallRefused(command_id, token, call.attempt, late)
    yield CallDeferred(command_id, token, call.attempt, 1.0, "rate")
    yield CallWoken(command_id, key_of(call))
    yield TierRaised(command_id, token, Tier.HIGH, asks=True)
    yield from _approval_events(call)
    yield CallsSettled((ok(call),))
    yield CallAnswered(call.call_id, ok(call))


def _effect_events(call: CallState, token: LeaseToken | None, now: float) -> Iterator[Event]:
    mine = token or LeaseToken(f"e{now}")
    yield claim(call, f"e{now}")
    yield claim(call, mine)
    if call.approval is not None:
        yield replace(claim(call, mine), lapsed="approver_revoked")
    other = CallId("call_0_1_0")
    yield claim(call, f"e{now}", Holder(RunId("run_0"), other, EffectState.DISPATCHED))
    shared = CallResult(other, 0, CallOutcome.OK, "{}")
    yield claim(call, f"e{now}", Holder(RunId("run_0"), other, EffectState.HAPPENED, shared))
    failed = CallOutcome.FAILED
    yield ended(call)
    yield ended(call, EffectState.BUSINESS_ERROR, CallOutcome.BUSINESS_ERROR)
    yield ended(call, EffectState.REFUSED, CallOutcome.DENIED)
    yield ended(call, EffectState.NOT_SENT, failed, again=True, delay_s=1.0)
    yield ended(call, EffectState.RECONCILING, failed)
    yield ended(call, EffectState.RECONCILING, failed, died=True)
    yield replace(ended(call), attempt=call.attempt + 1)
    yield ask(call, f"q{now}")
    for came in (EffectState.HAPPENED, EffectState.DID_NOT_HAPPEN, EffectState.RECONCILING):
        yield answer(call, came, mine)
    yield answer(call, EffectState.HAPPENED, STALE)
    yield EffectResolved(call.call_id, True, "op", found=call.entry)
    yield EffectResolved(call.call_id, False, "op", found=Entry("k", EffectState.DISPATCHED, 1, 0.0))


def _approval_events(call: CallState) -> Iterator[Event]:
    yield question(call, by="ann")
    yield replace(question(call), standing="std_1")
    if call.approval is not None:
        yield decide(call)
        yield decide(call, by="bob")
        yield decide(call, "reject")
        yield decide(call, "edit", "bob", arguments='{"n":7}')
        yield replace(decide(call, by="bob"), arguments_hash="other")


def _nobody(state: RunState) -> CallState:
    return CallState(call_id_of(RUN, state.turn + 7, 0), 0, "t", Tier.LOW, "{}", "s", "w")


def check_invariants(before: RunState | None, step: Step, now: float) -> None:
    """What must hold after every step, of what one state and its records show (PROTOCOL: 1, 2, 6, 7, 8, 10)."""
    after = step.state
    if step.missed is not None:
        assert after == before, "a miss changes nothing"
    if after.terminal:
        assert after.commands == (), "a terminal run keeps no row"
    else:
        assert after.commands, "an open run has an outstanding row"
    assert len({row.id for row in after.commands}) == len(after.commands)
    _check_rows(after)
    assert after.counters.tool_calls <= after.limits.calls_max
    assert after.turn <= after.limits.turns_max
    if before is not None:
        _check_against(before, step, now)
    _check_numbers(before, step)


def _check_rows(after: RunState) -> None:
    by_call = {row.call_id: row for row in after.commands if row.call_id is not None}
    for call in after.calls if not after.terminal else ():
        row = by_call.get(call.call_id)
        if call.open:
            assert row is not None and row.is_exec, "an open call has one row, in exec"
        else:
            assert row is None or row.queue == RESULTS_QUEUE, "a closed call has no row, or one in results"
            assert not call.dispatched
        assert call.attempt <= call.attempts_max
    if after.phase is TurnPhase.DECIDING and not after.terminal:
        assert [row.is_decide for row in after.commands] == [True]
    for row in after.commands:
        assert (row.token is None) == (row.lease_until is None) == (row.owner is None)
        assert row.deaths < 3


def _check_against(before: RunState, step: Step, now: float) -> None:
    after = step.state
    if before.terminal:
        assert after.status == before.status, "a terminal run stays as it is"
    if before.turn == after.turn:
        for old in before.calls:
            new = after.call(old.call_id)
            assert new is not None
            assert old.open or new.outcome == old.outcome, "a result never changes"
            if new.dispatched and not old.dispatched:
                assert before.status is RunStatus.WAITING, "no effect begins once a run stops"
    stored = [r.result.call_id for r in step.records if isinstance(r, StoreResult)]
    stored += [r.call_id for r in step.records if isinstance(r, ReuseResult)]
    assert len(stored) == len(set(stored)), "one result for each call"
    for merge in merges([step]):
        assert all(not call.open for call in merge.calls), "a merge has every result"
        assert [call.index for call in merge.calls] == list(range(len(merge.calls)))
    for row in after.commands:
        known = before.command(row.id)
        if known is not None and row.token is not None and known.token is None:
            assert known.due_at <= now, "nothing begins before it is due"


def _check_numbers(before: RunState | None, step: Step) -> None:
    """Items and events are numbered without gaps."""
    items = [r.seq for r in step.records if isinstance(r, (AppendItem, AppendMerge))]
    first = 0 if before is None else before.item_count
    assert items == list(range(first, first + len(items))) and step.state.item_count == first + len(items)
    events = [r.seq for r in step.records if isinstance(r, AppendEvent)]
    told = 0 if before is None else before.event_count
    assert events == list(range(told + 1, told + 1 + len(events)))


def awaiting(state: RunState, waiting: CallWaiting) -> RunState:
    """The same run, its first open call waiting for somebody (features that come later put it there)."""
    first = state.open_calls[0]
    return replace(state, calls=tuple(replace(c, waiting=waiting) if c is first else c for c in state.calls))


def is_terminal(status: RunStatus) -> bool:
    return status in TERMINAL_STATUSES
