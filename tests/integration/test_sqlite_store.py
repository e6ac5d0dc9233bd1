"""The SQLite store against a real file: several threads, loops and processes, kills, forks, locks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from tests.contract.store_bench import (
    Bench,
    ScriptedMachine,
    lease,
    new_run,
    play,
    proposed,
    replied,
    settled,
    sqlite_bench,
    told,
)
from toolfleet.adapters.store import engine as engine_module
from toolfleet.adapters.store import relay
from toolfleet.adapters.store.engine import open_engine
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import CLEAN_EVERY, SqlStore
from toolfleet.schemas.errors import StoreUnavailable, UnsafeSettings
from toolfleet.schemas.events import CancelRequested, LeaseExpired
from toolfleet.schemas.ids import CommandId, RunId, new_token
from toolfleet.schemas.outcomes import RunStatus
from toolfleet.schemas.ports import Applied, SentMark, Transition
from toolfleet.schemas.records import AppendEvent, Step
from toolfleet.schemas.run import NewRun, RunState
from toolfleet.workers.machine import MACHINE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path / 'store.db'}"
    upgrade(made)
    return made


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(url, MACHINE)
    try:
        yield store
    finally:
        await store.aclose()


def file_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


@contextlib.contextmanager
def raw(url: str) -> Iterator[sqlite3.Connection]:
    """A connection of somebody else's."""
    connection = sqlite3.connect(file_of(url), isolation_level=None, timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def decide(run: NewRun) -> CommandId:
    return CommandId(f"{run.run_id}/1")


async def claim(store: SqlStore, run_id: RunId) -> Applied:
    (applied,) = await store.transact([Transition(run_id, lease(run_id, 1, new_token()))])
    return applied


# -- group commit -------------------------------------------------------------------------------------------------------


def test_fifty_concurrent_transitions_share_a_few_commits(url: str) -> None:
    async def story() -> None:
        async with opened(url) as store:
            runs = [new_run() for _ in range(50)]
            await store.submit(runs)
            before = store.commits

            applied = await asyncio.gather(*(claim(store, run.run_id) for run in runs))

            assert all(one.missed is None for one in applied)
            assert store.commits - before <= 5

    asyncio.run(story())


def test_two_threads_with_loops_of_their_own_share_one_store(url: str) -> None:
    store = SqlStore(url, MACHINE)
    runs = [new_run() for _ in range(40)]
    wins: list[str] = []

    def work() -> None:
        async def story() -> None:
            applied = await asyncio.gather(*(claim(store, run.run_id) for run in runs))
            wins.extend(run.run_id for run, one in zip(runs, applied, strict=True) if one.missed is None)
            assert await store.run(runs[0].run_id) is not None

        asyncio.run(story())

    asyncio.run(_submitted(store, runs))
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(store.aclose())

    assert sorted(wins) == sorted(run.run_id for run in runs), "each was claimed once"


async def _submitted(store: SqlStore, runs: list[NewRun]) -> None:
    await store.submit(runs)


def test_what_a_cancelled_caller_asked_for_is_written_all_the_same(url: str) -> None:
    async def story() -> None:
        async with opened(url) as store:
            runs = [new_run() for _ in range(20)]
            await store.submit(runs)
            tasks = [asyncio.create_task(claim(store, run.run_id)) for run in runs]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await claim(store, runs[0].run_id)  # behind them in the queue

            assert (await store.counts())["leases"] == 20

    asyncio.run(story())


def test_a_mark_is_written_alone_when_nothing_else_is(url: str) -> None:
    async def story() -> None:
        async with opened(url) as store:
            new = new_run()
            (submitted,) = await store.submit([new])
            due_at = submitted.publish[0].row.due_at
            before = store.commits

            await store.mark_sent([SentMark(decide(new), due_at, due_at + 1)])

            async with asyncio.timeout(30):
                while store.commits == before:
                    await store.now()
            view = await store.run(new.run_id)
            assert view is not None and view.state.commands[0].sends == 1

    asyncio.run(story())


def test_closing_writes_what_is_pending_and_then_nothing_goes(url: str) -> None:
    async def story() -> None:
        new = new_run()
        store = SqlStore(url, MACHINE)
        (submitted,) = await store.submit([new])
        await store.mark_sent([SentMark(decide(new), submitted.publish[0].row.due_at, 5.0)])

        await store.aclose()
        await store.aclose()

        with pytest.raises(StoreUnavailable):
            await claim(store, new.run_id)
        with pytest.raises(StoreUnavailable):
            await store.run(new.run_id)
        async with opened(url) as again:
            view = await again.run(new.run_id)
            assert view is not None and view.state.commands[0].sends == 1

    asyncio.run(story())


# -- connections, locks, transactions ----------------------------------------------------------------------------------------


def test_every_connection_has_wal_full_sync_foreign_keys_and_patience(url: str) -> None:  # B101
    engine = open_engine(url)
    with engine.connect() as one, engine.connect() as two:
        for connection in (one, two):
            found = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
            assert found["journal_mode"] == "wal"
            assert found["synchronous"] == 2
            assert found["foreign_keys"] == 1
            assert found["busy_timeout"] >= 5000
    engine.dispose()


def test_writing_transactions_take_the_lock_when_they_begin(url: str) -> None:  # B101
    begun: list[tuple[str, str]] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.startswith("BEGIN"):
            begun.append((threading.current_thread().name, statement))

    event.listen(Engine, "before_cursor_execute", note)
    try:

        async def story() -> None:
            async with opened(url) as store:
                new = new_run()
                await store.submit([new])
                await claim(store, new.run_id)
                await store.renew([(decide(new), new_token())], 30.0)
                await store.run(new.run_id)

        asyncio.run(story())
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    writing = [statement for thread, statement in begun if thread == "toolfleet-writer"]
    reading = [statement for thread, statement in begun if thread.startswith("toolfleet-reader")]
    assert len(writing) == 3 and set(writing) == {"BEGIN IMMEDIATE"}
    assert reading == ["BEGIN"]


def test_no_transaction_is_open_while_a_caller_runs(url: str) -> None:  # B103
    open_now = 0
    lock = threading.Lock()

    def on_a_loop() -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    def count(by: int) -> None:
        nonlocal open_now
        assert not on_a_loop(), "a transaction belongs to a thread without a loop, which cannot await in it"
        with lock:
            open_now += by

    listeners = {
        "begin": lambda connection: count(1),
        "commit": lambda connection: count(-1),
        "rollback": lambda connection: count(-1),
    }
    for name, listener in listeners.items():
        event.listen(Engine, name, listener)
    try:

        async def story() -> None:
            async with opened(url) as store:
                for _ in range(20):
                    new = new_run()
                    await store.submit([new])
                    assert open_now == 0
                    await claim(store, new.run_id)
                    assert open_now == 0
                    await store.conversation(new.run_id)
                    assert open_now == 0, "here the model would be asked"

        asyncio.run(story())
    finally:
        for name, listener in listeners.items():
            event.remove(Engine, name, listener)


def test_readers_do_not_wait_for_a_long_write_and_writers_do(url: str) -> None:
    async def story() -> None:
        async with opened(url) as store:
            new = new_run()
            await store.submit([new])
            with raw(url) as other:
                other.execute("BEGIN IMMEDIATE")
                other.execute("UPDATE runs SET reason = 'half done'")
                claiming = asyncio.create_task(claim(store, new.run_id))

                view = await store.run(new.run_id)
                conversation = await store.conversation(new.run_id)

                assert view is not None and view.state.reason is None and conversation is not None
                assert not claiming.done()
                other.execute("ROLLBACK")
            assert (await claiming).missed is None

    asyncio.run(story())


def test_a_lock_that_is_never_given_up_makes_the_store_unavailable_and_only_for_then(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = ("PRAGMA busy_timeout = 50", *engine_module.SQLITE_PRAGMAS[1:])
    monkeypatch.setattr(engine_module, "SQLITE_PRAGMAS", impatient)

    async def story() -> None:
        async with opened(url) as store:
            new = new_run()
            await store.submit([new])
            with raw(url) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreUnavailable, match="locked"):
                    await claim(store, new.run_id)
                await store.mark_sent([SentMark(decide(new), 0.0, 1.0)])
                other.execute("ROLLBACK")
            assert (await claim(store, new.run_id)).missed is None

    asyncio.run(story())


def test_a_place_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "folder.db"
    folder.mkdir()

    async def story() -> None:
        async with opened(f"sqlite:///{folder}") as store:
            with pytest.raises(StoreUnavailable, match="unable to open"):
                await store.now()

    asyncio.run(story())


def test_a_file_that_is_no_database_is_an_error_that_says_so(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("buy milk\n" * 1000)

    async def story() -> None:
        async with opened(f"sqlite:///{file}") as store:
            with pytest.raises(StoreUnavailable, match="not a database"):
                await store.now()

    asyncio.run(story())
    assert file.read_text().startswith("buy milk")


@pytest.mark.parametrize("database", ["sqlite://", "sqlite:///:memory:", "mysql://host/x", "nonsense"])
def test_a_database_that_cannot_be_used_is_refused(database: str) -> None:
    with pytest.raises(UnsafeSettings):
        open_engine(database)


def test_the_time_is_that_of_the_database(url: str) -> None:
    async def story() -> None:
        async with opened(url) as store:
            before = time.time()
            found = await store.now()
            after = time.time()

            assert before - 0.01 <= found <= after + 0.01
            (submitted,) = await store.submit([new_run()])
            assert after - 0.01 <= submitted.publish[0].row.due_at

    asyncio.run(story())


@pytest.mark.parametrize("asked", ["DUE", "EXPIRED", "HELD", "OVERDUE"])
def test_the_keepers_questions_are_answered_by_indexes(url: str, asked: str) -> None:
    engine = open_engine(url)
    with engine.connect() as connection:
        text = str(getattr(relay, asked).compile(dialect=engine.dialect))
        parameters = ("x",) * text.count("?")
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters)]
    engine.dispose()

    whole = [step for step in plan if step.startswith("SCAN") and "USING" not in step]
    if asked == "HELD":  # all leases, and no other row, in the order of their partial index
        whole += [] if any("ix_commands_lease" in step for step in plan) else plan
    else:
        whole += [step for step in plan if step.startswith(("SCAN commands", "SCAN runs"))]
    assert whole == [], plan


