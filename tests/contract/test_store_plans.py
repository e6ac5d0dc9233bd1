"""On SQLite, nothing that is asked all the time looks at every row that was ever kept."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from benchmarks import store_growth
from toolfleet.adapters.store.sql_store import SqlStore

KEPT = {"runs", "run_inputs", "turns", "calls", "results", "items", "usage", "steps", "events", "effects"}
NEWEST_FIRST = "ORDER BY runs.id DESC"  # walks down an index, and stops after a page


async def _asked(url: str) -> dict[str, Any]:
    """Every statement of a run's life, of the keeper and of who looks on: its parameters."""
    store = SqlStore(url, store_growth.MACHINE)
    found: dict[str, Any] = {}

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        found.setdefault(statement, parameters[0] if many or isinstance(parameters, list) else parameters)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        made = store_growth.made(10)
        await store_growth.life(store, made, lambda _name, _seconds: None)
        for ask in store_growth.questions(store, made[5].run_id).values():
            await ask()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        await store.aclose()
    return found


def test_no_statement_reads_a_whole_table(store_url: str) -> None:
    asked = asyncio.run(_asked(store_url))
    assert len(asked) > 30
    scans: dict[str, list[str]] = {}
    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as database:
        for statement, parameters in asked.items():
            if statement.partition(" ")[0] not in ("SELECT", "UPDATE", "DELETE", "WITH"):
                continue
            plan = [step for *_, step in database.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            whole = [step for step in plan if step.startswith("SCAN") and step.split()[1] in KEPT]
            if whole and NEWEST_FIRST not in statement:
                scans[statement] = whole

    assert scans == {}


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    store_growth.upgrade(url)
    return url
