"""`toolfleet run`: one request to an agent, followed to its result."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolfleet.commands import exits, options, shapes
from toolfleet.commands.host import Host
from toolfleet.commands.place import locate
from toolfleet.commands.terminal import note, note_json, print_json, print_text, printable

if TYPE_CHECKING:
    from toolfleet.client import RunRequest, RunResult
    from toolfleet.schemas.views import RunEvent

Text = Annotated[str, typer.Argument(metavar="TEXT", help="What the user says; - reads it from stdin.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show events as they come, on stderr.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", min=0, metavar="S", help="Wait this long; the run goes on.")
]
Previous = Annotated[
    str | None, typer.Option("--previous", metavar="RUN", help="Go on with the conversation of that run.")
]
Key = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="K", help="The same key again gives the same run."),
]
ContextJson = Annotated[
    str | None,
    typer.Option("--context", metavar="JSON", help="An object for tools; the model never sees it."),
]
Principal = Annotated[str, typer.Option("--principal", metavar="NAME", help="Whom the run acts for.")]
Permissions = Annotated[
    list[str] | None,
    typer.Option("--permission", metavar="P", help="What they may do; repeatable. Nothing adds to it later."),
]
Deadline = Annotated[
    float | None, typer.Option("--deadline", metavar="S", help="The run is stopped this long from now.")
]


def run(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of an agent.")],
    text: Text,
    app: options.App = None,
    database: options.Database = None,
    broker: options.Broker = None,
    approvals: options.Approvals = None,
    follow: Follow = False,
    as_json: options.AsJson = False,
    timeout: Timeout = None,
    previous: Previous = None,
    idempotency_key: Key = None,
    context: ContextJson = None,
    deadline: Deadline = None,
    principal: Principal = "",
    permission: Permissions = None,
) -> None:
    """Submit one request, wait, print what came of it.

    A fleet that runs on this database in another process does the work; else the one of -A, here.
    """
    from toolfleet.client import RunRequest
    from toolfleet.commands.logs import configure_logs

    request = RunRequest(
        agent,
        _from_stdin() if text == "-" else text,
        previous_run_id=previous,
        idempotency_key=idempotency_key,
        context=_context(context),
        deadline_s=deadline,
        principal=principal,
        permissions=permission or (),
    )
    configure_logs(level="error")
    place = locate(app, database, broker=broker, approvals=approvals, needs_fleet=True)
    host = Host(place, _ignore if as_json else note)
    result = asyncio.run(_carried(host, request, follow=follow, as_json=as_json, timeout_s=timeout))
    _print_result(result, as_json=as_json)
    raise typer.Exit(exits.OK if result.ok else exits.NOT_COMPLETED)


def _ignore(line: str) -> None:
    """With --json stderr holds JSON only."""


async def _carried(
    host: Host, request: RunRequest, *, follow: bool, as_json: bool, timeout_s: float | None
) -> RunResult:
    """Submit and wait. Raises TimedOut; the run goes on."""
    # SIGTERM ends this process as Ctrl-C does: what was started here is drained.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    try:
        await host.join()
        (run_id,) = await host.client.submit([request])
        host.tell(f"run {run_id}")
        return await _waited(host, run_id, follow=follow, as_json=as_json, timeout_s=timeout_s)
    finally:
        await host.leave()


async def _waited(
    host: Host, run_id: str, *, follow: bool, as_json: bool, timeout_s: float | None
) -> RunResult:
    limit = asyncio.timeout(timeout_s)
    goes_on = "goes on when the fleet is started again" if host.here else "goes on in the fleet"
    try:
        async with limit:
            if follow:
                async for event in host.client.events(run_id):
                    _print_event(event, as_json=as_json)
            return await host.client.wait(run_id)
    except asyncio.CancelledError:
        host.tell(f"interrupted; run {run_id} is kept and {goes_on}")
        host.tell_of_drain()
        raise
    except TimeoutError as exc:
        if not limit.expired():
            raise
        host.tell_of_drain()
        raise exits.TimedOut(
            f"run {run_id} has not ended after {timeout_s:g} s",
            hint=f"It is kept and {goes_on}. Look: toolfleet runs show {run_id}",
        ) from exc


def _from_stdin() -> str:
    from toolfleet.schemas.errors import InputError
    from toolfleet.schemas.limits import INPUT_BYTES_MAX

    raw = sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)  # one more, so that too much is seen and refused
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise InputError(f"stdin is not UTF-8 (byte {exc.start})", hint="Pass text in UTF-8.") from None


def _context(text: str | None) -> dict[str, Any]:
    from toolfleet.schemas.errors import InputError

    if text is None:
        return {}
    try:
        parsed = json.loads(text)
    except ValueError as exc:
        raise InputError(
            f"--context is not JSON: {exc}", hint="""For example --context '{"user": 7}'."""
        ) from None
    if not isinstance(parsed, dict):
        raise InputError("--context is not an object", hint="""For example --context '{"user": 7}'.""")
    return parsed


def _print_event(event: RunEvent, *, as_json: bool) -> None:
    """On stderr, so that stdout holds the result and nothing else."""
    if as_json:
        note_json({"event": shapes.event(event)})
    else:
        note(f"{event.seq:>4}  {shapes.event_line(event)}")


def _print_result(result: RunResult, *, as_json: bool) -> None:
    if as_json:
        print_json(shapes.result(result))
        return
    if result.output_text is not None:
        # A file or a program gets the text as it is; a terminal does not get to obey it.
        shown: Callable[[str], str] = (
            (lambda text: printable(text, lines=True)) if sys.stdout.isatty() else (lambda text: text)
        )
        print_text(shown(result.output_text))
    if not result.ok:
        reason = f" ({result.reason})" if result.reason else ""
        note(f"run {result.run_id} ended {result.status.value}{reason}")
        for one in result.found:
            note(shapes.found_line(one))
        note(f"What happened: toolfleet runs show {result.run_id}")
