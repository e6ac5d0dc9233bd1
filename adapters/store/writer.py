"""Group commit: one thread that writes, one transaction at a time; whatever arrives meanwhile is the next one.

Callers are event loops of any thread. A job succeeds or fails as a whole; a batch that fails is split in halves down
to the job at fault. Answers go out after the commit only, all answers of a batch with one wake-up per loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from toolfleet.adapters.store.engine import WRITING, is_cut, is_infrastructure, is_passing, unavailable
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.ports import SentMark

log = structlog.get_logger("toolfleet.store")

BATCH_MAX: Final = (
    200  # measured: the cost of a transition falls little beyond 100, its latency goes on rising
)
MARKS_IDLE_S: Final = 0.05  # marks wait that long for a batch to ride with
MARKS_MAX: Final = 10_000  # while the database is away; a mark that is dropped costs one message more
MARKS_PAUSE_MAX_S: Final = 5.0
PASSING_TRIES: Final = 5
UNSET: Final = object()


@dataclass(slots=True, eq=False)
class Ticket:
    """One call of a caller: as many outcomes as it has jobs, answered together."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Any]]
    outcomes: list[Any]
    missing: int

    def answer(self) -> None:
        """On the caller's loop. The first exception is raised, after all jobs were carried out."""
        if self.future.done():  # the caller was cancelled; what it asked for is done all the same
            return
        failed = next((one for one in self.outcomes if isinstance(one, BaseException)), None)
        if failed is not None:
            self.future.set_exception(failed)
        else:
            self.future.set_result(self.outcomes)


@dataclass(slots=True, eq=False)
class Job:
    """One thing to be written. `key`: a batch holds one job of a key (a run). `alone`: has its own transaction.

    `again`: tried a second time after a broken constraint, because by then it can read what it ran into.
    """

    payload: Any
    key: str | None = None
    alone: bool = False
    again: bool = False
    ticket: Ticket | None = None
    position: int = 0


# Carries out jobs inside a transaction; returns the outcome of each: a value, or the exception of that job alone.
Carry = Callable[[Connection, Sequence[Job]], list[Any]]
WriteMarks = Callable[[Connection, Sequence[SentMark]], list[SentMark]]  # gives back those to be tried again


