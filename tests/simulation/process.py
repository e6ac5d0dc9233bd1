"""A process of the fleet, as far as a simulation needs one: tasks that stop together, a clock, a door to the world.

Whatever leaves a process goes through `gate`: a frozen one stands there until it is woken, a dead one gets `Killed`.
Killing cancels the tasks; what their `finally` blocks do stays inside, because every port is behind the gate.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from tests.simulation.loop import VirtualLoop

EPOCH = 1_000_000.0  # the wall clock at virtual time 0

_CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated_process", default=None)


class Killed(BaseException):
    """The process died here. Not an Exception: no handler of the fleet may catch it."""


class Process:
    """One operating-system process. `name` is role-slot.generation."""

    def __init__(self, loop: VirtualLoop, kind: str, slot: int, generation: int, skew_s: float = 0.0) -> None:
        self.kind = kind
        self.slot = slot
        self.name = f"{kind}-{slot}.{generation}"
        self.dead = False
        self.woken_at = -1.0  # virtual time at which it was woken last
        self.stood = False  # its clock stood still when it was frozen last
        self.cut_off_until = 0.0  # virtual time until which it cannot reach the store
        self.missing: frozenset[str] = frozenset()  # tools this process has not loaded
        self.ended: list[BaseException] = []  # what ended a task that should have gone on
        self.clock = ProcessClock(self, loop, skew_s)
        self._loop = loop
        self._tasks: dict[asyncio.Future[Any], None] = {}
        self._thaw: asyncio.Event | None = None

    @property
    def frozen(self) -> bool:
        return self._thaw is not None

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it inside this process; everything it creates belongs to the process too."""
        context = contextvars.copy_context()
        context.run(_CURRENT.set, self)
        return self._loop.create_task(work, context=context)

    def keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As `start`, for work that should never end by itself."""
        task = self.start(work)
        task.add_done_callback(self._ended)
        return task

    def own(self, task: asyncio.Future[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def kill(self) -> None:
        """From here on nothing of it reaches the world."""
        self.dead = True
        if self._thaw is not None:
            self._thaw.set()
        for task in list(self._tasks):
            task.cancel()

    def freeze(self, *, clock_stands: bool) -> None:
        self._thaw = asyncio.Event()
        self.stood = clock_stands
        if clock_stands:
            self.clock.stop()

    def thaw(self) -> None:
        if self._thaw is not None:
            self.clock.go_on()
            self.woken_at = self._loop.time()
            self._thaw.set()
            self._thaw = None

    async def gate(self) -> None:
        """Before and after everything that is seen outside."""
        while self._thaw is not None and not self.dead:
            await self._thaw.wait()
        if self.dead:
            raise Killed(self.name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not self.dead and not task.cancelled() and task.exception() is not None:
            self.ended.append(task.exception() or AssertionError())


class ProcessClock:
    """The clocks of one process: its wall clock may be wrong by `skew_s`, and both may stand still while it is frozen,
    as in a paused virtual machine."""

    def __init__(self, process: Process, loop: VirtualLoop, skew_s: float) -> None:
        self._process = process
        self._skew_s = skew_s
        self._loop = loop
        self._stood_s = 0.0
        self._stopped_at: float | None = None

    def monotonic_s(self) -> float:
        return (self._loop.time() if self._stopped_at is None else self._stopped_at) - self._stood_s

    def boot_s(self) -> float:
        """Stands with the others: the worst case, a machine that was paused and never told."""
        return self.monotonic_s()

    def now_s(self) -> float:
        return EPOCH + self.monotonic_s() + self._skew_s

    async def sleep(self, seconds: float) -> None:
        until = self.monotonic_s() + seconds
        await asyncio.sleep(seconds)
        await self._process.gate()
        while until - self.monotonic_s() > 1e-9:
            await asyncio.sleep(until - self.monotonic_s())
            await self._process.gate()

    def stop(self) -> None:
        self._stopped_at = self._loop.time()

    def go_on(self) -> None:
        if self._stopped_at is not None:
            self._stood_s += self._loop.time() - self._stopped_at
            self._stopped_at = None


class WorldClock:
    """The time of everything outside the processes: the database, the broker, the APIs."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.time()

    def boot_s(self) -> float:
        return self._loop.time()

    def now_s(self) -> float:
        return EPOCH + self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def current() -> Process | None:
    """The process whose code runs now."""
    return _CURRENT.get()


def outside() -> contextvars.Context:
    """A context that belongs to no process."""
    context = contextvars.copy_context()
    context.run(_CURRENT.set, None)
    return context


def task_factory(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """Every task belongs to the process in whose context it runs."""
    context = options.get("context")
    owner = _CURRENT.get() if context is None else context.get(_CURRENT)
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    if owner is not None:
        owner.own(task)
        if owner.dead:
            task.cancel()
    return task