def test_a_bug_in_the_writer_reaches_its_caller_and_the_next_one_is_served(tmp_path: Path) -> None:
    def not_json(state: RunState, now: float) -> Step:
        return Step(state, (AppendEvent(2, "bad", {"value": object()}),))

    async def story() -> None:
        url = f"sqlite:///{tmp_path / 'bug.db'}"
        upgrade(url)
        store = SqlStore(url, ScriptedMachine({"bad": not_json}))
        new = new_run()
        await store.submit([new])

        with pytest.raises(TypeError):
            await store.transact([told(new.run_id, "bad")])

        assert (await claim(store, new.run_id)).missed is None
        await store.aclose()

    asyncio.run(story())


# -- two connections at once: what must come out the same whoever is first --------------------------------------------------


async def _out(store: SqlStore, count: int) -> list[tuple[NewRun, RunState]]:
    """Runs with two calls out."""
    found: list[tuple[NewRun, RunState]] = []
    runs = [new_run() for _ in range(count)]
    await store.submit(runs)
    for run in runs:
        token = new_token()
        await store.transact([Transition(run.run_id, lease(run.run_id, 1, token))])
        event = replied(run.run_id, 1, token, proposed(2))
        (applied,) = await store.transact([Transition(run.run_id, event)])
        assert applied.state is not None
        found.append((run, applied.state))
    return found


