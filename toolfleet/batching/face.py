"""Batches of a `Fleet`, blocking: `fleet.batches.submit("night.jsonl")`. The asynchronous door is `batching/front.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from toolfleet.batching.front import Batches, BatchOptions, Kind
from toolfleet.schemas.batches import BatchFault, BatchLimits, BatchReport, BatchView

T = TypeVar("T")
Block = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(frozen=True, slots=True)
class FleetBatches:
    """May be used from any thread. `block` runs a coroutine on the loop of the fleet."""

    door: Callable[[], Batches]
    block: Block

    def submit(self, source: str | Path | BinaryIO, **options: Any) -> BatchView:
        """Read, check and store a file of requests; the keeper runs them a window at a time. Options: those of
        `BatchOptions` (agent, template, format, limits, window_s, idempotency_key, …). Raises BatchRefused with every
        fault of the file, and nothing of it has run."""
        view: BatchView = self.block(self.door().submit(source, BatchOptions(**options)))
        return view

    def check(self, source: str | Path | BinaryIO, **options: Any) -> list[BatchFault]:
        """What `submit` would refuse the file for; nothing is stored."""
        faults: list[BatchFault] = self.block(self.door().check(source, BatchOptions(**options)))
        return faults

    def get(self, batch_id: str) -> BatchView:
        view: BatchView = self.block(self.door().get(batch_id))
        return view

    def list(self, **only: Any) -> Sequence[BatchView]:
        """Newest first; `only`: limit, before, tenant, status."""
        found: Sequence[BatchView] = self.block(self.door().list(**only))
        return found

    def report(self, batch_id: str) -> BatchReport:
        report: BatchReport = self.block(self.door().report(batch_id))
        return report

    def wait(self, batch_id: str, *, timeout_s: float | None = None) -> BatchReport:
        """The report once the batch has ended. Raises TimeoutError; the batch goes on."""
        report: BatchReport = self.block(self.door().wait(batch_id, timeout_s=timeout_s))
        return report

    def cancel(self, batch_id: str) -> BatchView:
        """Keep what has finished, stop the rest."""
        view: BatchView = self.block(self.door().cancel(batch_id))
        return view

    def resume(
        self, batch_id: str, *, window_s: float | None = None, limits: BatchLimits | None = None
    ) -> tuple[BatchView, int]:
        """Run once more what ended and did not complete; how many items that are."""
        resumed: tuple[BatchView, int] = self.block(
            self.door().resume(batch_id, window_s=window_s, limits=limits)
        )
        return resumed

    def lines(self, batch_id: str, kind: Kind = "output") -> Iterator[bytes]:
        """The lines of an answer file as they are read, a page at a time."""
        lines = self.door().lines(batch_id, kind)

        async def following() -> bytes | None:
            return await anext(lines, None)

        while (line := self.block(following())) is not None:
            yield line

    def download(self, batch_id: str, path: str | Path, kind: Kind = "output") -> int:
        """Write an answer file; it is there whole, or as it was. Returns its lines."""
        return write_whole(Path(path), self.lines(batch_id, kind))


def write_whole(path: Path, lines: Iterator[bytes]) -> int:
    """Returns the count of lines written; the file is there whole, or as it was."""
    count = 0
    with Whole(path) as file:
        for line in lines:
            file.write(line)
            count += 1
    return count


class Whole:
    """Writes beside `path` and renames at the end, so that nobody reads half a file; after an error nothing is left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(f".{path.name}.{os.getpid()}.part")

    def __enter__(self) -> BinaryIO:
        self._file = self._beside.open("wb")
        return self._file

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
            if kind is None:
                self._beside.replace(self._path)
            else:
                self._beside.unlink(missing_ok=True)
