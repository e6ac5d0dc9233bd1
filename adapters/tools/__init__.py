"""Tools that run in this process or its children. Here: what a child is told, and all that a call can come to.

Light, because every child imports it. The pool is in child_pool, the child's side in child_main, what a result may be
in result_json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import orjson

from toolfleet.adapters.tools.result_json import notes_of


@dataclass(frozen=True, slots=True)
class ChildJob:
    """One call. `target` is `module:qualname` or `/path/file.py:qualname` of a function or a declared tool
    (with `#part`: of what the tool brings beside its function).

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


def read_reply(body: bytes) -> ChildReply | None:
    """The body of a child's answer as a value; None: this is no answer."""
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
