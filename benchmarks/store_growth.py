"""Do the store's statements take longer the more runs it has kept? From 1,000 to 1,000,000 finished runs, on both databases.

    .venv/bin/python -m benchmarks.store_growth --out docs/growth.json

Two databases of a kind stand side by side, one with few finished runs and one with many. What workers, keepers and
readers ask is asked of the one and of the other by turns, so that both meet the same machine; the figures are medians
and their ratio. The many are copies, by SQL, of runs that the real machine took through their life: other ids, and
times spread over ten days.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Float, Table, create_engine, text

from benchmarks.store_transitions import life, new_run
from tests import servers
from toolfleet.adapters.store.engine import parse_url
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.adapters.store.tables import (
    approvals,
    effects,
    events,
    items,
    results,
    run_inputs,
    runs,
    steps,
    turns,
    usage,
)
from toolfleet.adapters.store.tables import calls as calls_table
from toolfleet.schemas.events import CancelRequested
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.ports import Transition
from toolfleet.schemas.run import NewRun
from toolfleet.workers.machine import MACHINE

TABLES: Final = (
    runs,
    run_inputs,
    turns,
    calls_table,
    results,
    items,
    usage,
    steps,
    events,
    effects,
    approvals,
)
OWN_KEYS: Final = frozenset({"id", "run_id", "call_id", "key"})  # texts that hold the digits of a run id
TEMPLATES: Final = 1_000  # finished runs that the copies are made of
CANCELLED_EVERY: Final = 100
TENANTS: Final = ("acme",) * 9 + ("globex",)
DAYS: Final = 10
BATCH: Final = 10  # transitions in one transaction
PAGE: Final = 50
RATIO_MAX: Final = 1.5  # of what is asked of the store all the time
BY_THE_DAY: Final = frozenset(
    {"quota: what a tenant uses"}
)  # grows with the calls of a day, not with what is kept


# -- what is stored ----------------------------------------------------------------------------------------------------


def made(count: int, first: int = 0) -> list[NewRun]:
    """Runs of two tenants and three agents."""
    return [
        replace(new_run(), tenant=TENANTS[n % len(TENANTS)], agent=f"agent-{n % 3}")
        for n in range(first, first + count)
    ]


async def _templates(store: SqlStore) -> None:
    for first in range(0, TEMPLATES, 100):
        fresh = made(100, first)
        cancelled = fresh[::CANCELLED_EVERY]
        ended = [new for n, new in enumerate(fresh) if n % CANCELLED_EVERY]
        await life(store, ended, lambda _name, _seconds: None)
        await store.submit(cancelled)
        await store.transact([Transition(new.run_id, CancelRequested("bench")) for new in cancelled])


LEDGER: Final = (
    """INSERT INTO effects (call_id, run_id, turn, tenant, tool, tier, key, state, attempt, send_by, asked_at, tries, doubt,
       approval_id, opened_at, changed_at)
       SELECT c.call_id, c.run_id, c.turn, r.tenant, c.tool, 'high', 'look_up:' || c.call_id, 'happened', 1, 0, 0, 0, false,
       'approval_' || c.call_id, r.created_at, r.finished_at
       FROM calls c JOIN runs r ON r.id = c.run_id WHERE c.position = 0""",
    """INSERT INTO approvals (id, run_id, turn, call_id, tenant, tool, tier, status, arguments, arguments_hash, summary,
       requested_by, requested_at, expires_at, steps, distinct_people, by_another, granted_by, decided_at, reason)
       SELECT approval_id, run_id, turn, call_id, tenant, tool, tier, 'granted', '{}', '', '', '', opened_at, opened_at, 1,
       false, false, '["x"]', changed_at, '' FROM effects""",
)


def _with_a_ledger(engine: Engine) -> None:
    """The first call of every run, as if it had been an effect that somebody approved."""
    with engine.begin() as connection:
        for statement in LEDGER:
            connection.execute(text(statement))


def _multiply(engine: Engine, copies: int) -> None:
    """`copies` more of every finished run, each at another time."""
    postgres = engine.dialect.name == "postgresql"
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TEMPORARY TABLE copies (k integer, stamp text, earlier double precision)")
        )
        now, span = time.time(), DAYS * 86_400.0
        rows = [
            {"k": k, "stamp": f"{int((now - span * k / copies) * 1000):012x}", "earlier": span * k / copies}
            for k in range(1, copies + 1)
        ]
        connection.execute(text("INSERT INTO copies VALUES (:k, :stamp, :earlier)"), rows)
        connection.execute(text("CREATE TEMPORARY TABLE kept AS SELECT id FROM runs"))
        if postgres:
            connection.execute(text("SET LOCAL synchronous_commit = off"))
        for table in TABLES:
            connection.execute(text(_copied(table)))
        connection.execute(text("DROP TABLE copies"))
        connection.execute(text("DROP TABLE kept"))
    if postgres:  # as autovacuum would, in the ten days
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))


def _copied(table: Table) -> str:
    run = "id" if table is runs else "run_id"
    names, values = [], []
    for column in table.columns:
        if column.name == "id" and table is steps:
            continue  # the database counts them
        one = f"t.{column.name}"
        if column.name in OWN_KEYS:
            one = f"replace({one}, substr(t.{run}, 5), copies.stamp || substr(t.{run}, 17))"
        elif column.name == "token":
            one = f"{one} || '-' || copies.k"
        elif isinstance(column.type, Float) and (column.name.endswith("_at") or column.name == "at"):
            one = f"{one} - copies.earlier"
        names.append(column.name)
        values.append(one)
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)} "
        f"FROM copies CROSS JOIN kept JOIN {table.name} t ON t.{run} = kept.id"
    )


async def _filled(url: str, finished: int) -> tuple[SqlStore, int]:
    """A store with that many finished runs, and how many rows of them there are."""
    upgrade(url)
    store = SqlStore(url, MACHINE)
    await _templates(store)
    engine = create_engine(parse_url(url))
    try:
        _with_a_ledger(engine)
        if finished > TEMPLATES:
            await asyncio.to_thread(_multiply, engine, finished // TEMPLATES - 1)
        with engine.connect() as connection:
            rows = sum(_count(connection, table) for table in TABLES)
            assert _count(connection, runs) == finished
    finally:
        engine.dispose()
    return store, rows


def _count(connection: Connection, table: Table) -> int:
    return int(connection.execute(text(f"SELECT count(*) FROM {table.name}")).scalar_one())


# -- what is asked -----------------------------------------------------------------------------------------------------


def questions(store: SqlStore, middle: RunId) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Of the keeper, and of who looks on. `middle`: a run half way down the list."""
    return {
        "keeper: rows that are due": lambda: store.due_rows(limit=100, broker="bench"),
        "keeper: expired leases": lambda: store.expired_leases(limit=100),
        "keeper: held leases": lambda: store.held_leases(limit=100),
        "keeper: overdue runs": lambda: store.overdue_runs(limit=100),
        "keeper: queue loads": store.loads,
        "quota: what a tenant uses": lambda: store.tenant_use("acme"),
        "list: newest runs": lambda: store.runs(limit=PAGE),
        "list: of a tenant": lambda: store.runs(limit=PAGE, tenant="globex"),
        "list: of a tenant, far down": lambda: store.runs(limit=PAGE, tenant="globex", before=middle),
        "list: of an agent": lambda: store.runs(limit=PAGE, agent="agent-1"),
        "list: cancelled": lambda: store.runs(limit=PAGE, status="cancelled"),
        "list: cancelled, of a tenant": lambda: store.runs(limit=PAGE, tenant="globex", status="cancelled"),
        "list: running, of a tenant": lambda: store.runs(limit=PAGE, tenant="acme", status="deciding"),
        "list: failed, of a tenant": lambda: store.runs(limit=PAGE, tenant="acme", status="failed"),
        "list: completed, of an agent and a tenant": lambda: store.runs(
            limit=PAGE, tenant="globex", agent="agent-2", status="completed"
        ),
        "list: of an agent nobody has": lambda: store.runs(limit=PAGE, tenant="acme", agent="nobody"),
        "list: approvals": lambda: store.approvals(limit=PAGE, tenant="acme"),
        "list: effects": lambda: store.effects(limit=PAGE, tenant="acme"),
        "one run": lambda: store.run(middle),
        "one run: its events": lambda: store.events(middle, limit=100),
        "one run: its items": lambda: store.items_page(middle, limit=100),
        "one run: its calls": lambda: store.results_page(middle, limit=100),
        "one run: its steps": lambda: store.steps(middle),
    }


