"""What changed between two JSON values, as a list of add, remove and replace (the operations of RFC 6902).

Objects are walked into, everything else (lists too) is replaced whole. The list is ordered by path, key by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def difference(before: object, after: object, path: str = "") -> list[dict[str, Any]]:
    """The operations that turn `before` into `after`; empty where they are equal."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            operation
            for key in sorted(before.keys() | after.keys())
            for operation in _of_key(before, after, key, path)
        ]
    return [] if same_json(before, after) else [{"op": "replace", "path": path, "value": after}]


def _of_key(
    before: Mapping[str, object], after: Mapping[str, object], key: str, path: str
) -> list[dict[str, Any]]:
    place = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"  # RFC 6901 escapes
    if key not in after:
        return [{"op": "remove", "path": place}]
    if key not in before:
        return [{"op": "add", "path": place, "value": after[key]}]
    return difference(before[key], after[key], place)


def same_json(left: object, right: object) -> bool:
    """Whether both are one JSON value: 1 and 1.0 are, 1 and true are not, the order of keys does not matter."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_json, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return left == right
