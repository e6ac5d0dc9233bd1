"""The Protocol of what is stored of batches. One contract suite, run over both databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

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


class BatchStore(Protocol):
    """Batches of one database. Times are the database's. An id of another tenant is an unknown one where a tenant is
    given."""

    async def open(self, new: NewBatch, token: str) -> tuple[BatchView, bool]:
        """A batch that is being uploaded by the holder of `token` (True). A known idempotency key answers with its batch
        (False), or gives an upload that was not ended to this token (True). Raises IdempotencyConflict."""
        ...

    async def add(self, batch_id: str, token: str, items: Sequence[NewItem]) -> None:
        """Lines of an upload, one transaction. Raises BatchBusy where somebody else has the upload."""
        ...

    async def drop(self, batch_id: str, token: str) -> None:
        """Forgets all lines of an upload. Raises BatchBusy."""
        ...

    async def release(
        self, batch_id: str, token: str, *, endpoint: str, ignored: Mapping[str, int]
    ) -> BatchView:
        """The upload is whole: its items may run. Raises BatchBusy."""
        ...

    async def refuse(self, batch_id: str, token: str, faults: Sequence[BatchFault]) -> BatchView:
        """The file cannot be accepted; its lines are forgotten and its key is free. Raises BatchBusy."""
        ...

    async def batch(self, batch_id: str, *, tenant: str | None = None) -> BatchView | None: ...

    async def batches(
        self, *, limit: int, before: str | None = None, tenant: str | None = None, status: str | None = None
    ) -> list[BatchView]:
        """Newest first; `before` is the cursor."""
        ...

    async def items(
        self, batch_id: str, *, after_line: int = 0, limit: int, completed: bool | None = None
    ) -> list[BatchItem]:
        """Items that have ended, in the order of the file, after a line; completed ones, other ones, or both."""
        ...

    async def report(self, batch_id: str) -> BatchReport | None: ...

    async def cancel(self, batch_id: str) -> BatchView:
        """Nothing of it begins any more; what has begun is stopped by the keeper. Idempotent. Raises UnknownBatch,
        BatchBusy while it is being uploaded."""
        ...

    async def resume(
        self, batch_id: str, *, window_s: float | None = None, limits: BatchLimits | None = None
    ) -> tuple[BatchView, int]:
        """Items that ended and did not complete may run again, under their effect scopes; how many there are. The
        completion window begins anew. Raises UnknownBatch, BatchBusy where it is at work."""
        ...

    async def advance(self, *, in_flight_max: int, feed_max: int) -> Advanced:
        """Carries all open batches on, one bounded transaction: settles items whose runs have ended, ends what was
        stopped, makes at most `feed_max` runs for items, and ends batches that are done. Safe in several processes."""
        ...
