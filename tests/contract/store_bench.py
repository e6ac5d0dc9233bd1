"""What the store tests share: a store on a clock moved by hand, events as workers send them, and a scripted machine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, LiteralString, TypeAlias

import psycopg
import pytest

from tests import servers
from toolfleet.adapters.store.engine import open_engine
from toolfleet.adapters.store.memory import MemoryStore
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.adapters.store.tables import metadata
from toolfleet.schemas.conversation import ItemResult, MergeItem
from toolfleet.schemas.events import (
    CallsSettled,
    CancelRequested,
    DecisionLeased,
    Event,
    ModelReplied,
    ProposedCall,
    StepFacts,
)
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId, decide_command_id, new_run_id, new_token
from toolfleet.schemas.limits import DEFAULT_LIMITS
from toolfleet.schemas.model import ModelReply, RawCall, Usage
from toolfleet.schemas.outcomes import CallOutcome, Lane, Tier
from toolfleet.schemas.ports import Applied, Machine, RunStore, Transition
from toolfleet.schemas.records import Step
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.workers.machine import MACHINE

START = 1_700_000_000.0
OK_CONTENT = '{"status":"success","data":1}'


@dataclass
class Clock:
    """The database's time, moved by hand."""

    now: float = START

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Bench:
    """A store with nothing in it, and its clock."""

    store: RunStore
    clock: Clock

    async def written(self) -> None:
        """Returns when everything queued before, lazy marks too, is written."""
        if isinstance(self.store, SqlStore):
            await self.store.discard_dead("none")  # takes the writer, and the marks queued before it with it
            await self.store.discard_dead("none")

    async def accepted(self, **fields: Any) -> NewRun:
        """A run that was submitted."""
        new = new_run(**fields)
        await self.store.submit([new])
        return new

    async def apply(self, run_id: RunId, event: Event) -> Applied:
        (applied,) = await self.store.transact([Transition(run_id, event)])
        return applied

    async def deciding(self, **fields: Any) -> tuple[NewRun, LeaseToken]:
        """A run whose first decision is leased."""
        new = await self.accepted(**fields)
        token = new_token()
        applied = await self.apply(new.run_id, lease(new.run_id, 1, token))
        assert applied.missed is None
        return new, token

    async def waiting(self, calls: int = 2, **options: Any) -> tuple[NewRun, Applied]:
        """A run with that many calls out, none of them leased."""
        new, token = await self.deciding()
        applied = await self.apply(new.run_id, replied(new.run_id, 1, token, proposed(calls, **options)))
        assert applied.missed is None
        return new, applied

    async def completed(self, **fields: Any) -> NewRun:
        """A run that ended with a text."""
        new, token = await self.deciding(**fields)
        applied = await self.apply(new.run_id, replied(new.run_id, 1, token, text="done"))
        assert applied.state is not None and applied.state.terminal
        return new


OpenBench: TypeAlias = Callable[..., AbstractAsyncContextManager[Bench]]
Story: TypeAlias = Callable[[Bench], Awaitable[None]]


@contextlib.asynccontextmanager
async def memory_bench(folder: Path, machine: Machine = MACHINE) -> AsyncIterator[Bench]:
    clock = Clock()
    yield Bench(MemoryStore(machine, time_source=clock), clock)


@contextlib.asynccontextmanager
async def sqlite_bench(folder: Path, machine: Machine = MACHINE) -> AsyncIterator[Bench]:
    clock = Clock()
    url = f"sqlite:///{folder / 'store.db'}"
    upgrade(url)
    store = SqlStore(url, machine, time_source=clock)
    try:
        yield Bench(store, clock)
    finally:
        await store.aclose()


def postgresql_bench(server: servers.Server) -> OpenBench:
    """Opens benches on a database of that server, emptied before each: four times faster than a new one."""
    if "store_bench" not in server.extra:
        server.extra["store_bench"] = servers.new_database(server)
    url: str = server.extra["store_bench"]

    @contextlib.asynccontextmanager
    async def bench(folder: Path, machine: Machine = MACHINE) -> AsyncIterator[Bench]:
        engine = open_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")
        engine.dispose()
        clock = Clock()
        store = SqlStore(url, machine, time_source=clock)
        try:
            yield Bench(store, clock)
        finally:
            await store.aclose()

    return bench


