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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

import orjson

from toolfleet.adapters.tools.child_main import LENGTH
from toolfleet.adapters.tools.result_json import notes_of

HELLO_TIMEOUT_S = 60.0  # importing the user's modules may take its time
OUTPUT_TAIL_BYTES = 4_000
FRAME_MARGIN = 100_000  # for what surrounds a result: names, messages, data, all cut in the child
RECEIVE_BYTES = 1 << 18
RESTART_BACKOFF_S, RESTART_BACKOFF_S_MAX = 0.1, 5.0  # doubled with each child in a row that does not start
EXIT_WAIT_S = 1.0  # between the end of a child's socket and its exit status; microseconds as a rule
CLOSE_WAIT_S = 5.0  # for killed children to be gone; only the kernel can delay that
REAP_FIRST_S, REAP_MAX_S = 0.001, 0.5
NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)


@dataclass(frozen=True, slots=True)
class ChildJob:
    """One call. `target` is `module:qualname` or `/path/file.py:qualname` of a function or a declared tool.

    `context` are the fields of a ToolContext. A declared tool places it itself; a plain function gets it as
    `context_parameter`, or without that as its first parameter, if that is required and not among the arguments.
    """

    target: str
    arguments: dict[str, Any]
    context: dict[str, Any] | None = None
    context_parameter: str | None = None


@dataclass(frozen=True, slots=True)
class ChildReturned:
    """The function returned. `value_json` is strict JSON; the paths (at most 10 of each) say where it was changed to
    be that: NaN and infinities became null, characters that are no text became U+FFFD."""

    value_json: bytes
    seconds: float
    non_finite_paths: tuple[str, ...] = ()
    replaced_paths: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        return notes_of(self.non_finite_paths, self.replaced_paths)


@dataclass(frozen=True, slots=True)
class ChildRaised:
    """The function raised. `data` is what the exception's `to_fields` gives, with its `code`; empty if that is not
    JSON. `began` is False where no line of it ran: its module cannot be imported, or has no such function."""

    error_type: str
    module: str
    message: str
    data: dict[str, Any]
    traceback_tail: str
    seconds: float
    began: bool = True


@dataclass(frozen=True, slots=True)
class ChildUnserialisable:
    """The function returned what is not JSON."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ChildTooLarge:
    """The function returned at least `size_bytes`, which is more than is taken."""

    size_bytes: int
    limit_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChildDied:
    """No answer, and none will come. `began` is False where the function certainly did not run.

    exit, signal: the process ended by itself or by someone's hand (`exit_code` or `signal` says how). not_started: it
    ended, or said nothing, while it imported the setup. protocol: it wrote what is no answer, and was killed. busy: no
    child was free within wait_s_max. closed: the pool was. `detail` ends with the last of its error output.
    """

    reason: Literal["exit", "signal", "not_started", "protocol", "busy", "closed", "unknown"]
    detail: str
    exit_code: int | None = None
    signal: int | None = None
    began: bool = True


@dataclass(frozen=True, slots=True)
class ChildTimedOut:
    """No answer within the deadline; the child's process group was killed."""

    deadline_s: float


