"""Routes of what waits for a person: approvals, and effects nobody could tell of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from toolfleet.api.bodies import Decision, Edit, Rejection, Resolution
from toolfleet.api.context import Caller, needs
from toolfleet.api.door import Door
from toolfleet.api.models import ApprovalOut, EffectOut, Page
from toolfleet.api.repeats import once
from toolfleet.api.runs import Key, Limit
from toolfleet.schemas.access import Scope
from toolfleet.schemas.effects import ApprovalStatus, EffectState
from toolfleet.schemas.views import ApprovalView

approvals = APIRouter(prefix="/approvals", tags=["approvals"])
effects = APIRouter(prefix="/effects", tags=["effects"])

Reader = Annotated[Caller, Depends(needs(Scope.READ))]
Decider = Annotated[Caller, Depends(needs(Scope.APPROVE))]
ApprovalId = Annotated[str, Path(description="Id of an approval.", min_length=1, max_length=200)]
CallId = Annotated[str, Path(description="Id of a call with an effect.", min_length=1, max_length=200)]
OfRun = Annotated[str | None, Query(max_length=64, description="Only of this run.")]


@approvals.get("", response_model=Page[ApprovalOut], summary="List questions")
async def ls(
    caller: Reader,
    limit: Limit = 50,
    status: Annotated[
        ApprovalStatus | None, Query(description="Only of this status; default: those that are open.")
    ] = ApprovalStatus.PENDING,
    run_id: OfRun = None,
    cursor: Annotated[
        str | None, Query(max_length=200, description="`next_cursor` of the page before.")
    ] = None,
) -> Page[ApprovalOut]:
    """The oldest first."""
    if run_id is not None:
        await Door(caller).run(run_id)
    if cursor is not None:
        await Door(caller).approval(cursor)
    found = await caller.api.client.store.approvals(
        limit=limit + 1,
        status=None if status is None else status.value,
        tenant=caller.tenant,
        run_id=run_id,
        after=cursor,
    )
    return Page.of(found, limit, ApprovalOut.of, lambda one: one.approval.id)


@approvals.get("/{approval_id}", response_model=ApprovalOut, summary="Look at a question")
async def get(approval_id: ApprovalId, caller: Reader) -> ApprovalOut:
    """What would be sent, exactly."""
    return ApprovalOut.of(await Door(caller).approval(approval_id))


async def _decided(
    request: Request,
    caller: Caller,
    approval_id: str,
    what: str,
    decide: Callable[[], Awaitable[ApprovalView]],
) -> Response:
    await Door(caller).approval(approval_id)

    async def work() -> ApprovalOut:
        return ApprovalOut.of(await decide())

    return await once(request, caller, what, work)


@approvals.post("/{approval_id}/approve", response_model=ApprovalOut, summary="Say yes")
async def approve(
    request: Request, approval_id: ApprovalId, body: Decision, caller: Decider, idempotency_key: Key = None
) -> Response:
    """One confirmation, by whoever holds the key; some calls take two people, or two confirmations of one."""

    async def decide() -> ApprovalView:
        return await caller.api.approving.approve(
            approval_id, token=caller.token, reason=body.reason, arguments_hash=body.arguments_hash
        )

    return await _decided(request, caller, approval_id, "approve", decide)


@approvals.post("/{approval_id}/reject", response_model=ApprovalOut, summary="Say no")
async def reject(
    request: Request, approval_id: ApprovalId, body: Rejection, caller: Decider, idempotency_key: Key = None
) -> Response:
    """The call is not run, and the model is told the reason."""

    async def decide() -> ApprovalView:
        return await caller.api.approving.reject(approval_id, token=caller.token, reason=body.reason)

    return await _decided(request, caller, approval_id, "reject", decide)


@approvals.post("/{approval_id}/edit", response_model=ApprovalOut, summary="Say yes to other arguments")
async def edit(
    request: Request, approval_id: ApprovalId, body: Edit, caller: Decider, idempotency_key: Key = None
) -> Response:
    """They are checked as the model's are, and the model is told what really ran."""

    async def decide() -> ApprovalView:
        return await caller.api.approving.edit(
            approval_id,
            token=caller.token,
            arguments=body.arguments,
            reason=body.reason,
            arguments_hash=body.arguments_hash,
        )

    return await _decided(request, caller, approval_id, "edit", decide)


@effects.get("", response_model=Page[EffectOut], summary="List effects")
async def effects_ls(
    caller: Reader,
    limit: Limit = 50,
    state: Annotated[EffectState | None, Query(description="Only of this state.")] = None,
    run_id: OfRun = None,
    cursor: Annotated[
        str | None, Query(max_length=200, description="`next_cursor` of the page before.")
    ] = None,
) -> Page[EffectOut]:
    """The one that changed last first."""
    if run_id is not None:
        await Door(caller).run(run_id)
    if cursor is not None:
        await Door(caller).effect(cursor)
    found = await caller.api.client.store.effects(
        limit=limit + 1,
        state=None if state is None else state.value,
        tenant=caller.tenant,
        run_id=run_id,
        before=cursor,
    )
    return Page.of(found, limit, EffectOut.of, lambda one: one.call_id)


@effects.get("/{call_id}", response_model=EffectOut, summary="Look at an effect")
async def effect(call_id: CallId, caller: Reader) -> EffectOut:
    """What was sent, when, and what is known of it."""
    return EffectOut.of(await Door(caller).effect(call_id))


@effects.post("/{call_id}/resolve", response_model=EffectOut, summary="Answer for an effect")
async def resolve(
    request: Request, call_id: CallId, body: Resolution, caller: Decider, idempotency_key: Key = None
) -> Response:
    """`did_not_happen` frees its key: the same effect may then be made again."""
    await Door(caller).effect(call_id)

    async def work() -> EffectOut:
        done = await caller.api.approving.resolve(
            call_id,
            happened=body.outcome == "happened",
            token=caller.token,
            note=body.note,
            answer=body.answer,
            confirmed=body.confirmed,
        )
        return EffectOut.of(done)

    return await once(request, caller, "resolve", work)
