"""The connections of a store to PostgreSQL: how they are set, what a caller sees when one breaks, and that it comes back.

Whatever breaks, the caller gets StoreUnavailable or its answer, and the next call works on the same store.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
import pytest
from sqlalchemy import Engine, event

from tests import servers
from tests.contract.store_bench import (
    HeldMachine,
    Watcher,
    accepted,
    lease,
    new_run,
    opened,
    proposed,
    replied,
    settled,
    state_of,
    until,
    watching,
)
from toolfleet.adapters.store.engine import open_engine
from toolfleet.adapters.store.migrate import HEAD, upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.errors import NotMigrated, StoreUnavailable, UnsafeSettings
from toolfleet.schemas.ids import RunId, new_token
from toolfleet.schemas.model import Usage
from toolfleet.schemas.outcomes import RunStatus
from toolfleet.schemas.ports import Applied, SentMark, Transition

T = TypeVar("T")


@pytest.fixture
def url(postgresql: servers.Server) -> str:
    return servers.new_database(postgresql)


@pytest.fixture(scope="module")
def own_server(postgresql: servers.Server) -> Iterator[servers.Server]:
    """A server that may be killed."""
    with servers.postgres_server() as server:
        yield server


def play(story: Callable[[Watcher], Awaitable[None]], url: str) -> None:
    async def played() -> None:
        with watching(url) as watcher:
            await story(watcher)

    asyncio.run(played())


async def claim(store: SqlStore, run_id: RunId) -> Applied:
    (applied,) = await store.transact([Transition(run_id, lease(run_id, 1, new_token()))])
    return applied


async def status(store: SqlStore, run_id: RunId) -> RunStatus:
    view = await store.run(run_id)
    assert view is not None
    return view.state.status


# -- how they are set ----------------------------------------------------------------------------------------------------


def test_every_connection_is_set_up_and_says_who_it_is(url: str) -> None:
    engine = open_engine(url, role="keeper")
    names = (
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "application_name",
        "transaction_isolation",
    )
    with engine.connect() as one, engine.connect() as two:
        for connection in (one, two):
            found = [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]
            assert found == ["15s", "5s", "10s", f"toolfleet/keeper/{os.getpid()}", "read committed"]
            raw = connection.connection.driver_connection
            assert isinstance(raw, psycopg.Connection)
            given = raw.info.get_parameters()
            assert {
                name: given[name] for name in ("connect_timeout", "keepalives_idle", "tcp_user_timeout")
            } == {
                "connect_timeout": "5",
                "keepalives_idle": "10",
                "tcp_user_timeout": "20000",
            }
    engine.dispose()


def test_what_the_url_says_wins(url: str) -> None:
    options = "-c%20statement_timeout=61s"
    engine = open_engine(f"{url}?application_name=mine&keepalives_idle=99&options={options}")
    with engine.connect() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("application_name", "statement_timeout", "lock_timeout")
        ]
    engine.dispose()

    assert shown == ["mine", "61s", "5s"]


@pytest.mark.parametrize("driver", ["psycopg2", "asyncpg"])
def test_another_driver_is_refused(driver: str) -> None:
    with pytest.raises(UnsafeSettings, match=driver):
        open_engine(f"postgresql+{driver}://host/name")


def test_a_store_has_one_connection_more_than_readers(url: str) -> None:
    async def story(watcher: Watcher) -> None:
        async with opened(url, readers=3, role="http") as store:
            new = await accepted(store)

            await asyncio.gather(
                *(store.run(new.run_id) for _ in range(60)), *(accepted(store) for _ in range(20))
            )

            assert len(watcher.sessions("http/")) == 3 + 1
        await until(lambda: watcher.sessions("http/") == [])

    play(story, url)


def test_a_reading_of_several_statements_sees_one_moment(url: str) -> None:
    """Between the two statements of a view the run goes on to its next turn."""
    reading, go = threading.Event(), threading.Event()

    def stand_still(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if threading.current_thread().name.startswith("toolfleet-reader") and "FROM runs" in statement:
            reading.set()
            assert go.wait(30)

    async def story(watcher: Watcher) -> None:
        async with opened(url) as store:
            new, token = await accepted(store), new_token()
            await store.transact([Transition(new.run_id, lease(new.run_id, 1, token))])
            (out,) = await store.transact(
                [Transition(new.run_id, replied(new.run_id, 1, token, proposed(2)))]
            )
            looking = asyncio.ensure_future(store.run(new.run_id))
            await asyncio.to_thread(reading.wait)
            await store.transact([Transition(new.run_id, settled(state_of(out).calls))])
            go.set()

            view = await looking

            assert view is not None and view.state == state_of(out), "all of it is of before"

    event.listen(Engine, "after_cursor_execute", stand_still)
    try:
        play(story, url)
    finally:
        go.set()
        event.remove(Engine, "after_cursor_execute", stand_still)


def test_migrations_beside_each_other_do_not_meet(postgresql: servers.Server) -> None:
    url = servers.new_database(postgresql, migrated=False)

    with ThreadPoolExecutor(3) as pool:
        revisions = list(pool.map(lambda _: upgrade(url), range(3)))

    assert revisions == [HEAD] * 3


def test_a_migration_may_take_long_and_keeps_no_table_waiting(
    postgresql: servers.Server,
) -> None:
    shown: list[tuple[str, ...]] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: object) -> None:
        if statement.lstrip().startswith("CREATE TABLE runs"):
            with connection.connection.driver_connection.cursor() as asking:
                asking.execute("SELECT current_setting('statement_timeout'), current_setting('lock_timeout')")
                shown.append(asking.fetchone())

    event.listen(Engine, "before_cursor_execute", note)
    try:
        upgrade(servers.new_database(postgresql, migrated=False))
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    assert shown == [("0", "5s")]


def test_a_database_without_our_tables_is_not_migrated(postgresql: servers.Server, url: str) -> None:
    empty = servers.new_database(postgresql, migrated=False)

    async def story(watcher: Watcher) -> None:
        async with opened(empty) as store:
            with pytest.raises(NotMigrated, match="no toolfleet schema"):
                await store.now()
        async with opened(url) as store:
            await store.now()
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("DROP TABLE items")
            with pytest.raises(NotMigrated, match="items"):
                await store.items(new_run().run_id)
            with pytest.raises(NotMigrated, match="items"):
                await accepted(store)

    play(story, url)


# -- what a caller sees --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_a_statement_that_waits_too_long_is_unavailable_and_the_next_one_works(
    url: str, setting: str
) -> None:
    async def story(watcher: Watcher) -> None:
        async with opened(f"{url}?options=-c%20{setting}=100") as store:
            new, other = await accepted(store), await accepted(store)
            watcher.hold("SELECT id FROM runs WHERE id = %s FOR UPDATE", new.run_id)

            with pytest.raises(StoreUnavailable, match="timeout"):
                await claim(store, new.run_id)
            assert (await claim(store, other.run_id)).missed is None
            watcher.let_go()

            assert (await claim(store, new.run_id)).missed is None

    play(story, url)


def test_a_process_that_stands_still_in_a_transaction_loses_it_and_goes_on(url: str) -> None:
    async def story(watcher: Watcher) -> None:
        machine = HeldMachine()
        patient = f"{url}?options=-c%20idle_in_transaction_session_timeout=100"
        async with opened(patient, machine, role="still") as store, opened(url) as other:
            new = await accepted(other)
            standing = asyncio.ensure_future(claim(store, new.run_id))
            await machine.stands(standing)
            await until(lambda: watcher.sessions("still/") == [])

            assert (await claim(other, new.run_id)).missed is None, "nobody waits for it"
            machine.go.set()
            with pytest.raises(StoreUnavailable):
                await standing

            assert (await claim(store, new.run_id)).missed == "leased"

    play(story, url)


def test_sessions_that_were_ended_cost_nobody_an_answer(url: str) -> None:
    async def story(watcher: Watcher) -> None:
        async with opened(url) as store:
            new = await accepted(store)
            await asyncio.gather(*(store.run(new.run_id) for _ in range(20)))
            watcher.throw_out()

            assert await status(store, new.run_id) is RunStatus.QUEUED
            assert (await claim(store, new.run_id)).missed is None

    play(story, url)


def test_a_session_that_is_ended_inside_a_transaction_leaves_nothing_of_it(url: str) -> None:
    async def story(watcher: Watcher) -> None:
        machine = HeldMachine()
        async with opened(url, machine, role="writing") as store, opened(url) as other:
            new = await accepted(other)
            writing = asyncio.ensure_future(claim(store, new.run_id))
            await machine.stands(writing)
            watcher.throw_out("writing/")
            machine.go.set()

            with pytest.raises(StoreUnavailable):
                await writing

            assert await status(other, new.run_id) is RunStatus.QUEUED
            assert (await claim(store, new.run_id)).missed is None

    play(story, url)


def test_a_mark_of_a_row_that_somebody_holds_is_written_when_it_is_free(url: str) -> None:
    """Who settles one call of a turn locks the rows of all; a row left unsent would be published a second time."""

    async def story(watcher: Watcher) -> None:
        async with opened(url) as store:
            new, other = await accepted(store), await accepted(store)
            ((row, due_at),) = watcher.ask("SELECT id, due_at FROM commands WHERE run_id = %s", new.run_id)
            ((free, due_of_free),) = watcher.ask(
                "SELECT id, due_at FROM commands WHERE run_id = %s", other.run_id
            )
            watcher.hold("SELECT id FROM commands WHERE id = %s FOR UPDATE", row)
            await store.mark_sent(
                [SentMark(row, due_at, due_at + 1), SentMark(free, due_of_free, due_of_free + 1)]
            )

            await until(lambda: watcher.ask("SELECT sends FROM commands WHERE id = %s", free) == [(1,)])
            assert watcher.ask("SELECT sends FROM commands WHERE id = %s", row) == [(0,)]
            watcher.let_go()
            await until(lambda: watcher.ask("SELECT sends FROM commands WHERE id = %s", row) == [(1,)])

    play(story, url)


def test_a_kept_session_that_is_ended_inside_a_transaction_has_it_carried_out_over_another(url: str) -> None:
    async def story(watcher: Watcher) -> None:
        machine = HeldMachine()
        machine.go.set()
        async with opened(url, machine, role="writing") as store:
            new = await accepted(store)
            assert (await claim(store, (await accepted(store)).run_id)).missed is None
            machine.reached.clear()
            machine.go.clear()
            writing = asyncio.ensure_future(claim(store, new.run_id))
            await machine.stands(writing)
            watcher.throw_out("writing/")
            machine.go.set()

            assert (await writing).missed is None
            view = await store.run(new.run_id)
            assert view is not None and view.state.status is RunStatus.DECIDING

    play(story, url)


def test_a_database_that_became_read_only_is_unavailable_until_it_is_not(url: str) -> None:
    name = url.rpartition("/")[2]

    async def story(watcher: Watcher) -> None:
        async with opened(url) as store:
            new = await accepted(store)
            with psycopg.connect(url, autocommit=True) as other:
                other.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')  # type: ignore[arg-type]
                watcher.throw_out()
                with pytest.raises(StoreUnavailable):
                    await claim(store, new.run_id)
                with pytest.raises(StoreUnavailable, match="read-only"):
                    await claim(store, new.run_id)
                other.execute("SET default_transaction_read_only = off")
                other.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')  # type: ignore[arg-type]

            assert (await claim(store, new.run_id)).missed is None, "on a new connection"

    play(story, url)


def test_a_value_that_cannot_be_stored_is_its_callers_and_not_the_databases(url: str) -> None:
    """A key too long for an index is an OperationalError of the driver, as a server that is gone is one."""

    async def story(watcher: Watcher) -> None:
        async with opened(url) as store:
            good = [new_run() for _ in range(5)]
            bad = new_run(idempotency_key=os.urandom(6000).hex())

            answers = await asyncio.gather(
                *(store.submit([new]) for new in [*good[:3], bad, *good[3:]]), return_exceptions=True
            )

            failed = [answer for answer in answers if isinstance(answer, BaseException)]
            assert len(failed) == 1 and not isinstance(failed[0], StoreUnavailable)
            for new in good:
                assert await status(store, new.run_id) is RunStatus.QUEUED

    play(story, url)


def test_any_number_of_tokens_a_provider_names_is_stored(url: str) -> None:
    from dataclasses import replace

    async def story(watcher: Watcher) -> None:
        async with opened(url) as store:
            new, token = await accepted(store), new_token()
            await store.transact([Transition(new.run_id, lease(new.run_id, 1, token))])
            said = replied(new.run_id, 1, token, text="done")
            said = replace(said, reply=replace(said.reply, usage=Usage(2**40, 1)))

            (applied,) = await store.transact([Transition(new.run_id, said)])

            assert applied.missed is None
            assert [row["input_tokens"] for row in await store.usage(new.run_id)] == [2**40]

    play(story, url)


# -- the server goes and comes back --------------------------------------------------------------------------------------


def test_a_restarted_server_is_used_again_without_opening_the_store(own_server: servers.Server) -> None:
    async def story() -> None:
        async with opened(servers.new_database(own_server)) as store:
            new = await accepted(store)
            await asyncio.gather(*(store.run(new.run_id) for _ in range(20)))

            await asyncio.to_thread(servers.postgres_immediate, own_server)

            assert await status(store, new.run_id) is RunStatus.QUEUED, "accepted before, there after"
            assert (await claim(store, new.run_id)).missed is None

    asyncio.run(story())


def test_a_server_that_is_away_is_unavailable_and_nothing_else(own_server: servers.Server) -> None:
    async def story() -> None:
        url = servers.new_database(own_server)
        async with opened(url) as store, opened(url) as fresh:
            new = await accepted(store)
            await store.run(new.run_id)
            await asyncio.to_thread(own_server.kill)

            for _ in range(3):
                for asked in (store.run(new.run_id), claim(store, new.run_id), fresh.now()):
                    with pytest.raises(StoreUnavailable):
                        await asked
            await asyncio.to_thread(own_server.start)

            assert await status(store, new.run_id) is RunStatus.QUEUED
            assert (await claim(store, new.run_id)).missed is None
            assert (await claim(fresh, new.run_id)).missed == "leased"

    asyncio.run(story())
