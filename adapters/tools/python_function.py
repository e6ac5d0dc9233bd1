"""Runs the user's Python functions: `async def` on the loop, plain functions in killable children."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, assert_never

from toolfleet.adapters.tools.child_pool import (
    ChildDied,
    ChildJob,
    ChildPool,
    ChildRaised,
    ChildReply,
    ChildReturned,
    ChildTimedOut,
    ChildTooLarge,
    ChildUnserialisable,
)
from toolfleet.adapters.tools.result_json import Encoded, TooLarge, Unserialisable, to_json
from toolfleet.schemas.errors import ToolError
from toolfleet.schemas.ports import ToolAnswer, ToolFailed, ToolReturned
from toolfleet.schemas.tools import ToolContext, ToolSpec


class LoadedTool(Protocol):
    """A declared tool, as this adapter needs it."""

    spec: ToolSpec

    @property
    def is_async(self) -> bool: ...

    @property
    def target(self) -> str: ...

    def invoke(self, arguments: Mapping[str, Any], context: ToolContext) -> Any: ...


class PythonTools:
    """The tool backend of one process: every declared tool, with the pool its plain functions share."""

    def __init__(self, tools: Mapping[str, LoadedTool], *, children: int) -> None:
        self._tools = dict(tools)
        self._places = asyncio.Semaphore(children)
        targets = [tool.target for tool in self._tools.values() if tool.spec.runner == "child"]
        modules = sorted({target.rpartition(":")[0] for target in targets})
        largest = max((tool.spec.result_bytes_stored for tool in self._tools.values()), default=0)
        self._pool = ChildPool(size=children, setup=modules, result_bytes_max=largest) if targets else None

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.spec

    def place(self, name: str) -> AbstractAsyncContextManager[object]:
        """One of the children for a plain function; the loop has room for every coroutine."""
        tool = self._tools.get(name)
        if tool is None or tool.spec.runner != "child":
            return nullcontext()
        return self._places

    async def run(
        self, name: str, arguments: dict[str, Any], context: ToolContext, *, timeout_s: float
    ) -> ToolAnswer:
        """One attempt; comes back at the deadline at the latest, whatever the tool does."""
        tool = self._tools.get(name)
        if tool is None:
            return ToolFailed("not_loaded", f"{name} is not loaded", 0.0, began=False)
        if tool.spec.runner == "child":
            return await self._in_child(tool, arguments, context, timeout_s)
        return await _on_loop(tool, arguments, context, timeout_s)

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()

    async def _in_child(
        self, tool: LoadedTool, arguments: dict[str, Any], context: ToolContext, timeout_s: float
    ) -> ToolAnswer:
        assert self._pool is not None
        fields = {f.name: getattr(context, f.name) for f in dataclasses.fields(context)}
        job = ChildJob(
            target=tool.target,
            arguments=arguments,
            context=fields,
            context_parameter=tool.spec.context_parameter,
        )
        return _of_child(await self._pool.call(job, timeout_s=timeout_s), tool.spec)


async def _on_loop(
    tool: LoadedTool, arguments: dict[str, Any], context: ToolContext, timeout_s: float
) -> ToolAnswer:
    started = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            if tool.is_async:
                value = await tool.invoke(arguments, context)
            else:
                value = await asyncio.to_thread(tool.invoke, arguments, context)
    except TimeoutError as exc:
        if deadline.expired():
            return ToolFailed("timed_out", f"no answer within {timeout_s:g} s", time.monotonic() - started)
        return _raised(exc, started)
    except BaseException as exc:
        if _is_ours(exc):
            raise
        return _raised(exc, started)
    seconds = time.monotonic() - started
    return _encoded(to_json(value, bytes_max=tool.spec.result_bytes_stored), tool.spec, seconds)


def _is_ours(exc: BaseException) -> bool:
    """This attempt itself is being stopped; a CancelledError of the tool's own making is a failure like any other."""
    me = asyncio.current_task()
    stopped = me is not None and me.cancelling() > 0
    return isinstance(exc, GeneratorExit) or (isinstance(exc, asyncio.CancelledError) and stopped)


def _raised(exc: BaseException, started: float) -> ToolFailed:
    seconds = time.monotonic() - started
    if isinstance(exc, ToolError):
        return ToolFailed("raised", exc.message, seconds, type(exc).__name__, exc.code, exc.to_fields())
    return ToolFailed("raised", "", seconds, type(exc).__name__)


def _encoded(encoded: Encoded | Unserialisable | TooLarge, spec: ToolSpec, seconds: float) -> ToolAnswer:
    if isinstance(encoded, TooLarge):
        return ToolFailed("too_large", _too_large(encoded.size_bytes, spec), seconds)
    if isinstance(encoded, Unserialisable):
        return ToolFailed("not_json", encoded.reason, seconds)
    return ToolReturned(encoded.body, seconds, encoded.notes)


def _too_large(size_bytes: int, spec: ToolSpec) -> str:
    return f"{size_bytes} bytes, and at most {spec.result_bytes_stored} are stored"


def _of_child(reply: ChildReply, spec: ToolSpec) -> ToolAnswer:
    match reply:
        case ChildReturned():
            if len(reply.value_json) > spec.result_bytes_stored:
                return ToolFailed("too_large", _too_large(len(reply.value_json), spec), reply.seconds)
            return ToolReturned(reply.value_json, reply.seconds, reply.notes)
        case ChildRaised():
            return ToolFailed(
                "raised",
                reply.message,
                reply.seconds,
                error_type=reply.error_type,
                code=str(reply.data.get("code", "")),
                fields=reply.data,
                began=reply.began,
                detail=reply.traceback_tail,
            )
        case ChildUnserialisable():
            return ToolFailed("not_json", reply.reason, reply.seconds)
        case ChildTooLarge():
            return ToolFailed("too_large", _too_large(reply.size_bytes, spec), reply.seconds)
        case ChildDied():
            return ToolFailed("died", "its process ended", 0.0, began=reply.began, detail=reply.detail)
        case ChildTimedOut():
            return ToolFailed("timed_out", f"no answer within {reply.deadline_s:g} s", reply.deadline_s)
        case _:
            assert_never(reply)
