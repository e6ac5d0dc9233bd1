"""`toolfleet up`: the embedded fleet in the foreground."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import typer

from toolfleet.commands import exits, options
from toolfleet.commands.place import Place, locate, shown
from toolfleet.commands.terminal import print_text

if TYPE_CHECKING:
    from toolfleet.fleet import Fleet


def up(
    app: options.App = None,
    database: options.Database = None,
    broker: options.Broker = None,
    cache: options.Cache = None,
    workers: options.Workers = 1,
    approvals: options.Approvals = None,
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
    if is_embedded(place.settings):
        raise typer.Exit(asyncio.run(_serve(place)))
    from toolfleet.commands.supervise import supervise

    assert place.fleet is not None
    raise typer.Exit(asyncio.run(supervise(app, place.fleet, workers, _served(place.fleet, place))))


async def _serve(place: Place) -> int:
    """Until the first signal; returns the exit code."""
    from toolfleet.adapters.garbage import spare_what_is_loaded
    from toolfleet.commands.draining import Signals

    fleet = place.fleet
    assert fleet is not None
    signals = Signals()
    await fleet.start_async()
    spare_what_is_loaded()
    print_text(_served(fleet, place) + "\nready")
    await signals.asked.wait()
    left = await signals.drained(fleet.stop_async(), drain_s=place.settings.drain_s)
    if left is not None:
        sys.stdout.flush()
        # As kill -9, which loses nothing: an orderly end would wait for the threads and steps we just gave up.
        os._exit(exits.INTERRUPTED)
    return exits.OK


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
