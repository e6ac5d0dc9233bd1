"""Routes of batches: made of a file, looked at, stopped, gone on with; their answers, streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from toolfleet.access import require_agent
from toolfleet.api.batch_models import (
    BatchOut,
    BatchReportOut,
    CreateBatch,
    ResumeBatch,
    ResumedOut,
)
from toolfleet.api.bodies import Empty
from toolfleet.api.context import Caller, needs
from toolfleet.api.door import Door
from toolfleet.api.files import a_place
from toolfleet.api.models import Page
from toolfleet.api.repeats import located, named, once
from toolfleet.api.runs import Key, Limit
from toolfleet.api.streams import counted, refuse_without_room
from toolfleet.batching.front import BatchOptions, Kind
from toolfleet.schemas.access import Scope
from toolfleet.schemas.batches import BatchStatus, BatchView

router = APIRouter(prefix="/batches", tags=["batches"])

LINES: Final = "application/jsonl"
PIECE_BYTES: Final = 65_536
BatchId = Annotated[str, Path(description="Id of a batch.", min_length=1, max_length=64)]
Submitter = Annotated[Caller, Depends(needs(Scope.SUBMIT))]
Reader = Annotated[Caller, Depends(needs(Scope.READ))]
LINE: Final = (
    '{"id":"batch_req_019abc","custom_id":"1","response":{"status_code":200,"request_id":"run_019abc","body":'
    '{"object":"run","output":"…"}},"error":null}\n'
)


def _streamed(what: str) -> dict[int | str, dict[str, Any]]:
    content = {LINES: {"schema": {"type": "string"}, "example": LINE}}
    status = {
        "schema": {"type": "string"},
        "description": "`status` of the batch when the stream began: of one that has ended it is whole",
    }
    return {200: {"description": what, "content": content, "headers": {"x-batch-status": status}}}


@router.post("", status_code=201, response_model=BatchOut, summary="Create a batch")
async def create(
    request: Request, body: CreateBatch, caller: Submitter, idempotency_key: Key = None
) -> Response:
    """Check every line of a file and store all of them; the keeper then makes runs of them a window at a time. Once this has
    answered, the batch is never lost; it may take as long as a minute for 50,000 lines.

    What is wrong with the file is told at once, with line numbers (`errors`), and nothing of it runs. Sent again with the same
    `Idempotency-Key`, it is the same batch; one that was cut off is begun again."""
    if body.agent is not None and caller.key is not None:
        require_agent(caller.key, body.agent)
    door = Door(caller)
    file = await door.file(body.input_file_id)
    if body.agent is not None:
        await door.agent(body.agent)
    await caller.api.quotas.refuse_spent(caller.own_tenant)
    name = named(request, caller)
    options = BatchOptions(
        format=body.format,
        endpoint=body.endpoint,
        agent=body.agent,
        template=body.template,
        id_field=body.id_field,
        window_s=body.window_s,
        limits=body.limits.limits,
        metadata=body.metadata,
        idempotency_key=name.key if name is not None and name.own else None,
        tenant=caller.own_tenant,
        file_name=file.name,
        principal=caller.name,
        permissions=() if caller.key is None else caller.key.permissions,
    )

    async def work() -> BatchOut:
        with a_place(caller.api), await door.files.open(file) as lines:
            return BatchOut.of(await caller.api.batches.submit(lines, options, permitted=door.may_use))

    return located(await once(request, caller, "batches", work, status=201), request.url.path)


@router.get("", response_model=Page[BatchOut], summary="List batches")
async def ls(
    caller: Reader,
    limit: Limit = 20,
    cursor: Annotated[
        str | None, Query(max_length=64, description="`next_cursor` of the page before.")
    ] = None,
    status: Annotated[BatchStatus | None, Query(description="Only of that status.")] = None,
) -> Page[BatchOut]:
    """Newest first."""
    if cursor is not None:
        await Door(caller).batch(cursor)
    found = await caller.api.batches.list(
        limit=limit + 1,
        before=cursor,
        tenant=caller.tenant,
        status=None if status is None else status.value,
    )
    return Page.of(found, limit, BatchOut.of, lambda one: one.batch_id)


@router.get("/{batch_id}", response_model=BatchOut, summary="Look at a batch")
async def get(batch_id: BatchId, caller: Reader) -> BatchOut:
    """Counts are of distinct requests, counted when asked."""
    return BatchOut.of(await Door(caller).batch(batch_id))


@router.get("/{batch_id}/report", response_model=BatchReportOut, summary="What a batch came to")
async def report(batch_id: BatchId, caller: Reader) -> BatchReportOut:
    """So far: outcomes by reason, tokens, cost, seconds; rate and time left."""
    await Door(caller).batch(batch_id)
    return BatchReportOut.of(await caller.api.batches.report(batch_id, tenant=caller.tenant))


@router.post("/{batch_id}/cancel", response_model=BatchOut, summary="Stop a batch")
async def cancel(
    request: Request,
    batch_id: BatchId,
    caller: Submitter,
    body: Empty | None = None,
    idempotency_key: Key = None,
) -> Response:
    """Nothing more of it begins, what is at work is stopped, and what has finished is kept."""
    await Door(caller).batch(batch_id)

    async def work() -> BatchOut:
        return BatchOut.of(await caller.api.batches.cancel(batch_id, tenant=caller.tenant))

    return await once(request, caller, "batch_cancel", work)


@router.post("/{batch_id}/resume", response_model=ResumedOut, summary="Go on with a batch")
async def resume(
    request: Request,
    batch_id: BatchId,
    caller: Submitter,
    body: ResumeBatch | None = None,
    idempotency_key: Key = None,
) -> Response:
    """Run what ended and did not complete once more, or go on with one that is paused. An effect that happened is not done
    again."""
    await Door(caller).batch(batch_id)
    await caller.api.quotas.refuse_spent(caller.own_tenant)
    wanted = body or ResumeBatch()

    async def work() -> ResumedOut:
        view, again = await caller.api.batches.resume(
            batch_id,
            tenant=caller.tenant,
            window_s=wanted.window_s,
            limits=None if wanted.limits is None else wanted.limits.limits,
        )
        return ResumedOut(batch=BatchOut.of(view), resumed=again)

    return await once(request, caller, "batch_resume", work)


@router.get(
    "/{batch_id}/output",
    summary="The answers of a batch",
    response_class=Response,
    responses=_streamed("A line for each request that has completed, in the order of its file"),
)
async def output(batch_id: BatchId, caller: Reader) -> Any:
    """In the shape of the OpenAI Batch API."""
    return _answers(caller, await Door(caller).batch(batch_id), "output")


@router.get(
    "/{batch_id}/errors",
    summary="The requests of a batch that did not complete",
    response_class=Response,
    responses=_streamed(
        "A line for each request that has ended and did not complete, in the order of its file"
    ),
)
async def errors(batch_id: BatchId, caller: Reader) -> Any:
    """Each custom_id of a batch that has ended is in exactly one of the two: here, or in `/output`."""
    return _answers(caller, await Door(caller).batch(batch_id), "errors")


def _answers(caller: Caller, view: BatchView, kind: Kind) -> StreamingResponse:
    refuse_without_room(caller.api)
    lines = caller.api.batches.lines(view.batch_id, kind, tenant=caller.tenant)
    headers = {
        "x-batch-status": view.status.value,
        "Content-Disposition": f'attachment; filename="{view.batch_id}_{kind}.jsonl"',
    }
    return StreamingResponse(counted(caller.api, _pieces(lines)), media_type=LINES, headers=headers)


async def _pieces(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes, fewer at a time: a write for each line costs more than the line."""
    held = bytearray()
    async for line in lines:
        held += line
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
