"""What a tool returned, as strict JSON: no NaN, no half characters, nothing that only Python can read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson

DEPTH_MAX = 200
INT_MIN, INT_MAX = -(2**63), 2**64 - 1  # what orjson writes exactly


@dataclass(frozen=True, slots=True)
class Encoded:
    """Strict JSON. `notes` say what was changed to make it so."""

    body: bytes
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unserialisable:
    """Not JSON: where and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    size_bytes: int
    limit_bytes: int


class _NotJson(Exception):
    pass


@dataclass(slots=True)
class _Notes:
    non_finite: list[str] = field(default_factory=list)
    characters: list[str] = field(default_factory=list)

    def texts(self) -> tuple[str, ...]:
        said = []
        if self.non_finite:
            said.append(f"not a finite number, given as null: {', '.join(self.non_finite[:10])}")
        if self.characters:
            said.append(f"characters that are no text, replaced: {', '.join(self.characters[:10])}")
        return tuple(said)


def to_json(value: Any, *, bytes_max: int) -> Encoded | Unserialisable | TooLarge:
    """`value` as JSON of at most bytes_max bytes. Dataclasses, pydantic models, dates, decimals, UUIDs and enums are
    turned into JSON; NaN and infinities become null, with a note; everything else that is not JSON is refused."""
    notes = _Notes()
    try:
        plain = _plain(value, "result", 0, notes)
        body = orjson.dumps(plain)
    except _NotJson as exc:
        return Unserialisable(str(exc))
    except (TypeError, ValueError, RecursionError) as exc:
        return Unserialisable(f"result: {exc}")
    if len(body) > bytes_max:
        return TooLarge(len(body), bytes_max)
    return Encoded(body, notes.texts())


def _plain(value: Any, path: str, depth: int, notes: _Notes) -> Any:
    if depth > DEPTH_MAX:
        raise _NotJson(f"{path[:200]}: nested more than {DEPTH_MAX} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, path, depth + 1, notes)
    if isinstance(value, str):
        return _text(str(value), path, notes)
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise _NotJson(f"{path}: an integer of more than 64 bits; return it as text")
        return int(value)
    if isinstance(value, float):
        return _number(float(value), path, notes)
    return _compound(value, path, depth, notes)


def _compound(value: Any, path: str, depth: int, notes: _Notes) -> Any:
    if isinstance(value, Mapping):
        return {_key(k, path): _plain(v, f"{path}.{k}", depth + 1, notes) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, f"{path}[{index}]", depth + 1, notes) for index, one in enumerate(value)]
    if isinstance(value, Decimal):
        return _number(float(value), path, notes) if not value.is_finite() else str(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, PurePath)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _plain(fields, path, depth + 1, notes)
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return _plain(dump(), path, depth + 1, notes)
    raise _NotJson(f"{path}: {type(value).__name__} is not JSON")


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise _NotJson(f"{path}: a key is {type(key).__name__}, and JSON has text keys only")
    return key.encode(errors="replace").decode().replace("\x00", "\ufffd")


def _number(value: float, path: str, notes: _Notes) -> float | None:
    if math.isfinite(value):
        return value
    notes.non_finite.append(path)
    return None


def _text(value: str, path: str, notes: _Notes) -> str:
    if value.isascii() and "\x00" not in value:
        return value
    clean = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\x00", "\ufffd")
    if clean != value:
        notes.characters.append(path)
    return clean
