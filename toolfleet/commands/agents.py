"""`toolfleet agents ls | show | diff | tokens`: the registered versions of agents, and what they cost before a word is said.

An agent is named NAME, NAME@VERSION (a beginning of it is enough) or NAME@app: as the app of -A declares it now.
"""

from __future__ import annotations

import asyncio
import difflib
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from toolfleet.commands import options
from toolfleet.commands.place import Place, locate, opened
from toolfleet.commands.terminal import Column, iso, moment, print_json, print_table, print_text

if TYPE_CHECKING:
    from toolfleet.client import Client
    from toolfleet.schemas.agents import AgentSpec
    from toolfleet.schemas.views import AgentVersion

app = typer.Typer(no_args_is_help=True, help="Look at agents: their versions, what changed, what they cost.")

IN_APP = "app"
RUNS_LOOKED_AT = 100  # newest runs whose usage tells what is dynamic
COLUMNS = (
    Column("AGENT"),
    Column("VERSION"),
    Column("MODEL", shrinks=True),
    Column("PROMPT"),
    Column("TOOLSET"),
    Column("TOOLS", number=True),
    Column("REGISTERED"),
)
TOKEN_COLUMNS = (Column("SECTION"), Column("TOKENS", number=True), Column("SHARE", number=True))

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="NAME, NAME@VERSION or NAME@app (with -A).")]
Other = Annotated[
    str | None, typer.Argument(metavar="OTHER", help="Default: the version registered before that one.")
]
All = Annotated[bool, typer.Option("--all", help="Every version, not only the one in force.")]


