"""The child's side of the pool: read a job, run one function, write what came of it.

Whatever a tool does, the parent gets a value: the result is serialised here, inside the try. Started by exec, never
by fork. Ends with its parent, and takes what it started along: the kernel does both on Linux, elsewhere the end of a
pipe does. Imports little, because every child pays for it: pydantic, asyncio and inspect come only when they are
needed.

Frames are [u32 length][body], and a body is one JSON document, in an answer followed by a line feed and the result's
own JSON, so that the parent hands a result on without reading it.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import importlib.util
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

import orjson

from toolfleet.adapters.tools.result_json import Encoded, TooLarge, Unserialisable, to_json

PR_SET_PDEATHSIG = 1  # linux/prctl.h
TRACEBACK_CHARS = 2_000
TRACEBACK_FRAMES = 8
MESSAGE_CHARS = 2_000
NAME_CHARS = 200
DATA_BYTES_MAX = 16_000
RECEIVE_BYTES = 1 << 16
LENGTH = struct.Struct("!I")

Caller = Callable[[dict[str, Any], Any], Any]  # (arguments, ToolContext or None) -> what the function returns


def main() -> None:
    """Serve the pool that started this process until its socket ends. argv: socket, lifeline, the parent's pid."""
    try:
        _serve()
    except BaseException:  # noqa: BLE001 - above all what the user's modules raise at import
        import traceback

        traceback.print_exc()
        os._exit(1)  # at once: an orderly end closes the socket first, and would be cut short by the pool


def _serve() -> NoReturn:
    fd, lifeline, parent = (int(text) for text in sys.argv[1:4])
    _end_with(parent, lifeline)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the starting thread's mask is inherited
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which decides
    os.dup2(2, 1)  # what a tool prints must not mix into the parent's output
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # os._exit and SIGKILL flush nothing
    sys.argv = sys.argv[:1]
    channel = Channel(fd)
    setup = orjson.loads(channel.read())
    _become(setup)
    targets = Targets()
    for place in setup["import"]:
        targets.module(place)
    me = os.getpid()
    channel.write(orjson.dumps({"kind": "hello"}))
    while True:
        answer = run(targets, orjson.loads(channel.read()), bytes_max=setup["result_bytes_max"])
        if os.getpid() != me:  # the tool forked, and its fork came back here
            os._exit(0)
        channel.write(answer)


def run(targets: Targets, job: dict[str, Any], *, bytes_max: int) -> bytes:
    """One job to the body of one answer; never raises. `began` in it is False where no line of the tool ran."""
    started = time.monotonic()
    began = False
    try:
        caller = targets.caller(job["target"], job["context_parameter"])
        context = None if job["context"] is None else _context(job["context"])
        began = True
        value = caller(job["arguments"], context)
        if hasattr(value, "__await__"):
            value = _awaited(value)
        encoded = to_json(value, bytes_max=bytes_max)
    except BaseException as exc:  # noqa: BLE001 - whatever a tool throws is its answer
        return orjson.dumps({**_raised(exc), "began": began, "seconds": time.monotonic() - started})
    return _encoded(encoded, time.monotonic() - started)


def _encoded(encoded: Encoded | Unserialisable | TooLarge, seconds: float) -> bytes:
    match encoded:
        case Encoded():
            head = {
                "kind": "returned",
                "non_finite": encoded.non_finite_paths,
                "replaced": encoded.replaced_paths,
                "seconds": seconds,
            }
            return b"\n".join((orjson.dumps(head), encoded.body))
        case TooLarge():
            sizes = {"size": encoded.size_bytes, "limit": encoded.limit_bytes}
            return orjson.dumps({"kind": "too_large", **sizes, "seconds": seconds})
        case Unserialisable():
            return orjson.dumps({"kind": "not_json", "reason": _shown(encoded.reason), "seconds": seconds})


_UNSPEAKABLE = {"kind": "raised", "type": "", "module": "", "message": "", "data": {}, "tail": ""}


def _raised(exc: BaseException) -> dict[str, Any]:
    """What can be said of an exception, whatever its own code does; what hangs is ended by the deadline."""
    return dict(_guarded(lambda: _described(exc), _UNSPEAKABLE))


def _described(exc: BaseException) -> dict[str, Any]:
    data = to_json(_guarded(lambda: _data(exc), {}), bytes_max=DATA_BYTES_MAX)
    kind = type(exc)
    message = _guarded(lambda: str(getattr(exc, "message", None) or exc), "")
    tail = f"{_guarded(lambda: _frames(exc), '')}{kind.__qualname__}: {message[:MESSAGE_CHARS]}"
    return {
        "kind": "raised",
        "type": _shown(kind.__name__[:NAME_CHARS]),
        "module": _shown(str(kind.__module__)[:NAME_CHARS]),
        "message": _shown(message[:MESSAGE_CHARS]),
        "data": orjson.Fragment(data.body) if isinstance(data, Encoded) else {},
        "tail": _shown(tail[-TRACEBACK_CHARS:]),
    }


def _data(exc: BaseException) -> dict[str, Any]:
    describe = getattr(exc, "to_fields", None)
    if describe is None:
        return {}
    fields = dict(describe() if callable(describe) else describe)
    code = getattr(exc, "code", None)
    return {**fields, "code": code} if isinstance(code, str) else fields


def _frames(exc: BaseException) -> str:
    import traceback

    return "".join(traceback.format_tb(exc.__traceback__, limit=-TRACEBACK_FRAMES))


