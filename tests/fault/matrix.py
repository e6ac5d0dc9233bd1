"""Every fault and every stack: which cells there are, which do not apply and why, and where results are noted.

`make chaos` runs all of them and writes docs/faults.json, from which docs/faults.md is made. A cell that was neither
passed nor declared here is empty, and an empty cell fails.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from toolfleet.workers.points import POINTS

STACKS: Final = ("streams", "rabbitmq", "embedded")

OUTAGES: Final = (
    "decide frozen past its lease",
    "exec frozen past its lease",
    "collect frozen past its lease",
    "keep frozen past its lease",
    "broker killed and started again",
    "broker emptied",
    "broker connections cut three times in 3 s",
    "database connections cut",
    "database restarted at once",
    "rolling restart of all roles",
    "release N+1 beside N",
    "random worker killed every second",
)

ONE_PROCESS: Final = (
    "one process: nothing else could take over while it is frozen, and its lock keeps others out"
)
NO_BROKER: Final = "the queues are inside the process"
NO_SERVER: Final = "SQLite is a file: there is no connection to cut and no server to restart"

NOT_APPLICABLE: Final[dict[tuple[str, str], str]] = {
    **{(fault, "embedded"): ONE_PROCESS for fault in OUTAGES if fault.endswith("past its lease")},
    **{(fault, "embedded"): NO_BROKER for fault in OUTAGES if fault.startswith("broker ")},
    **{(fault, "embedded"): NO_SERVER for fault in OUTAGES if fault.startswith("database ")},
    ("rolling restart of all roles", "embedded"): "one process: a restart is a stop and a start",
    ("release N+1 beside N", "embedded"): "one process: there is never a second release beside it",
    (
        "random worker killed every second",
        "embedded",
    ): "one process: tests/fault/test_kill_demo.py kills all of it",
}

POINT_CELLS: Final = [(kind, point) for kind in STACKS for point in POINTS]
OUTAGE_CELLS: Final = [
    (kind, fault) for kind in STACKS for fault in OUTAGES if (fault, kind) not in NOT_APPLICABLE
]

# What `make test` runs: one point of each role, on each broker in turn.
SELECTED: Final = frozenset(
    {
        ("streams", "decide.after_model"),
        ("streams", "exec.after_tool"),
        ("streams", "collect.after_settle"),
        ("streams", "keeper.after_publish"),
        ("rabbitmq", "decide.after_commit"),
        ("rabbitmq", "exec.after_lease"),
    }
)


def note_cell(fault: str, kind: str) -> None:
    """This cell passed: added to the file FAULT_RESULTS names, if it names one."""
    path = os.environ.get("FAULT_RESULTS")
    if path:
        with Path(path).open("a", encoding="utf-8") as out:
            out.write(json.dumps({"fault": fault, "stack": kind, "result": "passed"}) + "\n")