def test_two_collectors_with_the_last_two_results_merge_once(url: str) -> None:
    async def story() -> None:
        async with opened(url) as one, opened(url) as two:
            out = await _out(one, 30)

            halves = await asyncio.gather(
                *(
                    store.transact([Transition(run.run_id, settled(state.calls[n : n + 1]))])
                    for run, state in out
                    for n, store in enumerate((one, two))
                )
            )

            published = [due.run_id for (applied,) in halves for due in applied.publish]
            assert sorted(published) == sorted(run.run_id for run, _ in out)
            for run, _ in out:
                assert [stored.seq for stored in await one.items(run.run_id)] == [0, 1, 2]

    asyncio.run(story())


def test_a_cancel_and_a_last_result_exclude_each_other(url: str) -> None:
    async def story() -> None:
        async with opened(url) as one, opened(url) as two:
            out = await _out(one, 30)

            await asyncio.gather(
                *(one.transact([Transition(run.run_id, CancelRequested())]) for run, _ in out),
                *(two.transact([Transition(run.run_id, settled(state.calls))]) for run, state in out),
            )

            for run, _ in out:
                view = await two.run(run.run_id)
                outcomes = {result.outcome.value for _, result in await two.results(run.run_id)}
                assert view is not None and view.state.status is RunStatus.CANCELLED
                assert outcomes in ({"ok"}, {"cancelled"})
                assert view.state.commands == ()

    asyncio.run(story())


