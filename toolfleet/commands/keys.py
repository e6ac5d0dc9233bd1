"""`toolfleet keys | quotas`: who may use the fleet over HTTP, what each may do, and how much a tenant may use."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from toolfleet.commands import options
from toolfleet.commands.place import ask
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
    from toolfleet.access import Access, NewKey
    from toolfleet.schemas.access import Key, Quota, TenantUse

T = TypeVar("T")

keys = typer.Typer(no_args_is_help=True, help="Keys of people and programs, each with what it may do.")
quotas = typer.Typer(no_args_is_help=True, help="How much a tenant may use.")

COLUMNS = (
    Column("ID"),
    Column("NAME", shrinks=True),
    Column("TOKEN"),
    Column("TENANTS", shrinks=True),
    Column("SCOPES"),
    Column("AGENTS", shrinks=True),
    Column("STATE"),
    Column("EXPIRES"),
)
QUOTAS = (
    Column("TENANT"),
    Column("IN FLIGHT", number=True),
    Column("OF", number=True),
    Column("USD TODAY", number=True),
    Column("OF", number=True),
    Column("REQUESTS/MIN", number=True),
)
WIDTH = 40
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of a key (toolfleet keys ls).")]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="From now, as 90d, 12h, 30m. Default: until revoked."),
]


@keys.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Who it is: runs act for this name, and it decides as it.")],
    tenant: Annotated[
        list[str] | None,
        typer.Option("--tenant", help="Works for it; repeatable; * is any. Default: default."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="submit, read, approve, admin; repeatable. Default: submit and read."),
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", help="May be used; repeatable. Default: any.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option("--tool", help="With approve: may decide about it. Default: any.")
    ] = None,
    tier: Annotated[
        list[str] | None, typer.Option("--tier", help="With approve: may decide at it. Default: any.")
    ] = None,
    permission: Annotated[
        list[str] | None,
        typer.Option("--permission", help="What its runs may do, as tools name it; repeatable."),
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option("--grant", help="With approve: a permission it may grant for one call; repeatable."),
    ] = None,
    expires: Expires = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a key. The token is printed once and stored as its hash only."""
    made = _ask(
        app,
        database,
        lambda access: access.create(
            name,
            tenants=tenant or ("default",),
            scopes=scope or ("submit", "read"),
            agents=agent or ("*",),
            tools=tool or ("*",),
            tiers=tier or ("*",),
            permissions=permission or (),
            grants=grant or (),
            valid_s=None if expires is None else seconds(expires, "--expires"),
        ),
    )
    _print_new(made, as_json=as_json)


