"""The store over an SQL database: the port, as thin methods over one writing thread and a few reading ones.

Usable from several event loops and threads at once. A fork is survived: the child opens its own connections and never
touches those of its parent.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from toolfleet.adapters.store import (
    access_rows,
    cached_results,
    fleet_rows,
    ledger_rows,
    migrate,
    pages,
    reads,
    relay,
)
from toolfleet.adapters.store import agents as agent_rows
from toolfleet.adapters.store import dead as dead_rows
from toolfleet.adapters.store.batch import Batch
from toolfleet.adapters.store.dialect import READING
from toolfleet.adapters.store.engine import READERS, open_engine, translated
from toolfleet.adapters.store.file_rows import SqlFiles
from toolfleet.adapters.store.load import database_time
from toolfleet.adapters.store.retention import SqlRetention
from toolfleet.adapters.store.sql_batches import SqlBatches
from toolfleet.adapters.store.writer import Job, Writer
from toolfleet.schemas.access import Key, Quota, Replay, TenantUse
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.effects import Audit, StandingApproval
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.events import EffectClaimed
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId
from toolfleet.schemas.ports import Applied, Machine, SentMark, Submission, Transition
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import NewRun
from toolfleet.schemas.views import (
    AgentVersion,
    ApprovalView,
    CachedResult,
    CallView,
    Conversation,
    DeadLetter,
    DueRow,
    EffectView,
    HeldLease,
    QueueLoad,
    RunEvent,
    RunView,
    StepView,
    StoredItem,
    WorkerBeat,
    WorkerView,
)

P = ParamSpec("P")
CLEAN_EVERY: Final = 32  # results kept: then expired ones are deleted
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Opened:
    """What belongs to one process."""

    pid: int
    engine: Engine
    writer: Writer
    readers: ThreadPoolExecutor


class SqlStore:
    """RunStore over SQLite or PostgreSQL. Opened by its first use: raises NotMigrated, NewerSchema, StoreUnavailable.

    `time_source`: seconds since the epoch, used instead of the database's clock (tests). `readers`: threads that read,
    each with a connection; the writer has one more. `role`: what PostgreSQL calls the connections, beside the process.
    """

    def __init__(
        self,
        url: str,
        machine: Machine,
        *,
        time_source: Callable[[], float] | None = None,
        readers: int = READERS,
        role: str = "",
    ) -> None:
        assert readers > 0, "somebody has to read"
        self._url = url
        self._readers = readers
        self._role = role
        self._time_source = time_source
        self._batch = Batch(machine, self._time)
        self.retention = SqlRetention(write=self._write, read=self._read)
        self.batches = SqlBatches(machine, self._time, write=self._write, read=self._read)
        self.files = SqlFiles(self._time, write=self._write, read=self._read)
        self._opened: _Opened | None = None
        self._opening = threading.Lock()
        self._closed = False
        self._kept = 0  # results put into the cache
        self._inherited: list[
            _Opened
        ] = []  # of a parent process: kept, so that nothing ever closes them here

    # -- the machine's transactions ------------------------------------------------------------------------------------

    async def submit(self, runs: Sequence[NewRun]) -> list[Submission]:
        if not runs:
            return []
        (answer,) = await (await self._writer()).write([Job(tuple(runs), again=True)])
        submissions: list[Submission] = answer
        return submissions

    async def transact(self, transitions: Sequence[Transition]) -> list[Applied]:
        # A claim whose key somebody took in the meantime is carried out again, and finds the holder.
        jobs = [Job(one, key=one.run_id, again=isinstance(one.event, EffectClaimed)) for one in transitions]
        return await (await self._writer()).write(jobs)

    async def mark_sent(self, marks: Sequence[SentMark]) -> None:
        if marks:
            (await self._writer()).mark(marks)

    async def renew(self, leases: Sequence[tuple[CommandId, LeaseToken]], lease_s: float) -> set[CommandId]:
        if not leases:
            return set()

        def write(connection: Connection) -> set[CommandId]:
            return relay.renew(connection, leases, self._time(connection) + lease_s)

        return await self._write(write)

    # -- what the keeper asks ------------------------------------------------------------------------------------------

    async def due_rows(
        self, *, limit: int, broker: str, waiting_since_s: Mapping[str, float] = MappingProxyType({})
    ) -> list[DueRow]:
        return await self._read_now(
            relay.due_rows, limit=limit, broker=broker, waiting_since_s=waiting_since_s
        )

    async def expired_leases(self, *, limit: int) -> list[tuple[RunId, CommandId, LeaseToken]]:
        return await self._read_now(relay.expired_leases, limit=limit)

    async def held_leases(self, *, limit: int) -> list[HeldLease]:
        return await self._read(relay.held_leases, limit=limit)

    async def overdue_runs(self, *, limit: int) -> list[RunId]:
        return await self._read_now(relay.overdue_runs, limit=limit)

    async def broker_marker(self, name: str) -> str:
        known = await self._read(relay.broker_marker, name)
        if known is not None:
            return known
        return await self._write(lambda connection: relay.make_broker(connection, name))

    async def note_broker_reset(self, name: str) -> None:
        await self._write(lambda connection: relay.note_reset(connection, name, self._time(connection)))

    # -- agents --------------------------------------------------------------------------------------------------------

    async def register_agents(self, agents: Sequence[AgentSpec]) -> None:
        if agents:
            await self._write(
                lambda connection: agent_rows.register(connection, agents, self._time(connection))
            )

    async def agent(self, name: str, version: str | None = None) -> AgentSpec | None:
        return await self._read(agent_rows.agent, name, version)

    async def agents(self) -> list[AgentSpec]:
        return await self._read(agent_rows.latest)

    async def agent_versions(self, name: str | None = None) -> list[AgentVersion]:
        return await self._read(agent_rows.versions, name)

    # -- views ---------------------------------------------------------------------------------------------------------

    async def peek_calls(self, command_ids: Sequence[CommandId]) -> list[CallView | None]:
        def read(connection: Connection, now: float) -> list[CallView | None]:
            return reads.peek_calls(connection, command_ids, now)

        return await self._read_now(read)

    async def conversation(self, run_id: RunId) -> Conversation | None:
        return await self._read(reads.conversation, run_id)

    async def finished(self, run_ids: Sequence[RunId]) -> set[RunId]:
        return await self._read(reads.finished_runs, run_ids)

    async def run(self, run_id: RunId) -> RunView | None:
        found = await self._read(reads.run_views, [run_id])
        return found[0] if found else None

    async def runs(
        self,
        *,
        limit: int,
        before: RunId | None = None,
        status: str | None = None,
        agent: str | None = None,
        tenant: str | None = None,
    ) -> list[RunView]:
        return await self._read(
            reads.newest_runs, limit=limit, before=before, status=status, agent=agent, tenant=tenant
        )

    async def items(self, run_id: RunId) -> list[StoredItem]:
        return await self._read(reads.stored_items, run_id)

    async def results(self, run_id: RunId) -> list[tuple[int, CallResult]]:
        return await self._read(reads.call_results, run_id)

    async def items_page(
        self, run_id: RunId, *, after: int = -1, limit: int
    ) -> tuple[list[StoredItem], bool]:
        return await self._read(pages.items_page, run_id, after, limit)

    async def results_page(
        self, run_id: RunId, *, after: tuple[int, int] = (0, -1), limit: int
    ) -> tuple[list[tuple[int, CallResult]], bool]:
        return await self._read(pages.results_page, run_id, after, limit)

    async def full_result(self, run_id: str, call_id: str) -> str | None:
        return await self._read(reads.full_result, run_id, call_id)

    async def cached_result(self, key: str) -> CachedResult | None:
        return await self._read_now(cached_results.get, key)

    async def keep_result(self, key: str, *, tenant: str, tool: str, body: str, ttl_s: float) -> None:
        await self._write(
            lambda connection: cached_results.put(
                connection, key, tenant, tool, body, ttl_s, self._time(connection)
            )
        )
        self._kept += 1
        if self._kept % CLEAN_EVERY == 0:  # in a transaction of its own: one that held both could deadlock
            await self._write(lambda connection: cached_results.clean(connection, self._time(connection)))

    async def steps(self, run_id: RunId) -> list[StepView]:
        return await self._read(reads.step_views, run_id)

    async def usage(self, run_id: RunId) -> list[dict[str, Any]]:
        return await self._read(reads.usage_rows, run_id)

    async def events(self, run_id: RunId, *, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        return await self._read(reads.run_events, run_id, after=after, limit=limit)

    async def counts(self) -> dict[str, int]:
        return await self._read(reads.counts)

    async def now(self) -> float:
        return await self._read(self._time)

    # -- the fleet as it is --------------------------------------------------------------------------------------------

    async def beat(self, beat: WorkerBeat) -> None:
        await self._write(lambda connection: fleet_rows.beat(connection, beat, self._time(connection)))

    async def leave(self, worker_id: str) -> None:
        await self._write(lambda connection: fleet_rows.leave(connection, worker_id))

    async def workers(self) -> list[WorkerView]:
        return await self._read_now(fleet_rows.worker_views)

    async def loads(self) -> list[QueueLoad]:
        return await self._read_now(fleet_rows.loads)

    # -- effects and approvals ---------------------------------------------------------------------------------------

    async def key_waiters(self, key: str, *, limit: int) -> list[tuple[RunId, CommandId]]:
        return await self._read(ledger_rows.waiters, key, limit=limit)

    async def effects(
        self,
        *,
        limit: int,
        state: str | None = None,
        tenant: str | None = None,
        run_id: str | None = None,
        before: str | None = None,
    ) -> list[EffectView]:
        return await self._read(
            ledger_rows.effect_views, limit=limit, state=state, tenant=tenant, run_id=run_id, before=before
        )

    async def effect(self, call_id: str) -> EffectView | None:
        return await self._read(ledger_rows.effect_view, call_id)

    async def approvals(
        self,
        *,
        limit: int,
        status: str | None = None,
        tenant: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
    ) -> list[ApprovalView]:
        return await self._read(
            ledger_rows.approval_views, limit=limit, status=status, tenant=tenant, run_id=run_id, after=after
        )

    async def approval(self, approval_id: str) -> ApprovalView | None:
        return await self._read(ledger_rows.approval_view, approval_id)

    async def add_standing(self, standing: StandingApproval, audit: Audit) -> None:
        await self._write(
            lambda connection: ledger_rows.add_standing(connection, standing, audit, self._time(connection))
        )

    async def standing(self, tenant: str, tool: str) -> list[StandingApproval]:
        return await self._read_now(ledger_rows.standing, tenant, tool)

    async def standings(
        self, *, limit: int, tenant: str | None = None, tool: str | None = None, ended: bool = False
    ) -> list[StandingApproval]:
        return await self._read_now(ledger_rows.standings, limit, tenant, tool, ended)

    async def standing_of(self, standing_id: str) -> StandingApproval | None:
        return await self._read(ledger_rows.standing_of, standing_id)

    async def end_standing(self, standing_id: str, audit: Audit) -> bool:
        return await self._write(
            lambda connection: ledger_rows.end_standing(
                connection, standing_id, audit, self._time(connection)
            )
        )

    async def add_audit(self, audit: Audit) -> None:
        await self._write(lambda connection: ledger_rows.add_audit(connection, audit, self._time(connection)))

    async def audits(self, *, limit: int, call_id: str | None = None) -> list[Audit]:
        return await self._read(ledger_rows.audits, limit=limit, call_id=call_id)

    # -- who may do what -----------------------------------------------------------------------------------------------

    async def add_key(self, key: Key, token_hash: str) -> None:
        await self._write(
            lambda connection: access_rows.add_key(connection, key, token_hash, self._time(connection))
        )

    async def key_of(self, token_hash: str) -> Key | None:
        return await self._read_now(access_rows.key_of, token_hash)

    async def keys(self, *, tenant: str | None = None) -> list[Key]:
        return await self._read_now(access_rows.all_keys, tenant)

    async def revoke_key(self, key_id: str) -> bool:
        return await self._write(
            lambda connection: access_rows.revoke_key(connection, key_id, self._time(connection))
        )

    async def rotate_key(self, key_id: str, new: Key, token_hash: str, *, overlap_s: float) -> bool:
        return await self._write(
            lambda connection: access_rows.rotate_key(
                connection, key_id, new, token_hash, overlap_s, self._time(connection)
            )
        )

    async def quota(self, tenant: str) -> Quota | None:
        return await self._read(access_rows.quota, tenant)

    async def quotas(self) -> list[Quota]:
        return await self._read(access_rows.all_quotas)

    async def set_quota(self, quota: Quota) -> None:
        await self._write(lambda connection: access_rows.set_quota(connection, quota, self._time(connection)))

    async def tenant_use(self, tenant: str) -> TenantUse:
        return await self._read_now(access_rows.tenant_use, tenant)

    async def begin_replay(
        self,
        tenant: str,
        route: str,
        key: str,
        replay: Replay,
        *,
        keep_s: float,
        stale_s: float,
        anew: bool = False,
    ) -> Replay | None:
        name = {"tenant": tenant, "route": route, "key": key}
        return await self._write(
            lambda connection: access_rows.begin_replay(
                connection, self._time(connection), name, replay, keep_s, stale_s, anew
            )
        )

    async def end_replay(self, tenant: str, route: str, key: str, status: int, body: str) -> None:
        name = {"tenant": tenant, "route": route, "key": key}
        await self._write(lambda connection: access_rows.end_replay(connection, name, status, body))

    async def drop_replay(self, tenant: str, route: str, key: str) -> None:
        name = {"tenant": tenant, "route": route, "key": key}
        await self._write(lambda connection: access_rows.drop_replay(connection, name))

    # -- dead letters --------------------------------------------------------------------------------------------------

    async def add_dead(self, letter: DeadLetter) -> None:
        await self._write(lambda connection: dead_rows.add(connection, letter, self._time(connection)))

    async def dead(
        self, *, limit: int, before: str | None = None, tenant: str | None = None
    ) -> list[DeadLetter]:
        return await self._read(dead_rows.letters, limit=limit, before=before, tenant=tenant)

    async def dead_letter(self, dead_id: str) -> DeadLetter | None:
        return await self._read(dead_rows.letter, dead_id)

    async def discard_dead(self, dead_id: str) -> bool:
        return await self._write(lambda connection: dead_rows.discard(connection, dead_id))

    # -- the process's own ---------------------------------------------------------------------------------------------

    @property
    def commits(self) -> int:
        """Write transactions committed by this process."""
        opened = self._opened
        return 0 if opened is None or opened.pid != os.getpid() else opened.writer.commits

    async def aclose(self) -> None:
        """Write what is pending and close every connection. Harmless when repeated."""
        with self._opening:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened is not None and opened.pid == os.getpid():
            await asyncio.to_thread(_close, opened)

    def _time(self, connection: Connection) -> float:
        return database_time(connection) if self._time_source is None else self._time_source()

    async def _writer(self) -> Writer:
        return (await self._open()).writer

    async def _write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own."""
        (answer,) = await (await self._writer()).write([Job(work, alone=True)])
        value: T = answer
        return value

    async def _read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work` on one snapshot of the database, beside any write that is under way."""
        opened = await self._open()

        def read() -> T:
            with translated(), opened.engine.connect() as connection:
                reading = connection.execution_options(**READING[connection.dialect.name])
                with reading.begin():
                    return work(reading, *args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(opened.readers, read)

    async def _read_now(
        self, work: Callable[Concatenate[Connection, float, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._read(lambda connection: work(connection, self._time(connection), *args, **kwargs))

    async def _open(self) -> _Opened:
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            return opened
        return await asyncio.to_thread(self._open_here)

    def _open_here(self) -> _Opened:
        with self._opening:
            if self._closed:
                raise StoreUnavailable("the store is closed", hint="Open a new one.")
            pid = os.getpid()
            if self._opened is not None and self._opened.pid == pid:
                return self._opened
            if self._opened is not None:
                self._inherited.append(
                    self._opened
                )  # closing a parent's connection would speak on its socket
            migrate.check(self._url)
            engine = open_engine(self._url, readers=self._readers, role=self._role)
            writer = Writer(engine, self._batch.carry, relay.write_marks)
            readers = ThreadPoolExecutor(self._readers, thread_name_prefix="toolfleet-reader")
            self._opened = _Opened(pid, engine, writer, readers)
            return self._opened


def _close(opened: _Opened) -> None:
    opened.writer.close()
    opened.readers.shutdown(wait=True)
    opened.engine.dispose()
