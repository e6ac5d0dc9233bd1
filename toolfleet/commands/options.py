"""Options and arguments that several commands share, so that they are called the same and explained the same."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

App = Annotated[
    str | None,
    typer.Option(
        "--app",
        "-A",
        envvar="TOOLFLEET_APP",
        metavar="MODULE:FLEET",
        help="The fleet: myapp:fleet, or path/to/myapp.py:fleet.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="SQLAlchemy URL of the database. Default: the app's, TOOLFLEET_DATABASE, sqlite:///toolfleet.db.",
    ),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        help="Message layer: redis://…, amqp://…, memory:// (embedded). Default: the app's, TOOLFLEET_BROKER.",
    ),
]
Cache = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="URL",
        help="Breakers, rates, quotas: redis://…, memory:// (each process its own). Default: the broker if it is Redis.",
    ),
]
Approvals = Annotated[
    Literal["required", "off"] | None,
    typer.Option("--approvals", help="off: tools above tier medium run without asking anybody."),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", min=1, max=64, help="Processes for decisions, and as many for tools (with a broker)."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout; errors as JSON on stderr.")
]
RunIdArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run (toolfleet runs ls).")]
DeadIdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of a dead letter (toolfleet dead ls).")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
PageSize = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")]
RepeatEffects = Annotated[
    bool,
    typer.Option("--repeat-effects", help="Effects of the old run may be made again, instead of shared."),
]