def test_a_renewal_and_an_expiry_exclude_each_other(url: str) -> None:
    async def story() -> None:
        async with opened(url) as one, opened(url) as two:
            runs = [new_run() for _ in range(30)]
            await one.submit(runs)
            tokens = [new_token() for _ in runs]
            for run, token in zip(runs, tokens, strict=True):
                await one.transact([Transition(run.run_id, lease(run.run_id, 1, token, lease_s=-1.0))])

            expiring = asyncio.gather(
                *(
                    two.transact([Transition(run.run_id, LeaseExpired(decide(run), token))])
                    for run, token in zip(runs, tokens, strict=True)
                )
            )
            pairs = [(decide(run), token) for run, token in zip(runs, tokens, strict=True)]
            kept = await one.renew(pairs, 30.0)
            expired = [applied for (applied,) in await expiring]

            ended = {decide(run) for run, each in zip(runs, expired, strict=True) if each.missed is None}
            assert kept | ended == {decide(run) for run in runs}
            assert kept & ended == set()

    asyncio.run(story())


# -- processes -----------------------------------------------------------------------------------------------------------------

CLAIMER = """
import asyncio, sys
from pathlib import Path
from tests.contract.store_bench import lease
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.ids import RunId, new_token
from toolfleet.schemas.ports import Transition
from toolfleet.workers.machine import MACHINE

async def main():
    store = SqlStore(sys.argv[1], MACHINE)
    run_ids = [RunId(line) for line in Path(sys.argv[2]).read_text().split()]
    won = 0
    for run_id in run_ids:
        (applied,) = await store.transact([Transition(run_id, lease(run_id, 1, new_token()))])
        won += applied.missed is None
    await store.aclose()
    print(won)

asyncio.run(main())
"""


