"""Routes of runs: accept, look, wait, cancel, items, calls, events."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from starlette.responses import Response

from toolfleet.access import require_agent
from toolfleet.api.bodies import Empty, SubmitRun
from toolfleet.api.context import Caller, needs
from toolfleet.api.door import Door
from toolfleet.api.models import CallOut, CancelOut, EventOut, ItemOut, Page, RunOut
from toolfleet.api.repeats import REPLAYED, begin, json_response, named, once
from toolfleet.api.streams import MEDIA_TYPE as STREAM
from toolfleet.api.streams import event_stream, is_over, refuse_without_room
from toolfleet.client import RunRequest
from toolfleet.schemas.access import Scope
from toolfleet.schemas.errors import InputError
from toolfleet.schemas.ids import RunId, new_run_id
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.outcomes import Lane, RunStatus

router = APIRouter(prefix="/runs", tags=["runs"])

PAGE_MAX: Final = 200
WAIT_S_MAX: Final = 60.0
SEQ_MAX: Final = 2**31 - 1
CALLS_OF_A_TURN: Final = 1 << 20  # more than any has: (turn, index) is one number in a cursor
FROM_THE_KEY: Final = ("principal", "permissions")  # of the context: what it says of them is not believed

RunIdPath = Annotated[str, Path(description="Id of a run.", min_length=1, max_length=64)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many at most.")]
Wait = Annotated[
    float | None, Query(ge=0, le=WAIT_S_MAX, description="Answer when it has ended, or after these seconds.")
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", description="The same key again gives the same run; 1 to 255 characters."
    ),
]
Submitter = Annotated[Caller, Depends(needs(Scope.SUBMIT))]
Reader = Annotated[Caller, Depends(needs(Scope.READ))]


@router.post("", status_code=202, response_model=RunOut, summary="Submit a run")
async def submit(
    request: Request, body: SubmitRun, caller: Submitter, idempotency_key: Key = None
) -> Response:
    """Accept one run. Once this has answered, it is never lost. `Location` is where to look at it.

    Sent again with the same `Idempotency-Key`, it is the same run (`Idempotent-Replayed: true`)."""
    if caller.key is not None:
        require_agent(caller.key, body.agent)
    wanted = await _wanted(caller, body)
    name = named(request, caller)
    planned = None
    if name is not None and name.own:
        wanted = replace(wanted, idempotency_key=name.key)
    elif name is not None:  # an SDK's: one run whatever became of its first try
        planned = str(new_run_id())
        known = await begin(caller, "runs", name, planned)
        planned = planned if known is None or known.run_id is None else known.run_id
    (accepted,) = await caller.api.client.accept([wanted], run_ids=None if planned is None else [planned])
    view = await Door(caller).run(accepted.run_id)
    headers = {"Location": f"/api/v1/runs/{accepted.run_id}", **({} if accepted.created else REPLAYED)}
    return json_response(RunOut.of(view), 202, headers)


async def _wanted(caller: Caller, body: SubmitRun) -> RunRequest:
    taken = sorted(set(FROM_THE_KEY) & body.context.keys())
    if taken:
        raise InputError(
            f"context may not hold {', '.join(taken)}: the key of the request says it",
            hint="toolfleet keys create NAME --permission …",
        )
    if body.previous_run_id is not None:
        await Door(caller).run(body.previous_run_id)
    return RunRequest(
        body.agent,
        body.input,
        previous_run_id=body.previous_run_id,
        context=body.context,
        metadata=body.metadata,
        limits=None if body.limits is None else await _limits(caller, body),
        deadline_s=body.deadline_s,
        lane=None if body.lane is None else Lane(body.lane),
        tenant=caller.own_tenant,
        principal=caller.name,
        permissions=() if caller.key is None else caller.key.permissions,
    )


async def _limits(caller: Caller, body: SubmitRun) -> Limits:
    """Those of the agent with what the body says in their place; what is looser counts for nothing."""
    assert body.limits is not None
    given = body.limits.model_dump(exclude_none=True)
    agent = await Door(caller).agent(body.agent)
    return Limits(**{**agent.limits.model_dump(), **given})


@router.get("", response_model=Page[RunOut], summary="List runs")
async def ls(
    caller: Reader,
    limit: Limit = 20,
    cursor: Annotated[
        str | None, Query(max_length=64, description="`next_cursor` of the page before.")
    ] = None,
    status: Annotated[RunStatus | None, Query(description="Only of this status.")] = None,
    agent: Annotated[str | None, Query(max_length=128, description="Only of this agent.")] = None,
) -> Page[RunOut]:
    """Newest first."""
    found = await caller.api.client.store.runs(
        limit=limit + 1,
        before=None if cursor is None else RunId(cursor),
        status=None if status is None else status.value,
        agent=agent,
        tenant=caller.tenant,
    )
    return Page.of(found, limit, RunOut.of, lambda view: view.info.run_id)


@router.get("/{run_id}", response_model=RunOut, summary="Look at a run, or wait for it")
async def get(
    run_id: RunIdPath,
    caller: Reader,
    wait: Wait = None,
    prefer: Annotated[str | None, Header(description="`wait=N`: as ?wait=N.", max_length=200)] = None,
) -> Response:
    """The run as it is; with `wait` once it has ended, or when the time is over."""
    view = await Door(caller).run(run_id)
    wait_s = wait if wait is not None else _preferred(prefer)
    headers = {}
    if wait_s:
        headers = {"Preference-Applied": f"wait={wait_s:g}"} if wait is None else {}
        if not view.state.terminal:
            await _ended(caller, run_id, wait_s)
            view = await Door(caller).run(run_id)
    return json_response(RunOut.of(view), headers=headers)


async def _ended(caller: Caller, run_id: str, wait_s: float) -> None:
    """Returns when the run has ended, the time is over, or this process is about to end."""
    waiting = [
        asyncio.create_task(caller.api.client.wait(run_id)),
        asyncio.create_task(caller.api.closing.wait()),
    ]
    try:
        await asyncio.wait(waiting, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _preferred(prefer: str | None) -> float | None:
    """The seconds of `Prefer: wait=N` (RFC 7240); a preference that cannot be read is none."""
    for part in (prefer or "").split(","):
        name, _, value = part.strip().partition("=")
        if name.strip().lower() == "wait" and value.strip().isdigit():
            return min(WAIT_S_MAX, float(value))
    return None


@router.post("/{run_id}/cancel", response_model=CancelOut, summary="Stop a run")
async def cancel(
    request: Request,
    run_id: RunIdPath,
    caller: Submitter,
    body: Empty | None = None,
    idempotency_key: Key = None,
) -> Response:
    """Once this has answered, no effect of it begins; those that have are listed, and run to their outcome."""
    await Door(caller).run(run_id)

    async def work() -> CancelOut:
        return CancelOut.of(await caller.api.client.cancel(run_id, by=caller.name or "http"))

    return await once(request, caller, "cancel", work)


@router.get("/{run_id}/items", response_model=Page[ItemOut], summary="The conversation of a run")
async def items(
    run_id: RunIdPath,
    caller: Reader,
    limit: Limit = 100,
    after: Annotated[int, Query(ge=-1, le=SEQ_MAX, description="Only those after this `seq`.")] = -1,
) -> Page[ItemOut]:
    """In order. Runs before it in its conversation have items of their own. A page has about 4 MB at most, or one item."""
    await Door(caller).run(run_id)
    found, more = await caller.api.client.store.items_page(RunId(run_id), after=after, limit=limit)
    return Page.read(found, more, ItemOut.of, lambda one: one.seq)


@router.get("/{run_id}/calls", response_model=Page[CallOut], summary="What the calls of a run came to")
async def calls(
    run_id: RunIdPath,
    caller: Reader,
    limit: Limit = 100,
    cursor: Annotated[int, Query(ge=0, le=SEQ_MAX, description="`next_cursor` of the page before.")] = 0,
) -> Page[CallOut]:
    """In the order of turns and calls; those that have an outcome."""
    await Door(caller).run(run_id)
    after = divmod(cursor - 1, CALLS_OF_A_TURN)
    found, more = await caller.api.client.store.results_page(RunId(run_id), after=after, limit=limit)
    return Page.read(
        found,
        more,
        lambda one: CallOut.of(*one),
        lambda one: one[0] * CALLS_OF_A_TURN + one[1].index + 1,
    )


@router.get(
    "/{run_id}/events",
    summary="What happened to a run, as it happens or as a page",
    response_model=Page[EventOut],
    responses={
        200: {
            "description": "A page of events; with `Accept: text/event-stream` a stream of them until the run has ended",
            "content": {
                STREAM: {
                    "schema": {"type": "string"},
                    "example": 'id: 1\nevent: run.submitted\ndata: {"run_id":"run_019abc","seq":1}\n\n',
                }
            },
        },
        204: {
            "description": "The run has ended, and there are no events after the one named: do not ask again"
        },
    },
)
async def events(
    request: Request,
    run_id: RunIdPath,
    caller: Reader,
    limit: Limit = 100,
    starting_after: Annotated[
        int | None, Query(ge=0, le=SEQ_MAX, description="Only events after this `seq`.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="As starting_after; sent by who reads on in a stream.", max_length=20)
    ] = None,
) -> Any:
    """Any replica can go on with a stream: events are rows, and their `id` is their number in the run."""
    view = await Door(caller).run(run_id)
    after = _after(starting_after, last_event_id)
    if STREAM not in request.headers.get("accept", ""):
        found = await caller.api.client.store.events(RunId(run_id), after=after, limit=limit + 1)
        return Page.of(found, limit, EventOut.of, lambda one: one.seq)
    if await is_over(caller.api, view, after):
        return Response(status_code=204)
    refuse_without_room(caller.api)
    return event_stream(caller.api, view, after)


def _after(starting_after: int | None, last_event_id: str | None) -> int:
    """What a client that reads on says goes before what its URL says."""
    if last_event_id is None:
        return starting_after or 0
    if not last_event_id.isascii() or not last_event_id.isdigit() or int(last_event_id) > SEQ_MAX:
        raise InputError(
            f"Last-Event-ID {last_event_id[:20]!r} is no number of an event",
            hint="Send the `id:` you have read last.",
        )
    return int(last_event_id)
