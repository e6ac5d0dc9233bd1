"""`toolfleet up --broker …`: every role as a supervised process of this machine."""

from __future__ import annotations

import asyncio
import signal
import sys

from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.app import open_store
from toolfleet.brokers import open_codec, refuse_unsafe
from toolfleet.commands import exits
from toolfleet.commands.draining import Signals
from toolfleet.commands.terminal import note, print_text
from toolfleet.fleet import Fleet
from toolfleet.supervisor import Supervisor, children_of, watch


async def supervise(app: str, fleet: Fleet, workers: int, served: str) -> int:
    """Until the first signal; returns the exit code. Raises what no restart would heal: UnsafeSettings, NewerSchema."""
    settings = fleet.settings
    open_codec(settings, SystemClock())
    await asyncio.to_thread(upgrade, settings.database)
    store = open_store(settings)
    try:
        await refuse_unsafe(settings, store)
        signals = Signals()
        supervisor = Supervisor(children_of(app, settings, workers), grace_s=settings.drain_s, tell=note)
        print_text(served)
        supervisor.start()
        watching = asyncio.create_task(watch(supervisor, store, _ready))
        await signals.asked.wait()
        watching.cancel()
        left = await signals.drained(supervisor.stop(), drain_s=settings.drain_s)
        if left is not None:
            supervisor.signal(signal.SIGKILL)
            await left
            return exits.INTERRUPTED
        return exits.OK
    finally:
        await store.aclose()


def _ready() -> None:
    print_text("ready")
    sys.stdout.flush()
