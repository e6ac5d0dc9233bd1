"""`toolfleet breakers ls | reset`: which tools fail too often to be called, and closing a breaker by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolfleet.commands import options
from toolfleet.commands.place import locate
from toolfleet.commands.terminal import Column, iso, moment, print_json, print_table, print_text

if TYPE_CHECKING:
    from toolfleet.schemas.pace import BreakerView
    from toolfleet.schemas.ports import ToolPace
    from toolfleet.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Breakers of tools, shared by all processes through the cache.")

COLUMNS = (
    Column("TENANT"),
    Column("TOOL"),
    Column("STATE"),
    Column("CALLS", number=True),
    Column("FAILED", number=True),
    Column("OPENED"),
    Column("UNTIL"),
)
ToolArgument = Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose breaker it is.")]


@app.command("ls")
def ls(
    app: options.App = None,
    database: options.Database = None,
    broker: options.Broker = None,
    cache: options.Cache = None,
    as_json: options.AsJson = False,
) -> None:
    """List breakers that counted a failure within a day, the one used last first."""
    found = asyncio.run(_listed(locate(app, database, broker=broker, cache=cache).settings))
    if as_json:
        print_json({"breakers": [_document(view) for view in found]})
        return
    rows = [
        [
            view.tenant,
            view.tool,
            f"{view.state}, probing" if view.probing else view.state,
            str(view.calls),
            str(view.failures),
            "" if view.opened_at is None else moment(view.opened_at),
            "" if view.until_s is None else moment(view.until_s),
        ]
        for view in found
    ]
    print_table(COLUMNS, rows, empty="No breaker counted a failure within a day.")


@app.command("reset")
def reset(
    tool: ToolArgument,
    tenant: Tenant = "default",
    app: options.App = None,
    database: options.Database = None,
    broker: options.Broker = None,
    cache: options.Cache = None,
    as_json: options.AsJson = False,
) -> None:
    """Close a breaker and forget what it counted; every process calls the tool again at once."""
    settings = locate(app, database, broker=broker, cache=cache).settings
    was_there = asyncio.run(_reset(settings, tenant, tool))
    if as_json:
        print_json({"tenant": tenant, "tool": tool, "reset": was_there})
        return
    print_text(
        f"closed the breaker of {tool} for tenant {tenant}"
        if was_there
        else f"{tool} of tenant {tenant} has no breaker that counted anything"
    )


async def _listed(settings: Settings) -> list[BreakerView]:
    async with _shared(settings) as pace:
        return await pace.breakers()


async def _reset(settings: Settings, tenant: str, tool: str) -> bool:
    async with _shared(settings) as pace:
        return await pace.reset(tenant, tool)


@asynccontextmanager
async def _shared(settings: Settings) -> AsyncIterator[ToolPace]:
    """The breakers in the cache. Raises InputError where there is none, CacheUnavailable where it is away."""
    from toolfleet.adapters.redis.tool_pace import RedisToolPace
    from toolfleet.cache import breaker_rule, cache_url
    from toolfleet.schemas.errors import InputError

    url = cache_url(settings)
    if url is None:
        raise InputError(
            "this fleet has no cache, so its breakers live in the memory of its processes, where no other can look",
            hint="Name its cache or broker: --cache redis://127.0.0.1:6379/0 (TOOLFLEET_CACHE, TOOLFLEET_BROKER).",
        )
    pace = RedisToolPace(url, prefix=settings.broker_prefix, rule=breaker_rule(settings))
    try:
        yield pace
    finally:
        await pace.aclose()


def _document(view: BreakerView) -> dict[str, Any]:
    return {
        "tenant": view.tenant,
        "tool": view.tool,
        "state": view.state,
        "calls": view.calls,
        "failures": view.failures,
        "opened_at": None if view.opened_at is None else iso(view.opened_at),
        "until": None if view.until_s is None else iso(view.until_s),
        "probing": view.probing,
    }
