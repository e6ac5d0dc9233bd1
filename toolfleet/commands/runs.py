"""`toolfleet runs ls | show | cancel | retry`: look at runs, stop one, start one again. Needs the database only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet.commands import options, shapes
from toolfleet.commands.place import locate, opened
from toolfleet.commands.terminal import Column, cut, moment, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from toolfleet.client import CancelAck
    from toolfleet.commands.timeline import Seen
    from toolfleet.schemas.views import RunView
    from toolfleet.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Look at runs, stop one, start one again.")

COLUMNS = (
    Column("RUN"),
    Column("STATUS"),
    Column("REASON"),
    Column("AGENT", shrinks=True),
    Column("TURNS", number=True),
    Column("CALLS", number=True),
    Column("TOKENS", number=True),
    Column("COST_USD", number=True),
    Column("CREATED"),
    Column("INPUT", shrinks=True),
)
INPUT_WIDTH = 60

Status = Annotated[str | None, typer.Option("--status", help="Only runs of this status.")]
Agent = Annotated[str | None, typer.Option("--agent", help="Only runs of this agent.")]
Before = Annotated[str | None, typer.Option("--before", metavar="RUN", help="Only runs older than this one.")]


@app.command("ls")
def ls(
    status: Status = None,
    agent: Agent = None,
    limit: options.PageSize = 20,
    before: Before = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """List runs, newest first."""
    _check_status(status)
    settings = locate(app, database).settings
    found = asyncio.run(_listed(settings, status, agent, limit, before))
    # A full page may be followed by another one; the last id is where it begins.
    following = found[-1].info.run_id if len(found) == limit else None
    if as_json:
        print_json({"runs": [shapes.run(view) for view in found], "next_before": following})
        return
    print_table(COLUMNS, [_row(view) for view in found], empty="no runs")
    if following is not None:
        note(f"older ones: --before {following}")


def _check_status(status: str | None) -> None:
    from toolfleet.schemas.errors import InputError
    from toolfleet.schemas.outcomes import RunStatus

    if status is not None and status not in list(RunStatus):
        raise InputError(f"no run status is called {status!r}", hint=f"Statuses: {', '.join(RunStatus)}.")


async def _listed(
    settings: Settings, status: str | None, agent: str | None, limit: int, before: str | None
) -> list[RunView]:
    from toolfleet.schemas.ids import RunId

    async with opened(settings) as client:
        if before is not None:
            await client.get(before)  # a cursor nobody knows would look like the end of the list
        cursor = None if before is None else RunId(before)
        return await client.store.runs(limit=limit, before=cursor, status=status, agent=agent)


def _row(view: RunView) -> list[str]:
    used = view.state.counters
    return [
        view.info.run_id,
        view.state.status.value,
        view.state.reason or "",
        view.info.agent,
        str(view.state.turn),
        str(used.tool_calls),
        str(used.input_tokens + used.output_tokens),
        f"{used.cost_usd:.6f}",
        moment(view.info.created_at),
        cut(view.info.input, INPUT_WIDTH),
    ]


@app.command("show")
def show(
    run_id: options.RunIdArgument,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what happened in a run: turns, calls, results, steps, tokens, cost, reason."""
    from toolfleet.commands import timeline

    settings = locate(app, database).settings
    seen = asyncio.run(_seen(settings, run_id))
    if as_json:
        print_json(timeline.document(seen))
    else:
        print_text(timeline.text(seen))


async def _seen(settings: Settings, run_id: str) -> Seen:
    from toolfleet.commands.timeline import look

    async with opened(settings) as client:
        return await look(client, run_id)


@app.command("cancel")
def cancel(
    run_id: options.RunIdArgument,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Stop a run: once this has answered, no effect of it begins. Effects that have begun run to their outcome."""
    settings = locate(app, database).settings
    ack = asyncio.run(_cancelled(settings, run_id))
    if as_json:
        print_json(shapes.ack(ack))
        return
    print_text(f"run {ack.run_id} is {ack.status.value}")
    if ack.running:
        print_text(f"{len(ack.running)} effect(s) had begun, and run to their outcome:")
        print_text("\n".join(f"  {call_id}" for call_id in ack.running))


@app.command("retry")
def retry(
    run_id: options.RunIdArgument,
    repeat_effects: options.RepeatEffects = False,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Start a run that has ended again, as a new run. Effects of the old one are shared, not made again."""
    new_id = asyncio.run(_retried(locate(app, database).settings, run_id, repeat_effects))
    if as_json:
        print_json({"run_id": run_id, "new_run_id": new_id})
        return
    print_text(f"run {run_id} was started again as {new_id}")


async def _retried(settings: Settings, run_id: str, repeat_effects: bool) -> str:
    from toolfleet.schemas.errors import InputError

    async with opened(settings) as client:
        try:
            return await client.retry(run_id, repeat_effects=repeat_effects)
        except InputError as exc:
            if "effects" in exc.fields:
                exc.hint = f"Look first: toolfleet runs show {run_id}. Again all the same: --repeat-effects."
            raise


async def _cancelled(settings: Settings, run_id: str) -> CancelAck:
    async with opened(settings) as client:
        return await client.cancel(run_id, by="cli")
