"""Functions that do to their process what tools do in production, for the tests of the child pool.

Imports nothing of ours, so that a child starts fast and a failure is the pool's.

The sleeps here are the tools' own behaviour: a tool that hangs has to hang, and one waits for a file in another process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

LOADED_IN = os.getpid()


def nothing() -> None:
    return None


def echo(value: Any) -> Any:
    return value


def pid() -> int:
    return os.getpid()


def process() -> dict[str, Any]:
    """Where it runs."""
    return {
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "session": os.getsid(0),
        "ignores_ctrl_c": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "pythonpath": os.environ.get("PYTHONPATH"),
        "path": sys.path,
        "heavy": sorted({"pydantic", "asyncio", "sqlalchemy", "openai", "celery"} & set(sys.modules)),
    }


def with_context(ctx: Any, word: str) -> list[Any]:
    return [type(ctx).__name__, ctx.call_id, word]


def with_context_last(word: str, told: Any = None) -> list[Any]:
    return [type(told).__name__, word]


async def coroutine(word: str) -> str:
    await asyncio.sleep(0)
    return word


class Holder:
    @staticmethod
    def inner() -> str:
        return "inner"


class Wrapper:
    """A decorated function that cannot be called itself."""

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function


wrapped = Wrapper(echo)
constant = 17


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = open(os.devnull)  # noqa: SIM115 - what cannot be pickled


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


class Described(Exception):
    code = "busy"

    def to_fields(self) -> dict[str, Any]:
        return {"reason_code": "later", "retry_after_s": 2.5}


class BadlyDescribed(Exception):
    def to_fields(self) -> dict[str, Any]:
        return {"what": object()}


def raises() -> NoReturn:
    raise ValueError("no such order")


def raises_unpicklable() -> NoReturn:
    raise Unpicklable(1, 2)


def raises_unspeakable() -> NoReturn:
    raise Unspeakable


def raises_described() -> NoReturn:
    raise Described("try again")


def raises_badly_described() -> NoReturn:
    raise BadlyDescribed("odd")


def raises_broken_text() -> NoReturn:
    raise ValueError("a\ud800b\x00c" + "x" * 10_000_000)


def raises_interrupt() -> NoReturn:
    raise KeyboardInterrupt


def exits() -> NoReturn:
    sys.exit(3)


def exits_at_once() -> NoReturn:
    print("goodbye")
    os._exit(4)


def segfaults() -> None:
    ctypes.string_at(0)


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(note: str | None = None) -> None:
    _note(note, os.getpid())
    time.sleep(300)  # a tool that hangs: the pool kills it at its deadline


def hangs_and_swallows(note: str | None = None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note(note, os.getpid())
    while True:
        try:
            time.sleep(300)  # a tool that hangs and will not be told: only SIGKILL ends it
        except BaseException:  # noqa: BLE001, S112 - that is the point
            continue


def waits(gate: str, note: str | None = None) -> str:
    """Come back when the file is there."""
    _note(note, os.getpid())
    while not Path(gate).exists():
        time.sleep(0.005)  # between two looks at a file of another process; the call's deadline bounds them
    return "passed"


def leaves_a_process(note: str, then: str) -> int:
    """Start one that would outlive this, then end in one of the ways that calls end."""
    # The sleep is the life of what was left behind: the pool has to end it.
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    _note(note, left.pid)
    if then == "hang":
        time.sleep(300)  # until the deadline of the call
    if then == "exit":
        os._exit(5)
    return left.pid


def forks_and_crashes() -> None:
    """Leave a fork that holds what this process had open."""
    if os.fork() == 0:
        time.sleep(300)  # the fork outlives the crash: the pool has to end it
    os._exit(6)


def forks_and_returns_twice() -> str:
    os.fork()
    return "once"


def not_a_number() -> dict[str, Any]:
    return {"mean": float("nan"), "rows": [1.0, float("-inf")], "n": 3}


def an_object() -> Any:
    return {"found": object()}


def a_set_of_objects() -> Any:
    return {object()}


def contains_itself() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def text_of(size: int) -> str:
    return "x" * size


def prints(text: str) -> None:
    print(text)


def prints_much() -> None:
    for _ in range(2_000):
        print("chatter " * 20)


def takes_memory(size: int) -> int:
    return len(bytearray(size))


def changes_folder_and_closes_everything() -> None:
    os.closerange(0, 256)


def _note(path: str | None, value: int) -> None:
    if path is not None:
        Path(f"{path}.new").write_text(str(value))
        os.replace(f"{path}.new", path)
