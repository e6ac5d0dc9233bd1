"""Statements about effects, approvals, approvers and the audit: what transitions depend on, and what people read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, FromClause, Select, bindparam, func, insert, select, tuple_, update

from toolfleet.adapters.store import access_rows, codec, ledger_codec
from toolfleet.adapters.store.dialect import members
from toolfleet.adapters.store.tables import (
    approvals,
    audit,
    calls,
    commands,
    effects,
    results,
    runs,
    standing_approvals,
)
from toolfleet.schemas.access import granters, lapsed
from toolfleet.schemas.effects import (
    HOLDING,
    ApprovalStatus,
    Audit,
    EffectState,
    Holder,
    StandingApproval,
)
from toolfleet.schemas.events import EffectClaimed, EffectEnded, EffectResolved, Event
from toolfleet.schemas.ids import CallId, CommandId, RunId
from toolfleet.schemas.run import CallState, RunState
from toolfleet.schemas.views import ApprovalView, EffectView

_seen_effect, _seen_approval = effects.alias("seen"), approvals.alias("seen")
_HELD_STATES: Final = sorted(state.value for state in HOLDING)
_current = (runs.c.id, runs.c.turn)
OF_RUNS: Final = (
    select(effects)
    .join(runs, (runs.c.id == effects.c.run_id) & (runs.c.turn == effects.c.turn))
    .where(members(effects.c.run_id, "run_ids"))
)
ASKED_OF_RUNS: Final = (
    select(approvals)
    .join(runs, (runs.c.id == approvals.c.run_id) & (runs.c.turn == approvals.c.turn))
    .where(members(approvals.c.run_id, "run_ids"))
    .order_by(approvals.c.requested_at, approvals.c.id)
)
HOLDER: Final = (
    select(
        effects.c.run_id.label("holder_run"),
        effects.c.state,
        effects.c.answer,
        effects.c.call_id.label("of"),
        results,
    )
    .outerjoin(
        results,
        (results.c.run_id == effects.c.run_id)
        & (results.c.turn == effects.c.turn)
        & (results.c.call_id == effects.c.call_id),
    )
    .where(effects.c.key == bindparam("key"), effects.c.state.in_(_HELD_STATES))
)
ONE: Final = select(effects).where(effects.c.call_id == bindparam("call_id"))
LOCKED_ONE: Final = ONE.with_for_update()
WAITERS: Final = (
    select(calls.c.run_id, commands.c.id)
    .join(commands, (commands.c.run_id == calls.c.run_id) & (commands.c.call_id == calls.c.call_id))
    .where(calls.c.waits_key == bindparam("key"), calls.c.waits_key != "", commands.c.token.is_(None))
    .limit(bindparam("limit"))
)
STANDING: Final = (
    select(standing_approvals)
    .where(
        standing_approvals.c.tenant == bindparam("tenant"),
        standing_approvals.c.tool == bindparam("tool"),
        standing_approvals.c.expires_at > bindparam("now"),
    )
    .order_by(standing_approvals.c.id)
)


# -- for transitions ---------------------------------------------------------------------------------------------------


def attach(connection: Connection, of_run: dict[str, list[CallState]]) -> None:
    """Ledger rows and the newest approvals, put into the calls that have any. Costs nothing where no call can."""
    concerned = [
        run_id
        for run_id, found in of_run.items()
        if any(one.effect or one.terms.asks or one.terms.grantable for one in found)
    ]
    if not concerned:
        return
    asked = {"run_ids": concerned}
    entries = {
        row["call_id"]: ledger_codec.entry(row) for row in connection.execute(OF_RUNS, asked).mappings()
    }
    questions = {
        row["call_id"]: ledger_codec.approval(row)
        for row in connection.execute(ASKED_OF_RUNS, asked).mappings()
    }
    for run_id in concerned:
        of_run[run_id] = [
            replace(one, entry=entries.get(one.call_id), approval=questions.get(one.call_id))
            if one.call_id in entries or one.call_id in questions
            else one
            for one in of_run[run_id]
        ]


def informed(connection: Connection, event: Event, state: RunState, *, tenant: str, now: float) -> Event:
    """The event with what it depends on beside the state of its run, read under the lock of that run."""
    match event:
        case EffectClaimed():
            why = _lapsed(connection, state.call(event.command_id), tenant, now)
            return replace(event, holder=holder(connection, event.key), lapsed=why)
        case EffectResolved():
            row = connection.execute(LOCKED_ONE, {"call_id": event.call_id}).mappings().one_or_none()
            mine = row is not None and row["run_id"] == state.run_id
            return replace(event, found=ledger_codec.entry(row) if row is not None and mine else None)
        case EffectEnded() if state.call(event.command_id) is None:
            row = connection.execute(ONE, {"call_id": event.command_id}).mappings().one_or_none()
            return replace(event, found=None if row is None else ledger_codec.entry(row))
        case _:
            return event


def _lapsed(connection: Connection, call: CallState | None, tenant: str, now: float) -> str:
    """Why what granted the call holds no more; asked of the database only where somebody granted it."""
    asked = None if call is None else call.approval
    if call is None or asked is None or asked.status is not ApprovalStatus.GRANTED:
        return ""
    found = None if asked.standing is None else standing_of(connection, asked.standing)
    keys = access_rows.keys_named(connection, now, granters(asked, found))
    return lapsed(asked, tenant=tenant, tool=call.tool, keys=keys, standing=found, now=now)


def holder(connection: Connection, key: str) -> Holder | None:
    row = connection.execute(HOLDER, {"key": key}).mappings().one_or_none()
    if row is None:
        return None
    return Holder(
        RunId(row["holder_run"]),
        CallId(row["of"]),
        EffectState(row["state"]),
        None if row["outcome"] is None else codec.call_result(row),
        row["answer"],
    )


# -- for people, and for executors before they act ------------------------------------------------------------------------


def waiters(connection: Connection, key: str, *, limit: int) -> list[tuple[RunId, CommandId]]:
    found = connection.execute(WAITERS, {"key": key, "limit": limit})
    return [(RunId(run_id), CommandId(id_)) for run_id, id_ in found]


def effect_views(
    connection: Connection,
    *,
    limit: int,
    state: str | None,
    tenant: str | None,
    run_id: str | None,
    before: str | None,
) -> list[EffectView]:
    """The one that changed last first."""
    statement: Select[Any] = select(effects).order_by(effects.c.changed_at.desc(), effects.c.call_id.desc())
    if before is not None:
        seen = select(_seen_effect.c.changed_at, _seen_effect.c.call_id)
        last = seen.where(_seen_effect.c.call_id == before).scalar_subquery()
        statement = statement.where(tuple_(effects.c.changed_at, effects.c.call_id) < last)
    for column, value in ((effects.c.state, state), (effects.c.tenant, tenant), (effects.c.run_id, run_id)):
        if value is not None:
            statement = statement.where(column == value)
    # The page first: no planner knows how few calls there are to an effect, and it would join all of them.
    page = statement.limit(limit).subquery("page")
    views = _with_calls(page).order_by(page.c.changed_at.desc(), page.c.call_id.desc())
    return [ledger_codec.effect_view(row) for row in connection.execute(views).mappings()]


def _with_calls(found: FromClause) -> Select[Any]:
    """Rows of effects, with what was to be done."""
    return select(found, calls.c.arguments, calls.c.timeout_s).join(
        calls,
        (calls.c.run_id == found.c.run_id)
        & (calls.c.turn == found.c.turn)
        & (calls.c.call_id == found.c.call_id),
    )


def effect_view(connection: Connection, call_id: str) -> EffectView | None:
    one = _with_calls(effects).where(effects.c.call_id == call_id)
    row = connection.execute(one).mappings().one_or_none()
    return None if row is None else ledger_codec.effect_view(row)


def approval_views(
    connection: Connection,
    *,
    limit: int,
    status: str | None,
    tenant: str | None,
    run_id: str | None,
    after: str | None,
) -> list[ApprovalView]:
    """The oldest question first."""
    statement: Select[Any] = select(approvals).order_by(approvals.c.requested_at, approvals.c.id)
    if after is not None:
        seen = select(_seen_approval.c.requested_at, _seen_approval.c.id)
        last = seen.where(_seen_approval.c.id == after).scalar_subquery()
        statement = statement.where(tuple_(approvals.c.requested_at, approvals.c.id) > last)
    for column, value in (
        (approvals.c.status, status),
        (approvals.c.tenant, tenant),
        (approvals.c.run_id, run_id),
    ):
        if value is not None:
            statement = statement.where(column == value)
    return [ledger_codec.approval_view(row) for row in connection.execute(statement.limit(limit)).mappings()]


def approval_view(connection: Connection, approval_id: str) -> ApprovalView | None:
    row = connection.execute(select(approvals).where(approvals.c.id == approval_id)).mappings().one_or_none()
    return None if row is None else ledger_codec.approval_view(row)


def add_standing(connection: Connection, standing: StandingApproval, audit_: Audit, now: float) -> None:
    connection.execute(insert(standing_approvals), ledger_codec.standing_values(standing, now))
    add_audit(connection, audit_, now)


def standing(connection: Connection, now: float, tenant: str, tool: str) -> list[StandingApproval]:
    found = connection.execute(STANDING, {"tenant": tenant, "tool": tool, "now": now}).mappings()
    return [ledger_codec.standing(row) for row in found]


def standings(
    connection: Connection, now: float, limit: int, tenant: str | None, tool: str | None, ended: bool
) -> list[StandingApproval]:
    """The one that was made last first."""
    rows = standing_approvals.c
    statement = select(standing_approvals).order_by(rows.created_at.desc(), rows.id.desc()).limit(limit)
    if tenant is not None:
        statement = statement.where(rows.tenant == tenant)
    if tool is not None:
        statement = statement.where(rows.tool == tool)
    if not ended:
        statement = statement.where(rows.expires_at > now)
    return [ledger_codec.standing(row) for row in connection.execute(statement).mappings()]


def standing_of(connection: Connection, standing_id: str) -> StandingApproval | None:
    one = select(standing_approvals).where(standing_approvals.c.id == standing_id)
    row = connection.execute(one).mappings().one_or_none()
    return None if row is None else ledger_codec.standing(row)


def end_standing(connection: Connection, standing_id: str, audit_: Audit, now: float) -> bool:
    """It is over from now on; False, and nothing is written, where it is not in force."""
    ended = (
        update(standing_approvals)
        .where(standing_approvals.c.id == standing_id, standing_approvals.c.expires_at > now)
        .values(expires_at=now)
    )
    if connection.execute(ended).rowcount != 1:
        return False
    add_audit(connection, audit_, now)
    return True


def add_audit(connection: Connection, one: Audit, now: float) -> None:
    connection.execute(insert(audit), ledger_codec.audit_values(one, one.tenant, now))


def audits(connection: Connection, *, limit: int, call_id: str | None) -> list[Audit]:
    """Newest first."""
    statement: Select[Any] = select(audit).order_by(audit.c.id.desc()).limit(limit)
    if call_id is not None:
        statement = statement.where(audit.c.call_id == call_id)
    return [ledger_codec.audit(row) for row in connection.execute(statement).mappings()]


def counts(connection: Connection) -> dict[str, int]:
    """`effects.<state>` and `approvals.pending`: what a human is waited for."""
    found: dict[str, int] = defaultdict(int)
    states = connection.execute(select(effects.c.state, func.count()).group_by(effects.c.state))
    for state, count in states:
        found[f"effects.{state}"] = int(count)
    pending = select(func.count()).where(approvals.c.status == ApprovalStatus.PENDING.value)
    found["approvals.pending"] = int(connection.execute(pending).scalar_one())
    return dict(found)
