"""A tool whose module takes its time to import in a child, as modules with heavy libraries do."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from toolfleet import ToolContext, tool

if "pytest" not in sys.modules:  # in a child of the pool
    threading.Event().wait(3)


@tool(tier="medium", effect=True)
def pay(ctx: ToolContext) -> str:
    """Act once."""
    with Path(str(ctx.context["ledger"])).open("a") as ledger:
        ledger.write(f"{ctx.call_id}\n")
    return "paid"
