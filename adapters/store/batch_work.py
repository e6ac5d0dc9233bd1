"""Carries open batches on, one bounded transaction at a time: settle items, stop, admit, end.

Every writer of items locks their batch first, so what is read under that lock stays. Lock order: batches by id, then
(for the runs that are made) as everywhere. Which item became which run is one transaction with the run's creation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    or_,
    select,
    update,
)

from toolfleet.adapters.store import batch_rows, batch_rules, rules
from toolfleet.adapters.store.apply import Writes
from toolfleet.adapters.store.batch_rules import Claim
from toolfleet.adapters.store.batch_tables import batch_inputs, batch_items, batches
from toolfleet.adapters.store.codec import Row
from toolfleet.adapters.store.dialect import execute_many, members
from toolfleet.adapters.store.tables import calls, runs, steps
from toolfleet.schemas.batches import (
    ACCOUNT_FAULTS,
    ACCOUNT_FAULTS_MAX,
    OPEN_BATCHES,
    PAUSED_ACCOUNT,
    VALIDATING_SILENT_S,
    Advanced,
    BatchFault,
    BatchStatus,
    ItemCode,
    ItemStatus,
)
from toolfleet.schemas.events import Submitted
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.outcomes import CallWaiting, ReasonCode, RunStatus
from toolfleet.schemas.ports import Machine
from toolfleet.schemas.run import NewRun
from toolfleet.schemas.views import DueRow

SETTLED_MAX: Final = 500
STOPPED_MAX: Final = 2000
CANCELLED_MAX: Final = 200
RUN_GONE: Final = "run_erased"
_RUNNING: ColumnElement[str] = literal_column("'running'")
_PENDING: ColumnElement[str] = literal_column("'pending'")

ANY_OPEN: Final = select(batches.c.id).where(batches.c.ended_at.is_(None)).limit(1)
OPEN: Final = (
    select(batches)
    .where(batches.c.ended_at.is_(None), batches.c.status.in_([one.value for one in OPEN_BATCHES]))
    .order_by(batches.c.id)
    .with_for_update()
)
SILENT: Final = (
    select(batches.c.id)
    .where(
        batches.c.ended_at.is_(None),
        batches.c.status == literal_column("'validating'"),
        batches.c.touched_at < bindparam("since"),
    )
    .order_by(batches.c.id)
    .with_for_update(skip_locked=True)
)
_SUMS: Final = (*batch_rows.USED, *batch_rows.USED_TOO)
_OF_RUN: Final = (*batch_rows.USED, "tool_calls", "model_s", "tool_s", "queue_s")
FINISHED: Final = (
    select(
        batch_items.c.batch_id,
        batch_items.c.line,
        batch_items.c.run_id,
        *(batch_items.c[name].label(f"old_{name}") for name in _SUMS),
        runs.c.status,
        runs.c.reason,
        runs.c.created_at,
        runs.c.finished_at,
        *(runs.c[name] for name in _OF_RUN),
    )
    .outerjoin(runs, runs.c.id == batch_items.c.run_id)
    .where(
        members(batch_items.c.batch_id, "batch_ids"),
        batch_items.c.status == _RUNNING,
        or_(runs.c.finished_at.is_not(None), runs.c.id.is_(None)),
    )
    .order_by(runs.c.finished_at, batch_items.c.batch_id, batch_items.c.line)
    .limit(SETTLED_MAX)
)
MODEL_FAULTS: Final = (
    select(steps.c.run_id, steps.c.outcome)
    .where(members(steps.c.run_id, "run_ids"), steps.c.kind == literal_column("'decide'"))
    .order_by(steps.c.id)
)
SETTLE: Final = (
    update(batch_items)
    .where(batch_items.c.batch_id == bindparam("key_batch_id"), batch_items.c.line == bindparam("key_line"))
    .values({name: bindparam(name) for name in ("status", "code", "ended_at", *_SUMS)})
)
ADMIT: Final = (
    update(batch_items)
    .where(batch_items.c.batch_id == bindparam("key_batch_id"), batch_items.c.line == bindparam("key_line"))
    .values({name: bindparam(name) for name in ("status", "run_id", "tries", "reserved_usd", "started_at")})
)
_WAITING: Final = exists().where(
    calls.c.run_id == runs.c.id,
    calls.c.turn == runs.c.turn,
    calls.c.outcome.is_(None),
    calls.c.waiting.in_(
        [
            one.value
            for one in (
                CallWaiting.AWAITING_APPROVAL,
                CallWaiting.AWAITING_CALLBACK,
                CallWaiting.AWAITING_CLIENT,
            )
        ]
    ),
)
AT_WORK: Final = (
    select(
        batch_items.c.batch_id,
        func.count().label("running"),
        func.count().filter(and_(runs.c.status == literal_column("'waiting'"), _WAITING)).label("parked"),
        func.sum(batch_items.c.reserved_usd).label("reserved"),
    )
    .outerjoin(runs, runs.c.id == batch_items.c.run_id)
    .where(members(batch_items.c.batch_id, "batch_ids"), batch_items.c.status == _RUNNING)
    .group_by(batch_items.c.batch_id)
)
_SOME_PENDING: Final = (
    select(batch_items.c.line)
    .where(batch_items.c.batch_id == bindparam("batch_id"), batch_items.c.status == _PENDING)
    .order_by(batch_items.c.line)
    .limit(bindparam("limit"))
)
PENDING_COUNT: Final = select(func.count()).select_from(_SOME_PENDING.subquery())
LAST_PENDING: Final = select(func.max(_SOME_PENDING.subquery().c.line))
NEXT: Final = (
    select(
        batch_items.c.line,
        batch_items.c.custom_id,
        batch_items.c.tenant,
        batch_items.c.tries,
        batch_items.c.run_id,
        batch_inputs.c.request,
    )
    .join(
        batch_inputs,
        and_(batch_inputs.c.batch_id == batch_items.c.batch_id, batch_inputs.c.line == batch_items.c.line),
    )
    .where(batch_items.c.batch_id == bindparam("batch_id"), batch_items.c.status == _PENDING)
    .order_by(batch_items.c.line)
    .limit(bindparam("limit"))
)
TO_CANCEL: Final = (
    select(batch_items.c.run_id)
    .join(runs, runs.c.id == batch_items.c.run_id)
    .where(
        batch_items.c.batch_id == bindparam("batch_id"),
        batch_items.c.status == _RUNNING,
        runs.c.finished_at.is_(None),
        runs.c.status != RunStatus.CANCELLING.value,
    )
    .order_by(batch_items.c.line)
    .limit(CANCELLED_MAX)
)


def any_open(connection: Connection) -> bool:
    """Whether there is anything to carry on: what the keeper asks before it takes the writer."""
    return connection.execute(ANY_OPEN).first() is not None


@dataclass(slots=True)
class _Batch:
    """An open batch under its lock; `changed` are the columns that will be written."""

    row: Row
    running: int = 0
    parked: int = 0
    reserved_usd: float = 0.0
    changed: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        return self.changed.get(name, self.row[name])

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def status(self) -> BatchStatus:
        return BatchStatus(self.get("status"))

    @property
    def left_usd(self) -> float | None:
        most = self.row["cost_usd_max"]
        return None if most is None else most - self.get("spent_usd") - self.reserved_usd


@dataclass(slots=True)
class Advance:
    """One transaction. `in_flight_max`: items of all batches at work; `feed_max`: runs made in this transaction."""

    connection: Connection
    machine: Machine
    now: float
    in_flight_max: int
    feed_max: int
    open: dict[str, _Batch] = field(default_factory=dict)
    progressed: int = 0

    def carry(self) -> Advanced:
        self._give_up_silent()
        rows = self.connection.execute(OPEN).mappings().all()
        self.open = {row["id"]: _Batch(row) for row in rows}
        if not self.open:
            return Advanced(more=self.progressed > 0)
        self._settle()
        for batch in self.open.values():
            if batch.status is BatchStatus.IN_PROGRESS and batch.row["expires_at"] <= self.now:
                batch.changed |= {"status": BatchStatus.FINALIZING.value, "stopping_at": self.now}
            stops = batch_rules.never_begun(batch.status)
            if stops is not None:
                self._end_pending(batch, *stops)
        self._count()
        made, publish = self._feed()
        cancel = self._to_cancel()
        for batch in self.open.values():
            self._end(batch)
            if batch.changed:
                batch_rows.change(self.connection, batch.id, **batch.changed)
        return Advanced(tuple(made), tuple(publish), tuple(cancel), more=self.progressed > 0)

    def _give_up_silent(self) -> None:
        """Uploads whose process died: nothing of them ran, and nobody will go on with them but by their key."""
        for (batch_id,) in self.connection.execute(SILENT, {"since": self.now - VALIDATING_SILENT_S}).all():
            batch_rows.change(self.connection, batch_id, upload_token="")
            gone = batch_rows.dropped(self.connection, batch_id)
            self.progressed += gone
            if not gone:
                message = "the upload ended before the end of the file; nothing of it ran"
                batch_rows.refused(
                    self.connection, batch_id, [BatchFault("upload_interrupted", message)], self.now
                )

    # -- what has ended ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Items whose runs are terminal, in the order they ended."""
        found = self.connection.execute(FINISHED, {"batch_ids": sorted(self.open)}).mappings().all()
        if not found:
            return
        self.progressed += len(found)
        faults = self._model_faults(found)
        rows = []
        for one in found:
            batch = self.open[one["batch_id"]]
            status, code = ItemStatus.FAILED, RUN_GONE
            if one["status"] is not None:
                status, code = batch_rules.item_end(one["status"], one["reason"], batch.status)  # type: ignore[assignment]
            fault = faults.get(one["run_id"])
            if fault is not None:
                code = fault
            self._count_account_fault(batch, status, fault)
            used = _used(one)
            batch.changed["spent_usd"] = batch.get("spent_usd") + used["cost_usd"] - one["old_cost_usd"]
            key = {"key_batch_id": one["batch_id"], "key_line": one["line"]}
            ended = self.now if one["finished_at"] is None else one["finished_at"]
            rows.append({**key, "status": status.value, "code": code, "ended_at": ended, **used})
        execute_many(self.connection, SETTLE, rows)

    def _model_faults(self, found: Sequence[Row]) -> dict[str, str]:
        """By run: why its model's account refused it, if it did."""
        failed = [one["run_id"] for one in found if one["reason"] == ReasonCode.MODEL_ERROR]
        if not failed:
            return {}
        last = dict(
            self.connection.execute(MODEL_FAULTS, {"run_ids": failed}).all()
        )  # the newest of a run wins
        return {run_id: outcome for run_id, outcome in last.items() if outcome in ACCOUNT_FAULTS}

    @staticmethod
    def _count_account_fault(batch: _Batch, status: ItemStatus, fault: str | None) -> None:
        """Several in a row, and the others would fail one by one: the batch pauses until somebody resumes it."""
        if fault is not None:
            batch.changed["account_faults"] = batch.get("account_faults") + 1
            if batch.get("account_faults") >= ACCOUNT_FAULTS_MAX and batch.status is BatchStatus.IN_PROGRESS:
                batch.changed["paused"] = PAUSED_ACCOUNT
        elif status is ItemStatus.COMPLETED:
            batch.changed["account_faults"] = 0

    # -- what stops ----------------------------------------------------------------------------------------------------

    def _end_pending(self, batch: _Batch, status: ItemStatus, code: ItemCode) -> None:
        asked = {"batch_id": batch.id, "limit": STOPPED_MAX}
        last = self.connection.execute(LAST_PENDING, asked).scalar_one()
        if last is None:
            return
        ended = (
            update(batch_items)
            .where(
                batch_items.c.batch_id == batch.id,
                batch_items.c.status == "pending",
                batch_items.c.line <= last,
            )
            .values(status=status.value, code=code.value, ended_at=self.now)
        )
        self.progressed += self.connection.execute(ended).rowcount

    def _to_cancel(self) -> list[RunId]:
        found: list[RunId] = []
        for batch in self.open.values():
            if batch.status is BatchStatus.CANCELLING and len(found) < CANCELLED_MAX:
                asked = self.connection.execute(TO_CANCEL, {"batch_id": batch.id})
                found.extend(RunId(run_id) for (run_id,) in asked)
        return found

    def _end(self, batch: _Batch) -> None:
        if batch.running or self._pending(batch.id, 1):
            return
        batch.changed |= {
            "status": batch_rules.end_of(batch.status).value,
            "ended_at": self.now,
            "paused": "",
        }

    # -- what begins ---------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        for row in self.connection.execute(AT_WORK, {"batch_ids": sorted(self.open)}).mappings():
            batch = self.open[row["batch_id"]]
            batch.running, batch.parked = int(row["running"]), int(row["parked"])
            batch.reserved_usd = float(row["reserved"] or 0.0)

    def _pending(self, batch_id: str, limit: int) -> int:
        asked = {"batch_id": batch_id, "limit": limit}
        return int(self.connection.execute(PENDING_COUNT, asked).scalar_one())

    def _feed(self) -> tuple[list[NewRun], list[DueRow]]:
        claims = [self._claim(batch) for batch in self.open.values()]
        free = min(self.in_flight_max - sum(one.at_work for one in claims), self.feed_max)
        writes = Writes(self.machine, self.now)
        made: list[NewRun] = []
        publish: list[DueRow] = []
        admitted: list[dict[str, Any]] = []
        for batch_id, count in batch_rules.shares(claims, free).items():
            for new, row in self._admitted(self.open[batch_id], count):
                step = self.machine.reduce(None, Submitted(new), self.now)
                writes.add_new(new, step)
                made.append(new)
                admitted.append(row)
                publish.extend(rules.publishable(step.state.commands, new.run_id, new.trace, self.now))
        if made:
            writes.flush(self.connection)
            execute_many(self.connection, ADMIT, admitted)
            self.progressed += len(made)
        return made, publish

    def _claim(self, batch: _Batch) -> Claim:
        wanted = 0
        if batch.status is BatchStatus.IN_PROGRESS and not batch.get("paused"):
            most = batch.row["concurrency_max"]
            wanted = self.feed_max if most is None else max(0, min(self.feed_max, most - batch.running))
            wanted = self._pending(batch.id, wanted) if wanted else 0
        return Claim(batch.id, batch.row["tenant"], batch_rules.at_work(batch.running, batch.parked), wanted)

    def _admitted(self, batch: _Batch, count: int) -> list[tuple[NewRun, dict[str, Any]]]:
        """The next items of a batch as runs, as far as its money goes."""
        found = []
        asked = {"batch_id": batch.id, "limit": count}
        for row in self.connection.execute(NEXT, asked).mappings().all():
            new = batch_rules.run_of(
                row["request"],
                batch_id=batch.id,
                custom_id=row["custom_id"],
                tenant=row["tenant"],
                seconds=batch.row["expires_at"] - self.now,
                retry_of=row["run_id"],
            )
            paid = batch_rules.capped(new, batch.left_usd)
            if paid is None:
                if not batch.running:  # nothing that runs could give money back
                    self._end_pending(batch, ItemStatus.FAILED, ItemCode.BATCH_COST_LIMIT)
                break
            batch.running += 1
            batch.reserved_usd += paid.limits.cost_usd_max
            found.append(
                (
                    paid,
                    {
                        "key_batch_id": batch.id,
                        "key_line": row["line"],
                        "status": ItemStatus.RUNNING.value,
                        "run_id": paid.run_id,
                        "tries": row["tries"] + 1,
                        "reserved_usd": paid.limits.cost_usd_max,
                        "started_at": self.now,
                    },
                )
            )
        return found


def _used(one: Row) -> dict[str, Any]:
    """What the item has used with this run, on top of its earlier ones."""
    added = {name: one[name] or 0 for name in _OF_RUN}
    seconds = 0.0 if one["finished_at"] is None else one["finished_at"] - one["created_at"]
    added["wait_s"] = max(0.0, seconds - added["model_s"] - added["tool_s"] - added["queue_s"])
    return {name: one[f"old_{name}"] + added[name] for name in _SUMS}
