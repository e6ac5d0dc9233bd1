"""A pool of exec'd children that run plain functions under a deadline that nothing can ignore.

One socketpair and one call at a time per child, driven by the event loop. A child that is killed, crashes or exits is
an answer, not an exception, and is replaced at the next call. Every end of a child kills its whole process group, so
that what it started ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import orjson

from toolfleet.adapters.tools.child_main import LENGTH

HELLO_TIMEOUT_S = 60.0  # importing the user's modules may take its time
STDERR_CHARS = 2_000
FRAME_MARGIN = 100_000  # for what surrounds a result


@dataclass(frozen=True, slots=True)
class ChildJob:
    """One call. `target` is `module:qualname` or `/path/file.py:qualname` of a declared tool."""

    target: str
    arguments: dict[str, Any]
    context: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChildReturned:
    """The function returned; `value_json` is strict JSON."""

    value_json: bytes
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChildRaised:
    """The function raised; `data` holds the code and the fields of a ToolError."""

    error_type: str
    message: str
    data: dict[str, Any]
    traceback_tail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ChildUnserialisable:
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ChildTooLarge:
    size_bytes: int
    limit_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChildDied:
    """The child ended before it answered. `began` is False where it never got the call: it did not start."""

    detail: str
    exit_code: int | None
    began: bool


@dataclass(frozen=True, slots=True)
class ChildTimedOut:
    deadline_s: float


ChildReply = ChildReturned | ChildRaised | ChildUnserialisable | ChildTooLarge | ChildDied | ChildTimedOut


@dataclass(slots=True)
class PoolStats:
    spawned: int = 0
    died: int = 0
    timed_out: int = 0
    calls: int = 0


class _Gone(Exception):
    """The child's socket has ended."""


@dataclass(slots=True, eq=False)
class _Child:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    stderr: IO[bytes]
    calls: int = 0
    received: bytearray = field(default_factory=bytearray)


class ChildPool:
    """At most `size` children, started when they are needed. All methods belong to one event loop."""

    def __init__(
        self,
        *,
        size: int,
        modules: Sequence[str] = (),
        result_bytes_max: int,
        calls_per_child_max: int = 1000,
    ) -> None:
        assert size > 0
        self._size = size
        self._setup = orjson.dumps({"modules": list(modules), "result_bytes_max": result_bytes_max})
        self._frame_max = (
            2 * result_bytes_max + FRAME_MARGIN
        )  # a result is text in a frame: quotes are escaped
        self._calls_max = calls_per_child_max
        self._idle: deque[_Child] = deque()
        self._all: set[_Child] = set()
        self._places = asyncio.Semaphore(size)
        self.stats = PoolStats()

    async def call(self, job: ChildJob, *, timeout_s: float) -> ChildReply:
        """Run it; answers at the deadline at the latest. Cancelling the caller kills the child.

        The deadline counts from the moment a child is ready; waiting for one is not the tool's time.
        """
        async with self._places:
            self.stats.calls += 1
            try:
                child = self._idle.popleft() if self._idle else await self._spawn()
            except _Gone as exc:
                self.stats.died += 1
                return ChildDied(str(exc), None, began=False)
            except TimeoutError:
                return ChildDied(f"no child was ready within {HELLO_TIMEOUT_S:g} s", None, began=False)
            return await self._in(child, job, timeout_s)

    async def aclose(self) -> None:
        """Kill all children; their callers get ChildDied."""
        for child in list(self._all):
            self._end(child)

    async def _in(self, child: _Child, job: ChildJob, timeout_s: float) -> ChildReply:
        body = orjson.dumps({"target": job.target, "arguments": job.arguments, "context": job.context})
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(child, body)
                answer = await self._receive(child)
        except TimeoutError:
            self.stats.timed_out += 1
            self._end(child)
            return ChildTimedOut(timeout_s)
        except (_Gone, OSError):
            self.stats.died += 1
            code, said = self._end(child)
            return ChildDied(said, code, began=True)
        except BaseException:
            self._end(child)
            raise
        child.calls += 1
        if child.calls >= self._calls_max:
            self._end(child)
        else:
            self._idle.append(child)
        return _reply(answer)

    async def _spawn(self) -> _Child:
        """A child that has imported what it needs. Raises _Gone with the end of its error output."""
        ours, theirs = socket.socketpair()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child; closed in _end
        command = [
            sys.executable,
            "-m",
            "toolfleet.adapters.tools.child_main",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - exec takes a millisecond, and needs pass_fds
                command,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        finally:
            theirs.close()
        ours.setblocking(False)
        child = _Child(process, ours, stderr)
        self._all.add(child)
        self.stats.spawned += 1
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await self._send(child, self._setup)
                await self._receive(child)
        except (_Gone, OSError):
            raise _Gone(self._end(child)[1] or "it ended while it started") from None
        except BaseException:
            self._end(child)
            raise
        return child

    async def _send(self, child: _Child, body: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(child.channel, LENGTH.pack(len(body)) + body)

    async def _receive(self, child: _Child) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        received = child.received
        length: int | None = None
        while True:
            if length is None and len(received) >= LENGTH.size:
                (length,) = LENGTH.unpack(received[: LENGTH.size])
                if length > self._frame_max:
                    raise _Gone("its answer is larger than any answer")
            if length is not None and len(received) >= LENGTH.size + length:
                body = bytes(received[LENGTH.size : LENGTH.size + length])
                del received[: LENGTH.size + length]
                answer: dict[str, Any] = orjson.loads(body)
                return answer
            part = await loop.sock_recv(child.channel, 1 << 18)
            if not part:
                raise _Gone("it ended")
            received.extend(part)

    def _end(self, child: _Child) -> tuple[int | None, str]:
        """Kill the child and whatever it started, reap it, forget it; its exit code (negative: the signal) and the
        end of what it said on its error output."""
        if child not in self._all:
            return child.process.returncode, ""
        self._all.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        ended_by_itself = child.process.poll()
        with contextlib.suppress(ProcessLookupError):  # nothing of its group may be left
            os.killpg(child.process.pid, signal.SIGKILL)
        child.channel.close()
        code = child.process.wait()
        with child.stderr as stderr:
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - STDERR_CHARS))
            said = stderr.read().decode(errors="replace").strip()
        return (ended_by_itself if ended_by_itself is not None else code), said


def _reply(answer: dict[str, Any]) -> ChildReply:
    seconds = float(answer["seconds"])
    match answer["kind"]:
        case "returned":
            return ChildReturned(answer["value"].encode(), seconds, tuple(answer["notes"]))
        case "raised":
            return ChildRaised(answer["type"], answer["message"], answer["fields"], answer["tail"], seconds)
        case "too_large":
            return ChildTooLarge(answer["size"], answer["limit"], seconds)
        case _:
            return ChildUnserialisable(answer["reason"], seconds)
