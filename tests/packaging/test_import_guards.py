"""A linked folder has one import name, and importing the package costs next to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINKED = ("workers", "queues", "adapters", "schemas", "examples")
HEAVY = (
    "celery",
    "openai",
    "sqlalchemy",
    "redis",
    "kombu",
    "alembic",
    "aiohttp",
    "pydantic",
    "typer",
    "rich",
)

# Ours, and the little of the standard library that lazy names need. A single eager import of one of our
# modules brings pydantic, which is several hundred; counted in modules because time depends on the machine.
MODULES_MAX = 60


@pytest.mark.parametrize("name", LINKED)
def test_the_bare_name_is_refused_and_the_right_one_is_named(root: Path, name: str) -> None:
    done = _run(f"import {name}", cwd=root)

    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith(f"ImportError: import toolfleet.{name} instead")


@pytest.mark.parametrize("name", LINKED)
def test_the_bare_name_is_refused_from_below_too(root: Path, name: str) -> None:
    done = _run(f"import toolfleet.{name}; from {name} import anything", cwd=root)

    assert done.returncode != 0
    assert f"import toolfleet.{name} instead" in done.stderr


def test_importing_the_package_brings_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import json, sys; before = set(sys.modules); import toolfleet;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )

    done = _run(code, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    added = json.loads(done.stdout)
    assert "toolfleet" in added
    assert {name.split(".")[0] for name in added} & set(HEAVY) == set()
    assert len(added) <= MODULES_MAX, added


def test_every_public_name_can_be_had(tmp_path: Path) -> None:
    code = (
        "import json, toolfleet;"
        "print(json.dumps([[n, getattr(toolfleet, n).__class__.__name__] for n in toolfleet.__all__]))"
    )

    done = _run(code, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Fleet" in dict(json.loads(done.stdout))


def test_a_name_that_is_not_there_is_an_attribute_error(tmp_path: Path) -> None:
    done = _run("import toolfleet; toolfleet.no_such_name", cwd=tmp_path)

    assert "AttributeError" in done.stderr.strip().splitlines()[-1]


def _run(code: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the code as a user would, with the working folder on the path and no pytest around."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
