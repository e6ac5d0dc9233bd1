"""Every guard of the machine is needed: without it, a quick test fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.machine_mutants import CAUGHT, MISSED, MUTANTS, source_of


def test_a_mutant_replaces_one_place_and_is_a_program() -> None:
    for mutant in MUTANTS:
        compile(source_of(mutant), mutant.module, "exec")

    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.timeout(420)  # 130 mutants, two at a time, on a machine that does other things as well
def test_no_guard_of_the_machine_can_be_taken_out_unnoticed() -> None:
    driver = Path(__file__).with_name("machine_mutants.py")

    ran = subprocess.run(
        [sys.executable, str(driver)], capture_output=True, text=True, timeout=400, check=True
    )

    came_to = dict(json.loads(line) for line in ran.stdout.splitlines())
    assert came_to.pop("") == MISSED, f"the machine as it stands fails its own tests\n{ran.stderr}"
    assert set(came_to) == {mutant.name for mutant in MUTANTS}
    hung = -14  # killed by its alarm
    unnoticed = {name: code for name, code in came_to.items() if code not in (CAUGHT, hung)}
    assert not unnoticed, f"{unnoticed}\n{ran.stderr}"
