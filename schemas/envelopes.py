"""The text of the result envelope: the one vocabulary in which the model is told what a call came to.

Compact JSON with a fixed order of keys, so that equal outcomes have equal bytes. Optional fields are left out where
they say nothing. Pure; what a tool returned is taken over byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.vocabulary import OUTCOME_RULES

SUCCESS: Final = "success"


def success(
    data_json: bytes | str,
    *,
    provenance: str = "",
    notes: Sequence[str] = (),
    notice: str | None = None,
    reason: str | None = None,
    truncated: bool = False,
    reference: str | None = None,
    untrusted_text_omitted: bool = False,
    next_actions: Sequence[str] = (),
) -> str:
    """The envelope of a success. `data_json` is strict JSON, taken over byte for byte; `notes` say what was changed
    or left out of it. `provenance` names where the data is from, `reference` where the whole of it can be read. `reason`: why a success has nothing
    to show."""
    data = data_json.encode() if isinstance(data_json, str) else data_json
    fields: dict[str, Any] = {"status": SUCCESS, "data": orjson.Fragment(data)}
    if truncated:
        fields["data_truncated"] = True
    if reference:
        fields["reference"] = reference
    if reason:
        fields["reason_code"] = str(reason)
    if provenance:
        fields["provenance"] = provenance
    if notes:
        fields["notes"] = list(notes)
    if untrusted_text_omitted:
        fields["untrusted_text_omitted"] = True
    if next_actions:
        fields["next_actions"] = list(next_actions)
    if notice:
        fields["notice"] = notice
    return _text(fields)


def error(
    *,
    outcome: CallOutcome,
    message: str,
    reason: str | None = None,
    field_errors: Sequence[Mapping[str, Any]] = (),
    retryable: bool = False,
    retryable_by_model: bool = False,
    retry_after_s: float | None = None,
    suggested_action: str = "",
    user_action_required: bool = False,
    status: Literal["error", "pending"] | None = None,
    operation_id: str | None = None,
    next_actions: Sequence[str] = (),
    notice: str | None = None,
) -> str:
    """The envelope of any other outcome. `message` guides the next step; `retryable`: the same call, later;
    `retryable_by_model`: with changed arguments. `status` is that of the outcome's rule. `operation_id` is what a pending one can be asked for by."""
    fields: dict[str, Any] = {"status": status or OUTCOME_RULES[outcome].status, "error_type": outcome.value}
    if reason:
        fields["reason_code"] = str(reason)
    fields["message"] = message
    if field_errors:
        fields["field_errors"] = [dict(one) for one in field_errors]
    fields["retryable"] = retryable
    fields["retryable_by_model"] = retryable_by_model
    if retry_after_s is not None:
        fields["retry_after_s"] = retry_after_s
    if suggested_action:
        fields["suggested_action"] = suggested_action
    if user_action_required:
        fields["user_action_required"] = True
    if operation_id:
        fields["operation_id"] = operation_id
    if next_actions:
        fields["next_actions"] = list(next_actions)
    if notice:
        fields["notice"] = notice
    return _text(fields)


def not_permitted(tool: str, missing: Sequence[str]) -> str:
    """What is said of a call whose tool needs permissions that whom the run acts for does not have."""
    return f"{tool} is not permitted for this user (missing: {', '.join(missing)})"


def omitted(content: str, *, reference: str) -> str:
    """The envelope that stands for a stored one in a request that would be too long: its status, and where it is."""
    old = orjson.loads(content) if content.startswith("{") else {}
    fields = {
        "status": old.get("status", SUCCESS),
        "data_omitted": True,
        "reference": reference,
        "message": "Left out of this request to save room. read_result reads it, where you have that tool.",
    }
    return _text(fields)


def with_cause(content: str, *, reason: str, more: str) -> str:
    """The envelope of a failure with another reason, and more said in its message. Not for one that has data."""
    old: dict[str, Any] = orjson.loads(content)
    assert "data" not in old, "data is never parsed and written again"
    message = " ".join(text for text in (old.pop("message", ""), more) if text)
    old.pop("reason_code", None)
    new: dict[str, Any] = {name: old.pop(name) for name in ("status", "error_type") if name in old}
    new |= {"reason_code": str(reason), "message": message}
    return _text(new | old)


def with_notice(content: str, notice: str) -> str:
    """The same envelope with this notice for the model instead of any other; every other byte stays.

    Not parsed and written again: that would change numbers no float can hold.
    """
    if not notice:
        return content
    old = orjson.loads(content).get("notice")
    rest = content[:-1] if old is None else content.removesuffix(_notice(old) + "}")
    assert rest != content, "a notice is the last field of an envelope"
    return f"{rest}{_notice(notice)}}}"


def _notice(notice: str) -> str:
    return f',"notice":{_text(notice)}'


def _text(value: Any) -> str:
    """Compact JSON. Half surrogate pairs (a tool's message may hold them) become question marks: no JSON has them."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return orjson.dumps(_readable(value)).decode()


def _readable(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case dict():
            return {_readable(key): _readable(inner) for key, inner in value.items()}
        case list():
            return [_readable(inner) for inner in value]
        case _:
            return value