@pytest.fixture
def each_store(request: pytest.FixtureRequest) -> OpenBench:
    """The bench that a test marked with `over_every_store` runs over. A module names it: `open_bench = each_store`."""
    match request.param:
        case "memory":
            return memory_bench
        case "sqlite":
            return sqlite_bench
        case _:
            return postgresql_bench(request.getfixturevalue("postgresql"))


over_every_store = pytest.mark.parametrize("open_bench", ["memory", "sqlite", "postgresql"], indirect=True)


def play(story: Story, open_bench: OpenBench, folder: Path, machine: Machine = MACHINE) -> None:
    """Play a story on a fresh bench, in an event loop of its own."""

    async def played() -> None:
        async with open_bench(folder, machine) as bench:
            await story(bench)

    asyncio.run(played())


# -- several stores over one PostgreSQL ----------------------------------------------------------------------------------

WAIT_S = 30.0  # for what comes at once unless it never comes


@contextlib.asynccontextmanager
async def opened(url: str, machine: Machine = MACHINE, **options: Any) -> AsyncIterator[SqlStore]:
    """A store that is closed at the end."""
    store = SqlStore(url, machine, **options)
    try:
        yield store
    finally:
        await store.aclose()


async def accepted(store: SqlStore, **fields: Any) -> NewRun:
    """A run that was submitted."""
    new = new_run(**fields)
    await store.submit([new])
    return new


async def until(condition: Callable[[], bool]) -> None:
    """Asks, in a thread, until it is so."""
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(condition):
            pass


