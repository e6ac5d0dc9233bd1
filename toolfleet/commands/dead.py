"""`toolfleet dead ls | show | replay | discard`: what could not be processed, why, and what to do about it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from toolfleet.commands import options, shapes
from toolfleet.commands.place import locate, opened
from toolfleet.commands.terminal import (
    Column,
    cut,
    iso,
    moment,
    note,
    print_json,
    print_table,
    print_text,
    printable,
)

if TYPE_CHECKING:
    from toolfleet.client import Client
    from toolfleet.schemas.views import DeadLetter
    from toolfleet.settings import Settings

app = typer.Typer(no_args_is_help=True, help="What could not be processed: refused messages, steps given up.")

COLUMNS = (
    Column("ID"),
    Column("KIND"),
    Column("REASON"),
    Column("QUEUE"),
    Column("RUN"),
    Column("TURN", number=True),
    Column("AT"),
    Column("DETAIL", shrinks=True),
)
DETAIL_WIDTH = 60

Before = Annotated[
    str | None, typer.Option("--before", metavar="ID", help="Only letters older than this one.")
]


@app.command("ls")
def ls(
    limit: options.PageSize = 20,
    before: Before = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """List dead letters, newest first."""
    found = asyncio.run(_listed(locate(app, database).settings, limit, before))
    following = found[-1].id if len(found) == limit else None
    if as_json:
        print_json({"dead": [shapes.dead(letter) for letter in found], "next_before": following})
        return
    print_table(COLUMNS, [_row(letter) for letter in found], empty="no dead letters")
    if following is not None:
        note(f"older ones: --before {following}")


async def _listed(settings: Settings, limit: int, before: str | None) -> list[DeadLetter]:
    async with opened(settings) as client:
        return await client.store.dead(limit=limit, before=before)


def _row(letter: DeadLetter) -> list[str]:
    return [
        letter.id,
        letter.kind,
        letter.reason,
        letter.queue,
        letter.run_id or "",
        "" if letter.turn is None else str(letter.turn),
        moment(letter.at),
        cut(letter.detail, DETAIL_WIDTH),
    ]


@app.command("show")
def show(
    dead_id: options.DeadIdArgument,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one dead letter, with the bytes of a message."""
    letter = asyncio.run(_found(locate(app, database).settings, dead_id))
    shape = shapes.dead(letter, body=True)
    if as_json:
        print_json(shape)
        return
    lines = [f"{name:11} {printable(str(value), lines=True)}" for name, value in shape.items() if value]
    if letter.kind == "step" and letter.run_id is not None:
        lines.append(f"its run: toolfleet runs show {letter.run_id}")
    print_text("\n".join(lines))


async def _found(settings: Settings, dead_id: str) -> DeadLetter:
    async with opened(settings) as client:
        return await _letter(client, dead_id)


async def _letter(client: Client, dead_id: str) -> DeadLetter:
    from toolfleet.schemas.errors import UnknownDead

    letter = await client.store.dead_letter(dead_id)
    if letter is None:
        raise UnknownDead(
            f"no dead letter is called {dead_id!r}", hint="List them with: toolfleet dead ls", id=dead_id
        )
    return letter


@app.command("replay")
def replay(
    dead_id: options.DeadIdArgument,
    repeat_effects: options.RepeatEffects = False,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Do it again: the run of a step that was given up is started as a new run, and the letter is removed."""
    run_id, new_id = asyncio.run(_replayed(locate(app, database).settings, dead_id, repeat_effects))
    if as_json:
        print_json({"id": dead_id, "run_id": run_id, "new_run_id": new_id, "removed": True})
        return
    print_text(f"run {run_id} was started again as {new_id}; the dead letter is removed")


async def _replayed(settings: Settings, dead_id: str, repeat_effects: bool) -> tuple[str, str]:
    """The old run and the new one. Repeatable: after a crash half-way the same letter gives the same new run."""
    from toolfleet.schemas.errors import InputError

    async with opened(settings) as client:
        letter = await _letter(client, dead_id)
        if letter.kind == "message":
            raise _not_replayable(settings, letter)
        if letter.run_id is None:
            raise InputError(
                f"dead letter {dead_id} names no run", hint=f"Remove it: toolfleet dead discard {dead_id}"
            )
        try:
            new_id = await client.retry(
                letter.run_id, idempotency_key=f"dead/{dead_id}", repeat_effects=repeat_effects
            )
        except InputError as exc:
            if "effects" in exc.fields:
                exc.hint = (
                    f"Look first: toolfleet runs show {letter.run_id}. Again all the same: --repeat-effects."
                )
            raise
        await client.store.discard_dead(dead_id)
        return letter.run_id, new_id


def _not_replayable(settings: Settings, letter: DeadLetter) -> Exception:
    """Why a refused message cannot be put back. Its step is not lost: the row in the database is published anew."""
    from toolfleet.schemas.errors import ToolfleetError

    kept = (
        "Nothing is lost by that: every outstanding step is a row in the database, and its message is written anew "
        f"from there. Once looked at, remove it: toolfleet dead discard {letter.id}"
    )
    if settings.broker == "memory://" and settings.signing_keys is None:
        why = (
            "the embedded fleet signs with a key that lives as long as its process and keeps its queues in "
            "memory, so no other process can sign this message or put it back"
        )
    elif settings.broker == "memory://":
        why = "the queues of the embedded fleet live in its process, and no other one can put a message back"
    else:
        why = f"this release cannot reach the queues of broker {settings.broker.partition('://')[0]}"
    return ToolfleetError(f"message {letter.id} ({letter.reason}) cannot be replayed: {why}", hint=kept)


@app.command("discard")
def discard(
    dead_id: options.DeadIdArgument,
    yes: options.Yes = False,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove a dead letter for good. Touches no run."""
    from toolfleet.schemas.errors import InputError

    settings = locate(app, database).settings
    letter = asyncio.run(_found(settings, dead_id))
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise InputError(
                f"nobody is here to confirm that {dead_id} is removed", hint="Confirm it with --yes."
            )
        what = f"{letter.kind} of {moment(letter.at)} ({letter.reason}, queue {letter.queue})"
        if not typer.confirm(f"remove {printable(what)} for good?", err=True):
            note("kept")
            return
    removed = asyncio.run(_discarded(settings, dead_id))
    if as_json:
        print_json({"id": dead_id, "removed": removed, "at": iso(letter.at)})
        return
    print_text(f"removed {dead_id}" if removed else f"{dead_id} had been removed already")


async def _discarded(settings: Settings, dead_id: str) -> bool:
    async with opened(settings) as client:
        return await client.store.discard_dead(dead_id)
