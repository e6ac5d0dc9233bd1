"""A pool of exec'd children that run plain functions under a deadline that nothing can ignore.

One socketpair and one call at a time per child, driven by the event loop. A child that is killed, crashes or exits is
an answer, not an exception, and is replaced at the next call. Every end of a child kills its whole process group, so
that what it started ends with it; only what made a session of its own (a daemon) escapes. What runs in a child, and
the frames between, are in child_main.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from toolfleet.adapters.tools import (
    ChildDied,
    ChildJob,
    ChildRaised,
    ChildReply,
    ChildReturned,
    ChildTimedOut,
    ChildTooLarge,
    ChildUnserialisable,
    read_reply,
)
from toolfleet.adapters.tools.child_main import LENGTH, frame, spawn

__all__ = [
    "ChildDied",
    "ChildJob",
    "ChildPool",
    "ChildRaised",
    "ChildReply",
    "ChildReturned",
    "ChildTimedOut",
    "ChildTooLarge",
    "ChildUnserialisable",
    "PoolStats",
]

HELLO_TIMEOUT_S = 60.0  # importing the user's modules may take its time
OUTPUT_TAIL_BYTES = 4_000
FRAME_MARGIN = 100_000  # for what surrounds a result: names, messages, data, all cut in the child
RECEIVE_BYTES = 1 << 18
RESTART_BACKOFF_S, RESTART_BACKOFF_S_MAX = 0.1, 5.0  # doubled with each child in a row that does not start
EXIT_WAIT_S = 1.0  # between the end of a child's socket and its exit status; microseconds as a rule
CLOSE_WAIT_S = 5.0  # for killed children to be gone; only the kernel can delay that
REAP_FIRST_S, REAP_MAX_S = 0.001, 0.5
NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)


@dataclass(slots=True)
class PoolStats:
    """Counts since the pool was made. `died`: children that ended unasked, at their start, in a call or idle."""

    spawned: int = 0
    died: int = 0
    timed_out: int = 0
    calls: int = 0


class _End(Enum):
    """Why a child was ended."""

    GONE = "gone"
    LATE = "late"
    PROTOCOL = "protocol"
    CLOSED = "closed"
    RETIRED = "retired"  # it has had its calls
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class _Child:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    lifeline: int  # the child's group is killed by the kernel when this closes
    output: int  # what it prints
    exited: asyncio.Future[int]  # its return code, as subprocess gives it
    answer: asyncio.Future[bytes | _End] | None = None
    alive: bool = True
    calls: int = 0
    unsent: bytes = b""
    began: bool = False  # it may have seen the whole request
    received: bytearray = field(default_factory=bytearray)
    printed: bytearray = field(default_factory=bytearray)


class ChildPlace:
    """One child, kept for one call (`ChildPool.place`)."""

    def __init__(self, pool: ChildPool, child: _Child | ChildDied | None) -> None:
        self._pool = pool
        self.unused = child

    async def call(self, job: ChildJob, *, timeout_s: float) -> ChildReply:
        """As `ChildPool.call`, without waiting for a child. Once per place."""
        child, self.unused = self.unused, None
        return await self._pool.call_in(child, job, timeout_s=timeout_s)


class ChildPool:
    """At most `size` children, started when they are needed. All methods belong to one event loop, whose thread has
    to live as long as the pool: the kernel ends children with the thread that started them."""

    def __init__(
        self,
        *,
        size: int,
        result_bytes_max: int = 1_000_000,
        setup: Sequence[str] = (),
        modules: Sequence[str] = (),
        calls_per_child_max: int = 1000,
        address_space_bytes_max: int | None = None,
        on_output: Callable[[bytes], None] | None = None,
    ) -> None:
        """setup, modules: names or files that each child imports at its start. on_output: is given what children
        print, in the loop's thread; without it only the last of it is kept, for ChildDied."""
        assert size > 0 and result_bytes_max > 0 and calls_per_child_max > 0
        self._size = size
        self._frame_bytes_max = result_bytes_max + FRAME_MARGIN
        self._calls_max = calls_per_child_max
        self._on_output = on_output
        self._setup = {
            "import": [*setup, *modules],
            "result_bytes_max": result_bytes_max,
            "address_space_bytes_max": address_space_bytes_max,
        }
        self._all: set[_Child] = set()
        self._idle: list[_Child] = []  # the one that worked last is taken first: its caches are warm
        self._dying: set[_Child] = set()
        self._places = asyncio.Semaphore(size)  # first come, first served
        self._closing = self._closed = False
        self._failed_starts = 0
        self._not_before = 0.0
        self._last_failure: ChildDied | None = None
        self.stats = PoolStats()

    async def start(self) -> ChildDied | None:
        """Start one child now, if there is none: why that cannot be done, or None. Calls start them too."""
        async with self._places:
            child = None if self._idle or self._closed else await self._start()
            if isinstance(child, _Child):
                self._idle.append(child)
            return child if isinstance(child, ChildDied) else None

    async def call(self, job: ChildJob, *, timeout_s: float, wait_s_max: float | None = None) -> ChildReply:
        """Run it; never raises for what the function does. Cancelling the caller kills the child.

        The deadline counts from the moment the job is sent: waiting for a child is not the tool's time. That wait is
        bounded by wait_s_max, or without it by the deadlines of those in front and HELLO_TIMEOUT_S. Callers are
        served in the order they came. While children cannot start (each in a row doubles the pause up to
        RESTART_BACKOFF_S_MAX), calls are answered at once with the last reason.
        """
        assert timeout_s > 0
        request = _request(job)
        if self._closing:
            return _CLOSED
        self.stats.calls += 1
        try:
            async with asyncio.timeout(wait_s_max if self._places.locked() else None):
                await self._places.acquire()
        except TimeoutError:
            return ChildDied("busy", f"no child was free within {wait_s_max:g} s", began=False)
        try:
            return await self._placed(request, timeout_s)
        finally:
            self._places.release()

    async def call_in(
        self, child: _Child | ChildDied | None, job: ChildJob, *, timeout_s: float
    ) -> ChildReply:
        """A call by somebody who holds a place, with the child that was kept for it."""
        assert timeout_s > 0
        if self._closing:
            return _CLOSED
        self.stats.calls += 1
        return await self._placed(_request(job), timeout_s, child)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[ChildPlace]:
        """A child that has said hello, kept for one call; first come, first served. Where none can start, the call
        made in the place says why."""
        await self._places.acquire()
        kept: _Child | ChildDied | None = None
        try:
            kept = self._idle.pop() if self._idle else None if self._closing else await self._start()
            place = ChildPlace(self, kept)
            yield place
            kept = place.unused
        finally:
            if isinstance(kept, _Child) and kept.alive and kept.answer is None and kept not in self._idle:
                self._idle.append(kept)
            self._places.release()

    async def aclose(self, *, grace_s: float = 0.0) -> None:
        """Take no more calls, wait up to grace_s for those that were taken, then kill what is left: its callers get
        ChildDied("closed"). Afterwards there is no child. May be called again."""
        self._closing = True
        held = 0
        try:
            if grace_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        while held < self._size:  # in the queue of the callers: all places held, all answered
                            await self._places.acquire()
                            held += 1
        finally:
            self._closed = True
            for child in list(self._all):
                self._kill(child, _End.CLOSED)
            for _ in range(held):
                self._places.release()
        if self._dying:
            await asyncio.wait([child.exited for child in self._dying], timeout=CLOSE_WAIT_S)

    async def _placed(
        self, request: bytes, timeout_s: float, first: _Child | ChildDied | None = None
    ) -> ChildReply:
        for _ in range(self._size + 1):  # as many as could have died idle, and a new one
            if self._closed:
                return _CLOSED
            child, first = first, None
            if child is None or (isinstance(child, _Child) and not child.alive):
                child = self._idle.pop() if self._idle else await self._start()
            if isinstance(child, ChildDied):
                return child
            child.printed.clear()
            answer = await self._ask(child, request, timeout_s)
            if isinstance(answer, bytes):
                reply = read_reply(answer)
                if reply is None:
                    self._kill(child, _End.PROTOCOL)
                    return await self._died(child, _End.PROTOCOL)
                self._give_back(child)
                return reply
            if answer is _End.LATE:
                return ChildTimedOut(timeout_s)
            if answer is _End.CLOSED or child.began:
                return await self._died(child, answer)
        return ChildDied("unknown", "children end before a call can be sent to them", began=False)

    async def _ask(self, child: _Child, request: bytes, timeout_s: float) -> bytes | _End:
        """The body of the child's answer, or why the child was ended."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | _End] = loop.create_future()
        child.answer = future
        timer = loop.call_later(timeout_s, self._late, child, future)
        child.unsent, child.began = request, False
        try:
            self._send(child)
            return await future
        except asyncio.CancelledError:
            if child.answer is future:
                self._kill(child, _End.CANCELLED)
            else:
                self._give_back(child)  # it had answered
            raise
        finally:
            timer.cancel()

    def _give_back(self, child: _Child) -> None:
        child.calls += 1
        if child.received:  # more than one answer
            self._kill(child, _End.PROTOCOL)
        elif child.calls >= self._calls_max:
            self._kill(child, _End.RETIRED)
        elif child.alive:
            self._idle.append(child)

    async def _start(self) -> _Child | ChildDied:
        """A child that has imported the setup; it is not among the idle ones."""
        if self._last_failure is not None and asyncio.get_running_loop().time() < self._not_before:
            return self._last_failure
        try:
            child = self._exec()
        except OSError as exc:
            return self._not_started(ChildDied("not_started", f"no process could be started: {exc}"))
        greeting = frame({**self._setup, "path": sys.path, "pythonpath": os.environ.get("PYTHONPATH")})
        answer = await self._ask(child, greeting, HELLO_TIMEOUT_S)
        if isinstance(answer, bytes):
            self._failed_starts, self._last_failure = 0, None
            return child
        died = await self._died(child, answer)
        return died if answer is _End.CLOSED else self._not_started(died)

    def _not_started(self, died: ChildDied) -> ChildDied:
        pause = min(RESTART_BACKOFF_S * 2**self._failed_starts, RESTART_BACKOFF_S_MAX)
        self._failed_starts = min(self._failed_starts + 1, 30)  # far beyond the largest pause
        self._not_before = asyncio.get_running_loop().time() + pause
        self._last_failure = replace(died, reason="not_started", began=False)
        return self._last_failure

    def _exec(self) -> _Child:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            channel, far_channel = socket.socketpair()
            ours.callback(channel.close)
            theirs.callback(far_channel.close)
            far_lifeline, lifeline = os.pipe()
            theirs.callback(os.close, far_lifeline)
            ours.callback(os.close, lifeline)
            output, far_output = os.pipe()
            ours.callback(os.close, output)
            theirs.callback(os.close, far_output)
            process = spawn(far_channel.fileno(), far_lifeline, far_output)
            ours.pop_all()
        channel.setblocking(False)
        os.set_blocking(output, False)
        loop = asyncio.get_running_loop()
        child = _Child(process, channel, lifeline, output, exited=loop.create_future())
        self._all.add(child)
        self.stats.spawned += 1
        loop.add_reader(channel.fileno(), self._readable, child)
        loop.add_reader(output, self._read_output, child)
        return child

    def _send(self, child: _Child, waited: bool = False) -> None:
        """As much as the socket takes, and the rest when it takes more."""
        try:
            child.unsent = child.unsent[child.channel.send(child.unsent, NO_SIGPIPE) :]
        except BlockingIOError:
            pass  # nothing was taken
        except OSError:
            return self._kill(child, _End.GONE)
        child.began = not child.unsent
        if child.unsent and not waited:
            asyncio.get_running_loop().add_writer(child.channel.fileno(), self._send, child, True)
        elif waited and not child.unsent:
            asyncio.get_running_loop().remove_writer(child.channel.fileno())
        return None

    def _readable(self, child: _Child) -> None:
        try:
            part = child.channel.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except (
            OSError
        ) as exc:  # unix(7) on Linux: a reset is an end with the request, or a part of it, unread
            child.began &= not isinstance(exc, ConnectionResetError)
            part = b""
        if not part:
            return self._kill(child, _End.GONE)
        child.received += part
        if child.answer is None:  # nothing was asked
            return self._kill(child, _End.PROTOCOL)
        got = len(child.received)
        end = LENGTH.size + (LENGTH.unpack_from(child.received)[0] if got >= LENGTH.size else 0)
        if end > self._frame_bytes_max:
            return self._kill(child, _End.PROTOCOL)
        if got >= end > LENGTH.size:
            body = bytes(child.received[LENGTH.size : end])
            del child.received[:end]
            _settle(child, body)
        return None

    def _read_output(self, child: _Child) -> None:
        try:
            part = os.read(child.output, RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not part:  # it closed its output, and may go on
            asyncio.get_running_loop().remove_reader(child.output)
        child.printed += part
        del child.printed[:-OUTPUT_TAIL_BYTES]
        if self._on_output is not None and part:
            self._on_output(part)

    def _late(self, child: _Child, future: asyncio.Future[bytes | _End]) -> None:
        if child.answer is future:
            self._readable(child)  # an answer that is already here counts
        if child.answer is future:
            self._kill(child, _End.LATE)

    def _kill(self, child: _Child, why: _End) -> None:
        """End the child and its process group, and tell who waits for it. Does not wait for the kernel."""
        if not child.alive:
            return
        child.alive = False
        self._all.discard(child)
        self._idle = [one for one in self._idle if one is not child]
        # Before it is reaped: until then its number cannot belong to anybody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(child.process.pid, signal.SIGKILL)
        loop = asyncio.get_running_loop()
        loop.remove_reader(child.channel.fileno())
        loop.remove_writer(child.channel.fileno())
        child.channel.close()
        self.stats.died += why in (_End.GONE, _End.PROTOCOL)
        self.stats.timed_out += why is _End.LATE
        _settle(child, why)
        self._dying.add(child)
        self._reap(child, REAP_FIRST_S)

    def _reap(self, child: _Child, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        code = child.process.poll()
        if code is None:
            loop.call_later(delay_s, self._reap, child, min(2 * delay_s, REAP_MAX_S))
            return
        try:
            self._read_output(child)
        finally:
            loop.remove_reader(child.output)
            os.close(child.output)
            os.close(child.lifeline)
            self._dying.discard(child)
            child.exited.set_result(code)

    async def _died(self, child: _Child, why: bytes | _End) -> ChildDied:
        """Why and how, as soon as the kernel tells."""
        await asyncio.wait([child.exited], timeout=EXIT_WAIT_S)
        code = child.exited.result() if child.exited.done() else None
        died = ChildDied("unknown", "it ended, and nobody knows how", began=child.began)
        match why:
            case _End.CLOSED:
                died = replace(_CLOSED, began=died.began)
            case _End.PROTOCOL:
                died = replace(died, reason="protocol", detail="it wrote what is no answer")
            case _End.LATE:
                died = replace(died, reason="not_started", detail=f"not ready within {HELLO_TIMEOUT_S:g} s")
            case _ if code is not None and code < 0:
                died = replace(died, reason="signal", detail=f"ended by signal {-code}", signal=-code)
            case _ if code is not None:
                died = replace(died, reason="exit", detail=f"exited with code {code}", exit_code=code)
        said = child.printed.decode(errors="replace").strip()
        return replace(died, detail=f"{died.detail}\n{said}") if said else died


_CLOSED = ChildDied("closed", "the pool is closed", began=False)


def _settle(child: _Child, answer: bytes | _End) -> None:
    future, child.answer = child.answer, None
    if future is not None and not future.done():  # done: its caller was cancelled
        future.set_result(answer)


def _request(job: ChildJob) -> bytes:
    return frame({name: getattr(job, name) for name in ChildJob.__slots__})
