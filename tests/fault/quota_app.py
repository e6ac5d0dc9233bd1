"""The fleet of test_governor_fleet.py, loaded by its worker processes: one agent without tools, one real client.

The first message of a run says how many tokens the server (quota_server.py) counts for it.
"""

from __future__ import annotations

import os

from toolfleet import Fleet, Limits, Price

AGENT = "desk"
MODEL = "m1"

fleet = Fleet()
fleet.agent(
    AGENT,
    model=MODEL,
    price=Price(input_usd=0.0, output_usd=0.0),
    limits=Limits(output_tokens_max=int(os.environ.get("QUOTA_OUTPUT_TOKENS", "512"))),
)
