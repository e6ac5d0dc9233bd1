"""The data this example carries, read from the compressed files beside the code.

Each file is read once per process and the result is shared, so what is returned here must not be changed.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from toolfleet.examples.airline_desk.records import InitialRecords

DATA = Path(__file__).parent / "data"


@cache
def initial_records() -> InitialRecords:
    """The airline's database as it was before the first recorded call: 300 flights, 2,000 reservations, 500 users."""
    tables = _read_json("airline_db.json.gz")
    return InitialRecords(
        flights=tables["flights"], reservations=tables["reservations"], users=tables["users"]
    )


@cache
def tool_definitions() -> dict[str, dict[str, Any]]:
    """By tool name: `description` and `parameters` (JSON Schema), as the recorded model was shown them."""
    return {entry["function"]["name"]: entry["function"] for entry in _read_json("airline_tools.json.gz")}


@cache
def system_policy() -> str:
    """The policy text the recorded model worked under: the agent's instructions."""
    return (DATA / "airline_system.txt").read_text(encoding="utf-8")


def _read_json(name: str) -> Any:
    return json.loads(gzip.decompress((DATA / name).read_bytes()))
