"""`toolfleet worker`: one process of the fleet, hosted by Celery; `toolfleet workers ls`: all of them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from toolfleet.commands import exits, options
from toolfleet.commands.place import locate, opened
from toolfleet.commands.terminal import Column, note, print_json, print_table, print_text
from toolfleet.schemas.limits import WORKER_SILENT_S
from toolfleet.schemas.outcomes import Lane, Tier
from toolfleet.supervisor import UP_BROKER, UP_CACHE, UP_DATABASE, UP_PID

if TYPE_CHECKING:
    from toolfleet.fleet import Fleet

app = typer.Typer(help="Worker processes of the fleet.", no_args_is_help=True)

ORPHAN_DRAIN_S: Final = 2.5  # of a worker whose `up` was killed: it hands back its leases and ends
ORPHAN_END_S: Final = 4.0
LONG_SILENT_S: Final = 600.0  # who has been silent for longer is only counted


class RoleName(StrEnum):
    """The roles a process may have."""

    DECIDE = "decide"
    EXEC = "exec"
    COLLECT = "collect"
    KEEP = "keep"
    DELIVER = "deliver"
    ALL = "all"


RoleArgument = Annotated[
    RoleName, typer.Argument(metavar="ROLE", help="decide, exec, collect, keep, or all.")
]
Tiers = Annotated[
    list[Tier] | None, typer.Option("--tier", help="With exec: of these tiers only; may be repeated.")
]
Lanes = Annotated[
    list[Lane] | None, typer.Option("--lane", help="With decide: of these lanes only; may be repeated.")
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "-c", min=1, help="Steps at a time, for each queue.")
]
HealthPort = Annotated[
    int | None,
    typer.Option("--health-port", min=0, max=65535, help="Answer /live, /ready and /metrics there; 0: any."),
]
DatabaseOfUp = Annotated[
    str | None, typer.Option("--database", metavar="URL", envvar=UP_DATABASE, show_envvar=False)
]
BrokerOfUp = Annotated[
    str | None, typer.Option("--broker", metavar="URL", envvar=UP_BROKER, show_envvar=False)
]
CacheOfUp = Annotated[str | None, typer.Option("--cache", metavar="URL", envvar=UP_CACHE, show_envvar=False)]


def worker(
    role: RoleArgument,
    app: options.App = None,
    database: DatabaseOfUp = None,
    broker: BrokerOfUp = None,
    cache: CacheOfUp = None,
    tier: Tiers = None,
    lane: Lanes = None,
    concurrency: Concurrency = None,
    health_port: HealthPort = None,
    approvals: options.Approvals = None,
) -> None:
    """Run one worker process until SIGTERM, which drains it and hands back its leases.

    It is `celery -A … worker -P solo -Q …` with the queues of the role, so everything Celery has for its workers works.
    """
    from toolfleet.commands.logs import configure_logs, log_level
    from toolfleet.schemas.errors import InputError

    hosted: dict[str, Any] = {}
    _end_with_parent(hosted)
    if app is None:
        raise InputError(
            "no app was given, so there are no tools and agents", hint="toolfleet worker exec -A myapp:fleet"
        )
    queues = queues_of(role, tier, lane)
    configure_logs(level=log_level())
    place = locate(app, database, broker=broker, cache=cache, approvals=approvals, needs_fleet=True)
    fleet = place.fleet
    assert fleet is not None
    slots = {} if concurrency is None else {"decide_slots": concurrency, "exec_slots": concurrency}
    fleet.configure(health_port=health_port, **slots)
    _ask_broker(fleet)
    celery = hosted["celery"] = fleet.celery
    name = f"{role.value}-{secrets.token_hex(4)}@%h"  # two nodes of one name on RabbitMQ: the second one dies
    quiet = ("--without-gossip", "--without-mingle", "--loglevel", "WARNING")
    code = celery.worker_main(["-q", "worker", "-P", "solo", "-Q", ",".join(queues), "-n", name, *quiet])
    thread = getattr(celery, "fleet_thread", None)
    if thread is not None and thread.error is not None:
        raise thread.error
    raise typer.Exit(code or exits.OK)


def _ask_broker(fleet: Fleet) -> None:
    """Celery would say what is wrong with a login in a traceback, or try for ever; one that is away is waited for."""
    from toolfleet.brokers import refuse_unsafe_broker
    from toolfleet.schemas.errors import BrokerUnavailable

    try:
        asyncio.run(refuse_unsafe_broker(fleet.settings))
    except BrokerUnavailable as exc:
        note(f"waiting for the broker: {exc.message}")


def queues_of(role: RoleName, tiers: list[Tier] | None, lanes: list[Lane] | None) -> list[str]:
    """The queues of a role. Raises InputError where tiers or lanes do not belong to it."""
    from toolfleet.roles import ALL_ROLES, KEEPER
    from toolfleet.schemas.commands import DECIDE_QUEUES, EXEC_QUEUES, RESULTS_QUEUE
    from toolfleet.schemas.errors import InputError

    if tiers and role is not RoleName.EXEC:
        raise InputError("--tier belongs to exec", hint="toolfleet worker exec --tier low -A myapp:fleet")
    if lanes and role is not RoleName.DECIDE:
        raise InputError(
            "--lane belongs to decide", hint="toolfleet worker decide --lane batch -A myapp:fleet"
        )
    match role:
        case RoleName.DECIDE:
            return [DECIDE_QUEUES[one] for one in lanes or Lane]
        case RoleName.EXEC:
            return [EXEC_QUEUES[one] for one in tiers or Tier]
        case RoleName.COLLECT:
            return [RESULTS_QUEUE]
        case RoleName.KEEP:
            return [KEEPER]
        case RoleName.ALL:
            return list(ALL_ROLES)
        case RoleName.DELIVER:
            raise InputError(
                "nothing puts webhooks into a queue in this release, so there is nothing to deliver",
                hint="Start the other roles: decide, exec, collect, keep.",
            )


def _end_with_parent(hosted: dict[str, Any]) -> None:
    """A child of `up` ends soon after it: a killed `up` must not leave workers that nobody watches.

    `hosted` gets the celery app once there is one; who is still starting then has nothing to hand back.
    """
    parent = os.environ.get(UP_PID)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        if "celery" not in hosted:
            os._exit(exits.CANNOT_WORK)
        threading.Timer(ORPHAN_END_S, os._exit, (exits.CANNOT_WORK,)).start()
        thread = getattr(hosted["celery"], "fleet_thread", None)
        if thread is not None:
            thread.ask_stop(drain_s=ORPHAN_DRAIN_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="toolfleet-parent", daemon=True).start()


@app.command("ls")
def ls(
    database: options.Database = None,
    app: options.App = None,
    everyone: Annotated[
        bool, typer.Option("--all", help="Also those that fell silent long ago; rows are kept for a day.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """List the worker processes: roles, load, and whether they get on."""
    asyncio.run(_ls(app, database, everyone, as_json))


async def _ls(app: str | None, database: str | None, everyone: bool, as_json: bool) -> None:
    async with opened(locate(app, database).settings) as client:
        known = await client.store.workers()
    found = [view for view in known if everyone or view.silent_s <= LONG_SILENT_S]
    if as_json:
        print_json([_document(view) for view in found])
        return
    columns = (Column("WORKER"), Column("ROLES"), Column("IN FLIGHT"), Column("SETTLED"), Column("STATE"))
    rows = [
        [
            f"{view.beat.host}:{view.beat.pid}",
            " ".join(view.beat.roles),
            str(view.beat.state.get("in_flight", 0)),
            str(view.beat.state.get("settled", 0)),
            _condition(view),
        ]
        for view in found
    ]
    print_table(
        columns, rows, empty="No worker process is listed; an embedded fleet is one process and lists none."
    )
    if len(found) < len(known):
        print_text(f"{len(known) - len(found)} more fell silent over ten minutes ago: --all")


def _condition(view: Any) -> str:
    if view.silent_s > WORKER_SILENT_S:
        return f"silent for {view.silent_s:.0f} s"
    if view.beat.state.get("stuck"):
        return str(view.beat.state["stuck"])
    return "ok, cache away" if view.beat.state.get("cache") == "away" else "ok"


def _document(view: Any) -> dict[str, Any]:
    beat = view.beat
    return {
        "id": beat.id,
        "host": beat.host,
        "pid": beat.pid,
        "roles": list(beat.roles),
        "version": beat.version,
        "started_at": beat.started_at,
        "seen_at": view.seen_at,
        "silent_s": round(view.silent_s, 3),
        "state": _condition(view),
        **beat.state,
    }
