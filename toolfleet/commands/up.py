"""`toolfleet up`: the embedded fleet in the foreground."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet.commands import exits, options
from toolfleet.commands.place import Place, locate, shown
from toolfleet.commands.terminal import print_text

if TYPE_CHECKING:
    from toolfleet.api.server import ApiServer
    from toolfleet.fleet import Fleet

HttpPort = Annotated[
    int | None, typer.Option("--http-port", min=0, max=65535, help="Answer the HTTP API there; 0: any.")
]
HttpHost = Annotated[
    str | None, typer.Option("--http-host", help="Default: 127.0.0.1, where `up` asks for no keys.")
]


def up(
    app: options.App = None,
    database: options.Database = None,
    broker: options.Broker = None,
    cache: options.Cache = None,
    workers: options.Workers = 1,
    approvals: options.Approvals = None,
    http_port: HttpPort = None,
    http_host: HttpHost = None,
) -> None:
    """Run a whole fleet in the foreground; Ctrl-C or SIGTERM drains and stops it, a second one stops at once.

    Without a broker that is one process over SQLite. With --broker (and --database postgresql://…) every role is a
    process of its own, started again when it ends. Migrates the database by itself, and goes on with everything that
    is outstanding in it.
    """
    from toolfleet.brokers import is_embedded
    from toolfleet.commands.logs import configure_logs, log_level
    from toolfleet.schemas.errors import InputError

    if app is None:
        raise InputError(
            "no app was given, so there would be nothing to serve",
            hint="toolfleet up -A myapp:fleet, or set TOOLFLEET_APP=myapp:fleet.",
        )
    configure_logs(level=log_level())
    place = locate(app, database, broker=broker, cache=cache, approvals=approvals, needs_fleet=True)
    assert place.fleet is not None
    place.fleet.configure(http_port=http_port, http_host=http_host)
    place = Place(place.fleet.settings, place.fleet)
    if is_embedded(place.settings):
        raise typer.Exit(asyncio.run(_serve(place)))
    from toolfleet.commands.supervise import supervise

    assert place.fleet is not None
    if place.settings.http_port is not None:
        from toolfleet.api.server import asks_for_keys

        asks_for_keys(place.settings, up=True)
    raise typer.Exit(asyncio.run(supervise(app, place.fleet, workers, _served(place.fleet, place))))


async def _serve(place: Place) -> int:
    """Until the first signal; returns the exit code."""
    from toolfleet.adapters.garbage import spare_what_is_loaded
    from toolfleet.commands.draining import Signals

    fleet = place.fleet
    assert fleet is not None
    signals = Signals()
    await fleet.start_async()
    server = None
    if place.settings.http_port is not None:
        from toolfleet.api.server import ApiServer

        try:
            server = ApiServer(place.settings, fleet.client(), fleet.cache, up=True)
            await server.start()
        except BaseException:
            await fleet.stop_async(drain_s=0)
            raise
    spare_what_is_loaded()
    print_text("\n".join([_served(fleet, place), *_answering(server), "ready"]))
    await signals.asked.wait()
    left = await signals.drained(_stop(fleet, server), drain_s=place.settings.drain_s)
    if left is not None:
        sys.stdout.flush()
        # As kill -9, which loses nothing: an orderly end would wait for the threads and steps we just gave up.
        os._exit(exits.INTERRUPTED)
    return exits.OK


async def _stop(fleet: Fleet, server: ApiServer | None) -> None:
    if server is not None:
        await server.stop()
    await fleet.stop_async()


def _answering(server: ApiServer | None) -> list[str]:
    if server is None:
        return []
    keys = "with a key (toolfleet keys create)" if server.asks else "without keys, from this machine"
    return [f"  HTTP API at {server.address}/api/v1, {keys}"]


def _served(fleet: Fleet, place: Place) -> str:
    from toolfleet.app import asked_tools

    registry = fleet.registry
    asked = asked_tools(registry)
    lines = [
        f"serving {shown(place.settings.database)} (process {os.getpid()})",
        *(
            f"  agent {agent.name}: {agent.model}, {len(agent.tools)} tool(s)"
            for agent in registry.agents.values()
        ),
        *(f"  tool {tool.spec.name}: {tool.spec.tier.value}" for tool in registry.tools.values()),
    ]
    if asked and place.settings.approvals == "off":
        lines.append(f"  approvals are off: {', '.join(asked)} run without asking anybody")
    elif asked:
        lines.append(f"  an approver is asked before {', '.join(asked)}: toolfleet approvals ls")
    if not registry.agents:
        lines.append("  no agents: nothing can be submitted")
    return "\n".join(lines)
