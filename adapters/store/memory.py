"""The store as dictionaries: same semantics, synchronous underneath, one transition at a time, each atomic.

For simulations and unit tests; the contract suite shows that it behaves as the SQL store does. Nothing is mutated in
place that a reader may hold: states and rows are frozen and replaced. `before_write` and `after_commit` are where a
simulation makes it fail: before anything is written, or after everything is, when the caller does not get its answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import orjson

from toolfleet.adapters.store import rules
from toolfleet.adapters.store.memory_access import MemoryAccess
from toolfleet.adapters.store.memory_ledger import MemoryLedger
from toolfleet.adapters.store.memory_run import MemoryRun
from toolfleet.adapters.store.rules import Known
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.batch_port import BatchStore
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.effects import Audit, StandingApproval
from toolfleet.schemas.events import Submitted
from toolfleet.schemas.files import FileStore
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId
from toolfleet.schemas.limits import WAITING_MARGIN_S, WORKER_FORGOTTEN_S
from toolfleet.schemas.ports import Applied, Machine, SentMark, Submission, Transition
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.schemas.views import (
    PAGE_CHARS_MAX,
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

T = TypeVar("T")
Hook = Callable[[Sequence[Transition]], None]


def _nothing(transitions: Sequence[Transition]) -> None:
    """The hook of a store that does not fail."""


class MemoryStore(MemoryAccess):
    """RunStore in memory. `time_source`: seconds since the epoch."""

    batches: BatchStore | None = None
    files: FileStore | None = None

    def __init__(self, machine: Machine, *, time_source: Callable[[], float]) -> None:
        self.before_write: Hook = _nothing
        self.after_commit: Hook = _nothing
        self._machine = machine
        self._now = time_source
        self._runs: dict[RunId, MemoryRun] = {}
        MemoryAccess.__init__(self, self._runs, time_source)
        self.ledger = MemoryLedger(self._runs)
        self._run_of: dict[str, RunId] = {}  # by command id
        self._written_at: dict[str, float] = {}  # by row
        self._open: dict[RunId, None] = {}  # runs with command rows, or not terminal
        self._keys: dict[tuple[str, str], RunId] = {}
        self._dead: dict[str, DeadLetter] = {}
        self._cached: dict[str, tuple[str, float, float]] = {}  # body, stored at, expires at
        self._agents: dict[tuple[str, str], AgentSpec] = {}  # in the order they were registered last
        self._registered: dict[tuple[str, str], float] = {}
        self._brokers: dict[str, tuple[str, float | None]] = {}
        self._beats: dict[str, tuple[WorkerBeat, float]] = {}  # with when it was heard last

    # -- the machine's transactions ------------------------------------------------------------------------------------

    async def submit(self, runs: Sequence[NewRun]) -> list[Submission]:
        submitted = [Transition(new.run_id, Submitted(new)) for new in runs]
        self.before_write(submitted)
        now = self._now()
        named = {new.run_id for new in runs} | {new.previous_run_id for new in runs}
        by_id = {id_: self._known(id_) for id_ in named if id_ is not None and id_ in self._runs}
        keys = {(new.tenant, new.idempotency_key) for new in runs}
        by_key = {key: self._known(run_id) for key, run_id in self._keys.items() if key in keys}
        answers = rules.admit(runs, by_id, by_key)
        fresh = [new for new, known in zip(runs, answers, strict=True) if known is None]
        limited = {new.tenant for new in fresh if new.in_flight_max is not None}
        rules.refuse_too_many(fresh, self.in_flight(limited) if limited else {})
        made: list[MemoryRun] = []
        submissions: list[Submission] = []
        for new, known in zip(runs, answers, strict=True):
            if known is not None:
                submissions.append(Submission(known.run_id, False, ()))
                continue
            step = self._machine.reduce(None, Submitted(new), now)
            run = MemoryRun(new, step.state, now)
            run.write(self._machine, None, step, now)
            made.append(run)
            publish = rules.publishable(step.state.commands, new.run_id, dict(new.trace), now)
            submissions.append(Submission(new.run_id, True, tuple(publish)))
        for run in made:
            self._commit(run)
            if run.new.idempotency_key is not None:
                self._keys[run.new.tenant, run.new.idempotency_key] = run.new.run_id
        self.after_commit(submitted)
        return submissions

    async def transact(self, transitions: Sequence[Transition]) -> list[Applied]:
        self.before_write(transitions)
        applied: list[Applied] = []
        failed: Exception | None = None
        for transition in transitions:
            try:
                applied.append(self._transition(transition))
            except Exception as exc:  # noqa: BLE001 - raised below, after the others were carried out
                failed = failed or exc
        self.after_commit(transitions)
        if failed is not None:
            raise failed
        return applied

    def _transition(self, transition: Transition) -> Applied:
        now = self._now()
        found = self._runs.get(transition.run_id)
        if found is None:
            return Applied(None, None, "unknown run", (), now)
        before = found.state
        step = self._machine.reduce(
            before, self.ledger.informed(transition.event, before, self.all_keys(), now), now
        )
        run = found.copy()
        run.state = before if step.missed is not None else step.state
        run.write(self._machine, before, step, now)
        self.ledger.check_keys(run)
        self._commit(run)
        if step.missed is not None:
            return Applied(before, before, step.missed, (), now, step.records)
        rows = rules.written(before, step.state)
        publish = rules.publishable(rows, before.run_id, dict(found.new.trace), now)
        return Applied(step.state, before, None, tuple(publish), now, step.records)

    def _commit(self, run: MemoryRun) -> None:
        run_id = run.new.run_id
        old = self._runs.get(run_id)
        known = {} if old is None else {row.id: row for row in old.state.commands}
        for row in run.state.commands:
            self._run_of[row.id] = run_id
            if known.pop(row.id, None) != row:
                self._written_at[row.id] = self._now()
        for row_id in known:
            self._run_of.pop(row_id, None)
            self._written_at.pop(row_id, None)
        self._runs[run_id] = run
        if run.state.commands or not run.state.terminal:
            self._open[run_id] = None
        else:
            self._open.pop(run_id, None)
        for audit in run.audits:
            self.ledger.add_audit(audit, self._now())
        run.audits = []
        for letter in run.dead:
            self._dead.setdefault(letter.id, replace(letter, tenant=run.new.tenant))
        run.dead = []

    def _known(self, run_id: RunId) -> Known:
        run = self._runs[run_id]
        return Known(run.new.run_id, run.new.tenant, run.state.status, run.new.request_hash)

    def _replace(self, command_id: str, changed: CommandRow) -> None:
        run = self._runs[self._run_of[command_id]]
        commands = tuple(changed if row.id == command_id else row for row in run.state.commands)
        run.state = replace(run.state, commands=commands)

    def _row(self, command_id: str) -> CommandRow | None:
        run_id = self._run_of.get(command_id)
        return None if run_id is None else self._runs[run_id].state.command(command_id)

    async def mark_sent(self, marks: Sequence[SentMark]) -> None:
        for mark in marks:
            row = self._row(mark.command_id)
            if row is not None and row.due_at == mark.due_at:
                sent_at = mark.at_s if row.sent_at is None else max(row.sent_at, mark.at_s)
                self._replace(row.id, replace(row, sent_at=sent_at, sends=row.sends + 1))

    async def renew(self, leases: Sequence[tuple[CommandId, LeaseToken]], lease_s: float) -> set[CommandId]:
        held: set[CommandId] = set()
        for command_id, token in leases:
            row = self._row(command_id)
            if row is not None and row.token == token:
                self._replace(row.id, replace(row, lease_until=self._now() + lease_s))
                held.add(command_id)
        return held

    # -- what the keeper asks ------------------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[MemoryRun, CommandRow]]:
        return [
            (self._runs[run_id], row) for run_id in self._open for row in self._runs[run_id].state.commands
        ]

    async def due_rows(
        self, *, limit: int, broker: str, waiting_since_s: Mapping[str, float] = MappingProxyType({})
    ) -> list[DueRow]:
        now, (_, reset_at) = self._now(), self._brokers.get(broker, ("", None))
        due = [
            DueRow(run.new.run_id, row, dict(run.new.trace))
            for run, row in self._rows()
            if row.token is None
            and row.due_at <= now
            and (
                (rules.check_at(row, self._written_at[row.id]) <= now and not _waits(row, waiting_since_s))
                or (row.sent_at is not None and reset_at is not None and row.sent_at < reset_at)
            )
        ]
        return sorted(due, key=lambda one: (one.row.due_at, one.row.id))[:limit]

    async def expired_leases(self, *, limit: int) -> list[tuple[RunId, CommandId, LeaseToken]]:
        now = self._now()
        held = [one for one in self._held() if one[1].lease_until is not None and one[1].lease_until < now]
        return [(run.new.run_id, row.id, _token(row)) for run, row in held[:limit]]

    async def held_leases(self, *, limit: int) -> list[HeldLease]:
        return [
            HeldLease(run.new.run_id, row.id, _token(row), row.owner or "", row.queue, _tool(run, row))
            for run, row in self._held()[:limit]
        ]

    def _held(self) -> list[tuple[MemoryRun, CommandRow]]:
        held = [(run, row) for run, row in self._rows() if row.token is not None]
        return sorted(held, key=lambda one: (one[1].lease_until or 0.0, one[1].id))

    async def overdue_runs(self, *, limit: int) -> list[RunId]:
        now = self._now()
        overdue = [
            (run.state.deadline_at, run_id)
            for run_id in self._open
            if (run := self._runs[run_id]).state.deadline_at is not None
            and run.state.deadline_at <= now
            and not run.state.terminal
        ]
        return [run_id for _, run_id in sorted(overdue)][:limit]

    async def broker_marker(self, name: str) -> str:
        marker, _ = self._brokers.setdefault(name, (f"{name}-marker", None))
        return marker

    async def note_broker_reset(self, name: str) -> None:
        self._brokers[name] = (await self.broker_marker(name), self._now())

    # -- agents --------------------------------------------------------------------------------------------------------

    async def register_agents(self, agents: Sequence[AgentSpec]) -> None:
        for spec in agents:
            self._agents.pop((spec.name, spec.version), None)
            self._agents[spec.name, spec.version] = spec
            self._registered[spec.name, spec.version] = self._now()

    async def agent(self, name: str, version: str | None = None) -> AgentSpec | None:
        if version is not None:
            return self._agents.get((name, version))
        return {known: spec for (known, _), spec in self._agents.items()}.get(name)

    async def agents(self) -> list[AgentSpec]:
        latest = {name: spec for (name, _), spec in self._agents.items()}
        return [latest[name] for name in sorted(latest)]

    async def agent_versions(self, name: str | None = None) -> list[AgentVersion]:
        newest = reversed(self._agents.items())
        found = [
            AgentVersion(version, self._registered[known, version], spec)
            for (known, version), spec in newest
            if name in (None, known)
        ]
        return sorted(found, key=lambda one: one.spec.name)

    # -- views ---------------------------------------------------------------------------------------------------------

    async def peek_calls(self, command_ids: Sequence[CommandId]) -> list[CallView | None]:
        return [self._peek(command_id) for command_id in command_ids]

    def _peek(self, command_id: CommandId) -> CallView | None:
        row = self._row(command_id)
        if row is None or not row.is_exec or row.call_id is None:
            return None
        run = self._runs[self._run_of[command_id]]
        call = run.state.call(row.call_id)
        if call is None:
            return None
        new = run.new
        return CallView(
            row=row,
            call=call,
            run_id=new.run_id,
            run_status=run.state.status,
            turn=row.turn,
            agent=new.agent,
            agent_version=new.agent_version,
            tenant=new.tenant,
            correlation_id=new.correlation_id,
            context=dict(new.context),
            trace=dict(new.trace),
            now_s=self._now(),
            principal=new.principal,
            permissions=new.permissions,
            effect_scope=new.effect_scope,
        )

    async def conversation(self, run_id: RunId) -> Conversation | None:
        run = self._runs.get(run_id)
        if run is None:
            return None
        chain = [run]
        while (previous := chain[-1].new.previous_run_id) is not None:
            chain.append(self._runs[previous])
        items = tuple(stored.item for one in reversed(chain) for stored in one.items)
        return Conversation(run.info(), items)

    async def finished(self, run_ids: Sequence[RunId]) -> set[RunId]:
        return {id_ for id_ in run_ids if id_ in self._runs and self._runs[id_].state.terminal}

    async def run(self, run_id: RunId) -> RunView | None:
        run = self._runs.get(run_id)
        return None if run is None else RunView(run.info(), _sorted_rows(run.state))

    async def runs(
        self,
        *,
        limit: int,
        before: RunId | None = None,
        status: str | None = None,
        agent: str | None = None,
        tenant: str | None = None,
    ) -> list[RunView]:
        chosen = [
            run
            for run_id, run in sorted(self._runs.items(), reverse=True)
            if (before is None or run_id < before)
            and (status is None or run.state.status == status)
            and (agent is None or run.new.agent == agent)
            and (tenant is None or run.new.tenant == tenant)
        ]
        return [RunView(run.info(), _sorted_rows(run.state)) for run in chosen[:limit]]

    async def items(self, run_id: RunId) -> list[StoredItem]:
        return list(self._runs[run_id].items) if run_id in self._runs else []

    async def results(self, run_id: RunId) -> list[tuple[int, CallResult]]:
        found = self._runs[run_id].results if run_id in self._runs else {}
        ordered = sorted(found.items(), key=lambda one: (one[0][0], one[1].index))
        return [(turn, result) for (turn, _), result in ordered]

    async def items_page(
        self, run_id: RunId, *, after: int = -1, limit: int
    ) -> tuple[list[StoredItem], bool]:
        found = [one for one in await self.items(run_id) if one.seq > after]
        return _page(found, limit, lambda one: len(orjson.dumps(one.item).decode()))

    async def results_page(
        self, run_id: RunId, *, after: tuple[int, int] = (0, -1), limit: int
    ) -> tuple[list[tuple[int, CallResult]], bool]:
        found = [
            (turn, replace(result, full=None))
            for turn, result in await self.results(run_id)
            if (turn, result.index) > after
        ]
        return _page(found, limit, lambda one: len(one[1].content))

    async def full_result(self, run_id: str, call_id: str) -> str | None:
        run = self._runs.get(RunId(run_id))
        tenant = None if run is None else run.new.tenant
        while run is not None:
            for (_, id_), result in run.results.items():
                if id_ == call_id and run.new.tenant == tenant:
                    return result.content if result.full is None else result.full
            run = self._runs.get(run.new.previous_run_id or RunId(""))
        return None

    async def cached_result(self, key: str) -> CachedResult | None:
        body, stored_at, expires_at = self._cached.get(key, ("", 0.0, 0.0))
        now = self._now()
        return CachedResult(body, now - stored_at) if expires_at > now else None

    async def keep_result(self, key: str, *, tenant: str, tool: str, body: str, ttl_s: float) -> None:
        self._cached[key] = (body, self._now(), self._now() + ttl_s)

    async def steps(self, run_id: RunId) -> list[StepView]:
        return list(self._runs[run_id].steps) if run_id in self._runs else []

    async def usage(self, run_id: RunId) -> list[dict[str, Any]]:
        return [dict(row) for row in self._runs[run_id].usage.values()] if run_id in self._runs else []

    async def events(self, run_id: RunId, *, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        found = self._runs[run_id].events if run_id in self._runs else []
        return [event for event in found if event.seq > after][:limit]

    async def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for run in self._runs.values():
            name = f"runs.{run.state.status.value}"
            found[name] = found.get(name, 0) + 1
        rows = self._rows()
        leases = sum(1 for _, row in rows if row.token is not None)
        return {**found, "commands": len(rows), "leases": leases, "dead": len(self._dead)}

    async def now(self) -> float:
        return self._now()

    # -- the fleet as it is --------------------------------------------------------------------------------------------

    async def beat(self, beat: WorkerBeat) -> None:
        now = self._now()
        first = self._beats[beat.id][0] if beat.id in self._beats else beat
        self._beats[beat.id] = (replace(first, state=dict(beat.state)), now)
        gone = [id_ for id_, (_, seen_at) in self._beats.items() if seen_at < now - WORKER_FORGOTTEN_S]
        for id_ in gone:
            del self._beats[id_]

    async def leave(self, worker_id: str) -> None:
        self._beats.pop(worker_id, None)

    async def workers(self) -> list[WorkerView]:
        now = self._now()
        views = [WorkerView(beat, seen_at, max(0.0, now - seen_at)) for beat, seen_at in self._beats.values()]
        return sorted(views, key=lambda view: (-view.beat.started_at, view.beat.id))

    async def loads(self) -> list[QueueLoad]:
        by_queue: dict[str, list[CommandRow]] = defaultdict(list)
        for _, row in self._rows():
            by_queue[row.queue].append(row)
        now = self._now()
        return [
            QueueLoad(
                queue,
                len(rows),
                sum(1 for row in rows if row.token is not None),
                max([0.0, *(now - row.due_at for row in rows if row.token is None)]),
            )
            for queue, rows in sorted(by_queue.items())
        ]

    # -- effects and approvals ---------------------------------------------------------------------------------------

    async def key_waiters(self, key: str, *, limit: int) -> list[tuple[RunId, CommandId]]:
        return self.ledger.waiters(key, limit)

    async def effects(
        self,
        *,
        limit: int,
        state: str | None = None,
        tenant: str | None = None,
        run_id: str | None = None,
        before: str | None = None,
    ) -> list[EffectView]:
        return self.ledger.effects(limit=limit, state=state, tenant=tenant, run_id=run_id, before=before)

    async def effect(self, call_id: str) -> EffectView | None:
        return self.ledger.effect(call_id)

    async def approvals(
        self,
        *,
        limit: int,
        status: str | None = None,
        tenant: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
    ) -> list[ApprovalView]:
        return self.ledger.approvals(limit=limit, status=status, tenant=tenant, run_id=run_id, after=after)

    async def approval(self, approval_id: str) -> ApprovalView | None:
        return self.ledger.approval(approval_id)

    async def add_standing(self, standing: StandingApproval, audit: Audit) -> None:
        self.ledger.add_standing(standing, audit, self._now())

    async def standing(self, tenant: str, tool: str) -> list[StandingApproval]:
        return self.ledger.standing(tenant, tool, self._now())

    async def standings(
        self, *, limit: int, tenant: str | None = None, tool: str | None = None, ended: bool = False
    ) -> list[StandingApproval]:
        return self.ledger.standings(limit, tenant, tool, None if ended else self._now())

    async def standing_of(self, standing_id: str) -> StandingApproval | None:
        return self.ledger.standing_of(standing_id)

    async def end_standing(self, standing_id: str, audit: Audit) -> bool:
        return self.ledger.end_standing(standing_id, audit, self._now())

    async def add_audit(self, audit: Audit) -> None:
        self.ledger.add_audit(audit, self._now())

    async def audits(self, *, limit: int, call_id: str | None = None) -> list[Audit]:
        return self.ledger.audits(limit=limit, call_id=call_id)

    # -- dead letters --------------------------------------------------------------------------------------------------

    async def add_dead(self, letter: DeadLetter) -> None:
        self._dead.setdefault(letter.id, replace(letter, at=letter.at or self._now()))

    async def dead(
        self, *, limit: int, before: str | None = None, tenant: str | None = None
    ) -> list[DeadLetter]:
        found = [one for one in self._dead.values() if tenant in (None, one.tenant)]
        newest = sorted(found, key=lambda letter: (letter.at, letter.id), reverse=True)
        if before is not None:
            cursor = self._dead.get(before)
            if cursor is None:
                return []
            newest = [one for one in newest if (one.at, one.id) < (cursor.at, cursor.id)]
        return newest[:limit]

    async def dead_letter(self, dead_id: str) -> DeadLetter | None:
        return self._dead.get(dead_id)

    async def discard_dead(self, dead_id: str) -> bool:
        return self._dead.pop(dead_id, None) is not None

    async def aclose(self) -> None:
        """Nothing to close."""


def _waits(row: CommandRow, since_s: Mapping[str, float]) -> bool:
    """Its message is later than the oldest one of its queue that nobody has fetched."""
    if row.sent_at is None or row.queue not in since_s:
        return False
    return row.sent_at > since_s[row.queue] + WAITING_MARGIN_S


def _page(found: list[T], limit: int, chars: Callable[[T], int]) -> tuple[list[T], bool]:
    kept, before = [], 0
    for one in found[:limit]:
        if before >= PAGE_CHARS_MAX:
            break
        kept.append(one)
        before += chars(one)
    return kept, len(found) > len(kept)


def _token(row: CommandRow) -> LeaseToken:
    assert row.token is not None, "only leased rows come here"
    return row.token


def _tool(run: MemoryRun, row: CommandRow) -> str | None:
    call: CallState | None = None if row.call_id is None else run.state.call(row.call_id)
    return None if call is None else call.tool


def _sorted_rows(state: RunState) -> RunState:
    """Command rows in the order the SQL store reads them."""
    return replace(state, commands=tuple(sorted(state.commands, key=lambda row: row.id)))
