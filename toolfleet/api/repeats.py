"""Requests that are sent again: each is carried out once, and the repeated one is given the answer of the first.

`Idempotency-Key` is the sender's own name for a request (draft-ietf-httpapi-idempotency-key-header-08). Official SDKs of
model providers send a POST whose answer was lost again without one, and say so in `x-stainless-retry-count`: such a request
is named by its key and body, for a short time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import orjson
from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from toolfleet.api.context import Caller
from toolfleet.api.problems import Problem, ProblemRaised, retry_after
from toolfleet.schemas.access import Replay
from toolfleet.schemas.errors import InputError, ToolfleetError

KEEP_S: Final = 48 * 3600.0
STALE_S: Final = 60.0  # a request that takes longer has lost its process
SDK_WINDOW_S: Final = 600.0  # an SDK gives up long before
KEY_CHARS_MAX: Final = 255
REPLAYED: Final = {"Idempotent-Replayed": "true"}


@dataclass(frozen=True, slots=True)
class Named:
    """What a request is called. `again`: its sender says that it was sent before; `own`: by the sender's own key."""

    key: str
    hash: str
    own: bool
    again: bool

    @property
    def anew(self) -> bool:
        """An SDK's first try is a new request, however often an equal one was made before."""
        return not self.own and not self.again


def named(request: Request, caller: Caller, body: bytes | None = None) -> Named | None:
    """None: a request that nobody can send again. `body`: what stands for a body that was not held. Raises InputError for
    a key that cannot be."""
    body = request.scope.get("toolfleet.body", b"") if body is None else body
    whole = hashlib.sha256(b"\n".join((request.url.path.encode(), body))).hexdigest()
    given = request.headers.get("idempotency-key")
    if given is not None:
        key = given.strip().strip('"')
        if not 0 < len(key) <= KEY_CHARS_MAX:
            raise InputError(
                f"an Idempotency-Key has 1 to {KEY_CHARS_MAX} characters", hint="A fresh UUID is a good one."
            )
        return Named(key, whole, own=True, again=False)
    tries = request.headers.get("x-stainless-retry-count", "")
    if not tries.isdigit():
        return None
    holder = "" if caller.key is None else caller.key.id
    return Named(f"sdk:{holder}:{whole}", whole, own=False, again=int(tries) > 0)


async def once(
    request: Request,
    caller: Caller,
    route: str,
    work: Callable[[], Awaitable[BaseModel]],
    *,
    status: int = 200,
    body: bytes | None = None,
) -> Response:
    """The answer of `work`, which is carried out once for each name. What it refuses may be sent again."""
    name = named(request, caller, body)
    if name is None:
        return json_response(await work(), status)
    store, tenant = caller.api.client.store, caller.own_tenant
    keep_s = KEEP_S if name.own else SDK_WINDOW_S
    known = await begin(caller, route, name, None)
    if known is not None and known.age_s <= keep_s:
        return _answer(known, name)
    try:
        answer = await work()
    except ToolfleetError:
        await store.drop_replay(tenant, route, name.key)
        raise
    text = answer.model_dump_json()
    await store.end_replay(tenant, route, name.key, status, text)
    return Response(text, status_code=status, media_type="application/json")


async def begin(caller: Caller, route: str, name: Named, run_id: str | None) -> Replay | None:
    """What is noted of the first request of that name; None: this is it."""
    return await caller.api.client.store.begin_replay(
        caller.own_tenant,
        route,
        name.key,
        Replay(name.hash, run_id=run_id),
        keep_s=KEEP_S,
        stale_s=STALE_S,
        anew=name.anew,
    )


def _answer(known: Replay, name: Named) -> Response:
    if known.request_hash != name.hash:
        raise ProblemRaised(
            Problem(
                422,
                "idempotency_conflict",
                "this Idempotency-Key was used for another request",
                "Use a new key for a new request.",
                param="idempotency-key",
            )
        )
    if known.status is None or known.body is None:
        raise ProblemRaised(
            Problem(
                409,
                "still_running",
                "the first request of this Idempotency-Key is still being worked on",
                "Ask again in a moment.",
                param="idempotency-key",
                headers=retry_after(1.0),
            )
        )
    return Response(known.body, status_code=known.status, media_type="application/json", headers=REPLAYED)


def located(response: Response, folder: str) -> Response:
    """With `Location`: the id of what was made, in that folder."""
    response.headers["Location"] = f"{folder}/{orjson.loads(response.body)['id']}"
    return response


def json_response(answer: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        answer.model_dump_json(), status_code=status, media_type="application/json", headers=headers
    )
