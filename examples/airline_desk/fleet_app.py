"""The app of the demo's worker processes: the same fleet as in the demo's own process."""

from __future__ import annotations

import os

from toolfleet.examples.airline_desk.demo import build_fleet
from toolfleet.examples.airline_desk.processes import APPROVERS, ENFORCE, MODEL_NAME, SEED, URL

fleet, _ = build_fleet(
    database=None,
    broker=None,
    url=os.environ[URL],
    model=os.environ[MODEL_NAME],
    seed=int(os.environ[SEED]),
    enforce=os.environ.get(ENFORCE) == "1",
    approvers=os.environ.get(APPROVERS) == "1",
)