def _guarded(read: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return read()
    except BaseException:  # noqa: BLE001 - an exception that cannot be shown is still an answer
        return otherwise


def _shown(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\x00", "\ufffd")


def _context(fields: dict[str, Any]) -> Any:
    from toolfleet.schemas.tools import ToolContext  # pydantic: 0.1 s that only tools with a context pay

    return ToolContext(**fields)


def _awaited(value: Any) -> Any:
    import asyncio

    async def wait() -> Any:
        return await value

    return asyncio.run(wait())


class TargetNotFound(Exception):
    """The module is there, and what should be in it is not, or cannot be called."""


class Targets:
    """Modules and functions by the names that jobs give them, each looked up once."""

    def __init__(self) -> None:
        self._files: dict[str, ModuleType] = {}
        self._callers: dict[tuple[str, str | None], Caller] = {}

    def module(self, place: str) -> ModuleType:
        """By its name, or by its file for what was started as a script."""
        if not place.endswith(".py"):
            return importlib.import_module(place)
        if place not in self._files:
            self._files[place] = _from_file(place, f"__toolfleet_main_{len(self._files)}__")
        return self._files[place]

    def caller(self, target: str, context_parameter: str | None) -> Caller:
        """How to call it. Raises what its module raises at import, and TargetNotFound."""
        key = (target, context_parameter)
        if key not in self._callers:
            place, _, part = target.partition("#")
            found = self._find(place)
            self._callers[key] = _part(found, part) if part else _caller(found, target, context_parameter)
        return self._callers[key]

    def _find(self, target: str) -> Any:
        place, _, qualname = target.rpartition(":")
        found: Any = self.module(place)
        for part in qualname.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise TargetNotFound(f"{place} has no {qualname}") from None
        return found


def _from_file(path: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as it is for the script itself
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _part(found: Any, part: str) -> Caller:
    """What a declared tool brings beside its function."""
    return lambda arguments, context: found.invoke_part(part, arguments, context)


def _caller(found: Any, target: str, context_parameter: str | None) -> Caller:
    if hasattr(found, "spec") and callable(getattr(found, "invoke", None)):  # a declared tool of ours
        invoke: Caller = found.invoke
        return invoke
    function = found if callable(found) else getattr(found, "__wrapped__", None)
    if not callable(function):
        raise TargetNotFound(f"{target} is {type(found).__name__}, which cannot be called")
    if context_parameter is not None:
        return lambda arguments, context: function(**arguments, **{context_parameter: context})
    first = _first_required(function)

    def call(arguments: dict[str, Any], context: Any) -> Any:
        if context is None or first is None or first in arguments:
            return function(**arguments)
        return function(context, **arguments)

    return call


def _first_required(function: Callable[..., Any]) -> str | None:
    """The name of the first positional parameter, if it has no default: the place of an unnamed context."""
    import inspect

    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have none
        return None
    for one in parameters:
        positional = one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        return one.name if positional and one.default is one.empty else None
    return None


def _become(setup: dict[str, Any]) -> None:
    """Take over the parent's import path, and what tools may use of memory."""
    sys.path[:] = setup["path"]
    if setup["pythonpath"] is None:  # it was set for the start of this process, not for what tools start
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = setup["pythonpath"]
    limit = setup["address_space_bytes_max"]
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _end_with(parent: int, lifeline: int) -> None:
    """Have this process killed when its parent ends, however that happens, with all of its process group."""
    if sys.platform == "linux":
        # The parent alone holds the other end of the lifeline. When it closes, the kernel kills our whole group: no
        # Python has to run for it, so it also ends code that holds the interpreter. fcntl(2): F_SETOWN, F_SETSIG.
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    os.set_inheritable(lifeline, False)
    if os.getppid() != parent:  # it ended before the lines above
        _end_group()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)
    _end_group()


def _end_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def spawn(channel: int, lifeline: int, output: int) -> subprocess.Popen[bytes]:
    """A child of the calling process that runs this module, leader of a session and process group of its own.

    exec, never fork: a lock that another thread of ours holds at a fork stays locked in the child for good. -P: nothing
    in the current folder may stand in for what a child imports first. faulthandler: the last words of a child that
    crashes say where.
    """
    numbers = (str(channel), str(lifeline), str(os.getpid()))
    return subprocess.Popen(
        [sys.executable, "-P", "-X", "faulthandler", "-m", "toolfleet.adapters.tools.child_main", *numbers],
        pass_fds=(channel, lifeline),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def frame(body: dict[str, Any]) -> bytes:
    text = orjson.dumps(body)
    return LENGTH.pack(len(text)) + text


class Channel:
    """Frames over the pool's socket; the end of the socket ends the process."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        # A fork of the tool's must neither read our jobs nor keep the socket open when this process ends.
        os.register_at_fork(after_in_child=self._socket.close)
        self._received = bytearray()

    def read(self) -> bytes:
        while True:
            if len(self._received) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(self._received)
                end = LENGTH.size + length
                if len(self._received) >= end:
                    body = bytes(self._received[LENGTH.size : end])
                    del self._received[:end]
                    return body
            part = self._socket.recv(RECEIVE_BYTES)
            if not part:
                _end_group()
            self._received += part

    def write(self, body: bytes) -> None:
        self._socket.sendall(LENGTH.pack(len(body)) + body)


if __name__ == "__main__":
    main()
