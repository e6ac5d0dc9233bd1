"""Rows of batches for front doors: opened, filled, released or refused, looked at, cancelled, resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, and_, bindparam, delete, func, insert, literal_column, select, update

from toolfleet.adapters.store import batch_rules
from toolfleet.adapters.store.batch_tables import batch_inputs, batch_items, batches
from toolfleet.adapters.store.codec import Row
from toolfleet.adapters.store.dialect import execute_many
from toolfleet.adapters.store.tables import runs
from toolfleet.schemas.batches import (
    BatchCounts,
    BatchFault,
    BatchItem,
    BatchLimits,
    BatchReport,
    BatchStatus,
    BatchUse,
    BatchView,
    ItemStatus,
    NewBatch,
    NewItem,
)
from toolfleet.schemas.errors import BatchBusy, IdempotencyConflict, UnknownBatch

USED: Final = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cost_usd",
    "model_calls",
)
USED_TOO: Final = ("tool_calls", "model_s", "tool_s", "queue_s", "wait_s")
FRACTIONS: Final = frozenset({"cost_usd", "model_s", "tool_s", "queue_s", "wait_s"})  # of these
DROPPED_MAX: Final = 2000  # rows deleted in one transaction

OF_ID: Final = select(batches).where(batches.c.id == bindparam("batch_id"))
LOCKED: Final = OF_ID.with_for_update()
OF_KEY: Final = (
    select(batches)
    .where(batches.c.tenant == bindparam("tenant"), batches.c.idempotency_key == bindparam("key"))
    .with_for_update()
)
COUNTS: Final = (
    select(batch_items.c.status, func.count())
    .where(batch_items.c.batch_id == bindparam("batch_id"))
    .group_by(batch_items.c.status)
)
OUTCOMES: Final = (
    select(batch_items.c.status, batch_items.c.code, func.count())
    .where(batch_items.c.batch_id == bindparam("batch_id"), batch_items.c.ended_at.is_not(None))
    .group_by(batch_items.c.status, batch_items.c.code)
)
USE: Final = select(
    *(func.coalesce(func.sum(batch_items.c[name]), 0).label(name) for name in (*USED, *USED_TOO))
).where(batch_items.c.batch_id == bindparam("batch_id"))
RUNNING_COST: Final = (
    select(func.coalesce(func.sum(runs.c.cost_usd), 0.0))
    .select_from(batch_items)
    .join(runs, runs.c.id == batch_items.c.run_id)
    .where(
        batch_items.c.batch_id == bindparam("batch_id"), batch_items.c.status == literal_column("'running'")
    )
)
_RUN_COLUMNS: Final = (
    *(runs.c[name] for name in ("state", "turn", "model_calls", "tool_calls", "cost_usd")),
    *(runs.c[name] for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")),
)
_ITEM_COLUMNS: Final = ("line", "custom_id", "status", "agent", "run_id", "code", "started_at", "ended_at")
ITEMS: Final = (
    select(*(batch_items.c[name] for name in _ITEM_COLUMNS), runs.c.status.label("run_status"), *_RUN_COLUMNS)
    .outerjoin(runs, runs.c.id == batch_items.c.run_id)
    .where(
        batch_items.c.batch_id == bindparam("batch_id"),
        batch_items.c.line > bindparam("after_line"),
        batch_items.c.ended_at.is_not(None),
    )
    .order_by(batch_items.c.line)
    .limit(bindparam("limit"))
)
COMPLETED_ITEMS: Final = ITEMS.where(batch_items.c.status == literal_column("'completed'"))
OTHER_ITEMS: Final = ITEMS.where(batch_items.c.status != literal_column("'completed'"))
NOT_DONE: Final = and_(
    batch_items.c.batch_id == bindparam("of_batch"),
    batch_items.c.ended_at.is_not(None),
    batch_items.c.status != literal_column("'completed'"),
)
AGAIN: Final = update(batch_items).where(NOT_DONE).values(status="pending", code=None, ended_at=None)


def open_batch(connection: Connection, new: NewBatch, token: str, now: float) -> tuple[BatchView, bool]:
    """The batch, and whether its lines are to be stored by the holder of `token`. A known key answers with its batch;
    an upload under it that is not at its end is taken over. Raises IdempotencyConflict."""
    if new.idempotency_key is not None:
        asked = {"tenant": new.tenant, "key": new.idempotency_key}
        known = connection.execute(OF_KEY, asked).mappings().one_or_none()
        if known is not None:
            if known["content_hash"] != new.content_hash:
                raise IdempotencyConflict(
                    f"the idempotency key {new.idempotency_key!r} was used for another batch",
                    hint="Use a new key for a new file or other options.",
                    batch_id=known["id"],
                )
            mine = known["status"] == BatchStatus.VALIDATING
            if mine:
                change(connection, known["id"], upload_token=token, touched_at=now)
            return _view(connection, known, now), mine
    connection.execute(insert(batches), _new_values(new, token, now))
    return view(connection, new.batch_id, now), True


def _new_values(new: NewBatch, token: str, now: float) -> dict[str, Any]:
    return {
        "id": new.batch_id,
        "tenant": new.tenant,
        "status": BatchStatus.VALIDATING.value,
        "endpoint": new.endpoint,
        "window_s": new.window_s,
        "created_at": now,
        "expires_at": now + new.window_s,
        "touched_at": now,
        "cost_usd_max": new.limits.cost_usd_max,
        "concurrency_max": new.limits.concurrency_max,
        "spent_usd": 0.0,
        "account_faults": 0,
        "paused": "",
        "resumes": 0,
        "upload_token": token,
        "idempotency_key": new.idempotency_key,
        "content_hash": new.content_hash,
        "file_name": new.file_name,
        "created_by": new.created_by,
        "metadata": orjson.dumps(dict(new.metadata)).decode(),
        "faults": "[]",
        "ignored": "{}",
    }


def add_items(
    connection: Connection, batch_id: str, token: str, items: Sequence[NewItem], now: float
) -> None:
    """Lines of a batch that is being uploaded. Raises BatchBusy where somebody else took the upload over."""
    row = _uploading(connection, batch_id, token)
    change(connection, batch_id, touched_at=now)
    zeros = dict.fromkeys((*USED, *USED_TOO), 0)
    rows = [
        {
            "batch_id": batch_id,
            "line": item.line,
            "custom_id": item.custom_id,
            "tenant": row["tenant"],
            "agent": item.run.agent,
            "status": ItemStatus.PENDING.value,
            "tries": 0,
            "reserved_usd": 0.0,
            **zeros,
        }
        for item in items
    ]
    requests = [
        {"batch_id": batch_id, "line": item.line, "request": batch_rules.request_of(item.run)}
        for item in items
    ]
    execute_many(connection, insert(batch_items), rows)
    execute_many(connection, insert(batch_inputs), requests)


def drop_items(connection: Connection, batch_id: str, token: str) -> int:
    """Deletes lines of an upload that is begun again or refused; returns how many: 0, none are left."""
    _uploading(connection, batch_id, token)
    return dropped(connection, batch_id)


def dropped(connection: Connection, batch_id: str) -> int:
    some = (
        select(batch_items.c.line)
        .where(batch_items.c.batch_id == batch_id)
        .order_by(batch_items.c.line)
        .limit(DROPPED_MAX)
    )
    last = connection.execute(select(func.max(some.subquery().c.line))).scalar_one()
    if last is None:
        return 0
    for table in (batch_inputs, batch_items):
        gone = connection.execute(delete(table).where(table.c.batch_id == batch_id, table.c.line <= last))
    return int(gone.rowcount)


def release(
    connection: Connection, batch_id: str, token: str, endpoint: str, ignored: Mapping[str, int], now: float
) -> BatchView:
    """All lines are stored: they may run from now on, and the completion window begins."""
    row = _uploading(connection, batch_id, token)
    change(
        connection,
        batch_id,
        status=BatchStatus.IN_PROGRESS.value,
        endpoint=endpoint,
        released_at=now,
        expires_at=now + row["window_s"],
        ignored=orjson.dumps(dict(ignored)).decode(),
        upload_token="",
    )
    return view(connection, batch_id, now)


def refuse(
    connection: Connection, batch_id: str, token: str, faults: Sequence[BatchFault], now: float
) -> BatchView:
    """The file cannot be accepted: nothing of it ran. Its key is free for a mended one."""
    _uploading(connection, batch_id, token)
    refused(connection, batch_id, faults, now)
    return view(connection, batch_id, now)


def refused(connection: Connection, batch_id: str, faults: Sequence[BatchFault], now: float) -> None:
    change(
        connection,
        batch_id,
        status=BatchStatus.FAILED.value,
        ended_at=now,
        faults=orjson.dumps(list(faults)).decode(),
        idempotency_key=None,
        upload_token="",
    )


def _uploading(connection: Connection, batch_id: str, token: str) -> Row:
    row = connection.execute(LOCKED, {"batch_id": batch_id}).mappings().one_or_none()
    if row is None or row["status"] != BatchStatus.VALIDATING or row["upload_token"] != token:
        raise BatchBusy(
            f"the upload of batch {batch_id} was taken over, or given up because it was silent for too long",
            hint="Look at it: toolfleet batch status; submit the file again if it failed.",
            batch_id=batch_id,
        )
    return row


def cancel(connection: Connection, batch_id: str, now: float) -> BatchView:
    """What has not begun will not begin; what has is asked to stop by the keeper. Harmless when repeated."""
    row = _locked(connection, batch_id)
    if row["status"] in (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING):
        change(connection, batch_id, status=BatchStatus.CANCELLING.value, stopping_at=now, paused="")
    elif row["status"] == BatchStatus.VALIDATING:
        raise BatchBusy(
            f"batch {batch_id} is still being uploaded",
            hint="End the upload, or wait for it.",
            batch_id=batch_id,
        )
    return view(connection, batch_id, now)


def resume(
    connection: Connection, batch_id: str, window_s: float | None, limits: BatchLimits | None, now: float
) -> tuple[BatchView, int]:
    """Items that ended and did not complete are pending again; returns how many. Raises BatchBusy."""
    row = _locked(connection, batch_id)
    ended = row["status"] in (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)
    if not ended and not (row["status"] == BatchStatus.IN_PROGRESS and row["paused"]):
        raise BatchBusy(
            f"batch {batch_id} is {row['status']}; only one that has ended, or is paused, can be resumed",
            hint="Wait for its end: toolfleet batch watch",
            batch_id=batch_id,
        )
    again = connection.execute(AGAIN, {"of_batch": batch_id}).rowcount
    window = row["window_s"] if window_s is None else window_s
    kept = BatchLimits(row["cost_usd_max"], row["concurrency_max"]) if limits is None else limits
    if again or not ended:
        change(
            connection,
            batch_id,
            status=BatchStatus.IN_PROGRESS.value,
            paused="",
            account_faults=0,
            resumes=row["resumes"] + 1,
            window_s=window,
            expires_at=now + window,
            stopping_at=None,
            ended_at=None,
            cost_usd_max=kept.cost_usd_max,
            concurrency_max=kept.concurrency_max,
        )
    return view(connection, batch_id, now), int(again)


def _locked(connection: Connection, batch_id: str) -> Row:
    row = connection.execute(LOCKED, {"batch_id": batch_id}).mappings().one_or_none()
    if row is None:
        raise UnknownBatch(f"no batch is called {batch_id!r}", hint="List them: toolfleet batch ls")
    return row


def change(connection: Connection, batch_id: str, **values: Any) -> None:
    connection.execute(update(batches).where(batches.c.id == batch_id).values(**values))


# -- look ----------------------------------------------------------------------------------------------------------------


def found(connection: Connection, now: float, batch_id: str, *, tenant: str | None) -> BatchView | None:
    row = connection.execute(OF_ID, {"batch_id": batch_id}).mappings().one_or_none()
    if row is None or (tenant is not None and row["tenant"] != tenant):
        return None
    return _view(connection, row, now)


def view(connection: Connection, batch_id: str, now: float) -> BatchView:
    row = connection.execute(OF_ID, {"batch_id": batch_id}).mappings().one()
    return _view(connection, row, now)


def newest(
    connection: Connection,
    now: float,
    *,
    limit: int,
    before: str | None,
    tenant: str | None,
    status: str | None,
) -> list[BatchView]:
    """Newest first; `before` is the cursor."""
    statement = select(batches).order_by(batches.c.id.desc()).limit(limit)
    for column, value in ((batches.c.tenant, tenant), (batches.c.status, status)):
        if value is not None:
            statement = statement.where(column == value)
    if before is not None:
        statement = statement.where(batches.c.id < before)
    return [_view(connection, row, now) for row in connection.execute(statement).mappings().all()]


def _view(connection: Connection, row: Row, now: float) -> BatchView:
    counted = {status: int(count) for status, count in connection.execute(COUNTS, {"batch_id": row["id"]})}
    return BatchView(
        batch_id=row["id"],
        tenant=row["tenant"],
        status=BatchStatus(row["status"]),
        endpoint=row["endpoint"],
        counts=BatchCounts(**counted),
        limits=BatchLimits(row["cost_usd_max"], row["concurrency_max"]),
        window_s=row["window_s"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        released_at=row["released_at"],
        stopping_at=row["stopping_at"],
        ended_at=row["ended_at"],
        faults=tuple(_fault(one) for one in orjson.loads(row["faults"])),
        metadata=orjson.loads(row["metadata"]),
        file_name=row["file_name"],
        paused=row["paused"],
        resumes=row["resumes"],
        content_hash=row["content_hash"],
        ignored=orjson.loads(row["ignored"]),
        now_s=now,
    )


def _fault(fields: dict[str, Any]) -> BatchFault:
    return BatchFault(**{**fields, "lines": tuple(fields["lines"])})


def items(
    connection: Connection, batch_id: str, *, after_line: int, limit: int, completed: bool | None
) -> list[BatchItem]:
    """Items that have ended, in the order of the file; `completed`: those that did, or those that did not."""
    statement = ITEMS if completed is None else COMPLETED_ITEMS if completed else OTHER_ITEMS
    rows = connection.execute(statement, {"batch_id": batch_id, "after_line": after_line, "limit": limit})
    return [_item(row) for row in rows.mappings()]


def _item(row: Row) -> BatchItem:
    state = {} if row["state"] is None else orjson.loads(row["state"])
    of_item: dict[str, Any] = {name: row[name] for name in _ITEM_COLUMNS if name != "status"}
    of_run: dict[str, Any] = {name: row[name] or 0 for name in (*USED[:4], "model_calls", "tool_calls")}
    return BatchItem(
        **of_item,
        status=ItemStatus(row["status"]),
        run_status=row["run_status"],
        output=state.get("output"),
        structured=state.get("structured", False),
        turns=row["turn"] or 0,
        cost_usd=row["cost_usd"] or 0.0,
        **of_run,
    )


def report(connection: Connection, now: float, batch_id: str) -> BatchReport | None:
    seen = found(connection, now, batch_id, tenant=None)
    if seen is None:
        return None
    asked = {"batch_id": batch_id}
    # PostgreSQL's sum of a bigint is numeric, which no JSON holds.
    used: dict[str, Any] = {
        name: float(value) if name in FRACTIONS else int(value)
        for name, value in connection.execute(USE, asked).mappings().one().items()
    }
    running = float(connection.execute(RUNNING_COST, asked).scalar_one())
    outcomes = [
        (ItemStatus(status), code or "", int(count))
        for status, code, count in connection.execute(OUTCOMES, asked)
    ]
    begun = seen.released_at
    wall_s = 0.0 if begun is None else (now if seen.ended_at is None else seen.ended_at) - begun
    return BatchReport(
        view=seen,
        use=BatchUse(**used, running_cost_usd=running),
        outcomes=sorted(outcomes, key=lambda one: (-one[2], one[0], one[1])),
        wall_s=wall_s,
    )
