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
from toolfleet.commands.terminal import note, print_text
from toolfleet.fleet import Fleet
from toolfleet.settings import Settings
from toolfleet.supervisor import Supervisor, children_of, watch


async def supervise(app: str, fleet: Fleet, workers: int, served: str) -> int:
    """Until the first signal; returns the exit code. Raises what no restart would heal: UnsafeSettings, NewerSchema."""
    settings = fleet.settings
    open_codec(settings, SystemClock())
    await asyncio.to_thread(upgrade, settings.database)
    store = open_store(settings)
    try:
        await refuse_unsafe(settings, store)
        asked, asked_again = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(
                number, lambda: (asked_again if asked.is_set() else asked).set()
            )
        supervisor = Supervisor(children_of(app, settings, workers), grace_s=settings.drain_s, tell=note)
        print_text(served)
        supervisor.start()
        watching = asyncio.create_task(watch(supervisor, store, _ready))
        await asked.wait()
        watching.cancel()
        return await _stop(supervisor, asked_again, settings)
    finally:
        await store.aclose()


def _ready() -> None:
    print_text("ready")
    sys.stdout.flush()


async def _stop(supervisor: Supervisor, again: asyncio.Event, settings: Settings) -> int:
    note(f"stopping: waiting up to {settings.drain_s:g} s for steps in flight; again to stop at once")
    draining = asyncio.create_task(supervisor.stop())
    impatience = asyncio.create_task(again.wait())
    await asyncio.wait({draining, impatience}, return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        note("stopped at once; what was in flight goes on at the next start")
        supervisor.signal(signal.SIGKILL)
        await draining
        return exits.INTERRUPTED
    impatience.cancel()
    await draining
    note("stopped")
    return exits.OK
