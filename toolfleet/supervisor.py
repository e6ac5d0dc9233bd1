"""A fleet on one machine: its roles as child processes, started again when they end or fall silent.

`toolfleet up --broker …` and the demo are made of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import structlog

from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.ports import RunStore
from toolfleet.schemas.views import WorkerView
from toolfleet.settings import Settings

# How it tells its children: not on the command line, where everybody could read a password.
UP_PID: Final = "TOOLFLEET_UP_PID"
UP_DATABASE: Final = "TOOLFLEET_UP_DATABASE"
UP_BROKER: Final = "TOOLFLEET_UP_BROKER"
UP_CACHE: Final = "TOOLFLEET_UP_CACHE"

LOOK_S: Final = 1.0
CLOCK_S: Final = 0.5  # what two readings of the wall clock may differ by
SILENT_S: Final = 60.0  # twelve beats: a child that has not said for this long that it is there hangs
FIRST_S: Final = 300.0  # for the import of an app and a start that waits for the broker

log = structlog.get_logger("toolfleet.supervisor")

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
STEADY_S: Final = 60.0  # a child that lived this long is started again at once when it ends
KILL_AFTER_S: Final = 15.0  # beyond the grace period


@dataclass(slots=True)
class Child:
    """One process to be kept running."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    process: asyncio.subprocess.Process | None = None
    started_at: float = 0.0  # on the monotonic clock
    began_at: float = 0.0  # on the wall clock, which its beats tell
    ends: int = 0  # in a row, each soon after its start
    restarts: int = field(default=0)

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid


class Supervisor:
    """Runs children until it is stopped. `grace_s`: how long they may take to end when they are told to."""

    def __init__(self, children: Sequence[Child], *, grace_s: float, tell: Callable[[str], None]) -> None:
        self.children = list(children)
        self._grace_s = grace_s
        self._tell = tell
        self._watching: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()

    def start(self) -> None:
        self._watching = [asyncio.create_task(self._keep(child)) for child in self.children]

    async def stop(self) -> None:
        """SIGTERM to all; kill -9 to whoever is still there after the grace period."""
        self._stopped.set()
        self.signal(signal.SIGTERM)
        _, left = await asyncio.wait(self._watching, timeout=self._grace_s + KILL_AFTER_S)
        if left:
            self.signal(signal.SIGKILL)
            await asyncio.wait(left)

    def signal(self, number: signal.Signals) -> None:
        for child in self.children:
            if child.process is not None and child.process.returncode is None:
                with suppress(ProcessLookupError):
                    child.process.send_signal(number)

    def kill(self, pid: int, reason: str) -> None:
        """A child that hangs: it is started again."""
        self._tell(f"killing process {pid}: {reason}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    async def _keep(self, child: Child) -> None:
        while not self._stopped.is_set():
            child.started_at, child.began_at = time.monotonic(), time.time()
            child.process = await asyncio.create_subprocess_exec(
                *child.command, env=child.environment, stdin=asyncio.subprocess.DEVNULL
            )
            code = await child.process.wait()
            if self._stopped.is_set():
                return
            lived_s = time.monotonic() - child.started_at
            # Killed from outside is no fault of its own: only what ends by itself waits longer each time.
            child.ends = 1 if lived_s > STEADY_S or code == -signal.SIGKILL else child.ends + 1
            child.restarts += 1
            wait_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** (child.ends - 1))
            self._tell(f"{child.name} ended ({_how(code)}); starting it again in {wait_s:g} s")
            log.warning("child_ended", name=child.name, code=code, lived_s=round(lived_s, 1), wait_s=wait_s)
            await self._pause(wait_s)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)


def children_of(
    app: str, settings: Settings, workers: int, extra: Mapping[str, str] = MappingProxyType({})
) -> list[Child]:
    """The processes of a fleet on one machine: `workers` for decisions, as many for tools, one collector, one keeper,
    and one that answers the HTTP API where it has a port.

    `extra`: environment variables for them.
    """
    environment = {
        **os.environ,
        UP_PID: str(os.getpid()),
        UP_DATABASE: settings.database,
        UP_BROKER: settings.broker,
        **({} if settings.cache is None else {UP_CACHE: settings.cache}),
        "TOOLFLEET_HEALTH_PORT": "0",
        **extra,
    }
    roles = [*(["decide"] * workers), *(["exec"] * workers), "collect", "keep"]
    names = [f"{role} {roles[: at + 1].count(role)}" for at, role in enumerate(roles)]
    base = [sys.executable, "-m", "toolfleet"]
    children = [
        Child(name, [*base, "worker", role, "-A", app, "--approvals", settings.approvals], environment)
        for name, role in zip(names, roles, strict=True)
    ]
    if settings.http_port is not None:
        where = ["--host", settings.http_host, "--port", str(settings.http_port)]
        children.append(Child("api 1", [*base, "serve", *where], environment))
    return children


async def watch(supervisor: Supervisor, store: RunStore, ready: Callable[[], object]) -> None:
    """Calls `ready` once all are there, and ends a child that lives and says nothing. Until cancelled."""
    host, told = socket.gethostname(), False
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            found = await store.workers()
        except StoreUnavailable:
            continue
        here = [view for view in found if view.beat.host == host]
        heard = {child.name: silence_of(child, here) for child in supervisor.children}
        if not told and None not in heard.values():
            told = True
            ready()
        for child in supervisor.children:
            reason = hanging(child, heard[child.name], time.monotonic())
            if reason and child.process is not None and child.process.returncode is None:
                supervisor.kill(child.process.pid, reason)


def hanging(child: Child, silent_s: float | None, now_s: float) -> str:
    """Why a child counts as hanging, empty: it does not. `silent_s`: since its last beat, None: it has sent none."""
    if silent_s is None:
        lived_s = now_s - child.started_at
        patience_s = FIRST_S * (
            1 + child.restarts
        )  # longer each time: the machine may be too slow, not the child stuck
        return f"it has not begun to work within {lived_s:.0f} s" if lived_s > patience_s else ""
    return f"it has said nothing for {silent_s:.0f} s" if silent_s > SILENT_S else ""


def silence_of(child: Child, here: Sequence[WorkerView]) -> float | None:
    """Seconds since the child's last beat, of those of this host; None: it has said nothing yet.

    Beats of an earlier process of that number do not count: in a container every start gives the same numbers.
    """
    own = (
        view.silent_s
        for view in here
        if view.beat.pid == child.pid and view.beat.started_at >= child.began_at - CLOCK_S
    )
    return min(own, default=None)


def _how(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
