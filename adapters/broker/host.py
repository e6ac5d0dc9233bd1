"""Celery as the host of our roles: a worker bootstep that runs an asyncio loop in a thread of its own.

Celery gives the process its command line, `-Q`, signals, remote control and `inspect`; it touches nothing on the hot
path, and the loop does not need celery's own connection to a broker. A bootstep of the worker, not of its consumer:
those are stopped and started again with every reconnect, and do not start at all while the broker is away.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, Protocol

import structlog
from celery import Celery, bootsteps, signals
from celery.worker.control import inspect_command

from toolfleet.adapters.garbage import spare_what_is_loaded
from toolfleet.schemas.errors import BrokerUnavailable, StoreUnavailable, ToolfleetError, UnsafeSettings

log = structlog.get_logger("toolfleet.host")

RETRY_S_MAX: Final = 5.0
COLD_S: Final = 5.0  # a cold stop does not wait for steps; this long for connections to be closed
STUCK_S: Final = 30.0  # for an orderly end of a worker that is stuck
EXIT_STUCK: Final = 70  # EX_SOFTWARE of sysexits.h
GREEN_POOLS: Final = ("gevent", "eventlet")


class Hosted(Protocol):
    """What the loop runs: one worker of the fleet."""

    async def start(self) -> None: ...

    async def stop(self, *, drain_s: float | None = None) -> bool: ...

    def stats(self) -> dict[str, Any]: ...


class LoopThread(threading.Thread):
    """Runs a worker in an asyncio loop. A database or broker that is away at the start is waited for.

    `on_death` is called in the thread when it ends without having been told to; then `error` says why.
    """

    def __init__(self, make: Callable[[], Hosted], *, drain_s: float, on_death: Callable[[], object]) -> None:
        super().__init__(name="toolfleet-loop", daemon=True)
        self._make = make
        self._drain_s = drain_s
        self._on_death = on_death
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked: asyncio.Event | None = None
        self._begun = threading.Event()
        self._hosted: Hosted | None = None
        self._asked = False
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._work())
        except Exception as exc:
            self.error = exc
            if isinstance(exc, ToolfleetError):
                log.critical("worker_ended", error=exc.message, hint=exc.hint)
            else:
                log.critical("worker_ended", exc_info=exc)
        finally:
            self._begun.set()
            if not self._asked:
                self._on_death()

    def ask_stop(self, *, cold: bool = False, drain_s: float | None = None) -> None:
        """Returns at once; safe in a signal handler and when repeated. Cold: what is in flight is given up."""
        if drain_s is not None:
            self._drain_s = drain_s
        if cold:
            self._drain_s = 0.0
        self._asked = True
        loop, stop = self._loop, self._stop_asked
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    def stats(self) -> dict[str, Any]:
        hosted = self._hosted
        return {"alive": self.is_alive(), **({} if hosted is None else hosted.stats())}

    @property
    def stop_within_s(self) -> float:
        """How long a stop may take: the drain, and time to close what is open."""
        return self._drain_s + COLD_S

    async def _work(self) -> None:
        self._loop, self._stop_asked = asyncio.get_running_loop(), asyncio.Event()
        if self._asked:
            return
        hosted = await self._start_hosted(self._stop_asked)
        self._begun.set()
        if hosted is None:
            return
        self._hosted = hosted
        spare_what_is_loaded()
        await self._stop_asked.wait()
        log.info("worker_draining", seconds=self._drain_s)
        drained = await hosted.stop(drain_s=self._drain_s)
        log.info("worker_stopped", drained=drained)

    async def _start_hosted(self, stop: asyncio.Event) -> Hosted | None:
        """The worker, once it could be started; None: told to stop before."""
        tried = 0
        while not stop.is_set():
            hosted = self._make()
            try:
                await hosted.start()
                return hosted
            except (BrokerUnavailable, StoreUnavailable) as exc:
                tried += 1
                log.warning("start_failed", tried=tried, error=exc.message)
            try:
                await asyncio.wait_for(stop.wait(), min(RETRY_S_MAX, 0.1 * 2 ** min(tried, 6)))
            except TimeoutError:
                continue
        return None


def install(
    app: Celery,
    *,
    roles: Collection[str],
    control_queue: str,
    make: Callable[[list[str]], Hosted],
    drain_s: float,
) -> None:
    """Every worker of this Celery app hosts the roles its `-Q` names, and reads `control_queue` for control tasks.

    `make` gets the selected roles, in the thread that will run them.
    """

    class FleetStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
        """After the pool, so that its children (if it has any) were forked before our thread was made."""

        requires = ("celery.worker.components:Pool",)
        name = "toolfleet"

        def __init__(self, worker: Any, **kwargs: Any) -> None:
            self.thread: LoopThread | None = None
            self.roles: list[str] = []

        def create(self, worker: Any) -> Any:
            refuse_green_pool(getattr(worker.pool_cls, "__module__", ""))
            _keep_folder_importable()
            queues = worker.app.amqp.queues
            self.roles = sorted(set(roles) & set(queues.consume_from))
            queues.deselect(self.roles)  # celery must not read what our consumers read
            if control_queue not in queues.consume_from:
                queues.select_add(control_queue)
            worker.fleet = self
            return self

        def start(self, worker: Any) -> None:
            if not self.roles:
                log.warning("no_roles", hint="this worker runs control tasks only; select roles with -Q")
                return
            self.thread = LoopThread(partial(make, self.roles), drain_s=drain_s, on_death=_end_this_process)
            app.fleet_thread = self.thread
            signals.worker_shutting_down.connect(self._shutting_down, weak=False)
            self.thread.start()

        def _shutting_down(self, how: str | None = None, **kwargs: Any) -> None:
            """In the signal handler: fetch no more, at once; `stop` comes seconds later."""
            if self.thread is not None:
                self.thread.ask_stop(cold=how == "Cold")

        def stop(self, worker: Any) -> None:
            _stop(self.thread)

        def terminate(self, worker: Any) -> None:
            _stop(self.thread, cold=True)

        def info(self, worker: Any) -> dict[str, Any]:
            stats = {} if self.thread is None else self.thread.stats()
            return {"fleet": {"roles": self.roles, **stats}}

    app.steps["worker"].add(FleetStep)


@inspect_command()  # type: ignore[untyped-decorator]
def fleet(state: Any) -> dict[str, Any]:
    """Roles and progress of this worker: `celery inspect fleet`."""
    step = getattr(state.consumer.controller, "fleet", None)
    if step is None:
        return {"roles": []}
    found: dict[str, Any] = step.info(None)["fleet"]
    return found


def _stop(thread: LoopThread | None, *, cold: bool = False) -> None:
    """Bounded: celery itself waits for a step for ever."""
    if thread is not None:
        thread.ask_stop(cold=cold)
        thread.join(COLD_S if cold else thread.stop_within_s)


def _keep_folder_importable() -> None:
    """Celery loads the app from the current folder and takes it off the path again; children of tools need it too."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)


def refuse_green_pool(pool: str) -> None:
    """`pool`: the module of celery's pool. Raises UnsafeSettings for one of greenlets."""
    if any(green in pool for green in GREEN_POOLS):
        raise UnsafeSettings(
            f"the pool {pool.rpartition('.')[2]} cannot host a worker of the fleet: its loop would not run",
            hint="Start it with -P solo.",
        )


def end_stuck_process(reason: str) -> None:
    """A worker that does not get on asks celery to stop, and ends by force where even that hangs."""
    log.critical("worker_stuck_ends", reason=reason)
    threading.Timer(STUCK_S, os._exit, (EXIT_STUCK,)).start()
    _end_this_process()


def end_blocked_process(seconds: float, stack: str) -> None:
    """A worker whose loop stands still cannot drain. Its leases run out; what it did is counted as a lost worker's."""
    log.critical("worker_blocked_ends", seconds=seconds, stack=stack)
    os._exit(EXIT_STUCK)


def _end_this_process() -> None:
    """The loop is gone, and a worker without one is of no use: celery stops, and a supervisor starts another."""
    os.kill(os.getpid(), signal.SIGTERM)
