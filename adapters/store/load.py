"""Reads whole run states, set-wise: locked for transitions, or plain for views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Select, select

from toolfleet.adapters.store import codec, ledger_rows
from toolfleet.adapters.store.dialect import database_now, members
from toolfleet.adapters.store.tables import calls, commands, run_inputs, runs
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.outcomes import TurnPhase
from toolfleet.schemas.run import CallState, RunState

RUNS: Final = (
    select(runs, run_inputs.c.limits, run_inputs.c.trace)
    .join(run_inputs, run_inputs.c.run_id == runs.c.id)
    .where(members(runs.c.id, "run_ids"))
    .order_by(runs.c.id)
)
COMMANDS: Final = (
    select(commands).where(members(commands.c.run_id, "run_ids")).order_by(commands.c.run_id, commands.c.id)
)
# Locks in the order run, command (PROTOCOL R2): runs by id, commands by run and id. Renewals, which lock commands of
# many runs and no run, keep to the same order, so no two transactions wait for each other.
LOCKED_RUNS: Final = RUNS.with_for_update(of=runs, key_share=True)  # FOR NO KEY UPDATE
LOCKED_COMMANDS: Final = COMMANDS.with_for_update()
CALLS: Final = (
    select(calls)
    .join(runs, (runs.c.id == calls.c.run_id) & (runs.c.turn == calls.c.turn))
    .where(members(calls.c.run_id, "run_ids"))
    .order_by(calls.c.run_id, calls.c.position)
)
NOW: Final = select(database_now())


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run as it was found."""

    state: RunState
    tenant: str
    trace: dict[str, str]


def load(connection: Connection, run_ids: Sequence[RunId], *, lock: bool) -> dict[RunId, Loaded]:
    """The runs that exist. With `lock`, locked, in id order; what is read depends on locked rows only (R3)."""
    if not run_ids:
        return {}
    asked = {"run_ids": sorted(set(run_ids))}
    found = connection.execute(LOCKED_RUNS if lock else RUNS, asked).mappings().all()
    if not found:
        return {}
    rows_of = _commands(connection, LOCKED_COMMANDS if lock else COMMANDS, asked)
    with_calls = [row["id"] for row in found if row["phase"] != TurnPhase.DECIDING]
    calls_of = _calls(connection, with_calls)
    loaded: dict[RunId, Loaded] = {}
    for row in found:
        run_id = RunId(row["id"])
        state = codec.run_state(row, calls_of[run_id], rows_of[run_id])
        loaded[run_id] = Loaded(state, row["tenant"], orjson.loads(row["trace"]))
    return loaded


def _commands(
    connection: Connection, statement: Select[Any], asked: dict[str, Any]
) -> dict[str, list[CommandRow]]:
    of_run: dict[str, list[CommandRow]] = defaultdict(list)
    for row in connection.execute(statement, asked).mappings():
        of_run[row["run_id"]].append(codec.command_row(row))
    return of_run


def _calls(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[CallState]]:
    of_run: dict[str, list[CallState]] = defaultdict(list)
    if run_ids:
        for row in connection.execute(CALLS, {"run_ids": run_ids}).mappings():
            of_run[row["run_id"]].append(codec.call_state(row))
        ledger_rows.attach(connection, of_run)
    return of_run


def database_time(connection: Connection) -> float:
    """Now, by the database's clock."""
    return float(connection.execute(NOW).scalar_one())
