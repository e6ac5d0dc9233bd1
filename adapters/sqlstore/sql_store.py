"""The RunStore over SQL: reads by a few threads, writes by the one writer. Implements schemas.ports.RunStore."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
from sqlalchemy import Connection, and_, bindparam, delete, select, update
from sqlalchemy.exc import DBAPIError, OperationalError

from toolfleet.adapters.sqlstore import migrate, queries
from toolfleet.adapters.sqlstore import tables as t
from toolfleet.adapters.sqlstore.changes import Changes
from toolfleet.adapters.sqlstore.engine import (
    READERS,
    ForkGuard,
    database_now,
    reading_engine,
    writing_engine,
)
from toolfleet.adapters.sqlstore.transitions import newly_due, or_nothing, write
from toolfleet.adapters.sqlstore.writer import Write, Writer, unavailable
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import IdempotencyConflict, RunNotFinished, UnknownRun
from toolfleet.schemas.events import Submitted
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId, new_event_id
from toolfleet.schemas.outcomes import TERMINAL_STATUSES
from toolfleet.schemas.ports import Applied, Machine, SentMark, Submission, Transition
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import NewRun
from toolfleet.schemas.views import (
    CallView,
    Conversation,
    DeadLetter,
    DueRow,
    HeldLease,
    RunEvent,
    RunView,
    StepView,
    StoredItem,
)

T = TypeVar("T")

_MARK_SENT = (
    update(t.commands)
    .where(and_(t.commands.c.id == bindparam("b_id"), t.commands.c.due_at == bindparam("b_due_at")))
    .values(sent_at=bindparam("b_at"), sends=t.commands.c.sends + 1)
)


class SqlStore:
    """The truth. Opens its connections when it is used first; safe from several threads and loops, not over a fork.

    `time_source` replaces the database's clock in tests.
    """

    def __init__(
        self, database: str, machine: Machine, *, time_source: Callable[[], float] | None = None
    ) -> None:
        self._machine = machine
        self._now: Callable[[Connection], float] = (
            database_now if time_source is None else (lambda _connection: time_source())
        )
        self._guard = ForkGuard()
        self._readers = reading_engine(database)
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="toolfleet-reader")
        self._checked = False
        self.writer = Writer(writing_engine(database), machine, now=self._now, ready=migrate.verify)

    # -- writes ----------------------------------------------------------------------------------------------------

    async def submit(self, runs: Sequence[NewRun]) -> list[Submission]:
        return await self._write(lambda connection, now_s: _submit(connection, self._machine, runs, now_s))

    async def transact(self, transitions: Sequence[Transition]) -> list[Applied]:
        self._guard.check()
        writes = [Write(transition) for transition in transitions]
        self.writer.put(writes)
        answers = await asyncio.gather(
            *(asyncio.wrap_future(write.future) for write in writes), return_exceptions=True
        )
        applied: list[Applied] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            applied.append(answer)
        return applied

    async def mark_sent(self, marks: Sequence[SentMark]) -> None:
        rows = [{"b_id": m.command_id, "b_due_at": m.due_at, "b_at": m.at_s} for m in marks]

        def mark(connection: Connection, now_s: float) -> None:
            connection.execute(_MARK_SENT, [{**row, "b_at": now_s} for row in rows])

        if rows:
            self._guard.check()
            self.writer.put([Write(mark, lazy=True)])

    async def renew(self, leases: Sequence[tuple[CommandId, LeaseToken]], lease_s: float) -> set[CommandId]:
        wanted = dict(leases)

        def renewed(connection: Connection, now_s: float) -> set[CommandId]:
            c = t.commands.c
            held = connection.execute(
                select(c.id, c.token).where(c.id.in_(sorted(wanted))).order_by(c.id).with_for_update()
            )
            kept = sorted(row.id for row in held if row.token == wanted[row.id])
            if kept:
                connection.execute(
                    update(t.commands).where(c.id.in_(kept)).values(lease_until=now_s + lease_s)
                )
            return {CommandId(one) for one in kept}

        return await self._write(renewed)

    async def broker_marker(self, name: str) -> str:
        def marker(connection: Connection, now_s: float) -> str:
            fresh = {"name": name, "marker": new_event_id(), "reset_at": None}
            connection.execute(or_nothing(connection, t.brokers), [fresh])
            return str(
                connection.execute(select(t.brokers.c.marker).where(t.brokers.c.name == name)).scalar_one()
            )

        known = await self._read(
            lambda connection, _now: connection.execute(
                select(t.brokers.c.marker).where(t.brokers.c.name == name)
            ).scalar_one_or_none()
        )
        return str(known) if known is not None else await self._write(marker)

    async def note_broker_reset(self, name: str) -> None:
        await self.broker_marker(name)
        await self._write(
            lambda connection, now_s: connection.execute(
                update(t.brokers).where(t.brokers.c.name == name).values(reset_at=now_s)
            )
        )

    async def register_agents(self, agents: Sequence[AgentSpec]) -> None:
        def register(connection: Connection, now_s: float) -> None:
            for number, agent in enumerate(agents):
                key = {"name": agent.name, "version": agent.version}
                # a microsecond apart: the last one registered is the one that counts without a version
                at = now_s + number * 1e-6
                row = {**key, "definition": agent.model_dump_json(), "registered_at": at}
                connection.execute(or_nothing(connection, t.agents), [row])
                connection.execute(
                    update(t.agents)
                    .where(t.agents.c.name == agent.name, t.agents.c.version == agent.version)
                    .values(registered_at=at)
                )

        if agents:
            await self._write(register)

    async def add_dead(self, letter: DeadLetter) -> None:
        def add(connection: Connection, now_s: float) -> None:
            row = {name: getattr(letter, name) for name in DeadLetter.__dataclass_fields__}
            connection.execute(or_nothing(connection, t.dead), [{**row, "at": now_s}])

        await self._write(add)

    async def discard_dead(self, dead_id: str) -> bool:
        return await self._write(
            lambda connection, _now: (
                connection.execute(delete(t.dead).where(t.dead.c.id == dead_id)).rowcount > 0
            )
        )

    # -- reads -----------------------------------------------------------------------------------------------------

    async def peek_calls(self, command_ids: Sequence[CommandId]) -> list[CallView | None]:
        return await self._read(lambda connection, now_s: queries.peek_calls(connection, command_ids, now_s))

    async def conversation(self, run_id: RunId) -> Conversation | None:
        return await self._read(lambda connection, _now: queries.conversation(connection, run_id))

    async def due_rows(self, *, limit: int, broker: str) -> list[DueRow]:
        return await self._read(
            lambda connection, now_s: queries.due_rows(connection, now_s, limit=limit, broker=broker)
        )

    async def expired_leases(self, *, limit: int) -> list[tuple[RunId, CommandId, LeaseToken]]:
        return await self._read(
            lambda connection, now_s: queries.expired_leases(connection, now_s, limit=limit)
        )

    async def held_leases(self, *, limit: int) -> list[HeldLease]:
        return await self._read(lambda connection, _now: queries.held_leases(connection, limit=limit))

    async def overdue_runs(self, *, limit: int) -> list[RunId]:
        return await self._read(
            lambda connection, now_s: queries.overdue_runs(connection, now_s, limit=limit)
        )

    async def agent(self, name: str, version: str | None = None) -> AgentSpec | None:
        statement = select(t.agents.c.definition).where(t.agents.c.name == name)
        if version is not None:
            statement = statement.where(t.agents.c.version == version)
        statement = statement.order_by(t.agents.c.registered_at.desc()).limit(1)
        found = await self._read(lambda connection, _now: connection.execute(statement).scalar_one_or_none())
        return None if found is None else AgentSpec.model_validate_json(found)

    async def agents(self) -> list[AgentSpec]:
        """The newest version of each, by name."""
        statement = select(t.agents.c.definition).order_by(t.agents.c.registered_at)
        found = await self._read(lambda connection, _now: connection.execute(statement).scalars().all())
        newest = {orjson.loads(one)["name"]: one for one in found}
        return [AgentSpec.model_validate_json(newest[name]) for name in sorted(newest)]

    async def finished(self, run_ids: Sequence[RunId]) -> set[RunId]:
        return await self._read(lambda connection, _now: queries.finished(connection, run_ids))

    async def run(self, run_id: RunId) -> RunView | None:
        return await self._read(lambda connection, _now: queries.run(connection, run_id))

    async def runs(
        self, *, limit: int, before: RunId | None = None, status: str | None = None, agent: str | None = None
    ) -> list[RunView]:
        return await self._read(
            lambda connection, _now: queries.runs(
                connection, limit=limit, before=before, status=status, agent=agent
            )
        )

    async def items(self, run_id: RunId) -> list[StoredItem]:
        return await self._read(lambda connection, _now: queries.items(connection, run_id))

    async def results(self, run_id: RunId) -> list[tuple[int, CallResult]]:
        return await self._read(lambda connection, _now: queries.results(connection, run_id))

    async def steps(self, run_id: RunId) -> list[StepView]:
        return await self._read(lambda connection, _now: queries.steps(connection, run_id))

    async def usage(self, run_id: RunId) -> list[dict[str, Any]]:
        return await self._read(lambda connection, _now: queries.usage(connection, run_id))

    async def events(self, run_id: RunId, *, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        return await self._read(
            lambda connection, _now: queries.events(connection, run_id, after=after, limit=limit)
        )

    async def dead(self, *, limit: int, before: str | None = None) -> list[DeadLetter]:
        return await self._read(lambda connection, _now: queries.dead(connection, limit=limit, before=before))

    async def dead_letter(self, dead_id: str) -> DeadLetter | None:
        return await self._read(lambda connection, _now: queries.dead_letter(connection, dead_id))

    async def counts(self) -> dict[str, int]:
        return await self._read(lambda connection, _now: queries.counts(connection))

    async def now(self) -> float:
        return await self._read(lambda _connection, now_s: now_s)

    async def aclose(self) -> None:
        """Write what is queued, then close all connections. Closing twice is harmless."""
        await asyncio.to_thread(self.writer.close)
        self._threads.shutdown(wait=True)
        self._readers.dispose()

    async def _write(self, work: Callable[[Connection, float], T]) -> T:
        self._guard.check()
        one = Write(work)
        self.writer.put([one])
        answer: T = await asyncio.wrap_future(one.future)
        return answer

    async def _read(self, work: Callable[[Connection, float], T]) -> T:
        self._guard.check()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._reading, work)

    def _reading(self, work: Callable[[Connection, float], T]) -> T:
        try:
            with self._readers.begin() as connection:
                if not self._checked:
                    migrate.verify(connection)
                    self._checked = True
                return work(connection, self._now(connection))
        except OperationalError as exc:
            raise unavailable(exc) from exc
        except DBAPIError as exc:
            if exc.connection_invalidated:
                raise unavailable(exc) from exc
            raise


def _submit(
    connection: Connection, machine: Machine, runs: Sequence[NewRun], now_s: float
) -> list[Submission]:
    """T1 for each, all or none."""
    changes = Changes()
    answers: list[Submission] = []
    for new in runs:
        known = _known(connection, new)
        if known is not None:
            answers.append(Submission(known, created=False, publish=()))
            continue
        _check_previous(connection, new)
        step = machine.reduce(None, Submitted(new), now_s)
        changes.begin(new, step.state, now_s)
        for record in step.records:
            changes.record(new.run_id, record, now_s)
        due = newly_due(None, step.state, new.trace, now_s)
        answers.append(Submission(new.run_id, created=True, publish=due))
    write(connection, machine, changes, now_s)
    return answers


def _known(connection: Connection, new: NewRun) -> RunId | None:
    if new.idempotency_key is None:
        return None
    c = t.runs.c
    row = connection.execute(
        select(c.run_id, c.request_hash).where(
            c.tenant == new.tenant, c.idempotency_key == new.idempotency_key
        )
    ).one_or_none()
    if row is None:
        return None
    if row.request_hash != new.request_hash:
        raise IdempotencyConflict(
            f"the idempotency key {new.idempotency_key!r} was used for another request (run {row.run_id})",
            hint="Use a new key for a new request, or send the same request again.",
            run_id=row.run_id,
        )
    return RunId(row.run_id)


def _check_previous(connection: Connection, new: NewRun) -> None:
    if new.previous_run_id is None:
        return
    c = t.runs.c
    status = connection.execute(
        select(c.status).where(c.run_id == new.previous_run_id, c.tenant == new.tenant)
    ).scalar_one_or_none()
    if status is None:
        raise UnknownRun(f"no run is called {new.previous_run_id!r}", hint="Check previous_run_id.")
    if status not in TERMINAL_STATUSES:
        raise RunNotFinished(
            f"run {new.previous_run_id} is {status}, and a run can only follow one that has ended",
            hint="Wait for it, or cancel it.",
        )