class Watcher:
    """Somebody else's connection to the database: looks at the sessions of stores, and holds rows against them."""

    def __init__(self, url: str) -> None:
        self._looking = psycopg.connect(url, autocommit=True, application_name="watcher")
        self._holding = psycopg.connect(url, application_name="watcher")

    def ask(self, statement: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        return self._looking.execute(statement, values).fetchall()

    def sessions(self, role: str = "") -> list[int]:
        """The backends of the stores of that role, or of all."""
        found = self.ask(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s",
            f"toolfleet/{role}%",
        )
        return [pid for (pid,) in found]

    def waits(self, role: str) -> bool:
        """A session of that role waits for a lock."""
        found = self.ask(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
            " AND wait_event_type = 'Lock'",
            f"toolfleet/{role}%",
        )
        return bool(found)

    def throw_out(self, role: str = "") -> None:
        """Ends the sessions, as an operator does. Returns when they are gone."""
        for pid in self.sessions(role):
            self.ask("SELECT pg_terminate_backend(%s, 10000)", pid)

    def hold(self, statement: LiteralString, *values: Any) -> None:
        """Begin a transaction and keep the locks it takes with this statement."""
        self._holding.execute(statement, values)

    def let_go(self) -> None:
        self._holding.rollback()

    def close(self) -> None:
        self._looking.close()
        self._holding.close()


@contextlib.contextmanager
def watching(url: str) -> Iterator[Watcher]:
    watcher = Watcher(url)
    try:
        yield watcher
    finally:
        watcher.close()


class HeldMachine:
    """The real machine, but its first event stands still inside its transaction, all locks taken, until `go`."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    async def stands(self, begun: asyncio.Future[Any]) -> None:
        """Until it stands still. `begun`: who is to get there; if that fails before, so does this."""
        await until(lambda: self.reached.is_set() or begun.done())
        if not self.reached.is_set():
            raise AssertionError("it ended before it had anything to decide") from begun.exception()

    def reduce(self, state: RunState | None, event: Event, now_s: float) -> Step:
        self.reached.set()
        assert self.go.wait(WAIT_S)
        return MACHINE.reduce(state, event, now_s)

    def merge(self, calls: Sequence[CallState], results: Mapping[str, CallResult]) -> MergeItem:
        return MACHINE.merge(calls, results)


# -- what workers send ---------------------------------------------------------------------------------------------------


def new_run(**fields: Any) -> NewRun:
    given: dict[str, Any] = {
        "run_id": new_run_id(),
        "agent": "desk",
        "agent_version": "v1",
        "prompt_version": "p1",
        "toolset_version": "t1",
        "input": "Where is my bag?",
        "lane": Lane.INTERACTIVE,
        "limits": DEFAULT_LIMITS,
        "context": {"customer": "c-1"},
        "metadata": {"ticket": "7"},
        "correlation_id": "corr",
        "trace": {"traceparent": "00-a-b-01"},
        **fields,
    }
    return NewRun(**given)


def lease(run_id: RunId, turn: int, token: LeaseToken, lease_s: float = 30.0) -> DecisionLeased:
    return DecisionLeased(decide_command_id(run_id, turn), token, "worker-1", lease_s, "gpt")


def proposed(
    count: int,
    *,
    effect: bool = False,
    first: int = 0,
    attempts_max: int = 3,
    call_timeout_s: float | None = None,
) -> tuple[ProposedCall, ...]:
    """Calls with different arguments from call to call (`first` shifts them)."""
    tier = Tier.MEDIUM if effect else Tier.LOW
    return tuple(
        ProposedCall(
            index=index,
            tool="look_up",
            tier=tier,
            arguments=f'{{"n":{first + index}}}',
            signature=f"look_up-{first + index}",
            wire_id=f"wire_{index}",
            effect=effect,
            attempts_max=attempts_max,
            call_timeout_s=call_timeout_s,
        )
        for index in range(count)
    )


def replied(
    run_id: RunId, turn: int, token: LeaseToken, calls: tuple[ProposedCall, ...] = (), text: str | None = None
) -> ModelReplied:
    raw = tuple(RawCall(call.wire_id, call.tool, call.arguments) for call in calls)
    reply = ModelReply(
        text=text,
        calls=raw,
        finish="tool_calls" if calls else "stop",
        wire="chat_completions",
        provider={"role": "assistant", "content": text, "ümlaut": [1, 2.5, None, {"b": 1, "a": 2}]},
        model="gpt-1",
        usage=Usage(100, 20, 50, 5),
    )
    facts = StepFacts(owner="worker-1", model="gpt", model_s=0.5, queue_s=0.25, cost_usd=0.002)
    return ModelReplied(decide_command_id(run_id, turn), token, reply, calls, True, facts)


def result_of(call: CallState, content: str = OK_CONTENT, **fields: Any) -> CallResult:
    return replace(
        CallResult(call.call_id, call.index, CallOutcome.OK, content, attempt=1, tool_s=0.1), **fields
    )


def settled(calls: Sequence[CallState], content: str = OK_CONTENT) -> CallsSettled:
    return CallsSettled(tuple(result_of(call, content) for call in calls))


def state_of(applied: Applied) -> RunState:
    assert applied.state is not None
    return applied.state


def command_ids(applied: Applied) -> list[CommandId]:
    return [row.id for row in state_of(applied).commands]


# -- a machine that does as it is told -------------------------------------------------------------------------------------

Rule: TypeAlias = Callable[[RunState, float], Step]


@dataclass
class ScriptedMachine:
    """The real machine, but `told("name")` is answered by the rule of that name."""

    rules: dict[str, Rule] = field(default_factory=dict)

    def reduce(self, state: RunState | None, event: Event, now_s: float) -> Step:
        if isinstance(event, CancelRequested) and event.by in self.rules:
            assert state is not None
            return self.rules[event.by](state, now_s)
        return MACHINE.reduce(state, event, now_s)

    def merge(self, calls: Sequence[CallState], results: Mapping[str, CallResult]) -> MergeItem:
        """Like the real one, without its assertions: what the store found is what the item shows."""
        return MergeItem(
            tuple(
                ItemResult(
                    call.call_id, call.wire_id, results[call.call_id].outcome, results[call.call_id].content
                )
                for call in calls
                if call.call_id in results
            )
        )


def told(run_id: RunId, rule: str) -> Transition:
    return Transition(run_id, CancelRequested(by=rule))
