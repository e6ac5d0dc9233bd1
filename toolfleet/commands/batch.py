"""`toolfleet batch submit | status | watch | download | cancel | resume | ls`: files of requests. Needs the database only."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toolfleet.commands import batch_shapes, exits, options
from toolfleet.commands.place import locate, opened
from toolfleet.commands.terminal import Column, moment, note, note_json, print_json, print_table, print_text

if TYPE_CHECKING:
    from toolfleet.batching.front import Batches, BatchOptions, Kind
    from toolfleet.batching.progress import BatchProgress
    from toolfleet.schemas.batches import BatchLimits, BatchReport, BatchView
    from toolfleet.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Files of requests: thousands of runs, one results file.")

COLUMNS = (
    Column("BATCH"),
    Column("STATUS"),
    Column("TENANT"),
    Column("DONE", number=True),
    Column("FAILED", number=True),
    Column("TOTAL", number=True),
    Column("CREATED"),
    Column("FILE", shrinks=True),
)

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="Id of a batch (toolfleet batch ls).")]
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="OpenAI batch file, or JSONL or CSV with --agent.")
]
Agent = Annotated[str | None, typer.Option("--agent", help="The agent of every row, for plain JSONL or CSV.")]
Template = Annotated[
    str, typer.Option("--template", help='What a row asks: "Ticket {id}: {text}"; {{ and }} are braces.')
]
FormatOption = Annotated[
    Literal["openai", "jsonl", "csv"] | None,
    typer.Option("--format", help="Default: openai; with --agent csv for *.csv, else jsonl."),
]
IdField = Annotated[str, typer.Option("--id-field", help="The field of a row that is its custom_id.")]
Endpoint = Annotated[str | None, typer.Option("--endpoint", help="The url every line has to name.")]
Window = Annotated[
    float | None, typer.Option("--window", metavar="S", help="Completion window, seconds (default: a day).")
]
CostMax = Annotated[
    float | None, typer.Option("--cost-max", metavar="USD", help="All its runs together cost no more.")
]
ConcurrencyMax = Annotated[
    int | None, typer.Option("--concurrency-max", metavar="N", help="No more of its runs at a time.")
]
Key = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="K", help="The same key again gives the same batch."),
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only batches of this tenant.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the file, store nothing.")]
Watch = Annotated[bool, typer.Option("--watch", help="Then show how far it is until it has ended.")]
KindOption = Annotated[
    Literal["output", "errors", "all"],
    typer.Option("--kind", help="Which lines: completed ones, other ones, both."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="Where to (default: stdout); whole or not at all."),
]


@asynccontextmanager
async def _batches(settings: Settings) -> AsyncIterator[Batches]:
    from toolfleet.batching.front import Batches

    async with opened(settings) as client:
        yield Batches(client)


@app.command("submit")
def submit(
    file: File,
    agent: Agent = None,
    template: Template = "{input}",
    format: FormatOption = None,
    id_field: IdField = "custom_id",
    endpoint: Endpoint = None,
    window: Window = None,
    cost_max: CostMax = None,
    concurrency_max: ConcurrencyMax = None,
    idempotency_key: Key = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose batch it is.")] = "default",
    dry_run: DryRun = False,
    watch: Watch = False,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Check and store a file of requests; a fleet on this database runs them. Answers once all of it is stored."""
    from toolfleet.batching.front import BatchOptions
    from toolfleet.schemas.batches import WINDOW_S, BatchLimits

    plain: Literal["jsonl", "csv"] = "csv" if file.suffix.lower() == ".csv" else "jsonl"
    asked = BatchOptions(
        format=format or (plain if agent else "openai"),
        endpoint=endpoint,
        agent=agent,
        template=template,
        id_field=id_field,
        window_s=WINDOW_S if window is None else window,
        limits=BatchLimits(cost_max, concurrency_max),
        idempotency_key=idempotency_key,
        tenant=tenant,
    )
    settings = locate(app, database).settings
    if dry_run:
        _checked(settings, file, asked, as_json=as_json)
        return
    view = asyncio.run(_submitted(settings, file, asked, as_json=as_json))
    if watch:
        _watched(settings, view.batch_id, as_json=as_json)
        return
    if as_json:
        print_json(batch_shapes.view(view))
        return
    print_text(view.batch_id)
    note(f"{view.counts.total} requests are stored. How far it is: toolfleet batch watch {view.batch_id}")


async def _submitted(settings: Settings, file: Path, asked: BatchOptions, *, as_json: bool) -> BatchView:
    from toolfleet.schemas.errors import BatchRefused

    async with _batches(settings) as batches:
        try:
            return await batches.submit(file, asked)
        except BatchRefused as exc:
            if not as_json:
                for fault in exc.faults:
                    note(batch_shapes.fault_line(fault))
            raise


def _checked(settings: Settings, file: Path, asked: BatchOptions, *, as_json: bool) -> None:
    async def check() -> None:
        async with _batches(settings) as batches:
            faults = await batches.check(file, asked)
        if as_json:
            print_json({"ok": not faults, "errors": [batch_shapes.fault(one) for one in faults]})
        for fault in () if as_json else faults:
            print_text(batch_shapes.fault_line(fault))
        if faults:
            raise typer.Exit(exits.USAGE)
        if not as_json:
            note("nothing is wrong with it; nothing was stored")

    asyncio.run(check())


