"""Takes out each guard in turn and names a test that fails: `make guards` writes docs/guards.json, from which the table in
docs/guarantees.md is made.

Nothing is taken out in a way of its own: guards of the machine are the mutants of tests/unit/machine_mutants.py, those of
handlers and of the protocol the mutations of tests/simulation, those of the database a statement or an index, which this
module takes out as a plugin of pytest (GUARD_REMOVED names it).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
MODULES: Final = (
    "effect",
    "approval",
    "present",
    "lease",
    "stop",
    "deadline",
)  # of the machine: what holds effects
QUICK: Final = (
    "ledger",
    "deadline",
    "fences",
    "stops",
    "turns",
    "answers",
    "model",
    "repeats",
)  # the likely one first
HANGS_AFTER_S: Final = 60

BARRIERS: Final = "tests/contract/test_postgresql_barriers.py"
OF_LEDGER: Final = "tests/contract/test_ledger_barriers.py"
DATABASE: Final[dict[str, tuple[str, str]]] = {
    "the collector's lock": (
        "who settles counts the open calls without locking run and rows",
        f"{BARRIERS}::test_two_collectors_with_the_last_two_results_merge_once[as-named-both-wait-for-the-run]",
    ),
    "the index of held keys": (
        "the database takes two effects under one key",
        f"{OF_LEDGER}::test_of_two_claims_of_one_key_in_two_runs_one_sends[as-named]",
    ),
    "the lock of a claim": (
        "a claim and a cancel look at the run without locking it",
        f"{OF_LEDGER}::test_a_claim_and_a_cancel_exclude_each_other[as-named-both-wait-for-the-run]",
    ),
}


# -- as a plugin: guards of the database -----------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Takes out the guard GUARD_REMOVED names."""
    removed = os.environ.get("GUARD_REMOVED")
    if removed in ("the collector's lock", "the lock of a claim"):
        from toolfleet.adapters.store import load

        load.LOCKED_RUNS, load.LOCKED_COMMANDS = load.RUNS, load.COMMANDS  # type: ignore[misc]
    elif removed == "the index of held keys":
        from tests import servers

        servers.new_database = functools.partial(_without_index, servers.new_database)


def _without_index(new_database: Any, server: Any, **options: Any) -> str:
    import psycopg

    url: str = new_database(server, **options)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("DROP INDEX ix_effects_held")
    return url


def _of_database() -> Iterator[dict[str, str]]:
    for name, (what, test) in DATABASE.items():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.guards", "-p", "no:randomly", test]
        with_it = _passes(command, None)
        assert with_it, f"{test} fails as it is"
        yield _row("database", name, what, "" if _passes(command, name) else test)


def _passes(command: list[str], removed: str | None) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOOLFLEET_REQUIRE": "postgresql"}
    if removed is not None:
        environment["GUARD_REMOVED"] = removed
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode == 0


# -- guards of the machine ---------------------------------------------------------------------------------------------------


def _of_machine() -> Iterator[dict[str, str]]:
    from tests.unit.machine_mutants import MUTANTS

    for mutant in MUTANTS:
        if mutant.module in MODULES:
            what = " ".join(mutant.old.split())
            yield _row("machine", mutant.name, f"{mutant.module}.py: {what}", _noticed_by(mutant))


def _noticed_by(mutant: Any) -> str:
    """The test that fails first with the machine changed; asked in a child, for it changes what is imported."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(HANGS_AFTER_S)
        os.write(writing, _first_failure(mutant).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        named = pipe.read()
    os.waitpid(child, 0)
    return named


def _first_failure(mutant: Any) -> str:
    import importlib

    from tests.unit.machine_mutants import _Finder, _tests

    sys.meta_path.insert(0, _Finder(mutant))  # type: ignore[arg-type]
    for name in QUICK:
        for test in _tests(importlib.import_module(f"tests.unit.test_machine_{name}")):
            try:
                test()
            except Exception:  # noqa: BLE001  # whatever it is, this test noticed
                return f"tests/unit/test_machine_{name}.py::{test.func.__name__}"  # type: ignore[attr-defined]
    return ""


# -- guards of handlers and of the protocol ------------------------------------------------------------------------------------


def _of_simulation() -> Iterator[dict[str, str]]:
    import pytest

    from tests.simulation.mutations import MUTATIONS
    from tests.simulation.test_simulation import AIMED, MUTANT_SEEDS, SHARD_SEEDS
    from tests.simulation.world import simulate

    path = "tests/simulation/test_simulation.py"
    for name, (mutation, word) in MUTATIONS.items():
        found = ""
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            for aimed in sorted(AIMED, key=lambda one, word=word: word not in one):
                if simulate(0, AIMED[aimed]).violations:
                    found = f"{path}::test_a_set_up_aimed_at_one_place_breaks_no_promise[{aimed}]"
                    break
            else:
                seed = next((one for one in range(MUTANT_SEEDS) if simulate(one).violations), None)
                if seed is not None:
                    found = f"{path}::test_no_seed_breaks_a_promise[{seed // SHARD_SEEDS}]"
        what = " ".join((mutation.__doc__ or "").split())
        yield _row("simulation", name.replace("_", " "), what, found)


def _row(kind: str, name: str, what: str, test: str) -> dict[str, str]:
    print(f"{kind}: {name}: {test or 'NOBODY NOTICED'}", flush=True)
    return {"kind": kind, "guard": name, "without": what, "test": test}


def known() -> list[tuple[str, str]]:
    """(kind, name) of every guard, as the table has to list them."""
    from tests.simulation.mutations import MUTATIONS
    from tests.unit.machine_mutants import MUTANTS

    return [
        *(("machine", one.name) for one in MUTANTS if one.module in MODULES),
        *(("simulation", name.replace("_", " ")) for name in MUTATIONS),
        *(("database", name) for name in DATABASE),
    ]


def main() -> int:
    """Writes the table's rows; exit 1 where a guard was taken out and no test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "guards.json")
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    out = parser.parse_args().out
    rows = [*_of_machine(), *_of_simulation(), *_of_database()]
    out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    unnoticed = [row["guard"] for row in rows if not row["test"]]
    if unnoticed:
        print(f"no test failed without: {', '.join(unnoticed)}", file=sys.stderr)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
