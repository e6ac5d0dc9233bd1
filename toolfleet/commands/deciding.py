"""`toolfleet approvals | approvers | effects`: what waits for a person, and who may decide."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from toolfleet.commands import options
from toolfleet.commands.place import ask, locate, opened
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
    from toolfleet.approving import Approving, EffectFile, Look, Looked
    from toolfleet.commands.place import Place
    from toolfleet.schemas.access import Key
    from toolfleet.schemas.ports import RunStore
    from toolfleet.schemas.views import ApprovalView, EffectView, RunEvent

T = TypeVar("T")

approvals = typer.Typer(no_args_is_help=True, help="Calls that wait for a person's yes.")
approvers = typer.Typer(no_args_is_help=True, help="Who may decide, each with a token.")
effects = typer.Typer(
    no_args_is_help=True, help="Changes made in the outside world, and what is known of them."
)

Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="TOOLFLEET_APPROVER_TOKEN", help="Yours; better by the environment than here."
    ),
]
Reason = Annotated[
    str, typer.Option("--reason", help="Is written down, and of a rejection the model is told it.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of an approval (toolfleet approvals ls).")]
CallId = Annotated[str, typer.Argument(metavar="CALL", help="Id of the call (toolfleet effects ls).")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")]
Seen = Annotated[
    str | None,
    typer.Option(
        "--hash", metavar="HASH", help="Of the arguments you have seen (approvals show); others are refused."
    ),
]

QUESTIONS = (
    Column("ID"),
    Column("STATUS"),
    Column("TIER"),
    Column("TOOL"),
    Column("TENANT"),
    Column("CONFIRMED"),
    Column("EXPIRES"),
    Column("WHAT", shrinks=True),
)
PEOPLE = (
    Column("ID"),
    Column("NAME"),
    Column("TENANTS"),
    Column("TOOLS"),
    Column("TIERS"),
    Column("GRANTS"),
    Column("STATE"),
)
LEDGER = (
    Column("CALL"),
    Column("STATE"),
    Column("TOOL"),
    Column("TENANT"),
    Column("AS OF"),
    Column("KEY", shrinks=True),
)
WIDTH = 80


@approvals.command("ls")
def approvals_ls(
    status: Annotated[
        str, typer.Option("--status", help="pending, granted, rejected, expired, withdrawn, all.")
    ] = "pending",
    tenant: Tenant = None,
    limit: options.PageSize = 20,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """List questions, the oldest first."""
    wanted = None if status == "all" else status
    found = _ask(app, database, lambda door: door.approvals(status=wanted, tenant=tenant, limit=limit))
    if as_json:
        print_json({"approvals": [approval_shape(one) for one in found]})
        return
    print_table(QUESTIONS, [_question(one) for one in found], empty="nothing waits for an approval")


@approvals.command("show")
def approvals_show(
    approval_id: Id,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one: what would be sent, exactly."""
    _tell(_ask(app, database, lambda door: door.approval(approval_id)), as_json)


