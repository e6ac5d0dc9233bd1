"""Sends a task to somebody's Celery app and waits for its result without holding a thread or a worker.

The task keeps its own retries and queue; what it comes to is what the call comes to. Its id is made of the call's
idempotency key and attempt, so that a task that looks at it can tell a repetition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog
from celery import Celery, states

from toolfleet.schemas.errors import BusinessError, InvalidDefinition, PermissionDenied, Retryable
from toolfleet.schemas.tools import ToolContext

log = structlog.get_logger("toolfleet.celery_task")

LOOK_FIRST_S: Final = 0.05
LOOK_MAX_S: Final = 1.0
KNOWN: Final = {"BusinessError": BusinessError, "PermissionDenied": PermissionDenied}


class TaskFailed(Exception):
    """The task ended with an exception of its own; only its class is said."""


def check_backend(app: Celery, name: str) -> None:
    """Raises InvalidDefinition where a result could never be read."""
    if not app.conf.result_backend:
        raise InvalidDefinition(
            f"Celery task {name!r} cannot be a tool: its app has no result backend, so its result could not be read",
            hint='Give the app one, e.g. Celery("billing", broker=…, backend="redis://host:6379/1").',
        )


async def run_task(
    app: Celery, name: str, queue: str | None, arguments: Mapping[str, Any], context: ToolContext
) -> Any:
    """The task's result. Raises what the task says (BusinessError, PermissionDenied by name), Retryable where it was
    revoked or the app's broker is away, TaskFailed for any other exception of it. Cancelled: the task is revoked."""
    task_id = f"{context.idempotency_key}/{context.attempt}"

    def send() -> None:
        route = {} if queue is None else {"queue": queue}
        app.send_task(
            name, kwargs=dict(arguments), task_id=task_id, retry=False, ignore_result=False, **route
        )

    try:
        await asyncio.to_thread(send)
    except app.connection_for_write().connection_errors as exc:
        raise Retryable(f"the broker of Celery task {name} is away ({type(exc).__name__})") from exc
    try:
        return await _result(app, name, task_id)
    except asyncio.CancelledError:
        await _revoke(app, task_id)
        raise


async def _result(app: Celery, name: str, task_id: str) -> Any:
    """Looks again and again, less and less often; a subscription would need a thread of its own for each app."""
    wait_s = LOOK_FIRST_S
    while True:
        meta = await asyncio.to_thread(app.backend.get_task_meta, task_id, cache=False)
        if meta["status"] in states.READY_STATES:
            break
        await asyncio.sleep(wait_s)
        wait_s = min(LOOK_MAX_S, wait_s * 1.5)
    await asyncio.to_thread(app.backend.forget, task_id)
    if meta["status"] == states.SUCCESS:
        return meta["result"]
    if meta["status"] == states.REVOKED:
        raise Retryable(f"Celery task {name} was revoked before it ended")
    failed = meta["result"]
    known = KNOWN.get(type(failed).__name__)
    if known is not None:
        raise known(str(failed))
    raise TaskFailed(f"Celery task {name} raised {type(failed).__name__}")


async def _revoke(app: Celery, task_id: str) -> None:
    """So that a task nobody waits for does not begin; one that has begun goes on."""
    try:
        await asyncio.to_thread(app.control.revoke, task_id)
    except Exception as exc:  # noqa: BLE001 - best effort on somebody else's broker, whose errors are of many kinds
        log.info("revoke_failed", task_id=task_id, error=type(exc).__name__)
