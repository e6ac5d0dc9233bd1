"""`toolfleet up --broker …`: every role as a supervised process of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Final

from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.app import check_tiers, open_store
from toolfleet.brokers import open_codec, refuse_unsafe
from toolfleet.commands import exits
from toolfleet.commands.terminal import note, print_text
from toolfleet.commands.worker import UP_BROKER, UP_DATABASE, UP_PID
from toolfleet.fleet import Fleet
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.ports import RunStore
from toolfleet.settings import Settings
from toolfleet.supervisor import Child, Supervisor

LOOK_S: Final = 1.0
SILENT_S: Final = 60.0  # twelve beats: a child that has not said for this long that it is there hangs


async def supervise(app: str, fleet: Fleet, workers: int, served: str) -> int:
    """Until the first signal; returns the exit code. Raises what no restart would heal: UnsafeSettings, NewerSchema."""
    settings = fleet.settings
    check_tiers(fleet.registry, settings)
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
        watching = asyncio.create_task(_watch(supervisor, store))
        await asked.wait()
        watching.cancel()
        return await _stop(supervisor, asked_again, settings)
    finally:
        await store.aclose()


def children_of(app: str, settings: Settings, workers: int) -> list[Child]:
    """The processes of a fleet on one machine: `workers` for decisions, as many for tools, one collector, one keeper."""
    environment = {
        **os.environ,
        UP_PID: str(os.getpid()),
        UP_DATABASE: settings.database,
        UP_BROKER: settings.broker,
        "TOOLFLEET_APPROVALS": settings.approvals,
        "TOOLFLEET_HEALTH_PORT": "0",
    }
    roles = [*(["decide"] * workers), *(["exec"] * workers), "collect", "keep"]
    names = [f"{role} {roles[: at + 1].count(role)}" for at, role in enumerate(roles)]
    return [
        Child(
            name,
            [sys.executable, "-m", "toolfleet", "worker", role, "-A", app, "--approvals", settings.approvals],
            environment,
        )
        for name, role in zip(names, roles, strict=True)
    ]


async def _watch(supervisor: Supervisor, store: RunStore) -> None:
    """Says when all are there, and ends a child that lives and says nothing."""
    host, told = socket.gethostname(), False
    heard: dict[int, float] = {}
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            found = await store.workers()
        except StoreUnavailable:
            continue
        heard = {view.beat.pid: view.silent_s for view in found if view.beat.host == host}
        pids = [child.pid for child in supervisor.children]
        if not told and all(pid in heard for pid in pids):
            told = True
            print_text("ready")
            sys.stdout.flush()
        for pid in pids:
            if pid is not None and heard.get(pid, 0.0) > SILENT_S:
                supervisor.kill(pid, f"it has said nothing for {heard[pid]:.0f} s")


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
