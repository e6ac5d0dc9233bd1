"""`toolfleet approvals standing`: what nobody has to be asked about, for a while."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from toolfleet.commands import options
from toolfleet.commands.deciding import Token, json_object, token_of
from toolfleet.commands.keys import seconds
from toolfleet.commands.place import ask
from toolfleet.commands.terminal import Column, cut, iso, moment, print_json, print_table, printable

if TYPE_CHECKING:
    from toolfleet.schemas.effects import StandingApproval
    from toolfleet.standing import Standing

T = TypeVar("T")

standing = typer.Typer(no_args_is_help=True, help="Calls that are approved beforehand, for a while.")

COLUMNS = (
    Column("ID"),
    Column("TOOL"),
    Column("TENANT"),
    Column("BY"),
    Column("EXPIRES"),
    Column("ARGUMENTS", shrinks=True),
)
WIDTH = 80


@standing.command("ls")
def standing_ls(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="Only of this tool.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Those that are over, too.")] = False,
    limit: options.PageSize = 20,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """List them, the one that was made last first."""
    found = _ask(app, database, lambda door: door.ls(tenant=tenant, tool=tool, ended=ended, limit=limit))
    if as_json:
        print_json({"standing": [standing_shape(one) for one in found]})
        return
    print_table(COLUMNS, [_row(one) for one in found], empty="no standing approvals")


@standing.command("add")
def standing_add(
    tool: Annotated[str, typer.Argument(help="The one tool it is for.")],
    tenant: Annotated[str, typer.Option("--tenant", help="The one tenant it is for.")],
    arguments: Annotated[
        str,
        typer.Option("--arguments", metavar="JSON", help="Values a call has to have, as one JSON object."),
    ],
    expires: Annotated[str, typer.Option("--expires", metavar="TIME", help="From now, as 12h, 30m.")],
    token: Token = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Approve calls like these beforehand, up to tier high. Only the values that are named are compared."""
    mine, pattern, valid_s = token_of(token), json_object(arguments), seconds(expires, "--expires")
    made = _ask(
        app,
        database,
        lambda door: door.add(tool, arguments=pattern, tenant=tenant, valid_s=valid_s, token=mine),
    )
    _tell(made, as_json)


@standing.command("end")
def standing_end(
    standing_id: Annotated[str, typer.Argument(metavar="ID", help="Of toolfleet approvals standing ls.")],
    token: Token = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """End one now: calls are asked for again."""
    mine = token_of(token)
    _tell(_ask(app, database, lambda door: door.end(standing_id, token=mine)), as_json)


def standing_shape(one: StandingApproval) -> dict[str, Any]:
    """A standing approval, with the whole of its scope."""
    return {
        "id": one.id,
        "tool": one.tool,
        "tenant": one.tenant,
        "arguments": one.arguments,
        "tier_max": one.tier_max.value,
        "expires_at": iso(one.expires_at),
        "created_by": one.created_by,
        "created_at": iso(one.created_at),
    }


def _row(one: StandingApproval) -> list[str]:
    what = json.dumps(one.arguments, ensure_ascii=False, sort_keys=True)
    return [
        one.id,
        printable(one.tool),
        printable(one.tenant),
        printable(one.created_by),
        moment(one.expires_at),
        cut(what, WIDTH),
    ]


def _tell(one: StandingApproval, as_json: bool) -> None:
    if as_json:
        print_json(standing_shape(one))
        return
    print_table(COLUMNS, [_row(one)], empty="")


def _ask(app: str | None, database: str | None, question: Callable[[Standing], Awaitable[T]]) -> T:
    from toolfleet.standing import Standing

    return ask(app, database, lambda client: Standing(client.store), question)