def _run(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_claim_two_hundred_runs_each_without_a_lock_error(
    url: str, tmp_path: Path
) -> None:  # B101
    runs = [new_run() for _ in range(200)]

    async def story() -> None:
        async with opened(url) as store:
            await store.submit(runs)

    asyncio.run(story())
    listed = tmp_path / "runs.txt"
    listed.write_text("\n".join(run.run_id for run in runs))

    processes = [_run(CLAIMER, url, str(listed)) for _ in range(8)]
    ended = [process.communicate(timeout=100) for process in processes]

    assert [error for _, error in ended] == [""] * 8
    assert sum(int(out) for out, _ in ended) == 200, "each run was claimed once"


WRITER = """
import asyncio, sys
from tests.contract.store_bench import lease, new_run, proposed, replied, settled
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.ids import new_token
from toolfleet.schemas.ports import Transition
from toolfleet.workers.machine import MACHINE

async def one(store):
    while True:
        new, token = new_run(), new_token()
        await store.submit([new])
        print(new.run_id, flush=True)
        await store.transact([Transition(new.run_id, lease(new.run_id, 1, token))])
        (out,) = await store.transact([Transition(new.run_id, replied(new.run_id, 1, token, proposed(2)))])
        await store.transact([Transition(new.run_id, settled(out.state.calls))])

async def main():
    store = SqlStore(sys.argv[1], MACHINE)
    await asyncio.gather(*(one(store) for _ in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("accepted", [5, 40, 111])
def test_a_database_whose_writer_was_killed_is_whole_and_has_every_accepted_run(
    url: str, accepted: int
) -> None:
    process = _run(WRITER, url)
    assert process.stdout is not None and process.stderr is not None
    told_ids = [process.stdout.readline().strip() for _ in range(accepted)]
    process.send_signal(signal.SIGKILL)
    told_ids += process.stdout.read().split()
    process.wait()
    process.stdout.close()
    process.stderr.close()

    async def story() -> None:
        async with opened(url) as store:
            for run_id in told_ids:
                view = await store.run(RunId(run_id))
                assert view is not None, "an accepted run is never lost"
                assert view.state.commands, "an open run has a command row"
                open_calls = {call.call_id for call in view.state.open_calls}
                assert open_calls == {row.call_id for row in view.state.commands if row.is_exec}
                assert view.state.event_count == len(await store.events(RunId(run_id)))
                assert view.state.item_count == len(await store.items(RunId(run_id)))
            assert (await claim(store, RunId(told_ids[-1]))).now_s > 0

    asyncio.run(story())
    with raw(url) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


FORKER = """
import asyncio, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads around is what is shown here
from tests.contract.store_bench import lease, new_run
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.ids import new_token
from toolfleet.schemas.ports import Transition
from toolfleet.workers.machine import MACHINE

store = SqlStore(sys.argv[1], MACHINE)
runs = [new_run() for _ in range(50)]
asyncio.run(store.submit(runs))

async def work():
    won = 0
    for run in runs:
        (applied,) = await store.transact([Transition(run.run_id, lease(run.run_id, 1, new_token()))])
        won += applied.missed is None
        assert (await store.run(run.run_id)).info.run_id == run.run_id
    await store.aclose()
    return won

children = []
for _ in range(4):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writing, str(asyncio.run(work())).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    children.append((pid, reading))
won = [int(os.read(reading, 10)) for _, reading in children]
assert [os.waitpid(pid, 0)[1] for pid, _ in children] == [0] * 4
assert sum(won) == 50, won
assert asyncio.run(store.counts())["leases"] == 50
asyncio.run(store.aclose())
"""


def test_children_of_a_fork_open_connections_of_their_own(url: str) -> None:  # B099
    process = _run(FORKER, url)
    _, error = process.communicate(timeout=100)

    assert (process.returncode, error) == (0, "")
    with raw(url) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_kept_results_whose_time_is_over_are_deleted_as_others_are_kept(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        for number in range(CLEAN_EVERY - 1):
            await bench.store.keep_result(f"old{number}", tenant="t", tool="get", body="x", ttl_s=1)
        bench.clock.advance(2)
        await bench.store.keep_result("new", tenant="t", tool="get", body="x", ttl_s=1)

        with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as database:
            assert database.execute("SELECT key FROM cached_results").fetchall() == [("new",)]

    play(story, sqlite_bench, tmp_path)
