"""Runs the user's Python functions: `async def` on the loop, plain functions in killable children."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, assert_never

from toolfleet.adapters.tools.child_main import MESSAGE_CHARS
from toolfleet.adapters.tools.child_pool import (
    ChildDied,
    ChildJob,
    ChildPlace,
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
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.ports import NOT_IN_TIME, MayBegin, ToolAnswer, ToolFailed, ToolPlace, ToolReturned
from toolfleet.schemas.tools import CallFacts, ToolContext, ToolSpec


class LoadedTool(Protocol):
    """A declared tool, as this adapter needs it."""

    spec: ToolSpec

    @property
    def fixed(self) -> Mapping[str, Any]: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def target(self) -> str: ...

    def invoke(self, arguments: Mapping[str, Any], context: ToolContext) -> Any: ...

    def invoke_part(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> Any: ...

    def facts(self, arguments: Mapping[str, Any], context: ToolContext) -> CallFacts: ...


class PythonTools:
    """The tool backend of one process: every declared tool, with a pool for the plain functions of each tier, so that a
    flood of one tier keeps no call of another one waiting. Children are started when they are needed."""

    def __init__(self, tools: Mapping[str, LoadedTool], *, children: int) -> None:
        self._tools = dict(tools)
        targets = [tool.target for tool in self._tools.values() if tool.spec.runner == "child"]
        modules = sorted({target.rpartition(":")[0] for target in targets})
        largest = max((tool.spec.result_bytes_stored for tool in self._tools.values()), default=0)
        self._new_pool = partial(ChildPool, size=children, setup=modules, result_bytes_max=largest)
        self._pools: dict[Tier, ChildPool] = {}
        self._left: set[asyncio.Task[_Came]] = set()  # coroutines that did not end when they were told to

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.spec

    def facts(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallFacts | ToolFailed:
        tool = self._tools.get(name)
        if tool is None:
            return ToolFailed("not_loaded", f"{name} is not loaded", 0.0, began=False)
        try:
            return tool.facts(arguments, context)
        except Exception as exc:  # noqa: BLE001 - the tool's own functions; what they raise is an outcome
            return _raised(exc, 0.0)

    @asynccontextmanager
    async def place(self, name: str, tier: Tier) -> AsyncIterator[ToolPlace]:
        """A child that is ready for a plain function; the loop has room for every coroutine."""
        tool = self._tools.get(name)
        if tool is None:
            yield _NotLoaded(name)
        elif tool.spec.runner == "loop":
            yield _OnLoop(tool, self._left)
        else:
            async with self._pool(tier).place() as child:
                yield _InChild(tool, child)

    async def aclose(self) -> None:
        for task in self._left:
            task.cancel()
        await asyncio.gather(*(pool.aclose() for pool in self._pools.values()))

    def _pool(self, tier: Tier) -> ChildPool:
        if tier not in self._pools:
            self._pools[tier] = self._new_pool()
        return self._pools[tier]


class _NotLoaded:
    """The place of a tool this process does not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def run(
        self,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        timeout_s: float,
        part: str | None = None,
        may_begin: MayBegin | None = None,
    ) -> ToolAnswer:
        return ToolFailed("not_loaded", f"{self._name} is not loaded", 0.0, began=False)


class _InChild:
    """A plain function in a child of its own, killed at the deadline."""

    def __init__(self, tool: LoadedTool, child: ChildPlace) -> None:
        self._tool = tool
        self._child = child

    async def run(
        self,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        timeout_s: float,
        part: str | None = None,
        may_begin: MayBegin | None = None,
    ) -> ToolAnswer:
        fields = {f.name: getattr(context, f.name) for f in dataclasses.fields(context)}
        job = ChildJob(
            target=self._tool.target if part is None else f"{self._tool.target}#{part}",
            arguments={**arguments, **self._tool.fixed},
            context=fields,
            context_parameter=self._tool.spec.context_parameter,
        )
        if may_begin is not None and not may_begin():
            return NOT_IN_TIME
        return _of_child(await self._child.call(job, timeout_s=timeout_s), self._tool.spec)


@dataclasses.dataclass(frozen=True, slots=True)
class _Came:
    """What a tool on the loop came to: a value, or whatever it raised."""

    value: Any = None
    raised: BaseException | None = None


class _OnLoop:
    """A coroutine (or, by choice, a function in a thread) in a task of its own: what it raises or cancels is its own,
    and one that does not end when it is told to is left behind at the deadline."""

    def __init__(self, tool: LoadedTool, left: set[asyncio.Task[_Came]]) -> None:
        self._tool = tool
        self._left = left

    async def run(
        self,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        timeout_s: float,
        part: str | None = None,
        may_begin: MayBegin | None = None,
    ) -> ToolAnswer:
        if may_begin is not None and not may_begin():
            return NOT_IN_TIME
        started = time.monotonic()
        task = asyncio.create_task(_came(self._tool, arguments, context, part))
        self._left.add(task)
        task.add_done_callback(self._left.discard)
        try:
            await asyncio.wait((task,), timeout=timeout_s)
        finally:
            task.cancel()  # nothing, where it has ended
        seconds = time.monotonic() - started
        if not task.done():
            return ToolFailed("timed_out", f"no answer within {timeout_s:g} s", seconds)
        came = task.result()
        if came.raised is not None:
            return _raised(came.raised, seconds)
        spec = self._tool.spec
        return _encoded(to_json(came.value, bytes_max=spec.result_bytes_stored), spec, seconds)


async def _came(tool: LoadedTool, arguments: dict[str, Any], context: ToolContext, part: str | None) -> _Came:
    """Whatever the tool does, as a value: nothing of it may reach the event loop, KeyboardInterrupt included."""
    try:
        if part is not None:
            value = await asyncio.to_thread(tool.invoke_part, part, arguments, context)
            return _Came(await value if hasattr(value, "__await__") else value)
        if tool.is_async:
            return _Came(await tool.invoke(arguments, context))
        return _Came(await asyncio.to_thread(tool.invoke, arguments, context))
    except BaseException as exc:  # noqa: BLE001 - that is what this is for
        return _Came(raised=exc)


def _raised(exc: BaseException, seconds: float) -> ToolFailed:
    if isinstance(exc, ToolError):
        message = exc.message[:MESSAGE_CHARS]  # as a child cuts it
        return ToolFailed("raised", message, seconds, type(exc).__name__, exc.code, exc.to_fields())
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