@dataclass(eq=False)
class Writer:
    """The one writing thread of a store in this process; started by the first job."""

    engine: Engine
    carry: Carry
    write_marks: WriteMarks
    commits: int = 0  # transactions committed so far
    _pending: deque[Job] = field(default_factory=deque)
    _marks: deque[SentMark] = field(default_factory=lambda: deque(maxlen=MARKS_MAX))
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _connection: Connection | None = None
    _committing: bool = False  # whether a failure now leaves open what became of the transaction
    _closing: bool = False
    _marks_pause_s: float = MARKS_IDLE_S

    # -- on the callers' side ------------------------------------------------------------------------------------------

    async def write(self, jobs: Sequence[Job]) -> list[Any]:
        """The outcomes of the jobs, in order, after their commits."""
        if not jobs:
            return []
        loop = asyncio.get_running_loop()
        ticket = Ticket(loop, loop.create_future(), [UNSET] * len(jobs), len(jobs))
        for position, job in enumerate(jobs):
            job.ticket, job.position = ticket, position
        with self._wake:
            self._open()
            self._pending.extend(jobs)
            self._wake.notify()
        return await ticket.future

    def mark(self, marks: Sequence[SentMark]) -> None:
        """Written with the next batch, or after a short while alone."""
        with self._wake:
            self._open()
            waiting = bool(self._marks)
            self._marks.extend(marks)
            if not waiting:
                self._wake.notify()

    def close(self) -> None:
        """Write what is pending, then end the thread. Blocks."""
        with self._wake:
            self._closing = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _open(self) -> None:
        if self._closing:
            raise StoreUnavailable("the store is closed", hint="Open a new one.")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="toolfleet-writer", daemon=True)
            self._thread.start()

    # -- on the writer's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                batch, marks = self._next()
            if not batch and not marks:
                break
            try:
                self._write(batch, marks)
            except BaseException as exc:  # a bug of ours: nobody may wait for ever because of it
                log.exception("writer_failed", jobs=len(batch))
                self._settle(batch, [_failure(exc)] * len(batch))
        self._disconnect()

    def _next(self) -> tuple[list[Job], list[SentMark]]:
        """The next batch, as soon as there is one. Both empty: the writer was closed."""
        while not self._pending and not self._closing:
            notified = self._wake.wait(self._marks_pause_s if self._marks else None)
            if not notified and self._marks:
                break
        marks = list(self._marks)
        self._marks.clear()
        return self._take(), marks

    def _take(self) -> list[Job]:
        if not self._pending:
            return []
        if self._pending[0].alone:
            return [self._pending.popleft()]
        taken: list[Job] = []
        kept: list[Job] = []
        keys: set[str] = set()
        while self._pending and len(taken) < BATCH_MAX:
            job = self._pending.popleft()
            if job.alone or (job.key is not None and job.key in keys):
                kept.append(job)
                continue
            taken.append(job)
            if job.key is not None:
                keys.add(job.key)
        self._pending.extendleft(reversed(kept))
        return taken

    def _write(self, batch: list[Job], marks: list[SentMark]) -> None:
        try:
            outcomes = self._transaction(batch, marks)
        except Exception as exc:  # noqa: BLE001 - it belongs to a caller, who gets it
            failed = exc
        else:
            self._marks_pause_s = MARKS_IDLE_S
            self._settle(batch, outcomes)
            return
        if is_infrastructure(failed):
            self._give_up(batch, marks, failed)
        else:
            self._split(batch, marks, failed)

    def _split(self, batch: list[Job], marks: list[SentMark], exc: Exception) -> None:
        """Something in it is at fault: halves, until it is alone. A mark at fault is dropped."""
        if marks:
            middle = len(marks) // 2
            self._write(batch, [])
            self._write([], marks[:middle])
            self._write([], marks[middle:] if middle else [])
        elif len(batch) > 1:
            middle = len(batch) // 2
            self._write(batch[:middle], [])
            self._write(batch[middle:], [])
        elif batch and batch[0].again and isinstance(exc, IntegrityError):
            batch[0].again = False
            self._write(batch, [])
        else:
            self._settle(batch, [exc] * len(batch))

    def _transaction(self, batch: list[Job], marks: list[SentMark]) -> list[Any]:
        """One transaction; run again as a whole where the database says that it may succeed then, and, over a new
        connection, where the one of earlier transactions was cut before the commit was asked for."""
        if not batch and not marks:
            return []
        for tried in range(1, PASSING_TRIES + 1):
            kept = self._connection is not None
            try:
                return self._once(batch, marks)
            except Exception as exc:
                cut = kept and not self._committing and is_cut(exc)  # by a restart, or while it was idle
                if tried == PASSING_TRIES or not (cut or is_passing(exc)):
                    raise
                if cut:
                    self._disconnect(broken=True)
        raise AssertionError("unreachable")

    def _once(self, batch: list[Job], marks: list[SentMark]) -> list[Any]:
        self._committing = False
        if self._connection is None:
            self._connection = self.engine.connect().execution_options(**WRITING)
        with self._connection.begin():
            outcomes = self.carry(self._connection, batch) if batch else []
            again = self.write_marks(self._connection, marks) if marks else []
            self._committing = True
        self.commits += 1
        if again:
            self._put_back(again)
        return outcomes

    def _put_back(self, marks: Sequence[SentMark]) -> None:
        with self._wake:
            if not self._closing:
                self._marks.extendleft(reversed(marks))

    def _give_up(self, batch: list[Job], marks: list[SentMark], exc: Exception) -> None:
        self._disconnect(broken=True)
        log.warning("store_unavailable", jobs=len(batch), error=str(exc).splitlines()[0])
        with self._wake:
            self._marks_pause_s = min(MARKS_PAUSE_MAX_S, 2 * self._marks_pause_s)
        self._put_back(marks)
        self._settle(batch, [unavailable(exc) for _ in batch])

    def _disconnect(self, *, broken: bool = False) -> None:
        """`broken`: not to be used by anybody again, for it may lead to a server that has become a standby."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            try:
                if broken:
                    connection.invalidate()
                connection.close()
            except Exception as exc:  # noqa: BLE001 - it was broken, which is why it is closed
                log.warning("disconnect_failed", error=str(exc).splitlines()[0])

    def _settle(self, batch: Sequence[Job], outcomes: Sequence[Any]) -> None:
        """Fill in the outcomes, and answer the calls that have all of theirs: one wake-up per loop."""
        complete: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
        for job, outcome in zip(batch, outcomes, strict=True):
            ticket = job.ticket
            assert ticket is not None, "a job is written for somebody"
            if ticket.outcomes[job.position] is UNSET:
                ticket.outcomes[job.position] = outcome
                ticket.missing -= 1
                if ticket.missing == 0:
                    complete.setdefault(ticket.loop, []).append(ticket)
        for loop, tickets in complete.items():
            try:
                loop.call_soon_threadsafe(_answer_all, tickets)
            except RuntimeError:
                log.warning("caller_gone", calls=len(tickets))  # its loop was closed; nobody waits any more


def _answer_all(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.answer()


def _failure(exc: BaseException) -> Exception:
    return exc if isinstance(exc, Exception) else StoreUnavailable(f"the writer was stopped: {exc!r}")
