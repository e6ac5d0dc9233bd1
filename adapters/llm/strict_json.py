"""JSON to and from model servers: only strict JSON leaves, whatever comes is read if it can be.

What leaves holds no NaN and no half surrogate pairs. What comes in is made fit to be stored: models and proxies write
tokens (NaN), characters (half pairs, NUL) and integers that databases and other JSON readers refuse.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import orjson

_INT_MAX: Final = 2**64  # what orjson writes as an integer
_INT_MIN: Final = -(2**63)
_LONG_NUMBER: Final = re.compile(rb"\d{19}")  # orjson reads integers beyond 64 bits as floats


def dumps(value: Any) -> bytes:
    """Compact JSON with the keys in their given order; equal values have equal bytes. Non-finite numbers: null."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits (legal JSON), or half a surrogate pair
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode(errors="replace")


def loads(body: bytes) -> Any:
    """The JSON value, integers exact. Raises ValueError where there is none (RecursionError becomes one)."""
    try:
        if _LONG_NUMBER.search(body):
            return json.loads(body)
        return orjson.loads(body)
    except (ValueError, RecursionError):
        try:
            return json.loads(body.decode(), strict=False)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def exact(text: str) -> Any:
    """The JSON value a model wrote, or the text itself where reading it would lose something (a key written twice)."""
    try:
        return json.loads(text, object_pairs_hook=_once, strict=False)
    except (ValueError, RecursionError):
        return text


def written(value: Any) -> str:
    """The text of arguments that came as a value. What is no JSON stays (NaN), for the gate to see and refuse."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "[" * 100  # no deeper text is ever read


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key appears twice")
    return value


def storable(value: Any) -> Any:
    """The value without what a database refuses: NUL and half pairs become U+FFFD, non-finite numbers null,
    integers beyond 64 bits text."""
    match value:
        case str():
            if "\x00" not in value and (value.isascii() or not _has_half_pair(value)):
                return value
            return "".join("\ufffd" if c == "\x00" or "\ud800" <= c <= "\udfff" else c for c in value)
        case dict():
            return {storable(key): storable(inner) for key, inner in value.items()}
        case list():
            return [storable(inner) for inner in value]
        case bool() | None:
            return value
        case int():
            return value if _INT_MIN <= value < _INT_MAX else str(value)
        case float():
            return value if math.isfinite(value) else None
        case _:
            return value


def _has_half_pair(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
        case orjson.Fragment():
            return json.loads(value.contents)
        case _:
            return value