@keys.command("ls")
def ls(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only those that work for it.")] = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """List keys, approvers' too; never a token."""
    found = _ask(app, database, lambda access: access.keys(tenant=tenant))
    if as_json:
        print_json({"keys": [key_shape(one) for one in found]})
        return
    print_table(COLUMNS, [_row(one) for one in found], empty="no keys: toolfleet keys create NAME")


@keys.command("revoke")
def revoke(
    key_id: Id,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a key worth nothing, from now on."""
    _ask(app, database, lambda access: access.revoke(key_id))
    if as_json:
        print_json({"id": key_id, "revoked": True})
        return
    print_text(f"{printable(key_id)} is revoked")


@keys.command("rotate")
def rotate(
    key_id: Id,
    overlap: Annotated[
        str,
        typer.Option("--overlap", metavar="TIME", help="How long the old one still works; 0s: not at all."),
    ] = "24h",
    expires: Expires = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a new key that may do the same; the old one ends after the overlap."""
    made = _ask(
        app,
        database,
        lambda access: access.rotate(
            key_id,
            overlap_s=seconds(overlap, "--overlap"),
            valid_s=None if expires is None else seconds(expires, "--expires"),
        ),
    )
    _print_new(made, as_json=as_json)


@quotas.command("set")
def quotas_set(
    tenant: Annotated[str, typer.Argument(help="Whose they are.")],
    runs_in_flight: Annotated[
        int | None, typer.Option("--runs-in-flight", min=0, help="Runs that have not ended, at a time.")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option("--requests-per-minute", min=1, help="Over HTTP.")
    ] = None,
    cost_usd_per_day: Annotated[
        float | None, typer.Option("--cost-usd-per-day", min=0, help="Then nothing new till midnight UTC.")
    ] = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Set all three, in place of the old ones; one that is left out is without a limit."""
    from toolfleet.schemas.access import Quota

    quota = Quota(tenant, runs_in_flight, requests_per_minute, cost_usd_per_day)
    _ask(app, database, lambda access: access.set_quota(quota))
    if as_json:
        print_json(quota_shape(quota))
        return
    print_text(f"quotas of {printable(tenant)} are set")


@quotas.command("ls")
def quotas_ls(
    app: options.App = None, database: options.Database = None, as_json: options.AsJson = False
) -> None:
    """List tenants with quotas, and what they use now."""
    found = _ask(app, database, _uses)
    if as_json:
        print_json({"quotas": [quota_shape(quota, use) for quota, use in found]})
        return
    rows = [
        [
            printable(quota.tenant),
            str(use.runs_in_flight),
            _most(quota.runs_in_flight_max),
            f"{use.cost_usd_today:.4f}",
            _most(quota.cost_usd_per_day_max),
            _most(quota.requests_per_minute_max),
        ]
        for quota, use in found
    ]
    print_table(QUOTAS, rows, empty="no quotas: every tenant may use as much as there is")


async def _uses(access: Access) -> list[tuple[Quota, TenantUse]]:
    return [await access.use(quota.tenant) for quota in await access.quotas()]


def key_shape(one: Key) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "token_begins": one.shown,
        "tenants": list(one.tenants),
        "scopes": [scope.value for scope in one.scopes],
        "agents": list(one.agents),
        "tools": list(one.tools),
        "tiers": list(one.tiers),
        "permissions": list(one.permissions),
        "grants": list(one.grants),
        "state": one.state,
        "created_at": iso(one.created_at),
        "expires_at": iso(one.expires_at),
        "revoked_at": iso(one.revoked_at),
        "replaces": one.replaces,
    }


def quota_shape(quota: Quota, use: TenantUse | None = None) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "tenant": quota.tenant,
        "runs_in_flight_max": quota.runs_in_flight_max,
        "requests_per_minute_max": quota.requests_per_minute_max,
        "cost_usd_per_day_max": quota.cost_usd_per_day_max,
    }
    if use is not None:
        shape |= {"runs_in_flight": use.runs_in_flight, "cost_usd_today": use.cost_usd_today}
    return shape


def seconds(text: str, what: str) -> float:
    """`90d`, `12h`, `30m`, `45s` as seconds. Raises InputError."""
    from toolfleet.schemas.errors import InputError

    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)\s*([smhd])", text.strip())
    if found is None:
        raise InputError(f"{what} {text!r} is no time", hint="Write 45s, 30m, 12h or 90d.")
    return float(found[1]) * UNITS[found[2]]


def _print_new(made: NewKey, *, as_json: bool) -> None:
    if as_json:
        # made_at is the database's and comes back with the row
        shape = {name: value for name, value in key_shape(made.key).items() if name != "created_at"}
        print_json({**shape, "token": made.token})
        return
    print_text(made.token)
    note(f"Key {made.key.id}. Keep the token: it is shown this once. Authorization: Bearer …")


def _row(one: Key) -> list[str]:
    scopes = " ".join(scope.value for scope in one.scopes)
    names = [cut(", ".join(some), WIDTH) for some in (one.tenants, one.agents)]
    expires = "" if one.expires_at is None else moment(one.expires_at)
    return [one.id, printable(one.name), one.shown, names[0], scopes, names[1], one.state, expires]


def _most(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _ask(app: str | None, database: str | None, question: Callable[[Access], Awaitable[T]]) -> T:
    from toolfleet.access import Access

    return ask(app, database, lambda client: Access(client.store), question)
