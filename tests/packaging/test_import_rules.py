"""The import rules hold, and each of them notices what it is there for.

A rule that nothing can break looks the same as one that is kept, so every contract is broken here once, in a
copy of the tree, by one planted module.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Plant:
    file: str
    code: str
    breaks: str


# Each imports a package's own __init__, which imports nothing, so no second contract breaks by the way.
PLANTS = {
    "a worker imports an adapter": Plant(
        "workers/decision/planted.py", "import toolfleet.adapters", "one direction"
    ),
    "an adapter imports a worker": Plant(
        "adapters/llm/planted.py", "import toolfleet.workers", "one direction"
    ),
    "a schema imports a queue": Plant("schemas/planted.py", "import toolfleet.queues", "one direction"),
    "the machine reads the clock": Plant(
        "workers/machine/planted.py", "import time", "the machine, the merge and the schemas are pure"
    ),
    "a schema draws a random number": Plant(
        "schemas/planted.py", "import random", "the machine, the merge and the schemas are pure"
    ),
    "a worker imports another": Plant(
        "workers/decision/planted.py", "import toolfleet.workers.executor", "workers talk by messages"
    ),
    "the keeper imports a worker": Plant(
        "workers/keeper/planted.py", "import toolfleet.workers.collector", "workers talk by messages"
    ),
    "a queue imports celery": Plant("queues/planted.py", "import celery", "celery stays at the edge"),
    "a worker speaks SQL": Plant(
        "workers/keeper/planted.py",
        "import sqlalchemy",
        "only adapters.llm speaks to models, only adapters.store speaks SQL",
    ),
    "the message layer speaks to a model": Plant(
        "adapters/broker/planted.py",
        "import openai",
        "only adapters.llm speaks to models, only adapters.store speaks SQL",
    ),
    "the message layer imports the store": Plant(
        "adapters/broker/planted.py", "import toolfleet.adapters.store", "no adapter family knows another"
    ),
    "a worker makes spans itself": Plant(
        "workers/keeper/planted.py",
        "import opentelemetry",
        "only adapters.telemetry and toolfleet.telemetry know how telemetry leaves",
    ),
    "the product imports its tests": Plant(
        "queues/planted.py", "import tests.simulation", "nothing imports tests"
    ),
}


def test_the_import_rules_hold(root: Path) -> None:
    verdicts, output = _lint(root)

    assert [name for name, verdict in verdicts.items() if verdict != "KEPT"] == [], output
    assert set(verdicts) == _contracts(root)


@pytest.mark.parametrize("case", PLANTS)
def test_a_planted_import_breaks_exactly_its_contract(project_copy: Path, case: str) -> None:
    plant = PLANTS[case]
    (project_copy / plant.file).write_text(plant.code + "\n")

    verdicts, output = _lint(project_copy)

    assert [name for name, verdict in verdicts.items() if verdict == "BROKEN"] == [plant.breaks], output
    assert "planted" in output


def test_every_contract_is_broken_by_a_plant(root: Path) -> None:
    assert {plant.breaks for plant in PLANTS.values()} == _contracts(root)


def _contracts(root: Path) -> set[str]:
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    return {contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]}


def _lint(folder: Path) -> tuple[dict[str, str], str]:
    """Contract name -> KEPT or BROKEN, and the whole output. The folder's own tree goes before the installed one."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache", "pyproject.toml"]
    # wide, so that no contract's name is wrapped
    env = os.environ | {"COLUMNS": "250", "NO_COLOR": "1", "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, check=False, cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )
    output = done.stdout + done.stderr
    found = re.findall(r"^(.+) (KEPT|BROKEN)$", re.sub(r"\x1b\[[0-9;]*m", "", output), re.MULTILINE)
    assert found, output
    return dict(found), output
