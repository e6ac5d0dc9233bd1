"""The command line: `toolfleet`. Parses, calls, and turns every error into a message, a hint and an exit code.

What the commands do is in `toolfleet.commands`; what they decide is decided below them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from toolfleet import __version__
from toolfleet.commands import (
    agents,
    batch,
    breakers,
    database,
    dead,
    deciding,
    exits,
    keys,
    runs,
    standing,
    tools,
)
from toolfleet.commands.demo import demo
from toolfleet.commands.doctor import doctor
from toolfleet.commands.purge import purge
from toolfleet.commands.run import run
from toolfleet.commands.serve import serve
from toolfleet.commands.terminal import print_error, print_text
from toolfleet.commands.up import up
from toolfleet.commands.worker import app as workers
from toolfleet.commands.worker import worker

app = typer.Typer(
    name="toolfleet",
    help="A durable queue fleet for tool-calling LLM agents.",
    epilog="Exit codes: 0 ok, 1 the run did not complete, 2 bad input, 4 timed out, 5 cannot work here, 130 interrupted.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(up)
app.command()(worker)
app.command()(serve)
app.add_typer(workers, name="workers")
app.command()(run)
app.add_typer(runs.app, name="runs")
app.add_typer(batch.app, name="batch")
app.add_typer(agents.app, name="agents")
app.add_typer(dead.app, name="dead")
app.add_typer(tools.app, name="tools")
deciding.approvals.add_typer(standing.standing, name="standing")
app.add_typer(deciding.approvals, name="approvals")
app.add_typer(deciding.approvers, name="approvers")
app.add_typer(deciding.effects, name="effects")
app.add_typer(keys.keys, name="keys")
app.add_typer(keys.quotas, name="quotas")
app.add_typer(breakers.app, name="breakers")
app.add_typer(database.app, name="db")
app.command()(purge)
app.command()(doctor)
app.command()(demo)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")
    ] = False,
) -> None:
    """A durable queue fleet for tool-calling LLM agents."""
    if version:
        print_text(f"toolfleet {__version__}")
        raise typer.Exit(exits.OK)
    if context.invoked_subcommand is None:
        print_text(context.get_help())
        raise typer.Exit(exits.OK)


def main() -> None:
    """The console script; ends the process."""
    # A character the terminal's encoding lacks is written out instead of ending the command.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Carry out one command line; returns its exit code. Prints errors, never raises them unless asked to."""
    given = list(arguments)
    options = given[: given.index("--")] if "--" in given else given
    as_json = "--json" in options
    debug = "--debug" in options or bool(os.environ.get("TOOLFLEET_DEBUG"))
    given = ["--debug"] * debug + [one for one in options if one != "--debug"] + given[len(options) :]
    try:
        code = app(given, prog_name="toolfleet", standalone_mode=False)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except Exception as exc:  # noqa: BLE001 - the last one who can tell the user
        if debug:
            import traceback

            traceback.print_exception(exc)
        return _reported(exc, as_json=as_json)
    return code if isinstance(code, int) else exits.OK


def _reported(error: Exception, *, as_json: bool) -> int:
    """Print the error; returns its exit code."""
    from toolfleet.schemas.errors import ToolfleetError

    match error:
        case typer.Abort():
            return exits.INTERRUPTED
        case typer.TyperException():
            if message := error.format_message().strip():  # none: it was answered with the help
                context = getattr(error, "ctx", None)
                hint = f"How it is called: {'toolfleet' if context is None else context.command_path} --help"
                print_error("usage", message, hint, as_json=as_json)
            return exits.USAGE
        case exits.TimedOut() | ToolfleetError():
            print_error(error.code, error.message, error.hint, as_json=as_json)
            return exits.exit_code_of(error)
        case OSError():
            hint = "Check permissions, disk space and addresses; --debug shows where it happened."
            print_error("system", str(error), hint, as_json=as_json)
            return exits.CANNOT_WORK
        case _:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            hint = "This is a bug of toolfleet, or of the app. With --debug there is a traceback; please report it."
            print_error("bug", what, hint, as_json=as_json)
            return exits.BUG
