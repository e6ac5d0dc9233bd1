"""Forgets runs and batches that ended, and files that were handed in, long ago, a bounded transaction at a time, and says
what it would forget.

A run stays while somebody may still need it: it has not ended, a later run of its conversation is there, or an effect of
it waits for a human. Where an effect happened, its row in the ledger holds the key, so that nobody does it again: the run
keeps its row, calls and usage, and loses everything that was said. The audit is never purged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Select, bindparam, delete, exists, func, or_, select, update

from toolfleet.adapters.store import batch_rows
from toolfleet.adapters.store.batch_tables import batches
from toolfleet.adapters.store.dialect import members
from toolfleet.adapters.store.file_rows import files
from toolfleet.adapters.store.sql_batches import Runs
from toolfleet.adapters.store.tables import (
    approvals,
    cached_results,
    calls,
    commands,
    dead,
    effects,
    events,
    items,
    results,
    run_inputs,
    runs,
    steps,
    turns,
    usage,
)
from toolfleet.schemas.effects import EffectState
from toolfleet.schemas.retention import PURGED_MAX, Purged, PurgeScope

ERASED: Final = "erased"  # request_hash of a run that was emptied
SAID: Final = '{"status":"success","message":"This was done earlier. What it came to has been erased."}'
_later: Final = runs.alias("later")
_OPEN_EFFECTS: Final = [
    one.value for one in (EffectState.DISPATCHED, EffectState.RECONCILING, EffectState.NEEDS_HUMAN)
]
_NEEDED: Final = or_(
    exists().where(_later.c.previous_run_id == runs.c.id),
    exists().where(effects.c.run_id == runs.c.id, effects.c.state.in_(_OPEN_EFFECTS)),
)
_HOLDS: Final = exists().where(effects.c.run_id == runs.c.id, effects.c.state == EffectState.HAPPENED.value)
_CONTENT: Final = (approvals, items, steps, events, turns)  # gone in both cases, children first
_ALL: Final = (commands, approvals, effects, results, items, calls, turns, usage, steps, events, run_inputs)


def _ended(scope: PurgeScope) -> Select[Any]:
    """Runs that are to be forgotten: id, and whether an effect holds its key."""
    statement = (
        select(runs.c.id, _HOLDS.label("holds"))
        .join(run_inputs, run_inputs.c.run_id == runs.c.id)
        .where(runs.c.finished_at.is_not(None), runs.c.finished_at <= scope.before, ~_NEEDED)
        .where(run_inputs.c.request_hash != ERASED)
    )
    if scope.tenant is not None:
        statement = statement.where(runs.c.tenant == scope.tenant)
    if scope.run_id is not None:
        statement = statement.where(runs.c.id == scope.run_id)
    return statement


def _ended_batches(scope: PurgeScope) -> Select[Any]:
    statement = select(batches.c.id).where(
        batches.c.ended_at.is_not(None), batches.c.ended_at <= scope.before
    )
    if scope.tenant is not None:
        statement = statement.where(batches.c.tenant == scope.tenant)
    return statement


def _old_files(scope: PurgeScope) -> Select[Any]:
    statement = select(files.c.id).where(files.c.created_at <= scope.before)
    if scope.tenant is not None:
        statement = statement.where(files.c.tenant == scope.tenant)
    return statement


def purgeable(connection: Connection, scope: PurgeScope) -> Purged:
    found = _ended(scope).subquery()
    counted = select(func.count(), func.count().filter(found.c.holds)).select_from(found)
    total, holding = connection.execute(counted).one()
    of_batches = of_files = 0
    if scope.run_id is None:
        ended, old = _ended_batches(scope).subquery(), _old_files(scope).subquery()
        of_batches = connection.execute(select(func.count()).select_from(ended)).scalar_one()
        of_files = connection.execute(select(func.count()).select_from(old)).scalar_one()
    return Purged(int(total) - int(holding), int(holding), int(of_batches), int(of_files))


def purge_some(connection: Connection, scope: PurgeScope) -> Purged:
    """Runs first, then files and batches: one batch at a time, its lines before itself."""
    some = _ended(scope).order_by(runs.c.finished_at, runs.c.id).limit(PURGED_MAX)
    found = connection.execute(some.with_for_update(of=runs, skip_locked=True)).all()
    if found:
        emptied = [id_ for id_, holds in found if holds]
        gone = [id_ for id_, holds in found if not holds]
        if emptied:
            _empty(connection, emptied)
        if gone:
            _forget(connection, gone)
        return Purged(len(gone), len(emptied))
    if scope.run_id is not None:
        return Purged()
    if scope.tenant is not None:
        connection.execute(delete(cached_results).where(cached_results.c.tenant == scope.tenant))
    some_files = _old_files(scope).limit(PURGED_MAX)
    gone_files = connection.execute(delete(files).where(files.c.id.in_(some_files))).rowcount
    return Purged(batches=_forget_batch(connection, scope), files=int(gone_files))


def _of(table: Any) -> Any:
    return members(table.c.run_id, "run_ids")


def _forget(connection: Connection, run_ids: list[str]) -> None:
    asked = {"run_ids": run_ids}
    connection.execute(delete(dead).where(_of(dead)), asked)
    for table in _ALL:
        connection.execute(delete(table).where(_of(table)), asked)
    connection.execute(delete(runs).where(members(runs.c.id, "run_ids")), asked)


def _empty(connection: Connection, run_ids: list[str]) -> None:
    """Without anything a person, a model or a tool said; the ledger still knows that it happened."""
    asked = {"run_ids": run_ids}
    connection.execute(delete(dead).where(_of(dead)), asked)
    for table in _CONTENT:
        connection.execute(delete(table).where(_of(table)), asked)
    of_effect = exists().where(effects.c.call_id == results.c.call_id, effects.c.run_id == results.c.run_id)
    connection.execute(delete(results).where(_of(results), ~of_effect), asked)
    connection.execute(update(results).where(_of(results)).values(content=SAID, full_text=None), asked)
    connection.execute(delete(calls).where(_of(calls), ~calls.c.effect), asked)
    connection.execute(update(calls).where(_of(calls)).values(arguments="{}"), asked)
    connection.execute(update(effects).where(_of(effects)).values(answer=None), asked)
    blank = {"input": "", "context": "{}", "metadata": "{}", "trace": "{}", "request_hash": ERASED}
    connection.execute(update(run_inputs).where(_of(run_inputs)).values(**blank), asked)
    states = connection.execute(
        select(runs.c.id, runs.c.state).where(members(runs.c.id, "run_ids")), asked
    ).all()
    for id_, state in states:
        kept = {**orjson.loads(state), "output": None, "draft": None, "structured": False}
        emptied = update(runs).where(runs.c.id == bindparam("key_id"))
        values = {"state": orjson.dumps(kept).decode(), "signatures": "[]"}
        connection.execute(emptied.values(**values), {"key_id": id_})


def _forget_batch(connection: Connection, scope: PurgeScope) -> int:
    oldest = _ended_batches(scope).order_by(batches.c.id).limit(1).with_for_update(skip_locked=True)
    batch_id = connection.execute(oldest).scalar_one_or_none()
    if batch_id is None:
        return 0
    while batch_rows.dropped(connection, batch_id):
        pass  # all of its lines in this transaction: at most REQUESTS_MAX, and nobody waits for them
    connection.execute(delete(batches).where(batches.c.id == batch_id))
    return 1


@dataclass(frozen=True, slots=True)
class SqlRetention:
    """Retention over the connections of a store."""

    write: Runs
    read: Runs

    async def purgeable(self, scope: PurgeScope) -> Purged:
        return await self.read(_with(purgeable, scope))

    async def purge_some(self, scope: PurgeScope) -> Purged:
        return await self.write(_with(purge_some, scope))


def _with(
    work: Callable[[Connection, PurgeScope], Purged], scope: PurgeScope
) -> Callable[[Connection], Purged]:
    return lambda connection: work(connection, scope)
