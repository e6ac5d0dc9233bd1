"""`toolfleet demo`: recorded conversations through the whole loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolfleet.commands.options import Database, Workers

Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for results; the same one goes on where it was.")
]
Conversations = Annotated[
    Path | None,
    typer.Option("--conversations", metavar="FILE", help="Other recorded conversations (JSON lines)."),
]
Seed = Annotated[int, typer.Option("--seed", help="Shuffles the order in which fan-out calls come back.")]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker", metavar="URL", help="redis://… or amqp://…: every role is a process of its own."
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="A real model server instead of the scripted one."),
]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Its model.")]
Enforce = Annotated[
    bool,
    typer.Option(
        "--enforce", help="A change to a reservation needs its details first; calls out of order are refused."
    ),
]
Approvers = Annotated[
    bool,
    typer.Option(
        "--approvers", help="Two people approve what is above tier medium, each by a policy and a token."
    ),
]


def demo(
    out: Out,
    conversations: Conversations = None,
    seed: Seed = 0,
    database: Database = None,
    broker: Broker = None,
    workers: Workers = 1,
    base_url: BaseUrl = None,
    model: Model = None,
    enforce: Enforce = False,
    approvers: Approvers = False,
) -> None:
    """Run recorded customer conversations and fan-out cases through a fleet, and check every result."""
    from toolfleet.commands.logs import configure_logs
    from toolfleet.examples.airline_desk.demo import run_demo

    configure_logs(level="error")
    code = run_demo(
        out=out,
        conversations=conversations,
        seed=seed,
        database=database,
        broker=broker,
        base_url=base_url,
        model=model,
        workers=workers,
        enforce=enforce,
        approvers=approvers,
    )
    raise typer.Exit(code)
