"""What is asked of the parts of a request before anything is stored: texts, sizes, and whom the run acts for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from toolfleet.schemas.errors import InputError, TooLarge
from toolfleet.schemas.limits import INPUT_BYTES_MAX

METADATA_BYTES_MAX: Final = 16_000
PERMISSIONS_MAX: Final = 100
DEADLINE_S_MAX: Final = 10 * 366 * 86_400.0  # ten years


def acts_for(
    said_principal: Any, said_permissions: Any, context: Mapping[str, Any]
) -> tuple[str, tuple[str, ...]]:
    """Whom the run acts for, and what they may do: as said, or, where nothing was said, as the context says."""
    said = bool(said_principal or said_permissions)
    principal = said_principal if said else context.get("principal") or ""
    permissions = said_permissions if said else context.get("permissions") or ()
    if not isinstance(principal, str) or len(principal) > 128:
        raise InputError("principal must be a text of at most 128 characters", hint="Pass whom it acts for.")
    check_text("principal", principal)
    wrong = isinstance(permissions, str) or not isinstance(permissions, Sequence)
    if wrong or len(permissions) > PERMISSIONS_MAX:
        raise InputError(
            f"permissions must be a list of at most {PERMISSIONS_MAX} texts",
            hint='Write permissions=["refunds:write"].',
        )
    for one in permissions:
        check_name("permissions", one, 128)
    return principal, tuple(permissions)


def check_name(name: str, value: object, most: int) -> None:
    if value is None and name != "tenant":
        return
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise InputError(
            f"{name} must be a text of 1 to {most} characters", hint="Leave it out, or shorten it."
        )
    check_text(name, value)


def check_metadata(metadata: Mapping[str, str]) -> None:
    check_mapping("metadata", metadata)
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InputError(
                f"metadata[{key!r}] must be a text", hint="Metadata holds texts; JSON goes into context."
            )
        check_text(f"metadata[{key!r}]", key + value)
    check_size("metadata", orjson.dumps(dict(metadata)), METADATA_BYTES_MAX)


def check_mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a mapping", hint=f"Write {name}={{...}}, or leave it out.")


def check_deadline(deadline_s: object) -> None:
    if deadline_s is None:
        return
    if (
        isinstance(deadline_s, bool)
        or not isinstance(deadline_s, (int, float))
        or not deadline_s < DEADLINE_S_MAX
    ):
        raise InputError(
            f"deadline_s must be a number of seconds below {DEADLINE_S_MAX:g}", hint="Pass seconds from now."
        )
    if deadline_s <= 0:
        raise InputError(f"deadline_s={deadline_s:g} has passed already", hint="Pass seconds from now.")


def check_context(context: Mapping[str, Any]) -> None:
    check_mapping("context", context)
    try:
        json.dumps(dict(context), allow_nan=False)
        body = orjson.dumps(dict(context))
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(f"context is not JSON: {exc}", hint="Pass JSON values only.") from exc
    check_size("context", body, INPUT_BYTES_MAX)


def check_text(name: str, value: str) -> None:
    if "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise InputError(f"{name} holds a NUL or half a surrogate pair", hint="Pass valid Unicode text.")


def check_size(name: str, body: bytes, most: int) -> None:
    if len(body) > most:
        raise TooLarge(
            f"{name} has {len(body)} bytes, and at most {most} are accepted",
            hint="Put large material where a tool can read it, and pass a reference.",
        )
