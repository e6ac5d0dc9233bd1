"""Answers that are streamed; events of a run as Server-Sent Events, read from the database, so any process can go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import StreamingResponse

from toolfleet.api.context import Api
from toolfleet.api.models import EventOut
from toolfleet.api.problems import Problem, ProblemRaised, retry_after
from toolfleet.client import FINISHED_EVENT
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.views import RunEvent, RunView

MEDIA_TYPE: Final = "text/event-stream"
PAGE: Final = 500
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 0.5
HEARTBEAT_S: Final = 10.0  # below the 15 s after which a proxy or a client may think that nobody is there
HEADERS: Final = {"X-Accel-Buffering": "no"}  # a proxy that keeps it until it is whole would keep it for ever


def event_stream(api: Api, view: RunView, after: int) -> StreamingResponse:
    """Every event of the run after that one, once each, until the run has ended."""
    parts = _parts(api, view.info.run_id, after, ended=view.state.terminal)
    return StreamingResponse(counted(api, parts), media_type=MEDIA_TYPE, headers=HEADERS)


async def is_over(api: Api, view: RunView, after: int) -> bool:
    """Whether the run has ended, and nothing comes after that event. Asked in this order: a run that ends meanwhile is
    not over yet."""
    return view.state.terminal and not await api.client.store.events(view.info.run_id, after=after, limit=1)


def refuse_without_room(api: Api) -> None:
    """Raises ProblemRaised where this process streams as much as it may."""
    if api.streams < api.streams_max:
        return
    raise ProblemRaised(
        Problem(
            503,
            "too_many_streams",
            "this process has as many streams as it may",
            "Ask again in a moment, another process, or for pages.",
            headers=retry_after(5.0),
        )
    )


async def counted(api: Api, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same parts, as one of the streams of this process."""
    api.streams += 1
    try:
        async for part in parts:
            yield part
    finally:
        api.streams -= 1


async def _parts(api: Api, run_id: RunId, after: int, *, ended: bool) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    store, pause, said_at = api.client.store, PAUSE_FIRST_S, loop.time()
    yield b": stream\n\n"
    while not api.closing.is_set():
        try:
            fresh = await store.events(run_id, after=after, limit=PAGE)
            if not fresh and ended:
                return  # looked for once more after it had ended: there is nothing after this
            silent = not fresh and loop.time() - said_at > HEARTBEAT_S
            if silent or any(one.type == FINISHED_EVENT for one in fresh):
                ended = run_id in await store.finished([run_id])
        except StoreUnavailable:
            return  # who reads on asks again, here or elsewhere, from the event it has read last
        if fresh:
            yield b"".join(map(_event, fresh))
            after, pause, said_at = fresh[-1].seq, PAUSE_FIRST_S, loop.time()
            continue
        if silent:
            yield b": still here\n\n"
            said_at = loop.time()
        await _pause(api, pause)
        pause = min(PAUSE_MAX_S, pause * 1.5)


async def _pause(api: Api, seconds: float) -> None:
    """Shorter where this process is about to end."""
    try:
        async with asyncio.timeout(seconds):
            await api.closing.wait()
    except TimeoutError:
        return


def _event(one: RunEvent) -> bytes:
    """Lines end at LF only, and JSON has none: no text of a model or a tool can make an event of its own."""
    data = EventOut.of(one).model_dump_json().encode()
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (one.seq, one.type.encode(), data)
