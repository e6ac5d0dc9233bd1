"""The child's side of the pool: read a job, run one function, write what came of it. One frame each, [u32][JSON].

Whatever a tool does, the parent gets a value: the result is serialised here, inside the try. Started by exec, never
by fork, and ends with its parent: the kernel kills it (Linux), or it reads the end of the socket.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import importlib.util
import inspect
import os
import signal
import socket
import struct
import sys
import time
import traceback
from typing import Any

import orjson

from toolfleet.adapters.tools.result_json import Encoded, TooLarge, to_json
from toolfleet.schemas.tools import ToolContext

PR_SET_PDEATHSIG = 1
TRACEBACK_CHARS = 2_000
MESSAGE_CHARS = 2_000
LENGTH = struct.Struct("!I")

_files: dict[str, Any] = {}


def main() -> None:
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which decides
    os.dup2(2, 1)  # what a tool prints must not mix into the parent's output
    sys.argv = [sys.argv[0]]
    channel = socket.socket(fileno=fd)
    setup = orjson.loads(_read(channel))
    for target in setup["modules"]:
        _module(target)
    _write(channel, {"hello": os.getpid()})
    while True:
        job = orjson.loads(_read(channel))
        _write(channel, run(job, setup["result_bytes_max"]))


def run(job: dict[str, Any], bytes_max: int) -> dict[str, Any]:
    """One job to one answer; never raises."""
    started = time.monotonic()
    try:
        value = _call(job)
        seconds = time.monotonic() - started
        encoded = to_json(value, bytes_max=bytes_max)
    except BaseException as exc:  # noqa: BLE001 - whatever a tool throws is its answer
        return {**_raised(exc), "seconds": time.monotonic() - started}
    if isinstance(encoded, Encoded):
        return {
            "kind": "returned",
            "value": encoded.body.decode(),
            "notes": encoded.notes,
            "seconds": seconds,
        }
    if isinstance(encoded, TooLarge):
        return {
            "kind": "too_large",
            "size": encoded.size_bytes,
            "limit": encoded.limit_bytes,
            "seconds": seconds,
        }
    return {"kind": "not_json", "reason": encoded.reason, "seconds": seconds}


def _call(job: dict[str, Any]) -> Any:
    target = _resolve(job["target"])
    context = ToolContext(**job["context"])
    value = target.invoke(job["arguments"], context)
    if inspect.isawaitable(value):
        return asyncio.run(_awaited(value))
    return value


async def _awaited(value: Any) -> Any:
    return await value


def _resolve(target: str) -> Any:
    module, _, qualname = target.rpartition(":")
    found = _module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _module(name: str) -> Any:
    """A module by its name, or by its file for what was started as a script."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    if name not in _files:
        spec = importlib.util.spec_from_file_location("__toolfleet_main__", name)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {name}")
        module = importlib.util.module_from_spec(spec)
        sys.modules["__toolfleet_main__"] = module
        sys.path.insert(0, os.path.dirname(name))
        spec.loader.exec_module(module)
        _files[name] = module
    return _files[name]


def _raised(exc: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    describe = getattr(exc, "to_fields", None)
    try:
        message = str(getattr(exc, "message", None) or exc)[:MESSAGE_CHARS]
        if callable(describe):
            fields = {**describe(), "code": str(getattr(exc, "code", ""))}
        orjson.dumps([fields, message])
    except Exception:  # noqa: BLE001 - an exception that cannot be shown is still an answer
        fields, message = {}, ""
    tail = (
        traceback.format_exception_only(type(exc), None)
        if not message
        else traceback.format_tb(exc.__traceback__)
    )
    text = "".join(tail)[-TRACEBACK_CHARS:].encode(errors="replace").decode()
    return {"kind": "raised", "type": type(exc).__name__, "message": message, "fields": fields, "tail": text}


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _read(channel: socket.socket) -> bytes:
    (length,) = LENGTH.unpack(_exactly(channel, LENGTH.size))
    return _exactly(channel, length)


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = channel.recv(min(count, 1 << 18))
        if not part:
            os._exit(0)  # the parent is gone
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _write(channel: socket.socket, answer: dict[str, Any]) -> None:
    body = orjson.dumps(answer)
    channel.sendall(LENGTH.pack(len(body)) + body)


if __name__ == "__main__":
    main()
