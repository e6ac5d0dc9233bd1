"""A tool's answer becomes what the model may see: projected data, or what guides its next step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from toolfleet.schemas.envelopes import error, success
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode
from toolfleet.schemas.ports import ToolFailed, ToolReturned
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.machine.call import needs_human

_WHOLE = "The whole is stored under the reference: read_result reads on in it; or ask for less."
_EXCERPT_SHARE = 0.75  # of the bytes a model may get, for the excerpt: its text is escaped once more


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one attempt came to: an outcome, or (read-only tools) a passing failure that may be tried again.

    `result` is the outcome if it may not. `began` False: no line of the tool ran.
    """

    result: CallResult
    passing: bool = False
    died: bool = False
    retry_after_s: float | None = None


def returned(call: CallState, spec: ToolSpec, answer: ToolReturned) -> Verdict:
    """`ok`, with the data that fits, and a reference to the whole where it does not."""
    content, full = content_of(call.tool, call.call_id, spec, answer)
    return Verdict(_ok(call, content, answer.seconds, full))


def content_of(
    tool: str, reference: str, spec: ToolSpec, answer: ToolReturned, notes: Sequence[str] = ()
) -> tuple[str, str | None]:
    """The envelope of a success, and the text of the whole data where the envelope has less of it."""
    data = answer.value_json if answer.shown_json is None else answer.shown_json
    said = [*answer.notes, *notes]
    fits = len(data) <= spec.result_bytes_to_model
    whole = None if fits and answer.shown_json is None else answer.value_json.decode()
    if not fits:
        size = len(data)
        excerpt = data[: int(spec.result_bytes_to_model * _EXCERPT_SHARE)].decode(errors="ignore")
        data = orjson.dumps(excerpt)
        said.append(
            f"the result has {size} bytes; only its first {len(excerpt.encode())} are shown, as text. {_WHOLE}"
        )
    elif answer.summarised:
        said.append(f"this is a summary of a result of {len(answer.value_json)} bytes. {_WHOLE}")
    elif whole is not None:
        said.append(f"outside text was cut. {_WHOLE}")
    content = success(
        data,
        provenance=tool,
        notes=said,
        truncated=not fits,
        reference=None if whole is None else reference,
        untrusted_text_omitted=answer.omitted,
        next_actions=answer.next_actions,
    )
    return content, whole


def failed(call: CallState, spec: ToolSpec, answer: ToolFailed) -> Verdict:
    """The outcome of an attempt that did not come back with a value.

    What a tool says itself (BusinessError, PermissionDenied) is final for every tool, unless an earlier attempt of an
    effect was lost: what is refused now may have happened then, unless the tool says that it did not (`no_effect`). Of
    a tool with an effect, everything else after its start leaves the effect unknown: `needs_human`. Of a read-only
    tool, passing failures may be tried again, and every other exception is `failed`.
    """
    fields = dict(answer.fields or {})
    unknown_before = call.effect and call.attempt > 1  # an earlier attempt was lost, and may have acted
    answers_for_both = not unknown_before or (call.idempotent and fields.get("no_effect") is True)
    if answer.code == "invalid_arguments":
        return Verdict(_invalid(call, answer))
    if answer.code == "business_error" and answers_for_both:
        return Verdict(_business(call, answer, fields))
    if answer.code == "denied" and not unknown_before:
        return Verdict(_denied(call, answer))
    if call.effect and (answer.began or unknown_before):
        return Verdict(replace(needs_human(call, _cause(call, spec, answer)), tool_s=answer.seconds))
    died = answer.kind == "died"
    passing = not call.effect and (
        died or answer.kind == "timed_out" or answer.code == "retryable" or _network(answer)
    )
    retry_after_s = fields.get("retry_after_s")
    floor = float(retry_after_s) if isinstance(retry_after_s, (int, float)) else None
    return Verdict(
        _failed(call, spec, answer, passing, floor), passing=passing, died=died, retry_after_s=floor
    )


