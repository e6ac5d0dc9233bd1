"""Routes for whoever runs the fleet: dead letters, breakers, worker processes; and health, which needs no key."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from toolfleet.api.bodies import Empty, Replay
from toolfleet.api.context import Api, Caller, api_of, needs
from toolfleet.api.door import Door
from toolfleet.api.models import BreakerOut, BreakerReset, DeadLetterOut, Health, Page, ReplayedOut, WorkerOut
from toolfleet.api.repeats import json_response, once
from toolfleet.api.runs import Key, Limit
from toolfleet.schemas.access import Scope
from toolfleet.schemas.errors import InputError, KeyRefused, ToolfleetError

router = APIRouter(tags=["operations"])
health = APIRouter(prefix="/health", tags=["health"])

Admin = Annotated[Caller, Depends(needs(Scope.ADMIN))]
DeadId = Annotated[str, Path(description="Id of a dead letter.", min_length=1, max_length=200)]


@router.get("/dead-letters", response_model=Page[DeadLetterOut], summary="List dead letters")
async def dead_ls(
    caller: Admin,
    limit: Limit = 20,
    cursor: Annotated[
        str | None, Query(max_length=200, description="`next_cursor` of the page before.")
    ] = None,
) -> Page[DeadLetterOut]:
    """Newest first. Refused messages are of no tenant: only a key of every tenant sees them."""
    if cursor is not None:
        await Door(caller).dead_letter(cursor)
    found = await caller.api.client.store.dead(limit=limit + 1, before=cursor, tenant=caller.tenant)
    return Page.of(found, limit, DeadLetterOut.of, lambda one: one.id)


@router.get("/dead-letters/{dead_id}", response_model=DeadLetterOut, summary="Look at a dead letter")
async def dead_get(dead_id: DeadId, caller: Admin) -> DeadLetterOut:
    """With the start of a message's bytes, as text that was never trusted."""
    return DeadLetterOut.of(await Door(caller).dead_letter(dead_id))


@router.post("/dead-letters/{dead_id}/replay", response_model=ReplayedOut, summary="Do it again")
async def dead_replay(
    request: Request, dead_id: DeadId, body: Replay, caller: Admin, idempotency_key: Key = None
) -> Response:
    """The run of a step that was given up is started as a new run, and the letter is removed."""
    letter = await Door(caller).dead_letter(dead_id)

    async def work() -> ReplayedOut:
        if letter.kind != "step" or letter.run_id is None:
            raise InputError(
                f"dead letter {dead_id} names no step that could be done again",
                hint="Nothing is lost by that: an outstanding step is a row, and its message is written anew.",
            )
        client = caller.api.client
        new_id = await client.retry(
            letter.run_id, idempotency_key=f"dead/{dead_id}", repeat_effects=body.repeat_effects
        )
        await client.store.discard_dead(dead_id)
        return ReplayedOut(id=dead_id, run_id=letter.run_id, new_run_id=new_id)

    return await once(request, caller, "dead", work)


@router.delete("/dead-letters/{dead_id}", status_code=204, summary="Remove a dead letter")
async def dead_discard(dead_id: DeadId, caller: Admin) -> Response:
    """For good. Touches no run."""
    await Door(caller).dead_letter(dead_id)
    await caller.api.client.store.discard_dead(dead_id)
    return Response(status_code=204)


@router.get("/breakers", response_model=Page[BreakerOut], summary="List breakers")
async def breakers(
    caller: Admin,
    limit: Limit = 100,
    cursor: Annotated[int, Query(ge=0, le=1_000_000, description="`next_cursor` of the page before.")] = 0,
) -> Page[BreakerOut]:
    """Those that counted a failure within a day, the one used last first."""
    found = [one for one in await caller.api.pace.breakers() if caller.tenant in (None, one.tenant)]
    return Page.at(found, cursor, limit, BreakerOut.of)


@router.post("/breakers/{tool}/reset", response_model=BreakerReset, summary="Close a breaker")
async def reset(
    request: Request,
    tool: Annotated[str, Path(description="Name of the tool.", min_length=1, max_length=128)],
    caller: Admin,
    body: Empty | None = None,
    idempotency_key: Key = None,
) -> Response:
    """Of the key's tenant; its counts are forgotten. `reset` false: there was none."""

    async def work() -> BreakerReset:
        done = await caller.api.pace.reset(caller.own_tenant, tool)
        return BreakerReset(tenant=caller.own_tenant, tool=tool, reset=done)

    return await once(request, caller, "reset", work)


@router.get("/workers", response_model=Page[WorkerOut], summary="List worker processes")
async def workers(
    caller: Admin,
    limit: Limit = 100,
    cursor: Annotated[int, Query(ge=0, le=1_000_000, description="`next_cursor` of the page before.")] = 0,
) -> Page[WorkerOut]:
    """They work for every tenant, so only a key of every tenant sees them."""
    if caller.tenant is not None:
        raise KeyRefused(
            "worker processes belong to no tenant",
            hint="Ask with a key of every tenant: toolfleet keys create NAME --tenant '*' --scope admin",
            reason="wrong_tenant",
        )
    found = await caller.api.client.store.workers()
    return Page.at(found, cursor, limit, WorkerOut.of)


@health.get("/live", response_model=Health, summary="Whether this process answers")
async def live() -> Health:
    """Needs no key, and asks nobody."""
    return Health(ok=True)


@health.get(
    "/ready",
    response_model=Health,
    summary="Whether this process can serve",
    responses={503: {"description": "Not now", "model": Health}},
)
async def ready(request: Request) -> Response:
    """503 while the database is away or this process is about to end."""
    problem = await _unready(api_of(request))
    return json_response(Health(ok=not problem, detail=problem), 503 if problem else 200)


async def _unready(api: Api) -> str:
    if api.closing.is_set():
        return "this process is about to end"
    try:
        await api.client.store.now()
    except ToolfleetError as exc:
        return exc.code
    return ""