@app.command("ls")
def ls(
    every: All = False,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """List agents; with --all every version, the one registered last first."""
    found = asyncio.run(_versions(locate(app, database), None))
    if not every:
        newest: dict[str, AgentVersion] = {}
        for one in found:
            newest.setdefault(one.spec.name, one)
        found = list(newest.values())
    if as_json:
        print_json({"agents": [_shape(one) for one in found]})
        return
    print_table(COLUMNS, [_row(one) for one in found], empty="no agents; `toolfleet up` registers them")


@app.command("show")
def show(
    agent: Agent,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one definition as JSON: everything a run is pinned to, and what follows from it."""
    one = asyncio.run(_one(_place(app, database, agent), agent))
    document = {**_shape(one), "tool_band": _band(one.spec), "definition": one.spec.model_dump(mode="json")}
    print_json(document) if as_json else print_text(_pretty(document))


@app.command("diff")
def diff(
    agent: Agent,
    other: Other = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what OTHER changed into AGENT, as a unified diff of the definitions."""
    new, old = asyncio.run(_two(_place(app, database, agent, other or ""), agent, other))
    lines = list(
        difflib.unified_diff(
            _pretty(old.spec.model_dump(mode="json")).splitlines(),
            _pretty(new.spec.model_dump(mode="json")).splitlines(),
            f"{old.spec.name}@{old.version}",
            f"{new.spec.name}@{new.version}",
            lineterm="",
        )
    )
    if as_json:
        changed = [
            name for name in type(new.spec).model_fields if getattr(new.spec, name) != getattr(old.spec, name)
        ]
        print_json({"old": _shape(old), "new": _shape(new), "changed": changed, "diff": lines})
        return
    print_text("\n".join(lines) if lines else f"{agent}: no difference")


@app.command("tokens")
def tokens(
    agent: Agent,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Count the input tokens of one model call by section: rules, schemas, few-shot, and what is dynamic.

    The first three are counted from the definition. Dynamic is what recent runs used on average beyond them.
    """
    document = asyncio.run(_tokens(_place(app, database, agent), agent))
    if as_json:
        print_json(document)
        return
    sections: dict[str, int | None] = document["sections"]
    total = sum(value or 0 for value in sections.values())
    rows = [
        (name, "" if value is None else str(value), f"{100 * (value or 0) / max(1, total):.0f} %")
        for name, value in sections.items()
    ]
    print_table(TOKEN_COLUMNS, rows, empty="")
    cached = document["cached_share"]
    told = "no run of this version yet" if cached is None else f"{100 * cached:.0f} % of input was cached"
    print_text(f"counted by: {document['counter']}; {told}")


def _place(app: str | None, database: str | None, *names: str) -> Place:
    from toolfleet.schemas.errors import InputError

    wants_app = any(name.partition("@")[2] == IN_APP for name in names)
    if wants_app and app is None:
        raise InputError(
            "an agent of the app is asked for, and no app is given",
            hint="Add -A MODULE:FLEET, or set TOOLFLEET_APP.",
        )
    return locate(app, database, needs_fleet=wants_app)


async def _versions(place: Place, name: str | None) -> list[AgentVersion]:
    async with opened(place.settings) as client:
        return await client.store.agent_versions(name)


async def _one(place: Place, asked: str) -> AgentVersion:
    async with opened(place.settings) as client:
        return await _found(client, place, asked)


async def _two(place: Place, asked: str, other: str | None) -> tuple[AgentVersion, AgentVersion]:
    from toolfleet.schemas.errors import UnknownAgent

    async with opened(place.settings) as client:
        new = await _found(client, place, asked)
        if other is not None:
            return new, await _found(client, place, other)
        known = await client.store.agent_versions(new.spec.name)
        before = [one for one in known if one.version != new.version]
        at = next((i for i, one in enumerate(known) if one.version == new.version), None)
        older = before[:1] if at is None else known[at + 1 : at + 2]
        if not older:
            raise UnknownAgent(
                f"no version of {new.spec.name!r} was registered before {new.version}",
                hint=f"See: toolfleet agents ls --all. Or name two: toolfleet agents diff {asked} OTHER",
            )
        return new, older[0]


async def _found(client: Client, place: Place, asked: str) -> AgentVersion:
    from toolfleet.definitions import unknown_agent
    from toolfleet.schemas.errors import UnknownAgent
    from toolfleet.schemas.views import AgentVersion

    name, _, version = asked.partition("@")
    if version == IN_APP and place.fleet is not None:
        spec = place.fleet.registry.agent(name)
        return AgentVersion(spec.version, None, spec)
    known = await client.store.agent_versions(name)
    if not known:
        raise unknown_agent(name, [one.name for one in await client.store.agents()])
    found = [one for one in known if one.version.startswith(version)] if version else known[:1]
    if len(found) != 1:
        fits = "several versions" if found else "no version"
        raise UnknownAgent(
            f"{fits} of {name!r} begin with {version!r}",
            hint=f"Versions, newest first: {', '.join(one.version for one in known)}.",
            agent=name,
        )
    return found[0]


async def _tokens(place: Place, asked: str) -> dict[str, Any]:
    from toolfleet.workers.decision.context import sections
    from toolfleet.workers.decision.tokens import counter_for

    async with opened(place.settings) as client:
        one = await _found(client, place, asked)
        runs = await client.store.runs(limit=RUNS_LOOKED_AT, agent=one.spec.name)
    used = [run.state.counters for run in runs if run.info.agent_version == one.version]
    calls = sum(counters.model_calls for counters in used)
    read = sum(counters.input_tokens for counters in used)
    counter = counter_for(one.spec.model)
    counted = sections(one.spec, counter)
    known = calls > 0 and read > 0
    dynamic = max(0, round(read / calls) - sum(counted.values())) if known else None
    return {
        "agent": one.spec.name,
        "version": one.version,
        "model": one.spec.model,
        "counter": counter.name,
        "sections": {**counted, "dynamic": dynamic},
        "model_calls": calls,
        "cached_share": sum(counters.cached_tokens for counters in used) / read if known else None,
    }


def _band(spec: AgentSpec) -> str:
    from toolfleet.workers.decision.policy.evaluate import band_of

    return band_of(len(spec.tools))


def _shape(one: AgentVersion) -> dict[str, Any]:
    spec = one.spec
    return {
        "agent": spec.name,
        "version": one.version,
        "model": spec.model,
        "prompt_version": spec.prompt_version,
        "toolset_version": spec.toolset_version,
        "tools": [tool.name for tool in spec.tools],
        "registered_at": iso(one.registered_at),
    }


def _row(one: AgentVersion) -> tuple[str, ...]:
    spec = one.spec
    count = str(len(spec.tools))
    return (
        spec.name,
        one.version,
        spec.model,
        spec.prompt_version,
        spec.toolset_version,
        count,
        moment(one.registered_at),
    )


def _pretty(document: Any) -> str:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
