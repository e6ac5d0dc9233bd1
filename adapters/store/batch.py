"""Carries out the jobs of one write transaction: lock, load, reduce, write (PROTOCOL R1 to R6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select

from toolfleet.adapters.store import access_rows, ledger_rows, rules
from toolfleet.adapters.store.apply import Writes
from toolfleet.adapters.store.dialect import members
from toolfleet.adapters.store.load import Loaded, load
from toolfleet.adapters.store.rules import Known
from toolfleet.adapters.store.tables import run_inputs, runs
from toolfleet.adapters.store.writer import Job
from toolfleet.schemas.events import Submitted
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.ports import Applied, Machine, Submission, Transition
from toolfleet.schemas.run import NewRun

UNKNOWN_RUN: Final = "unknown run"

_KNOWN: Final = select(
    runs.c.id, runs.c.tenant, runs.c.status, runs.c.idempotency_key, run_inputs.c.request_hash
).join(run_inputs, run_inputs.c.run_id == runs.c.id)
KNOWN_BY_ID: Final = _KNOWN.where(members(runs.c.id, "run_ids"))
KNOWN_BY_KEY: Final = _KNOWN.where(
    runs.c.tenant == bindparam("tenant"), members(runs.c.idempotency_key, "keys")
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Knows how to carry out each kind of job: a transition, a tuple of new runs, or any other work."""

    machine: Machine
    time: Callable[[Connection], float]

    def carry(self, connection: Connection, jobs: Sequence[Job]) -> list[Any]:
        """The outcome of each job, in order."""
        if len(jobs) == 1 and jobs[0].alone:
            return [jobs[0].payload(connection)]
        asked = [job.payload.run_id for job in jobs if isinstance(job.payload, Transition)]
        loaded = load(connection, asked, lock=True)
        writes = Writes(self.machine, self.time(connection))  # after the locks: R4
        by_id, by_key = self._known(connection, jobs)
        in_flight = _in_flight(connection, jobs)
        outcomes: list[Any] = []
        for job in jobs:
            if isinstance(job.payload, Transition):
                asked_for = job.payload
                found = loaded.get(asked_for.run_id)
                if found is not None:
                    event = ledger_rows.informed(
                        connection, asked_for.event, found.state, tenant=found.tenant, now=writes.now
                    )
                    asked_for = Transition(asked_for.run_id, event)
                outcomes.append(self._transition(writes, asked_for, found))
            else:
                outcomes.append(self._submit(writes, job.payload, by_id, by_key, in_flight))
        writes.flush(connection)
        return outcomes

    def _transition(self, writes: Writes, asked: Transition, found: Loaded | None) -> Applied | Exception:
        now = writes.now
        if found is None:
            return Applied(None, None, UNKNOWN_RUN, (), now)
        before = found.state
        try:
            step = self.machine.reduce(before, asked.event, now)
        except Exception as exc:  # noqa: BLE001 - nothing of it is written, and it is its caller's
            return exc
        writes.add(before, step, tenant=found.tenant, trace=found.trace)
        if step.missed is not None:
            return Applied(before, before, step.missed, (), now, step.records)
        rows = rules.written(before, step.state)
        publish = rules.publishable(rows, asked.run_id, found.trace, now)
        return Applied(step.state, before, None, tuple(publish), now, step.records)

    def _submit(
        self,
        writes: Writes,
        new_runs: Sequence[NewRun],
        by_id: dict[RunId, Known],
        by_key: dict[tuple[str, str], Known],
        in_flight: dict[str, int],
    ) -> list[Submission] | Exception:
        """T1 for all of them, or the reason why for none. Runs that are made are known to the jobs after."""
        try:
            answers = rules.admit(new_runs, by_id, by_key)
            fresh = [new for new, known in zip(new_runs, answers, strict=True) if known is None]
            rules.refuse_too_many(fresh, in_flight)
            steps = [self.machine.reduce(None, Submitted(new), writes.now) for new in new_runs]
        except Exception as exc:  # noqa: BLE001 - its caller's, as above
            return exc
        submissions: list[Submission] = []
        for new, known, step in zip(new_runs, answers, steps, strict=True):
            if known is not None:
                submissions.append(Submission(known.run_id, False, ()))
                continue
            writes.add_new(new, step)
            in_flight[new.tenant] = in_flight.get(new.tenant, 0) + 1
            made = Known(new.run_id, new.tenant, step.state.status, new.request_hash)
            by_id[new.run_id] = made
            if new.idempotency_key is not None:
                by_key[new.tenant, new.idempotency_key] = made
            publish = rules.publishable(step.state.commands, new.run_id, new.trace, writes.now)
            submissions.append(Submission(new.run_id, True, tuple(publish)))
        return submissions

    def _known(
        self, connection: Connection, jobs: Sequence[Job]
    ) -> tuple[dict[RunId, Known], dict[tuple[str, str], Known]]:
        """What is stored of the runs and keys that the new runs name. A terminal run needs no lock to stay so."""
        new_runs = [new for job in jobs if isinstance(job.payload, tuple) for new in job.payload]
        by_id: dict[RunId, Known] = {}
        by_key: dict[tuple[str, str], Known] = {}
        if not new_runs:
            return by_id, by_key
        named = {new.run_id for new in new_runs} | {new.previous_run_id for new in new_runs} - {None}
        for row in connection.execute(KNOWN_BY_ID, {"run_ids": sorted(filter(None, named))}):
            by_id[RunId(row.id)] = Known(RunId(row.id), row.tenant, row.status, row.request_hash)
        keys: dict[str, set[str]] = {}
        for new in new_runs:
            if new.idempotency_key is not None:
                keys.setdefault(new.tenant, set()).add(new.idempotency_key)
        for tenant, of_tenant in sorted(keys.items()):
            for row in connection.execute(KNOWN_BY_KEY, {"tenant": tenant, "keys": sorted(of_tenant)}):
                known = Known(RunId(row.id), row.tenant, row.status, row.request_hash)
                by_key[row.tenant, row.idempotency_key] = known
        return by_id, by_key


def _in_flight(connection: Connection, jobs: Sequence[Job]) -> dict[str, int]:
    """Of the tenants with a limit, for whom this transaction submits; nothing is asked for the others."""
    new_runs = [new for job in jobs if isinstance(job.payload, tuple) for new in job.payload]
    limited = {new.tenant for new in new_runs if new.in_flight_max is not None}
    return access_rows.in_flight(connection, sorted(limited)) if limited else {}