_NETWORK_ERRORS = frozenset(
    {
        "ConnectionError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "ConnectionAbortedError",
        "BrokenPipeError",
        "TimeoutError",
    }
)
_REASONS = {
    "timed_out": ReasonCode.TIMEOUT,
    "died": ReasonCode.CHILD_DIED,
    "not_json": ReasonCode.RESULT_NOT_JSON,
    "too_large": ReasonCode.RESULT_TOO_LARGE,
    "not_loaded": ReasonCode.TOOL_NOT_LOADED,
    "tool_changed": ReasonCode.TOOL_CHANGED,
    "raised": ReasonCode.EXCEPTION,
}


def _network(answer: ToolFailed) -> bool:
    return answer.kind == "raised" and answer.error_type in _NETWORK_ERRORS


def _ok(call: CallState, content: str, seconds: float, full: str | None) -> CallResult:
    return CallResult(
        call.call_id, call.index, CallOutcome.OK, content, attempt=call.attempt, full=full, tool_s=seconds
    )


def _business(call: CallState, answer: ToolFailed, fields: dict[str, object]) -> CallResult:
    reason = str(fields.get("reason_code") or "business_error")
    content = error(
        outcome=CallOutcome.BUSINESS_ERROR,
        reason=reason,
        message=answer.message,
        suggested_action=str(fields.get("suggested_action") or ""),
        user_action_required=bool(fields.get("user_action_required")),
    )
    return _result(call, CallOutcome.BUSINESS_ERROR, reason, content, answer.seconds)


def _invalid(call: CallState, answer: ToolFailed) -> CallResult:
    content = error(
        outcome=CallOutcome.INVALID_ARGUMENTS,
        reason=ReasonCode.VALIDATION,
        message=answer.message,
        retryable_by_model=True,
    )
    return _result(call, CallOutcome.INVALID_ARGUMENTS, ReasonCode.VALIDATION, content, answer.seconds)


def _denied(call: CallState, answer: ToolFailed) -> CallResult:
    content = error(outcome=CallOutcome.DENIED, reason=ReasonCode.PERMISSION_DENIED, message=answer.message)
    return _result(call, CallOutcome.DENIED, ReasonCode.PERMISSION_DENIED, content, answer.seconds)


def _failed(
    call: CallState, spec: ToolSpec, answer: ToolFailed, passing: bool, retry_after_s: float | None
) -> CallResult:
    reason = _REASONS.get(answer.kind, ReasonCode.EXCEPTION)
    content = error(
        outcome=CallOutcome.FAILED,
        reason=reason,
        message=f"{call.tool} failed: {_cause(call, spec, answer)}.",
        retryable=passing,
        retry_after_s=retry_after_s,
        suggested_action="go_on_without_it_or_tell_the_user",
    )
    return _result(call, CallOutcome.FAILED, reason, content, answer.seconds)


def _cause(call: CallState, spec: ToolSpec, answer: ToolFailed) -> str:
    """Why, without the text of foreign exceptions: it may hold what nobody should read."""
    match answer.kind:
        case "timed_out":
            return f"it did not answer within {spec.timeout_s:g} s"
        case "died":
            return "the process that ran it ended before it answered"
        case "not_json":
            return f"its result cannot be given on ({answer.message})"
        case "too_large":
            return f"its result is too large ({answer.message})"
        case "not_loaded":
            return "it is not loaded where it should have run"
        case "tool_changed":
            return "it was changed since this request began, so it was not run"
        case _ if answer.code in ("tool_error", "retryable"):
            return answer.message
        case _:
            return f"it raised {answer.error_type or 'an error'}"


def _result(call: CallState, outcome: CallOutcome, reason: str, content: str, seconds: float) -> CallResult:
    return CallResult(
        call.call_id, call.index, outcome, content, reason=str(reason), attempt=call.attempt, tool_s=seconds
    )