async def _middle(store: SqlStore, finished: int) -> RunId:
    def read(connection: Connection) -> RunId:
        statement = text("SELECT id FROM runs ORDER BY id DESC LIMIT 1 OFFSET :n")
        return RunId(connection.execute(statement, {"n": finished // 2}).scalar_one())

    return await store._read(read)


async def _compared(few: tuple[SqlStore, int], many: tuple[SqlStore, int], rounds: int) -> dict[str, Any]:
    """Milliseconds by question: the median with few and with many, and their ratio."""
    seconds: dict[str, tuple[list[float], list[float]]] = {}
    asked = [questions(store, await _middle(store, finished)) for store, finished in (few, many)]
    for turn in range(rounds + 1):
        for side in ((0, 1), (1, 0))[turn % 2]:

            def note(name: str, took: float, side: int = side, first: bool = turn == 0) -> None:
                if not first:  # statements are compiled, and pages read, once
                    seconds.setdefault(name, ([], []))[side].append(took)

            store = (few, many)[side][0]
            await life(store, made(BATCH), note)
            for name, ask in asked[side].items():
                started = time.perf_counter()
                await ask()
                note(name, time.perf_counter() - started)
    medians = {
        name: [statistics.median(both[side]) * 1e3 for side in (0, 1)] for name, both in seconds.items()
    }
    return {
        name: {"few_ms": round(one, 3), "many_ms": round(two, 3), "ratio": round(two / one, 2)}
        for name, (one, two) in medians.items()
    }


# -- both databases ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _databases(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Two empty ones."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'few.db'}", f"sqlite:///{folder / 'many.db'}"
        return
    with servers.postgres_server(
        "-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB", durable=True
    ) as server:
        yield (
            servers.new_database(server, migrated=False),
            servers.new_database(server, migrated=False),
        )


async def _measured(kind: str, few: int, many: int, rounds: int, folder: Path) -> dict[str, Any]:
    with _databases(kind, folder) as urls:
        stores = [await _filled(url, finished) for url, finished in zip(urls, (few, many), strict=True)]
        try:
            print(f"{kind}: {stores[1][1]:,} rows", file=sys.stderr)
            figures = await _compared((stores[0][0], few), (stores[1][0], many), rounds)
        finally:
            for store, _ in stores:
                await store.aclose()
    return {"rows": [rows for _, rows in stores], "questions": figures}


def too_slow(measured: dict[str, Any]) -> dict[str, float]:
    """Ratios that are too large, by question."""
    ratios = {name: one["ratio"] for name, one in measured["questions"].items() if name not in BY_THE_DAY}
    return {name: ratio for name, ratio in ratios.items() if ratio > RATIO_MAX}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"]
    )
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    bench: dict[str, Any] = {
        "few": given.few,
        "many": given.many,
        "rounds": given.rounds,
        "cpus": os.cpu_count(),
    }
    for kind in given.databases:
        with tempfile.TemporaryDirectory() as folder:
            bench[kind] = asyncio.run(_measured(kind, given.few, given.many, given.rounds, Path(folder)))
        print(f"{kind}: too slow with many: {too_slow(bench[kind])}", file=sys.stderr)
    given.out.write_text(json.dumps(bench, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