ChildReply = ChildReturned | ChildRaised | ChildUnserialisable | ChildTooLarge | ChildDied | ChildTimedOut


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
    received: bytearray = field(default_factory=bytearray)
    printed: bytearray = field(default_factory=bytearray)


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
        """setup: modules or files that each child imports at its start (`modules` is the same). on_output: is given
        what children print, in the loop's thread; without it only the last of it is kept, for ChildDied."""
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
        self._open_calls = 0
        self._drained = asyncio.Event()
        self._closing = self._closed = False
        self._failed_starts = 0
        self._not_before = 0.0
        self._last_failure: ChildDied | None = None
        self.stats = PoolStats()

    async def start(self) -> ChildDied | None:
        """Start one child now, if there is none: why that cannot be done, or None. Calls start them too."""
        async with self._places:
            if self._idle or self._closed:
                return None
            child = await self._start()
            if isinstance(child, ChildDied):
                return child
            self._idle.append(child)
            return None

    async def call(self, job: ChildJob, *, timeout_s: float, wait_s_max: float | None = None) -> ChildReply:
        """Run it; never raises for what the function does. Cancelling the caller kills the child.

        The deadline counts from the moment the job is sent: waiting for a child is not the tool's time. That wait is
        bounded by wait_s_max, or without it by the deadlines of those in front and HELLO_TIMEOUT_S. Callers are
        served in the order they came. While children cannot start (each in a row doubles the pause up to
        RESTART_BACKOFF_S_MAX), calls are answered at once with the last reason.
        """
        assert timeout_s > 0
        frame = _frame(
            {
                "target": job.target,
                "arguments": job.arguments,
                "context": job.context,
                "context_parameter": job.context_parameter,
            }
        )
        if self._closing:
            return _CLOSED
        self.stats.calls += 1
        self._open_calls += 1
        try:
            if self._places.locked() and wait_s_max is not None:
                try:
                    async with asyncio.timeout(wait_s_max):
                        await self._places.acquire()
                except TimeoutError:
                    return ChildDied("busy", f"no child was free within {wait_s_max:g} s", began=False)
            else:
                await self._places.acquire()
            try:
                return await self._placed(frame, timeout_s)
            finally:
                self._places.release()
        finally:
            self._open_calls -= 1
            if self._closing and not self._open_calls:
                self._drained.set()

    async def aclose(self, *, grace_s: float = 0.0) -> None:
        """Take no more calls, wait up to grace_s for those that were taken, then kill what is left: its callers get
        ChildDied("closed"). Afterwards there is no child. May be called again."""
        self._closing = True
        try:
            if self._open_calls and grace_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await self._drained.wait()
        finally:
            self._closed = True
            for child in list(self._all):
                self._kill(child, _End.CLOSED)
        if self._dying:
            await asyncio.wait([child.exited for child in self._dying], timeout=CLOSE_WAIT_S)

    async def _placed(self, frame: bytes, timeout_s: float) -> ChildReply:
        for _ in range(self._size + 1):  # as many as could have died idle, and a new one
            if self._closed:
                return _CLOSED
            child = self._idle.pop() if self._idle else await self._start()
            if isinstance(child, ChildDied):
                return child
            child.printed.clear()
            answer = await self._ask(child, frame, timeout_s)
            if isinstance(answer, bytes):
                reply = _reply(answer)
                if reply is None:
                    self._kill(child, _End.PROTOCOL)
                    return await self._died(child, _End.PROTOCOL)
                self._give_back(child)
                return reply
            if answer is _End.LATE:
                return ChildTimedOut(timeout_s)
            if answer is _End.CLOSED or not child.unsent:
                return await self._died(child, answer)
        return ChildDied("unknown", "children end before a call can be sent to them", began=False)

    async def _ask(self, child: _Child, frame: bytes, timeout_s: float) -> bytes | _End:
        """The body of the child's answer, or why the child was ended."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes | _End] = loop.create_future()
        child.answer = future
        timer = loop.call_later(timeout_s, self._late, child, future)
        try:
            child.unsent = frame
            self._send(child)
            answer = await future
        except asyncio.CancelledError:
            if child.answer is future:
                self._kill(child, _End.CANCELLED)
            else:
                self._give_back(child)  # it had answered
            raise
        finally:
            timer.cancel()
        return answer

    def _give_back(self, child: _Child) -> None:
        if not child.alive:
            return
        child.calls += 1
        if child.received:  # more than one answer
            self._kill(child, _End.PROTOCOL)
        elif child.calls >= self._calls_max:
            self._kill(child, _End.RETIRED)
        else:
            self._idle.append(child)

    async def _start(self) -> _Child | ChildDied:
        """A child that has imported the setup; it is not among the idle ones."""
        loop = asyncio.get_running_loop()
        if self._last_failure is not None and loop.time() < self._not_before:
            return self._last_failure
        try:
            child = self._exec()
        except OSError as exc:
            return self._not_started(ChildDied("not_started", f"no process could be started: {exc}"))
        path = {"path": sys.path, "pythonpath": os.environ.get("PYTHONPATH")}
        answer = await self._ask(child, _frame({**self._setup, **path}), HELLO_TIMEOUT_S)
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
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            channel, far_channel = socket.socketpair()
            ours.callback(channel.close)
            theirs.callback(far_channel.close)
            far_lifeline, lifeline = _pipe(theirs, ours, reads=theirs)
            output, far_output = _pipe(theirs, ours, reads=ours)
            process = _popen(far_channel.fileno(), far_lifeline, far_output)
            ours.pop_all()
        channel.setblocking(False)
        os.set_blocking(output, False)
        child = _Child(process, channel, lifeline, output, exited=loop.create_future())
        self._all.add(child)
        self.stats.spawned += 1
        loop.add_reader(channel.fileno(), self._readable, child)
        loop.add_reader(output, self._read_output, child)
        return child

    def _send(self, child: _Child) -> None:
        self._push(child)
        if child.alive and child.unsent:
            asyncio.get_running_loop().add_writer(child.channel.fileno(), self._writable, child)

    def _writable(self, child: _Child) -> None:
        self._push(child)
        if child.alive and not child.unsent:
            asyncio.get_running_loop().remove_writer(child.channel.fileno())

    def _push(self, child: _Child) -> None:
        try:
            child.unsent = child.unsent[child.channel.send(child.unsent, NO_SIGPIPE) :]
        except BlockingIOError:
            return
        except OSError:
            self._kill(child, _End.GONE)

    def _readable(self, child: _Child) -> None:
        try:
            part = child.channel.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            return self._kill(child, _End.GONE)
        child.received += part
        if child.answer is None:  # nothing was asked
            return self._kill(child, _End.PROTOCOL)
        if len(child.received) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(child.received)[0]
        if end > self._frame_bytes_max:
            return self._kill(child, _End.PROTOCOL)
        if len(child.received) >= end:
            body = bytes(child.received[LENGTH.size : end])
            del child.received[:end]
            _settle(child, body)
        return None

    def _read_output(self, child: _Child) -> None:
        try:
            part = os.read(child.output, RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not part:  # it closed its error output; it may go on
            asyncio.get_running_loop().remove_reader(child.output)
            return
        child.printed += part
        del child.printed[:-OUTPUT_TAIL_BYTES]
        if self._on_output is not None:
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
        if child in self._idle:
            self._idle.remove(child)
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
        self._read_output(child)
        loop.remove_reader(child.output)
        os.close(child.output)
        os.close(child.lifeline)
        self._dying.discard(child)
        child.exited.set_result(code)

    async def _died(self, child: _Child, why: bytes | _End) -> ChildDied:
        await asyncio.wait([child.exited], timeout=EXIT_WAIT_S)
        return _died(child, why)


_CLOSED = ChildDied("closed", "the pool is closed", began=False)


def _died(child: _Child, why: bytes | _End) -> ChildDied:
    code = child.exited.result() if child.exited.done() else None
    died = ChildDied("unknown", "it ended, and nobody knows how", began=not child.unsent)
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


def _settle(child: _Child, answer: bytes | _End) -> None:
    future, child.answer = child.answer, None
    if future is not None and not future.done():  # done: its caller was cancelled
        future.set_result(answer)


def _reply(body: bytes) -> ChildReply | None:
    """None: this is no answer."""
    head, _, value = body.partition(b"\n")
    try:
        said = orjson.loads(head)
        seconds = float(said["seconds"])
        match said["kind"]:
            case "returned":
                return ChildReturned(value, seconds, tuple(said["non_finite"]), tuple(said["replaced"]))
            case "raised":
                words = (said["type"], said["module"], said["message"], said["data"], said["tail"])
                return ChildRaised(*words, seconds, said["began"])
            case "not_json":
                return ChildUnserialisable(said["reason"], seconds)
            case "too_large":
                return ChildTooLarge(said["size"], said["limit"], seconds)
    except (ValueError, TypeError, KeyError):  # JSONDecodeError is a ValueError
        return None
    return None


def _frame(body: dict[str, Any]) -> bytes:
    text = orjson.dumps(body)
    return LENGTH.pack(len(text)) + text


def _pipe(
    theirs: contextlib.ExitStack, ours: contextlib.ExitStack, *, reads: contextlib.ExitStack
) -> tuple[int, int]:
    """A pipe as (read end, write end); `reads` is the side that gets the read end and closes it."""
    read_end, write_end = os.pipe()
    reads.callback(os.close, read_end)
    (ours if reads is theirs else theirs).callback(os.close, write_end)
    return read_end, write_end


def _popen(channel: int, lifeline: int, output: int) -> subprocess.Popen[bytes]:
    """exec, never fork: a lock that another thread of ours holds at a fork stays locked in the child for good."""
    numbers = (str(channel), str(lifeline), str(os.getpid()))
    return subprocess.Popen(
        # -P: nothing in the current folder may stand in for what the child imports first
        [sys.executable, "-P", "-X", "faulthandler", "-m", "toolfleet.adapters.tools.child_main", *numbers],
        pass_fds=(channel, lifeline),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
