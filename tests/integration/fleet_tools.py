"""Tools that do what tools do in production, for the tests of the whole loop. They run in child processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path
from typing import Any

from toolfleet import BusinessError, PermissionDenied, Retryable, ToolContext, tool


def _note(ctx: ToolContext) -> int:
    """Append one line to the run's ledger file; how many lines this call has now."""
    path = Path(str(ctx.context["ledger"]))
    with path.open("a") as ledger:
        ledger.write(f"{ctx.call_id} {ctx.attempt} {ctx.idempotency_key}\n")
    return sum(1 for line in path.read_text().splitlines() if line.startswith(f"{ctx.call_id} "))


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@tool
async def echo(text: str) -> dict[str, str]:
    """Give the text back."""
    return {"text": text}


def _wait_for_go(ctx: ToolContext) -> None:
    """Until the test makes the file `go` beside the ledger; the call's deadline bounds it."""
    while not Path(str(ctx.context["ledger"])).with_name("go").exists():
        threading.Event().wait(0.02)


@tool(timeout_s=60.0)
def waits_low(ctx: ToolContext) -> str:
    """Note that it has begun, and wait until it is told to go on."""
    _note(ctx)
    _wait_for_go(ctx)
    return "went on"


@tool(tier="medium", timeout_s=60.0)
def adds_medium(a: int, b: int) -> int:
    """Add, at a tier of its own."""
    return a + b


@tool(attempts_max=3)
def raises(ctx: ToolContext) -> None:
    """Fail with an exception that holds a secret."""
    _note(ctx)
    raise ValueError("password=hunter2")


@tool(attempts_max=3, timeout_s=0.3)
def hangs(ctx: ToolContext) -> None:
    """Never come back, whatever is thrown at it."""
    _note(ctx)
    while True:
        with contextlib.suppress(BaseException):
            threading.Event().wait()


@tool(attempts_max=9, timeout_s=0.4, call_timeout_s=1.0)
def hangs_for_a_while(ctx: ToolContext) -> None:
    """Never come back, and have a second for all of it."""
    _note(ctx)
    threading.Event().wait()


@tool(attempts_max=9, timeout_s=5, call_timeout_s=6)
def busy_for_long(ctx: ToolContext) -> None:
    """Ask for more patience than there is."""
    _note(ctx)
    raise Retryable("busy", retry_after_s=30)


@tool(attempts_max=2)
def exits(ctx: ToolContext) -> None:
    """End the process."""
    _note(ctx)
    os._exit(3)


@tool(attempts_max=5)
def segfaults(ctx: ToolContext) -> None:
    """Crash the process."""
    _note(ctx)
    ctypes.string_at(0)


@tool
def not_a_number() -> dict[str, float]:
    """Return what JSON does not have."""
    return {"mean": float("nan"), "max": float("inf"), "n": 3.0}


@tool
def not_json() -> Any:
    """Return an object."""
    return object()


@tool
def ten_megabytes() -> str:
    """Return too much."""
    return "x" * 10_000_000


@tool
def long_text() -> str:
    """Return more than a model is shown."""
    return "word " * 10_000


@tool
def refuses() -> None:
    """Say no for a business reason."""
    raise BusinessError("order 17 has been shipped", reason_code="already_shipped")


@tool
def forbids() -> None:
    """Say no for want of a permission."""
    raise PermissionDenied("this account may not see invoices")


@tool(attempts_max=3)
def busy_twice(ctx: ToolContext) -> str:
    """Fail twice in passing, then answer."""
    if _note(ctx) < 3:
        raise Retryable("busy", retry_after_s=0.01)
    return "done"


@tool(tier="medium", effect=True)
def pays(ctx: ToolContext) -> str:
    """Act once."""
    _note(ctx)
    return "paid"


@tool(tier="medium", effect=True)
def pays_and_raises(ctx: ToolContext) -> None:
    """Act, then fail."""
    _note(ctx)
    raise ConnectionError("the answer was lost")


@tool(tier="medium", effect=True, timeout_s=0.3)
def pays_and_hangs(ctx: ToolContext) -> None:
    """Act, then never come back."""
    _note(ctx)
    threading.Event().wait()


@tool(tier="medium", effect=True)
def pays_and_dies(ctx: ToolContext) -> None:
    """Act, then crash."""
    _note(ctx)
    os._exit(9)


@tool(tier="medium", effect=True)
def pays_and_returns_nonsense(ctx: ToolContext) -> Any:
    """Act, then return what cannot be given on."""
    _note(ctx)
    return {1, 2, object()}
