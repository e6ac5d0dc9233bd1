"""BatchStore over SQLite or PostgreSQL: each method one transaction or one reading of the store it belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from toolfleet.adapters.store import batch_rows, batch_work
from toolfleet.schemas.batches import (
    Advanced,
    BatchFault,
    BatchItem,
    BatchLimits,
    BatchReport,
    BatchView,
    NewBatch,
    NewItem,
)
from toolfleet.schemas.ports import Machine

T = TypeVar("T")


class Runs(Protocol):
    """Runs work on a connection: in a write transaction of its own, or on a snapshot."""

    def __call__(self, work: Callable[[Connection], T], /) -> Awaitable[T]: ...


class SqlBatches:
    """`write`, `read` and `time` are those of the store."""

    def __init__(
        self, machine: Machine, time: Callable[[Connection], float], *, write: Runs, read: Runs
    ) -> None:
        self._machine = machine
        self._time = time
        self._write = write
        self._read = read

    async def open(self, new: NewBatch, token: str) -> tuple[BatchView, bool]:
        return await self._written(lambda c, now: batch_rows.open_batch(c, new, token, now))

    async def add(self, batch_id: str, token: str, items: Sequence[NewItem]) -> None:
        if items:
            await self._written(lambda c, now: batch_rows.add_items(c, batch_id, token, items, now))

    async def drop(self, batch_id: str, token: str) -> None:
        while await self._write(lambda c: batch_rows.drop_items(c, batch_id, token)):
            pass  # one bounded transaction after the other

    async def release(
        self, batch_id: str, token: str, *, endpoint: str, ignored: Mapping[str, int]
    ) -> BatchView:
        return await self._written(
            lambda c, now: batch_rows.release(c, batch_id, token, endpoint, ignored, now)
        )

    async def refuse(self, batch_id: str, token: str, faults: Sequence[BatchFault]) -> BatchView:
        await self.drop(batch_id, token)
        return await self._written(lambda c, now: batch_rows.refuse(c, batch_id, token, faults, now))

    async def batch(self, batch_id: str, *, tenant: str | None = None) -> BatchView | None:
        return await self._seen(lambda c, now: batch_rows.found(c, now, batch_id, tenant=tenant))

    async def batches(
        self, *, limit: int, before: str | None = None, tenant: str | None = None, status: str | None = None
    ) -> list[BatchView]:
        only: dict[str, Any] = {"before": before, "tenant": tenant, "status": status}
        return await self._seen(lambda c, now: batch_rows.newest(c, now, limit=limit, **only))

    async def items(
        self, batch_id: str, *, after_line: int = 0, limit: int, completed: bool | None = None
    ) -> list[BatchItem]:
        page: dict[str, Any] = {"after_line": after_line, "limit": limit, "completed": completed}
        return await self._read(lambda c: batch_rows.items(c, batch_id, **page))

    async def report(self, batch_id: str) -> BatchReport | None:
        return await self._seen(lambda c, now: batch_rows.report(c, now, batch_id))

    async def cancel(self, batch_id: str) -> BatchView:
        return await self._written(lambda c, now: batch_rows.cancel(c, batch_id, now))

    async def resume(
        self, batch_id: str, *, window_s: float | None = None, limits: BatchLimits | None = None
    ) -> tuple[BatchView, int]:
        return await self._written(lambda c, now: batch_rows.resume(c, batch_id, window_s, limits, now))

    async def advance(self, *, in_flight_max: int, feed_max: int) -> Advanced:
        if not await self._read(batch_work.any_open):
            return Advanced()
        return await self._written(
            lambda c, now: batch_work.Advance(c, self._machine, now, in_flight_max, feed_max).carry()
        )

    async def _written(self, work: Callable[[Connection, float], T]) -> T:
        return await self._write(lambda connection: work(connection, self._time(connection)))

    async def _seen(self, work: Callable[[Connection, float], T]) -> T:
        return await self._read(lambda connection: work(connection, self._time(connection)))