@app.command("status")
def status(
    batch_id: BatchId,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a batch: counts, what its items came to by reason, tokens, cost, seconds; or what is wrong with its file."""
    report = asyncio.run(_report(locate(app, database).settings, batch_id))
    if as_json:
        print_json(batch_shapes.report(report))
    else:
        print_text(batch_shapes.report_text(report))


async def _report(settings: Settings, batch_id: str) -> BatchReport:
    async with _batches(settings) as batches:
        return await batches.report(batch_id)


@app.command("watch")
def watch(
    batch_id: BatchId,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="S", help="Watch this long; the batch goes on."),
    ] = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how far a batch is until it has ended: rate, time left, failures, cost so far. Then its report."""
    _watched(locate(app, database).settings, batch_id, as_json=as_json, timeout_s=timeout)


def _watched(settings: Settings, batch_id: str, *, as_json: bool, timeout_s: float | None = None) -> None:
    """Ends with 1 where an item did not complete."""
    progress = asyncio.run(_followed(settings, batch_id, as_json=as_json, timeout_s=timeout_s))
    if as_json:
        print_json(batch_shapes.report(progress.report))
    else:
        print_text(batch_shapes.report_text(progress.report))
    done = progress.view.counts.completed == progress.view.counts.total
    raise typer.Exit(exits.OK if done else exits.NOT_COMPLETED)


async def _followed(
    settings: Settings, batch_id: str, *, as_json: bool, timeout_s: float | None
) -> BatchProgress:
    limit = asyncio.timeout(timeout_s)
    live = sys.stderr.isatty() and not as_json
    try:
        async with _batches(settings) as batches, limit, aclosing(batches.watch(batch_id)) as seen:
            said = ""
            async for progress in seen:
                line = batch_shapes.progress_line(progress)
                if as_json:
                    note_json({"progress": batch_shapes.progress(progress)})
                elif live:
                    sys.stderr.write(f"\r\x1b[K{line}")
                    sys.stderr.flush()
                elif line != said:
                    note(line)
                said = line
            if live:
                sys.stderr.write("\n")
            return progress
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise exits.TimedOut(
            f"batch {batch_id} has not ended after {timeout_s:g} s",
            hint=f"It goes on. Look: toolfleet batch status {batch_id}",
        ) from exc


@app.command("download")
def download(
    batch_id: BatchId,
    kind: KindOption = "output",
    out: Out = None,
    app: options.App = None,
    database: options.Database = None,
) -> None:
    """Write the answer lines of a batch: one for each custom_id that has ended, in the order of its file."""
    settings = locate(app, database).settings
    count = asyncio.run(_downloaded(settings, batch_id, kind, out))
    if out is not None:
        note(f"{count} lines in {out}")


async def _downloaded(settings: Settings, batch_id: str, kind: Kind, out: Path | None) -> int:
    from toolfleet.batching.face import Whole

    async with _batches(settings) as batches:
        count = 0
        if out is not None:
            with Whole(out) as file:
                async for line in batches.lines(batch_id, kind):
                    file.write(line)
                    count += 1
            return count
        async for line in batches.lines(batch_id, kind):
            print_text(line.decode().removesuffix("\n"))
            count += 1
        return count


@app.command("cancel")
def cancel(
    batch_id: BatchId,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Begin nothing more of a batch and stop what is at work; what has finished is kept."""
    _changed(locate(app, database).settings, batch_id, as_json=as_json)


def _changed(settings: Settings, batch_id: str, *, as_json: bool) -> None:
    async def carry() -> BatchView:
        async with _batches(settings) as batches:
            return await batches.cancel(batch_id)

    view = asyncio.run(carry())
    if as_json:
        print_json(batch_shapes.view(view))
    else:
        print_text(
            f"batch {batch_id} is {view.status.value}; {view.counts.completed} requests are done and kept"
        )


@app.command("resume")
def resume(
    batch_id: BatchId,
    window: Window = None,
    cost_max: CostMax = None,
    concurrency_max: ConcurrencyMax = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Run once more what ended and did not complete, or go on with a paused batch. What an effect did is not repeated."""
    from toolfleet.schemas.batches import BatchLimits

    limits = None if cost_max is None and concurrency_max is None else BatchLimits(cost_max, concurrency_max)
    view, again = asyncio.run(_resumed(locate(app, database).settings, batch_id, window, limits))
    if as_json:
        print_json({**batch_shapes.view(view), "resumed": again})
    else:
        print_text(f"batch {batch_id} is {view.status.value}; {again} requests run again")


async def _resumed(
    settings: Settings, batch_id: str, window_s: float | None, limits: BatchLimits | None
) -> tuple[BatchView, int]:
    async with _batches(settings) as batches:
        return await batches.resume(batch_id, window_s=window_s, limits=limits)


@app.command("ls")
def ls(
    status: Annotated[str | None, typer.Option("--status", help="Only batches of this status.")] = None,
    tenant: Tenant = None,
    limit: options.PageSize = 20,
    before: Annotated[
        str | None, typer.Option("--before", metavar="BATCH", help="Only batches older than this one.")
    ] = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """List batches, newest first."""

    async def listed() -> list[BatchView]:
        async with _batches(locate(app, database).settings) as batches:
            return list(await batches.list(limit=limit, before=before, tenant=tenant, status=status))

    found = asyncio.run(listed())
    following = found[-1].batch_id if len(found) == limit else None
    if as_json:
        print_json({"batches": [batch_shapes.view(one) for one in found], "next_before": following})
        return
    print_table(COLUMNS, [_row(one) for one in found], empty="no batches")
    if following is not None:
        note(f"older ones: --before {following}")


def _row(view: BatchView) -> list[str]:
    counts = view.counts
    status = f"{view.status.value} (paused)" if view.paused else view.status.value
    done = [str(counts.completed), str(counts.not_completed), str(counts.total)]
    return [view.batch_id, status, view.tenant, *done, moment(view.created_at), view.file_name]
