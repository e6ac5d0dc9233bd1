"""Routes of agents, and of what the caller's tenant may use."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query
from starlette.responses import Response

from toolfleet.api.context import Caller, needs
from toolfleet.api.door import Door
from toolfleet.api.models import AgentOut, Page, QuotaOut
from toolfleet.api.repeats import json_response
from toolfleet.schemas.access import Scope

router = APIRouter(tags=["agents"])

Reader = Annotated[Caller, Depends(needs(Scope.READ))]


@router.get("/agents", response_model=Page[AgentOut], summary="List agents")
async def ls(
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=100, description="How many at most.")] = 50,
    cursor: Annotated[
        str | None, Query(max_length=128, description="`next_cursor` of the page before.")
    ] = None,
) -> Page[AgentOut]:
    """By name, each as it was registered last; those that the key may use."""
    found = [one for one in await Door(caller).agents() if cursor is None or one.name > cursor]
    return Page.of(found, limit, AgentOut.of, lambda one: one.name)


@router.get(
    "/agents/{name}",
    response_model=AgentOut,
    summary="Look at an agent",
    responses={304: {"description": "It is still of the version that If-None-Match names"}},
)
async def get(
    caller: Reader,
    name: Annotated[str, Path(description="Name of an agent.", min_length=1, max_length=128)],
    version: Annotated[
        str | None, Query(max_length=64, description="One of its versions; default: the one registered last.")
    ] = None,
    if_none_match: Annotated[
        str | None, Header(description="An ETag; the same version is answered 304.", max_length=1000)
    ] = None,
) -> Response:
    """`ETag` is its version: what it is does not change under one."""
    found = await Door(caller).agent(name, version)
    tag = f'"{found.version}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    if tag in [one.strip().removeprefix("W/") for one in (if_none_match or "").split(",")]:
        return Response(status_code=304, headers=headers)
    return json_response(AgentOut.of(found), headers=headers)


@router.get("/quota", response_model=QuotaOut, summary="What the tenant may use, and uses now")
async def quota(caller: Reader) -> QuotaOut:
    """Of the key's tenant; with a key of every tenant that of X-Tenant, or of the default one."""
    return QuotaOut.of(*await caller.api.access.use(caller.own_tenant))
