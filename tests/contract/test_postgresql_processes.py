"""One PostgreSQL and several processes or long waits: forks, connections that are idle, and who holds what meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tests import servers
from tests.contract.store_bench import lease, new_run, opened, replied, state_of, until, watching
from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.ids import new_token
from toolfleet.schemas.outcomes import RunStatus
from toolfleet.schemas.ports import Transition
from toolfleet.workers.leases import Leases

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def url(postgresql: servers.Server) -> str:
    return servers.new_database(postgresql)


# The store is opened at import, asked once in the parent, and used by forked children while the parent goes on. Every
# backend that a process speaks to is noted at each checkout, so one that two processes share is seen.
FORKER: Final = """
import asyncio, json, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads around is what is shown here
from sqlalchemy import event
from sqlalchemy.pool import Pool
from tests.contract.store_bench import lease, new_run
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.ids import new_token
from toolfleet.schemas.ports import Transition
from toolfleet.workers.machine import MACHINE

CHILDREN, QUERIES = 4, 200
used = set()
event.listen(Pool, "checkout", lambda raw, record, proxy: used.add(raw.info.backend_pid))
store = SqlStore(sys.argv[1], MACHINE, role="forked")
runs = [new_run() for _ in range(QUERIES // 2)]
asyncio.run(store.submit(runs))
assert asyncio.run(store.run(runs[0].run_id)) is not None

async def work():
    won = 0
    for run in runs:
        (applied,) = await store.transact([Transition(run.run_id, lease(run.run_id, 1, new_token()))])
        won += applied.missed is None
        assert (await store.run(run.run_id)).info.run_id == run.run_id
    return won

children = []
for number in range(CHILDREN):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        parents = used.copy()
        used.clear()
        won = asyncio.run(work())
        assert not used & parents
        os.write(writing, json.dumps([won, sorted(used)]).encode())
        if number % 2:
            os._exit(0)
        sys.exit(0)  # with all that an interpreter does at its end, connections of the parent in its hands
    os.close(writing)
    children.append((pid, reading))
asyncio.run(work())
told = [json.loads(os.read(reading, 65536) or "[0, []]") for _, reading in children]
codes = [os.waitpid(pid, 0)[1] for pid, _ in children]
assert len(asyncio.run(store.runs(limit=1000))) == len(runs), "the parent's connections are as they were"
asyncio.run(store.aclose())
print(json.dumps({"codes": codes, "told": told, "parent": sorted(used)}))
"""


def test_no_connection_is_used_by_two_processes_after_a_fork(url: str) -> None:  # B099
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKER, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (process.returncode, process.stderr) == (0, "")
    seen = json.loads(process.stdout)
    assert seen["codes"] == [0] * 4
    backends = [*(backends for _, backends in seen["told"]), seen["parent"]]
    assert all(backends) and len({pid for each in backends for pid in each}) == sum(map(len, backends))
    with psycopg.connect(url) as connection:
        leased = connection.execute("SELECT count(*) FROM commands WHERE token IS NOT NULL").fetchone()
    assert leased == (100,), "each run was claimed once"


def test_a_long_model_call_holds_no_transaction_and_a_table_can_be_changed(url: str) -> None:  # B103
    """The lease of the call is renewed meanwhile, as a worker does it."""
    readers = 2

    async def story() -> None:
        with watching(url) as watcher:
            async with opened(url, readers=readers, role="decision") as store:
                asking, answered = asyncio.Event(), asyncio.Event()
                deciding = asyncio.ensure_future(_decide(store, asking, answered))
                await asking.wait()
                ((asked_at,),) = watcher.ask("SELECT clock_timestamp()")
                commits = store.commits

                def renewed_three_times() -> bool:
                    still_open = watcher.ask(
                        "SELECT pid, state, query FROM pg_stat_activity WHERE datname = current_database()"
                        " AND application_name LIKE 'toolfleet/%%' AND xact_start < %s",
                        asked_at,
                    )
                    assert still_open == [], "a transaction of before the model was asked"
                    assert len(watcher.sessions("decision/")) <= readers + 1
                    return store.commits >= commits + 3

                await until(renewed_three_times)
                await asyncio.to_thread(_alter, url)
                assert len(watcher.sessions("decision/")) <= readers + 1
                answered.set()

                assert (await deciding) is RunStatus.COMPLETED

    asyncio.run(story())


async def _decide(store: SqlStore, asking: asyncio.Event, answered: asyncio.Event) -> RunStatus:
    new, token = new_run(), new_token()
    await store.submit([new])
    asked = lease(new.run_id, 1, token)
    await store.transact([Transition(new.run_id, asked)])
    leases = Leases(store, SystemClock(), lease_s=0.3)
    renewing = asyncio.ensure_future(leases.run())
    assert await store.conversation(new.run_id) is not None
    asking.set()
    await leases.guard(new.run_id, asked.command_id, token, answered.wait(), deadline_s=60.0)
    renewing.cancel()
    (applied,) = await store.transact([Transition(new.run_id, replied(new.run_id, 1, token, text="done"))])
    return state_of(applied).status


def _alter(url: str) -> None:
    """As a migration does beside a fleet that works: no lock is waited for longer than two seconds."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '2s'")
        connection.execute("ALTER TABLE runs ADD COLUMN later text")
        connection.execute("ALTER TABLE commands ADD COLUMN later text")
