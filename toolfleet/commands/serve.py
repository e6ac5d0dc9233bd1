"""`toolfleet serve`: one replica of the HTTP API; as many as you like share a database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet.commands import exits, options
from toolfleet.commands.place import Place, locate, require_file, shown
from toolfleet.commands.terminal import note, print_text
from toolfleet.supervisor import UP_BROKER, UP_CACHE, UP_DATABASE, UP_PID

if TYPE_CHECKING:
    from toolfleet.api.server import ApiServer, Beating
    from toolfleet.commands.draining import Signals

Host = Annotated[str | None, typer.Option("--host", help="Address to answer on. Default: 127.0.0.1.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to answer on; 0: any. Default: 8080.")
]
DatabaseOfUp = Annotated[
    str | None, typer.Option("--database", metavar="URL", envvar=UP_DATABASE, show_envvar=False)
]
BrokerOfUp = Annotated[
    str | None, typer.Option("--broker", metavar="URL", envvar=UP_BROKER, show_envvar=False)
]
CacheOfUp = Annotated[str | None, typer.Option("--cache", metavar="URL", envvar=UP_CACHE, show_envvar=False)]
PARENT_S = 0.5


def serve(
    app: options.App = None,
    database: DatabaseOfUp = None,
    broker: BrokerOfUp = None,
    cache: CacheOfUp = None,
    host: Host = None,
    port: Port = None,
) -> None:
    """Answer the HTTP API until SIGTERM. Needs a migrated database; runs no tools and asks no models.

    Every request needs a key (toolfleet keys create). The document is at /api/v1/openapi.json.
    """
    from toolfleet.commands.logs import configure_logs, log_level

    configure_logs(level=log_level())
    place = locate(app, database, broker=broker, cache=cache)
    given = {"http_host": host, "http_port": port}
    changed = {name: value for name, value in given.items() if value is not None}
    settings = place.settings.model_copy(update=changed)
    raise typer.Exit(asyncio.run(_serve(Place(settings, None))))


async def _serve(place: Place) -> int:
    """Until the first signal; returns the exit code."""
    from toolfleet.adapters.garbage import spare_what_is_loaded
    from toolfleet.api.server import ApiServer, Beating
    from toolfleet.cache import open_cache
    from toolfleet.commands.draining import Signals
    from toolfleet.fleet import Fleet

    settings = place.settings
    require_file(settings)
    signals = Signals()
    fleet = Fleet(settings=settings)
    cache = open_cache(settings)
    watching: asyncio.Task[None] | None = None
    try:
        client = fleet.client()
        await client.store.now()  # says now what is wrong with the database
        server = ApiServer(settings, client, cache, up=UP_PID in os.environ)
        await server.start()
        beating = Beating(client, server.address)
        await beating.start()
        watching = _end_with_parent(signals)
        spare_what_is_loaded()
        print_text(f"serving {shown(settings.database)} at {server.address} (process {os.getpid()})")
        if not server.asks:
            note("no keys are asked for: whoever is on this machine may use it")
        print_text("ready")
        sys.stdout.flush()
        await signals.asked.wait()
        left = await signals.drained(_stop(server, beating), drain_s=settings.drain_s)
        if left is not None:
            sys.stdout.flush()
            os._exit(exits.INTERRUPTED)
        return exits.OK
    finally:
        if watching is not None:
            watching.cancel()
        await cache.aclose()
        await fleet.stop_async()


async def _stop(server: ApiServer, beating: Beating) -> None:
    await server.stop()
    await beating.stop()


def _end_with_parent(signals: Signals) -> asyncio.Task[None] | None:
    """A child of `up` ends soon after it: a killed `up` must not leave a server that nobody watches."""
    parent = os.environ.get(UP_PID)
    if parent is None:
        return None

    async def watch() -> None:
        while not signals.asked.is_set():
            if os.getppid() != int(parent):
                signals.asked.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(signals.asked.wait(), PARENT_S)

    return asyncio.create_task(watch())
