"""Pure rules that both stores share: what a transition changes, what is published, when a row counts as lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.envelopes import with_notice
from toolfleet.schemas.errors import IdempotencyConflict, QuotaExceeded, RunNotFinished, UnknownRun
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.limits import LOST_BACKOFF_MAX, UNSENT_AFTER_S
from toolfleet.schemas.outcomes import TERMINAL_STATUSES, ReasonCode, RunStatus, TurnPhase
from toolfleet.schemas.records import AppendDead, AppendMerge, OpenUsage, ReuseResult, Step
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.schemas.views import ApprovalView, DeadLetter, DueRow, EffectView, RunInfo


def lost_after_s(sends: int, lost_after: float) -> float:
    """How long a message sent that often may stay away before it counts as lost."""
    return lost_after * min(2.0 ** min(max(0, sends - 1), LOST_BACKOFF_MAX), LOST_BACKOFF_MAX)


def check_at(row: CommandRow, written_at: float) -> float:
    """From when on the keeper publishes this row, written at `written_at`: due and unsent for a while, or sent and
    perhaps lost. A row written to be due later is nobody's but the keeper's, so it goes out when it is due."""
    if row.sent_at is None:
        return max(row.due_at, written_at + UNSENT_AFTER_S)
    return row.sent_at + lost_after_s(row.sends, row.lost_after_s)


def written(before: RunState | None, after: RunState) -> list[CommandRow]:
    """The command rows of `after` that are new or changed."""
    known = {} if before is None else {row.id: row for row in before.commands}
    return [row for row in after.commands if known.get(row.id) != row]


def publishable(rows: Sequence[CommandRow], run_id: RunId, trace: dict[str, str], now: float) -> list[DueRow]:
    """Of rows just written, those to be published after the commit: due, and leased by nobody."""
    return [DueRow(run_id, row, trace) for row in rows if row.token is None and row.due_at <= now]


def merge_of(step: Step, turn: int) -> AppendMerge | None:
    """The merge of that turn, if the step made it."""
    return next((r for r in step.records if isinstance(r, AppendMerge) and r.turn == turn), None)


def calls_left(before: RunState, step: Step) -> Sequence[CallState]:
    """The calls of the turn that was current before, as the step leaves them. A step that opens the next turn has
    them in its merge."""
    if step.state.turn == before.turn:
        return step.state.calls
    merged = merge_of(step, before.turn)
    return before.calls if merged is None else merged.calls


def phase_left(before: RunState, step: Step) -> TurnPhase:
    """The phase of the turn that was current before, as the step leaves it."""
    if step.state.turn == before.turn:
        return step.state.phase
    return TurnPhase.ENDED if merge_of(step, before.turn) is None else TurnPhase.MERGED


def reused(record: ReuseResult, source: CallResult) -> CallResult:
    """The copy of `source` for another call, with the notice for the model; it cost no time."""
    return replace(
        source,
        call_id=record.call_id,
        index=record.index,
        content=with_notice(source.content, record.notice),
        reason=ReasonCode.REPEATED_CALL.value,
        attempt=0,
        tool_s=0.0,
        queue_s=0.0,
    )


def opened_usage(record: OpenUsage, now: float) -> dict[str, Any]:
    """The columns of a usage row that is opened; the first row of a token wins."""
    return {
        "turn": record.turn,
        "attempt": record.attempt,
        "model": record.model,
        "status": "reserved",
        "reserved_usd": record.reserved_usd,
        "input_tokens": 0,
        "output_tokens": 0,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
        "cost_usd": record.reserved_usd,  # stands as spent until the reply replaces it
        "at": now,
        "closed_at": None,
    }


def dead_letter(record: AppendDead, run_id: RunId, at: float) -> DeadLetter:
    """The letter of a step that was given up; a step is given up once, so its id names the letter."""
    return DeadLetter(
        id=f"dead_{record.command_id.replace('/', '_')}",
        kind="step",
        queue=record.queue,
        reason=str(record.reason),
        at=at,
        run_id=run_id,
        turn=record.turn,
        call_id=record.call_id,
        detail=f"{record.deaths} workers were lost on it",
    )


def new_effect(new: NewRun, turn: int, call: CallState, now: float) -> EffectView:
    """The ledger's row of a call that claims its effect for the first time."""
    assert call.entry is not None
    return EffectView(
        call_id=call.call_id,
        run_id=new.run_id,
        turn=turn,
        tenant=new.tenant,
        tool=call.tool,
        tier=call.tier,
        arguments=call.arguments,
        timeout_s=call.timeout_s,
        entry=call.entry,
        opened_at=now,
        changed_at=now,
    )


