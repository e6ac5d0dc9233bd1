"""The fleet as it is: worker processes that say they are there, and what is outstanding for each queue."""

from __future__ import annotations

from typing import Final

import orjson
from sqlalchemy import Connection, bindparam, case, delete, func, select, update

from toolfleet.adapters.store.dialect import insert_new
from toolfleet.adapters.store.tables import commands, workers
from toolfleet.schemas.limits import WORKER_FORGOTTEN_S
from toolfleet.schemas.views import QueueLoad, WorkerBeat, WorkerView

_NEW: Final = insert_new(workers)
_SEEN: Final = (
    update(workers)
    .where(workers.c.id == bindparam("key_id"))
    .values(seen_at=bindparam("seen_at"), state=bindparam("state"))
)
_FORGET: Final = delete(workers).where(workers.c.seen_at < bindparam("before"))
_LEAVE: Final = delete(workers).where(workers.c.id == bindparam("key_id"))
_ALL: Final = select(workers).order_by(workers.c.started_at.desc(), workers.c.id)
LOADS: Final = (
    select(
        commands.c.queue,
        func.count(),
        func.count(commands.c.token),
        func.min(case((commands.c.token.is_(None), commands.c.due_at))),
    )
    .group_by(commands.c.queue)
    .order_by(commands.c.queue)
)


def beat(connection: Connection, worker: WorkerBeat, now: float) -> None:
    row = {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "roles": orjson.dumps(worker.roles).decode(),
        "version": worker.version,
        "started_at": worker.started_at,
        "seen_at": now,
        "state": orjson.dumps(worker.state).decode(),
    }
    connection.execute(_NEW, row)
    connection.execute(_SEEN, {"key_id": worker.id, "seen_at": now, "state": row["state"]})
    connection.execute(_FORGET, {"before": now - WORKER_FORGOTTEN_S})


def leave(connection: Connection, worker_id: str) -> None:
    connection.execute(_LEAVE, {"key_id": worker_id})


def worker_views(connection: Connection, now: float) -> list[WorkerView]:
    return [
        WorkerView(
            WorkerBeat(
                row["id"],
                row["host"],
                row["pid"],
                tuple(orjson.loads(row["roles"])),
                row["version"],
                row["started_at"],
                orjson.loads(row["state"]),
            ),
            row["seen_at"],
            max(0.0, now - row["seen_at"]),
        )
        for row in connection.execute(_ALL).mappings()
    ]


def loads(connection: Connection, now: float) -> list[QueueLoad]:
    return [
        QueueLoad(queue, rows, leased, 0.0 if oldest is None else max(0.0, now - oldest))
        for queue, rows, leased, oldest in connection.execute(LOADS)
    ]
