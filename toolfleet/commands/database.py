"""`toolfleet db upgrade | check | current`: the schema of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from toolfleet.commands import options
from toolfleet.commands.place import locate, require_migrated, shown
from toolfleet.commands.terminal import print_json, print_text

if TYPE_CHECKING:
    from toolfleet.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The schema of the database.")


@app.command("upgrade")
def upgrade(
    app: options.App = None, database: options.Database = None, as_json: options.AsJson = False
) -> None:
    """Bring the database to the schema of this program; makes an SQLite file that is not there."""
    from toolfleet.adapters.store import migrate

    settings = locate(app, database).settings
    before = _revision(settings)
    migrate.upgrade(settings.database)
    after = _revision(settings)
    if as_json:
        print_json({"database": shown(settings.database), "before": before, "revision": after})
    elif before == after:
        print_text(f"{shown(settings.database)} is at {after} already")
    else:
        print_text(f"{shown(settings.database)}: {before or 'nothing'} -> {after}")


@app.command("check")
def check(
    app: options.App = None, database: options.Database = None, as_json: options.AsJson = False
) -> None:
    """Ends with 0 if this program can work with the schema, else with 5 and what to do."""
    settings = locate(app, database).settings
    require_migrated(settings)
    revision = _revision(settings)
    if as_json:
        print_json({"database": shown(settings.database), "revision": revision, "ok": True})
    else:
        print_text(f"{shown(settings.database)} is at {revision}, and this program can work with it")


@app.command("current")
def current(
    app: options.App = None, database: options.Database = None, as_json: options.AsJson = False
) -> None:
    """Print the schema revision of the database."""
    settings = locate(app, database).settings
    revision = _revision(settings)
    if as_json:
        print_json({"database": shown(settings.database), "revision": revision})
    else:
        print_text(revision or "none")


def _revision(settings: Settings) -> str | None:
    """None where there is no schema yet, or no file (which is not made by asking)."""
    from toolfleet.adapters.store import migrate
    from toolfleet.commands.place import database_file

    path = database_file(settings.database)
    if path is not None and not path.exists():
        return None
    return migrate.current(settings.database)