def approval_view(new: NewRun, turn: int, call: CallState) -> ApprovalView:
    """The question about this call as it stands."""
    assert call.approval is not None
    return ApprovalView(
        approval=call.approval,
        call_id=call.call_id,
        run_id=new.run_id,
        turn=turn,
        tenant=new.tenant,
        tool=call.tool,
        arguments=call.arguments,
    )


def info_of(new: NewRun, created_at: float, finished_at: float | None) -> RunInfo:
    return RunInfo(
        run_id=new.run_id,
        agent=new.agent,
        agent_version=new.agent_version,
        prompt_version=new.prompt_version,
        toolset_version=new.toolset_version,
        tenant=new.tenant,
        previous_run_id=new.previous_run_id,
        retry_of=new.retry_of,
        correlation_id=new.correlation_id,
        input=new.input,
        context=dict(new.context),
        metadata=dict(new.metadata),
        trace=dict(new.trace),
        created_at=created_at,
        finished_at=finished_at,
        principal=new.principal,
        permissions=new.permissions,
        effect_scope=new.effect_scope,
    )


@dataclass(frozen=True, slots=True)
class Known:
    """What admission needs of a run that is stored."""

    run_id: RunId
    tenant: str
    status: str
    request_hash: str


Keys = Mapping[tuple[str, str], Known]  # by tenant and idempotency key


def admit(runs: Sequence[NewRun], by_id: Mapping[RunId, Known], by_key: Keys) -> list[Known | None]:
    """For each run of one submit the run that its key, or its own id, has made before; None: it is new.

    Raises UnknownRun, RunNotFinished or IdempotencyConflict, and then none of them may be stored.
    """
    ids, keys = dict(by_id), dict(by_key)
    answers: list[Known | None] = []
    for new in runs:
        fresh = Known(new.run_id, new.tenant, RunStatus.QUEUED, new.request_hash)
        key = None if new.idempotency_key is None else (new.tenant, new.idempotency_key)
        known = ids.get(new.run_id) if key is None or key not in keys else keys[key]
        if known is not None and (known.request_hash, known.tenant) != (new.request_hash, new.tenant):
            raise IdempotencyConflict(
                f"the idempotency key {new.idempotency_key or new.run_id!r} was used for another request",
                hint="Use a new key for a new request.",
                run_id=known.run_id,
            )
        if known is None:
            _check_previous(new, ids)
            ids[new.run_id] = fresh
            if key is not None:
                keys[key] = fresh
        answers.append(known)
    return answers


IN_FLIGHT_RETRY_S = 5.0  # when a run may have ended; nobody knows


def refuse_too_many(fresh: Sequence[NewRun], in_flight: Mapping[str, int]) -> None:
    """Raises QuotaExceeded where new runs would be more in flight than their tenant may have. `in_flight`: those that
    are, by tenant."""
    counts = dict(in_flight)
    for new in fresh:
        counts[new.tenant] = counts.get(new.tenant, 0) + 1
        if new.in_flight_max is not None and counts[new.tenant] > new.in_flight_max:
            raise QuotaExceeded(
                f"tenant {new.tenant!r} may have {new.in_flight_max} runs in flight, and has "
                f"{in_flight.get(new.tenant, 0)} (with {len(fresh)} asked for)",
                hint="Submit it again when runs have ended, or ask for fewer at a time.",
                quota="runs_in_flight",
                retry_after_s=IN_FLIGHT_RETRY_S,
            )


def _check_previous(new: NewRun, by_id: Mapping[RunId, Known]) -> None:
    if new.previous_run_id is None:
        return
    previous = by_id.get(new.previous_run_id)
    if previous is None or previous.tenant != new.tenant:
        raise UnknownRun(
            f"no run is called {new.previous_run_id!r}",
            hint="List them with: toolfleet runs ls",
            run_id=new.previous_run_id,
        )
    if previous.status not in TERMINAL_STATUSES:
        raise RunNotFinished(
            f"run {new.previous_run_id} is {previous.status}",
            hint="Wait for it, or cancel it, before the conversation goes on.",
            run_id=new.previous_run_id,
        )