@approvals.command("approve")
def approvals_approve(
    approval_id: Id,
    token: Token = None,
    reason: Reason = "",
    seen: Seen = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Confirm a call as it stands. Some take two people, or two confirmations of one."""
    mine = token_of(token)
    done = _ask(
        app, database, lambda door: door.approve(approval_id, token=mine, reason=reason, arguments_hash=seen)
    )
    _tell(done, as_json)


@approvals.command("reject")
def approvals_reject(
    approval_id: Id,
    reason: Reason,
    token: Token = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Refuse a call; the model is told why."""
    mine = token_of(token)
    _tell(_ask(app, database, lambda door: door.reject(approval_id, token=mine, reason=reason)), as_json)


@approvals.command("edit")
def approvals_edit(
    approval_id: Id,
    arguments: Annotated[
        str, typer.Option("--arguments", metavar="JSON", help="All arguments, as one JSON object.")
    ],
    token: Token = None,
    reason: Reason = "",
    seen: Seen = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Confirm a call with other arguments. They are checked as the model's are, and the model is told what really ran."""
    mine, given = token_of(token), json_object(arguments)
    done = _ask(
        app,
        database,
        lambda door: door.edit(approval_id, token=mine, arguments=given, reason=reason, arguments_hash=seen),
    )
    _tell(done, as_json)


@approvers.command("add")
def approvers_add(
    name: Annotated[str, typer.Argument(help="Who it is; two tokens of one name are one person.")],
    tenant: Annotated[
        list[str] | None, typer.Option("--tenant", help="May decide for it; repeatable. Default: any.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option("--tool", help="May decide about it; repeatable. Default: any.")
    ] = None,
    tier: Annotated[
        list[str] | None, typer.Option("--tier", help="May decide at it; repeatable. Default: any.")
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option("--grant", help="A permission they may grant for one call; repeatable. Default: none."),
    ] = None,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Add somebody. The token is printed once and stored as its hash only."""
    token = _ask(
        app,
        database,
        lambda door: door.add_approver(
            name,
            tenants=tenant or ("*",),
            tools=tool or ("*",),
            tiers=tier or ("*",),
            grants=grant or (),
        ),
    )
    if as_json:
        print_json({"name": name, "token": token})
        return
    print_text(token)
    note("Keep it: it is shown this once. Use it as TOOLFLEET_APPROVER_TOKEN.")


@approvers.command("ls")
def approvers_ls(
    app: options.App = None, database: options.Database = None, as_json: options.AsJson = False
) -> None:
    """List who may decide."""
    found = _ask(app, database, lambda door: door.approvers())
    if as_json:
        print_json({"approvers": [_person_shape(one) for one in found]})
        return
    print_table(PEOPLE, [_person(one) for one in found], empty="no approvers: toolfleet approvers add NAME")


@approvers.command("revoke")
def approvers_revoke(
    approver_id: Annotated[str, typer.Argument(metavar="ID", help="Of a token (toolfleet approvers ls).")],
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a token worth nothing, from now on."""
    _ask(app, database, lambda door: door.revoke_approver(approver_id))
    if as_json:
        print_json({"id": approver_id, "revoked": True})
        return
    print_text(f"{printable(approver_id)} is revoked")


@effects.command("ls")
def effects_ls(
    state: Annotated[str | None, typer.Option("--state", help="For example needs_human.")] = None,
    tenant: Tenant = None,
    limit: options.PageSize = 20,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """List effects, the one that changed last first."""
    found = _ask(app, database, lambda door: door.effects(state=state, tenant=tenant, limit=limit))
    if as_json:
        print_json({"effects": [effect_shape(one) for one in found]})
        return
    print_table(LEDGER, [_effect(one) for one in found], empty="no effects")


@effects.command("show")
def effects_show(
    call_id: CallId,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one: what was sent, when, under which keys, who approved it, and every word that came of it."""
    _lines(file_shape(_ask(app, database, lambda door: door.effect_file(call_id))), as_json)


@effects.command("resolve")
def effects_resolve(
    call_id: CallId,
    outcome: Annotated[
        str, typer.Argument(help="happened | did_not_happen, as you found out at the other side.")
    ],
    note_: Annotated[str, typer.Option("--note", help="How you know; is written down.")],
    token: Token = None,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="JSON", help="What the tool would have returned.")
    ] = None,
    yes: options.Yes = False,
    app: options.App = None,
    database: options.Database = None,
    as_json: options.AsJson = False,
) -> None:
    """Answer for an effect nobody could tell of. did_not_happen frees its key, so the tool of -A is asked once more first;
    where it says that it happened, that is refused."""
    from toolfleet.schemas.errors import InputError

    if outcome not in ("happened", "did_not_happen"):
        raise InputError(f"an effect is not {outcome!r}", hint="happened or did_not_happen")
    said = {
        "happened": outcome == "happened",
        "token": token_of(token),
        "note": note_,
        "answer": None if answer is None else _json(answer, "--answer"),
    }
    place = locate(app, database, needs_fleet=app is not None)
    _lines(effect_shape(asyncio.run(_resolved(place, call_id, said, yes))), as_json)


async def _resolved(place: Place, call_id: str, said: dict[str, Any], yes: bool) -> EffectView:
    """What the tool's own `reconcile` says counts, whatever is confirmed; only its silence can be confirmed."""
    from toolfleet.approving import Approving
    from toolfleet.schemas.errors import NotAllowed

    async with opened(place.settings) as client:
        door = Approving(client.store, client.publish_due, look_of(place, client.store))
        try:
            return await door.resolve(call_id, **said, confirmed=yes)
        except NotAllowed as exc:
            if exc.reason != "not_confirmed" or not sys.stdin.isatty():
                raise
            note(exc.message)
        if not typer.confirm("Are you sure that it did not happen, and may be made again?", err=True):
            raise typer.Abort
        return await door.resolve(call_id, **said, confirmed=True)


def look_of(place: Place, store: RunStore) -> Look | None:
    """How to ask the tools of the fleet of -A; None without one."""
    fleet = place.fleet
    if fleet is None:
        return None

    async def look(view: EffectView) -> Looked:
        from toolfleet.asking import ask_again

        return await ask_again(fleet.registry, place.settings, store, view)

    return look


def approval_shape(view: ApprovalView) -> dict[str, Any]:
    """A question, with the canonical arguments and the tool's own summary; nothing of it was written by the model but
    the values of the arguments."""
    asked = view.approval
    return {
        "id": asked.id,
        "status": asked.status.value,
        "tier": asked.tier.value,
        "tool": view.tool,
        "tenant": view.tenant,
        "run_id": view.run_id,
        "turn": view.turn,
        "call_id": view.call_id,
        "summary": asked.summary,
        "arguments": json.loads(view.arguments),
        "arguments_hash": asked.arguments_hash,
        "permissions": list(asked.permissions),
        "steps": asked.steps,
        "granted_by": list(asked.granted_by),
        "requested_by": asked.requested_by,
        "requested_at": iso(asked.requested_at),
        "expires_at": iso(asked.expires_at),
        "reason": asked.reason,
    }


def effect_shape(view: EffectView) -> dict[str, Any]:
    """An effect with all an operator needs to find it at the other side."""
    return {
        "call_id": view.call_id,
        "run_id": view.run_id,
        "turn": view.turn,
        "tool": view.tool,
        "tier": view.tier.value,
        "tenant": view.tenant,
        "state": view.entry.state.value,
        "key": view.entry.key,
        "attempt": view.entry.attempt,
        "arguments": json.loads(view.arguments),
        "sent_by": iso(view.entry.send_by),
        "asked_at": iso(view.entry.asked_at) if view.entry.asked_at else None,
        "as_of": iso(view.changed_at),
        "resolved_by": view.resolved_by,
        "answer": None if view.answer is None else json.loads(view.answer),
    }


def file_shape(file: EffectFile) -> dict[str, Any]:
    """As `effect_shape`, with who asked for it and who approved it, what the model was told, every later word, and what an
    operator may do now."""
    from toolfleet.schemas.effects import EffectState

    view, entry = file.view, file.view.entry
    waits = entry.state is EffectState.NEEDS_HUMAN
    resolve = f"toolfleet effects resolve {view.call_id}"
    return {
        **effect_shape(view),
        "agent": f"{file.info.agent} ({file.info.agent_version})",
        "principal": file.info.principal or str(file.info.context.get("principal") or ""),
        "idempotency_key": file.idempotency_key,
        "opened_at": iso(view.opened_at),
        "at_work_until": iso(entry.send_by + view.timeout_s),
        "asked_in_vain": entry.tries,
        "approvals": [
            {"id": one.approval.id, "status": one.approval.status.value, "by": list(one.approval.granted_by)}
            for one in file.approvals
        ],
        "outcome": None if file.result is None else file.result.outcome.value,
        "told": None if file.result is None else json.loads(file.result.content).get("message"),
        "events": [{"at": iso(one.at), "type": one.type, **_facts(one)} for one in file.events],
        "decisions": [
            {"at": iso(one.at), "action": one.action, "by": one.by, "reason": one.reason, **one.data}
            for one in file.audits
        ],
        "now": [f"{resolve} happened", f"{resolve} did_not_happen -A APP:FLEET"] if waits else [],
    }


def _facts(event: RunEvent) -> dict[str, Any]:
    return {name: value for name, value in event.data.items() if name != "call_id"}


def _question(view: ApprovalView) -> list[str]:
    asked = view.approval
    what = asked.summary or view.arguments
    if asked.permissions:
        what = f"grants {', '.join(asked.permissions)}: {what}"
    return [
        asked.id,
        asked.status.value,
        asked.tier.value,
        printable(view.tool),
        printable(view.tenant),
        f"{len(asked.granted_by)}/{asked.steps}",
        moment(asked.expires_at),
        cut(what, WIDTH),
    ]


def _person(one: Key) -> list[str]:
    state = one.state if one.revoked_at is None else f"revoked {moment(one.revoked_at)}"
    scopes = [cut(", ".join(scope), 40) for scope in (one.tenants, one.tools, one.tiers, one.grants)]
    return [one.id, printable(one.name), *scopes, state]


def _person_shape(one: Key) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "tenants": list(one.tenants),
        "tools": list(one.tools),
        "tiers": list(one.tiers),
        "grants": list(one.grants),
        "created_at": iso(one.created_at),
        "revoked_at": None if one.revoked_at is None else iso(one.revoked_at),
    }


def _effect(view: EffectView) -> list[str]:
    entry = view.entry
    return [
        view.call_id,
        entry.state.value,
        printable(view.tool),
        printable(view.tenant),
        moment(view.changed_at),
        cut(entry.key, WIDTH),
    ]


def _tell(view: ApprovalView, as_json: bool) -> None:
    _lines(approval_shape(view), as_json)


def _lines(shape: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(shape)
        return
    shown = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
        for name, value in shape.items()
        if value not in (None, "", [])
    }
    print_text("\n".join(f"{name:15} {printable(value)}" for name, value in shown.items()))


def _ask(app: str | None, database: str | None, question: Callable[[Approving], Awaitable[T]]) -> T:
    """What the front door for decisions answers. What becomes due is sent by the keeper of the fleet, within seconds."""
    from toolfleet.approving import Approving

    return ask(app, database, lambda client: Approving(client.store, client.publish_due), question)


def token_of(given: str | None) -> str:
    from toolfleet.schemas.errors import InputError

    if not given:
        raise InputError(
            "who decides? No token was given",
            hint="export TOOLFLEET_APPROVER_TOKEN=…, as `toolfleet approvers add NAME` printed it.",
        )
    return given


def json_object(text: str) -> dict[str, Any]:
    from toolfleet.schemas.errors import InputError

    found = _json(text, "--arguments")
    if not isinstance(found, dict):
        raise InputError("--arguments is no JSON object", hint="""--arguments '{"order_id": "o1"}'""")
    return found


def _json(text: str, what: str) -> Any:
    from toolfleet.schemas.errors import InputError

    try:
        return json.loads(text)
    except ValueError as exc:
        raise InputError(f"{what} is no JSON: {exc}", hint="Quote it for your shell.") from None
