"""`toolfleet purge`: forget what ended or was handed in long ago, or one run. Needs the database only."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from toolfleet.commands import options
from toolfleet.commands.place import locate, opened
from toolfleet.commands.terminal import note, print_json, print_text

if TYPE_CHECKING:
    from toolfleet.schemas.retention import Purged
    from toolfleet.settings import Settings

COUNTED: Final = ("runs", "emptied", "batches", "files")
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="AGE", help="What ended before: 30d, 12h, 0s (all of it)."),
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")]
OneRun = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="Erase this one run, whatever its age.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would be; change nothing.")]


def purge(
    older_than: OlderThan = None,
    tenant: Tenant = None,
    run: OneRun = None,
    dry_run: DryRun = False,
    yes: options.Yes = False,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Forget runs and batches that have ended, and files that were handed in. The audit stays, and so does what the ledger knows of effects that happened."""
    age_s = _age_s(older_than, run)
    settings = locate(app, database).settings
    if not dry_run and not yes:
        from toolfleet.schemas.errors import InputError

        raise InputError("a purge cannot be taken back", hint="Look first: --dry-run; then say --yes.")
    found = asyncio.run(_purged(settings, age_s, tenant, run, dry_run=dry_run))
    if as_json:
        print_json({"dry_run": dry_run, **{name: getattr(found, name) for name in COUNTED}})
        return
    would = "would be forgotten" if dry_run else "were forgotten"
    print_text(
        f"{found.runs} runs, {found.batches} batches and {found.files} files {would}; "
        f"{found.emptied} runs keep their ledger"
    )


def _age_s(older_than: str | None, run: str | None) -> float:
    from toolfleet.schemas.errors import InputError

    if (older_than is None) == (run is None):
        raise InputError(
            "say either --older-than or --run", hint="toolfleet purge --older-than 30d --dry-run"
        )
    if older_than is None:
        return 0.0
    read = re.fullmatch(r"(\d{1,9})([smhd])", older_than)
    if read is None:
        raise InputError(f"--older-than {older_than!r} is no age", hint="A number and s, m, h or d: 30d.")
    return float(read[1]) * UNITS[read[2]]


async def _purged(
    settings: Settings, age_s: float, tenant: str | None, run: str | None, *, dry_run: bool
) -> Purged:
    from toolfleet.adapters.store.sql_store import SqlStore
    from toolfleet.schemas.effects import Audit
    from toolfleet.schemas.errors import InputError
    from toolfleet.schemas.retention import Purged, PurgeScope

    async with opened(settings) as client:
        store = client.store
        assert isinstance(store, SqlStore)
        if run is not None:
            view = await client.get(run)
            if tenant is not None and view.info.tenant != tenant:
                raise InputError(f"no run is called {run!r}", hint="toolfleet runs ls")
        scope = PurgeScope(await store.now() - age_s, tenant, run)
        would = await store.retention.purgeable(scope)
        if dry_run:
            return would
        if run is not None and not would.any:
            raise InputError(
                f"run {run} is still needed: it has not ended, has a later run in its conversation, or waits for a human",
                hint=f"Look: toolfleet runs show {run}",
            )
        total = Purged()
        while (some := await store.retention.purge_some(scope)).any:
            total = total.plus(some)
        said = f"{total.runs} runs, {total.emptied} emptied, {total.batches} batches, {total.files} files"
        what = run or f"ended {age_s:g} s ago or earlier"
        await store.add_audit(Audit("purge", True, f"{what}: {said}", "cli", tenant or ""))
        note("the audit has a row of it")
        return total
