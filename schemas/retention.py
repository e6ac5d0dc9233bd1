"""What is forgotten, and what stays: shapes of a purge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

PURGED_MAX: Final = 100  # runs of one transaction: what is at work does not wait for more


@dataclass(frozen=True, slots=True)
class PurgeScope:
    """Runs and batches that ended, and files that were handed in, before `before` (seconds since the epoch), of one tenant or of all; or one run."""

    before: float
    tenant: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Purged:
    """`runs` are gone; `emptied` keep their row, without what anybody said, because an effect of theirs happened and
    holds its key; `batches` are gone with their lines; `files` have no row any more, and their bytes go with the next sweep
    of the HTTP API."""

    runs: int = 0
    emptied: int = 0
    batches: int = 0
    files: int = 0

    def plus(self, other: Purged) -> Purged:
        return Purged(
            self.runs + other.runs,
            self.emptied + other.emptied,
            self.batches + other.batches,
            self.files + other.files,
        )

    @property
    def any(self) -> bool:
        return bool(self.runs or self.emptied or self.batches or self.files)


class Retention(Protocol):
    async def purgeable(self, scope: PurgeScope) -> Purged:
        """How much a purge would forget; nothing is changed."""
        ...

    async def purge_some(self, scope: PurgeScope) -> Purged:
        """Forget some of it, one bounded transaction. Nothing: there is no more."""
        ...
