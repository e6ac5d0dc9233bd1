"""What a tool returned, as strict JSON: no NaN, no half characters, nothing that only Python can read.

Runs in the children for plain functions and on the loop for `async def` tools, so both obey the same rules. Light:
every child imports it at its start.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson

DEPTH_MAX = 200  # orjson writes 254; a path that long helps nobody
INT_MIN, INT_MAX = -(2**63), 2**64 - 1  # what orjson writes exactly
PATHS_MAX = 10  # of each kind in the notes; the rest are changed all the same
PATH_CHARS = 200
REASON_CHARS = 500
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Encoded:
    """Strict JSON, with the places that were changed to make it so: the first PATHS_MAX of each kind.

    `non_finite_paths`: NaN and infinities, now null. `replaced_paths`: texts in which lone surrogates or U+0000 are
    now U+FFFD. A path reads `result.rows[3].mean`.
    """

    body: bytes
    non_finite_paths: tuple[str, ...] = ()
    replaced_paths: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        return notes_of(self.non_finite_paths, self.replaced_paths)


@dataclass(frozen=True, slots=True)
class Unserialisable:
    """Not JSON: where, and of which type. Never holds values."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """`size_bytes` is at least this: counting stops soon after the limit."""

    size_bytes: int
    limit_bytes: int


def to_json(value: Any, *, bytes_max: int) -> Encoded | Unserialisable | TooLarge:
    """The value as JSON of at most bytes_max bytes; never raises, and its work is bounded by bytes_max.

    Mappings, lists, tuples, texts, booleans, None, finite floats and integers of 64 bits are written as they are;
    dataclasses as objects, pydantic models as their JSON dump, enums as their values, dates and times in ISO 8601,
    decimals, UUIDs and paths as text. NaN and infinities become null and broken characters U+FFFD, both told in the
    answer. Everything else is refused: sets (they have no order), bytes, keys that are not text, what contains
    itself.
    """
    walk = _Walk(bytes_max)
    try:
        body = orjson.dumps(walk.plain(value))
    except _OverBudget:
        return TooLarge(walk.bytes_seen, bytes_max)
    except _NotJson as exc:
        return Unserialisable(str(exc)[:REASON_CHARS])
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - the value's own code ran: properties, model_dump
        return Unserialisable(f"{walk.path()}: reading it raised {type(exc).__name__}"[:REASON_CHARS])
    if len(body) > bytes_max:
        return TooLarge(len(body), bytes_max)
    return Encoded(body, tuple(walk.non_finite), tuple(walk.replaced))


def notes_of(non_finite_paths: tuple[str, ...], replaced_paths: tuple[str, ...]) -> tuple[str, ...]:
    """What to tell the reader of a changed result: a sentence for each kind of change."""
    said = []
    if non_finite_paths:
        said.append(f"not a finite number, given as null: {', '.join(non_finite_paths)}")
    if replaced_paths:
        said.append(f"characters that are no text, replaced: {', '.join(replaced_paths)}")
    return tuple(said)


class _NotJson(Exception):
    """Its text is the reason."""


class _OverBudget(Exception):
    """More bytes were counted than are allowed."""


@dataclass(slots=True)
class _Walk:
    """One pass over a value. `bytes_seen` is a lower bound of the JSON's size: it also bounds a value that is small
    in memory and endless when it is written out (lists that share their parts)."""

    bytes_max: int
    bytes_seen: int = 0
    where: list[str | int] = field(default_factory=list)
    non_finite: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)

    def plain(self, value: Any) -> Any:
        if value is None or value is True or value is False:
            return self._spend(4, value)
        if isinstance(value, Enum):
            return self.plain(value.value)
        # Through the builtin's own method: a subclass may say something else of itself, or raise.
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            return self._integer(int.__int__(value))
        if isinstance(value, float):
            return self._number(float.__float__(value))
        return self._compound(value)

    def _compound(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._object(value.items())
        if isinstance(value, (list, tuple)):
            return self._array(value)
        if isinstance(value, Decimal):
            return self._text(str(value)) if value.is_finite() else self._number(math.nan)
        if isinstance(value, (datetime, date, time)):
            return self._text(value.isoformat())
        if isinstance(value, (UUID, PurePath)):
            return self._text(str(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._object((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        if callable(getattr(value, "model_dump", None)) and not isinstance(value, type):
            return self._model(value)
        raise _NotJson(f"{self.path()}: {_type_name(value)} is not JSON")

    def _object(self, items: Any) -> dict[str, Any]:
        self._enter()
        out: dict[str, Any] = {}
        for key, child in items:
            if not isinstance(key, str):
                raise _NotJson(f"{self.path()}: a key is {_type_name(key)}, and JSON has text keys only")
            name = self._text(str.__str__(key))
            if name in out:
                raise _NotJson(f"{self.path()}: two keys become the same text")
            self.where.append(name)
            out[name] = self.plain(child)
            self.where.pop()  # not in a finally: who catches wants to know where it was
        return out

    def _array(self, values: list[Any] | tuple[Any, ...]) -> list[Any]:
        self._enter()
        out = []
        for index, child in enumerate(values):
            self.where.append(index)
            out.append(self.plain(child))
            self.where.pop()
        return out

    def _enter(self) -> None:
        if len(self.where) > DEPTH_MAX:
            raise _NotJson(f"{self.path()}: nested more than {DEPTH_MAX} deep, or it contains itself")
        self._spend(2)

    def _model(self, value: Any) -> Any:
        """A pydantic model. Its JSON dump turns a NaN into null silently where the field's type is Any; so the
        numbers are looked for in its Python dump too."""
        plain = self.plain(value.model_dump(mode="json"))
        for path in _non_finite(value.model_dump(), self.path(), 0):
            if path not in self.non_finite and len(self.non_finite) < PATHS_MAX:
                self.non_finite.append(path)
        return plain

    def _integer(self, value: int) -> int:
        if not INT_MIN <= value <= INT_MAX:
            raise _NotJson(f"{self.path()}: an integer of more than 64 bits; return it as text")
        self._spend(1)
        return value

    def _number(self, value: float) -> float | None:
        if not math.isfinite(value):
            self._spend(4)
            if len(self.non_finite) < PATHS_MAX:
                self.non_finite.append(self.path())
            return None
        self._spend(3)
        return value

    def _text(self, value: str) -> str:
        self._spend(len(value) + 2)  # before the copies below
        if value.isascii() and "\x00" not in value:
            return value
        try:
            size = len(value.encode())
            clean = value.replace("\x00", REPLACEMENT)
        except UnicodeEncodeError:
            clean = _without_surrogates(value).replace("\x00", REPLACEMENT)
            size = len(clean.encode())
        if clean != value and len(self.replaced) < PATHS_MAX:
            self.replaced.append(self.path())
        self._spend(size - len(value))
        return clean

    def _spend(self, size: int, value: Any = None) -> Any:
        self.bytes_seen += size
        if self.bytes_seen > self.bytes_max:
            raise _OverBudget
        return value

    def path(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.where)
        return _shown("result" + "".join(steps))


def _without_surrogates(value: str) -> str:
    """Pairs become the one character they stand for, lone ones U+FFFD."""
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _non_finite(value: Any, path: str, depth: int) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield _shown(path)
    if isinstance(value, Decimal) and not value.is_finite():
        yield _shown(path)
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _non_finite(child, f"{path}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            yield from _non_finite(child, f"{path}[{index}]", depth + 1)


def _shown(path: str) -> str:
    clean = path.encode(errors="replace").decode()
    return clean if len(clean) <= PATH_CHARS else f"{clean[:PATH_CHARS]}…"


def _type_name(value: Any) -> str:
    return str(type(value).__qualname__)[:PATH_CHARS]
