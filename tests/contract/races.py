"""Two stores over one database, forced into each order: what both barrier suites share.

A module that uses it names the fixtures: `url = fresh_url`, `deadlocks = seen_deadlocks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, LiteralString, TypeAlias

import pytest
from sqlalchemy import Engine, event

from tests import servers
from tests.contract.store_bench import (
    HeldMachine,
    Watcher,
    lease,
    new_run,
    opened,
    proposed,
    replied,
    state_of,
    until,
    watching,
)
from toolfleet.adapters.store.engine import sqlstate
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.conversation import MergeItem
from toolfleet.schemas.events import Event, ProposedCall
from toolfleet.schemas.ids import LeaseToken, RunId, new_token
from toolfleet.schemas.ports import Applied, Transition
from toolfleet.schemas.run import NewRun, RunState

Act: TypeAlias = Callable[[SqlStore], Awaitable[Any]]
Order: TypeAlias = Callable[[str, Watcher, RunId, Act, Act], Awaitable[tuple[Any, Any]]]

HOLD_RUN: Final[LiteralString] = "SELECT id FROM runs WHERE id = %s FOR UPDATE"
HOLD_COMMANDS: Final[LiteralString] = "SELECT id FROM commands WHERE run_id = %s ORDER BY id FOR UPDATE"


@pytest.fixture
def fresh_url(postgresql: servers.Server) -> str:
    return servers.new_database(postgresql)


@pytest.fixture
def seen_deadlocks() -> Iterator[list[str]]:
    """Every deadlock that PostgreSQL reports to a store while the test runs, those that are tried again too."""
    seen: list[str] = []

    def note(context: Any) -> None:
        if sqlstate(context.sqlalchemy_exception) == "40P01":
            seen.append(str(context.statement))

    event.listen(Engine, "handle_error", note)
    yield seen
    event.remove(Engine, "handle_error", note)


# -- the orders ----------------------------------------------------------------------------------------------------------


async def first_inside(url: str, watcher: Watcher, run_id: RunId, first: Act, second: Act) -> tuple[Any, Any]:
    """The first has its locks and has not decided yet when the second begins."""
    machine = HeldMachine()
    async with opened(url, machine, role="first") as one, opened(url, role="second") as two:
        begun = asyncio.ensure_future(first(one))
        await machine.stands(begun)
        follows = asyncio.ensure_future(second(two))
        await until(lambda: watcher.waits("second"))
        machine.go.set()
        return await begun, await follows


def _queued(hold: LiteralString) -> Order:
    async def both_wait(
        url: str, watcher: Watcher, run_id: RunId, first: Act, second: Act
    ) -> tuple[Any, Any]:
        async with opened(url, role="first") as one, opened(url, role="second") as two:
            watcher.hold(hold, run_id)
            begun = asyncio.ensure_future(first(one))
            await until(lambda: watcher.waits("first"))
            follows = asyncio.ensure_future(second(two))
            await until(lambda: watcher.waits("second"))
            watcher.let_go()
            return await begun, await follows

    return both_wait


both_wait_for_the_run = _queued(HOLD_RUN)
both_wait_for_a_command = _queued(HOLD_COMMANDS)

in_each_order = pytest.mark.parametrize(
    "order",
    [
        pytest.param(first_inside, id="first-inside"),
        pytest.param(both_wait_for_the_run, id="both-wait-for-the-run"),
        pytest.param(both_wait_for_a_command, id="both-wait-for-a-command"),
    ],
)
whoever_is_first = pytest.mark.parametrize("swapped", [False, True], ids=["as-named", "swapped"])


def does(run_id: RunId, what: Event) -> Act:
    async def act(store: SqlStore) -> Applied:
        (applied,) = await store.transact([Transition(run_id, what)])
        return applied

    return act


@dataclass
class Race:
    """A database with one run in it, and the two that go for it."""

    url: str
    store: SqlStore
    watcher: Watcher
    order: Order
    swapped: bool

    async def between(self, run_id: RunId, one: Act, two: Act) -> tuple[Any, Any]:
        """The answers of `one` and of `two`; `two` is the first of them where the test is swapped."""
        if not self.swapped:
            return await self.order(self.url, self.watcher, run_id, one, two)
        second, first = await self.order(self.url, self.watcher, run_id, two, one)
        return first, second

    async def deciding(self) -> tuple[NewRun, LeaseToken]:
        new, token = new_run(), new_token()
        await self.store.submit([new])
        await does(new.run_id, lease(new.run_id, 1, token))(self.store)
        return new, token

    async def waiting(
        self, calls: int, made: tuple[ProposedCall, ...] | None = None
    ) -> tuple[RunId, RunState]:
        new, token = await self.deciding()
        said = proposed(calls) if made is None else made
        applied = await does(new.run_id, replied(new.run_id, 1, token, said))(self.store)
        return new.run_id, state_of(applied)

    async def state(self, run_id: RunId) -> RunState:
        view = await self.store.run(run_id)
        assert view is not None
        return view.state

    async def merges(self, run_id: RunId) -> list[MergeItem]:
        stored = [one.item for one in await self.store.items(run_id)]
        return [item for item in stored if isinstance(item, MergeItem)]


def play(
    story: Callable[[Race], Awaitable[None]], url: str, order: Order = first_inside, swapped: bool = False
) -> None:
    async def played() -> None:
        with watching(url) as watcher:
            async with opened(url, role="around") as store:
                await story(Race(url, store, watcher, order, swapped))

    asyncio.run(played())
