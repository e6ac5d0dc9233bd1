"""Group commit: one thread writes; whatever arrives while a transaction runs is the next batch.

Idle, a write is committed at once; under load, many share one transaction and one fsync. A batch that fails is split
in halves down to the write at fault, which alone gets the exception. Answers are given after the commit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from toolfleet.adapters.sqlstore.transitions import apply_batch
from toolfleet.schemas.errors import StoreError, StoreUnavailable
from toolfleet.schemas.ports import Machine, Transition

BATCH_MAX = 200
LAZY_AFTER_S = 0.05  # how long a lazy write waits for another one to travel with
CLOSE_TIMEOUT_S = 30.0


@dataclass(slots=True, eq=False)
class Write:
    """One write: a transition, or any other statement. `lazy`: may wait for the next batch."""

    work: Transition | Callable[[Connection, float], Any]
    lazy: bool = False
    future: Future[Any] = field(default_factory=Future)


class Writer:
    """Owns the only writing connection. `put` may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        machine: Machine,
        *,
        now: Callable[[Connection], float],
        ready: Callable[[Connection], None],
    ) -> None:
        self._engine = engine
        self._machine = machine
        self._now = now
        self._ready = ready  # raises where the schema is not this program's
        self._checked = False
        self._waiting: deque[Write] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.commits = 0
        self.writes = 0
        self._thread = threading.Thread(target=self._run, name="toolfleet-writer", daemon=True)
        self._thread.start()

    def put(self, writes: Sequence[Write]) -> None:
        """Queue them; their futures are answered after the commit. Raises StoreUnavailable once closed."""
        with self._wake:
            if self._closing:
                raise StoreUnavailable("the store is closed")
            self._waiting.extend(writes)
            self._wake.notify()

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(CLOSE_TIMEOUT_S)
        self._engine.dispose()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                if not self._waiting:
                    return
                if all(write.lazy for write in self._waiting) and not self._closing:
                    self._wake.wait(LAZY_AFTER_S)
                batch = self._take()
            self._commit(batch)

    def _take(self) -> list[Write]:
        """The next batch, in order; the second transition of a run waits for the one after."""
        batch: list[Write] = []
        later: list[Write] = []
        runs: set[str] = set()
        while self._waiting and len(batch) < BATCH_MAX:
            write = self._waiting.popleft()
            if isinstance(write.work, Transition):
                if write.work.run_id in runs:
                    later.append(write)
                    continue
                runs.add(write.work.run_id)
            batch.append(write)
        self._waiting.extendleft(reversed(later))
        return batch

    def _commit(self, batch: list[Write]) -> None:
        try:
            answers = self._transaction(batch)
        except Exception as exc:  # noqa: BLE001 - it belongs to a caller, who gets it below
            if len(batch) > 1 and not _of_the_connection(exc):
                middle = len(batch) // 2
                self._commit(batch[:middle])
                self._commit(batch[middle:])
                return
            for write in batch:
                write.future.set_exception(_translated(exc))
            return
        self.commits += 1
        self.writes += len(batch)
        for write, answer in zip(batch, answers, strict=True):
            write.future.set_result(answer)

    def _transaction(self, batch: list[Write]) -> list[Any]:
        with self._engine.begin() as connection:
            if not self._checked:
                self._ready(connection)
                self._checked = True
            now_s = self._now(connection)
            transitions = [write.work for write in batch if isinstance(write.work, Transition)]
            applied = iter(apply_batch(connection, self._machine, transitions, now_s) if transitions else ())
            return [
                next(applied) if isinstance(write.work, Transition) else write.work(connection, now_s)
                for write in batch
            ]


def _of_the_connection(exc: Exception) -> bool:
    """The database is away, locked or full, or not ours: no smaller batch would fare better."""
    return isinstance(exc, (OperationalError, StoreError)) or (
        isinstance(exc, DBAPIError) and exc.connection_invalidated
    )


def _translated(exc: Exception) -> Exception:
    if isinstance(exc, OperationalError) or (isinstance(exc, DBAPIError) and exc.connection_invalidated):
        return unavailable(exc)
    return exc


def unavailable(exc: DBAPIError) -> StoreUnavailable:
    """The error for a database that does not answer; no statement and no values in it."""
    return StoreUnavailable(
        f"the database cannot be used right now ({exc.orig})",
        hint="Check that it is reachable, that its disk has room, and that no other program holds it locked.",
    )
