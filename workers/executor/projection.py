"""A tool's answer becomes what the model may see: projected data, or what guides its next step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from toolfleet.schemas.effects import EffectState
from toolfleet.schemas.envelopes import error, success
from toolfleet.schemas.events import EffectEnded
from toolfleet.schemas.ids import call_command_id
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode
from toolfleet.schemas.ports import ToolAnswer, ToolFailed, ToolReturned
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import ToolSpec

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
    content, full = content_of(call.tool, call.call_id, spec, answer, _edited(call))
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


def _edited(call: CallState) -> tuple[str, ...]:
    """The model is told what really ran."""
    if not call.edited:
        return ()
    return (f"an approver changed the arguments; what ran: {call.tool}({call.arguments})",)


def failed(call: CallState, spec: ToolSpec, answer: ToolFailed, timeout_s: float | None = None) -> Verdict:
    """The outcome of an attempt that did not come back with a value. `timeout_s`: what it had, if not what is declared.

    What a tool says itself (BusinessError, PermissionDenied) is final. Passing failures may be tried again, and every
    other exception is `failed`. Of an effect that has begun, see `effect_of`.
    """
    fields = dict(answer.fields or {})
    if answer.code == "invalid_arguments":
        return Verdict(_invalid(call, answer))
    if answer.code == "business_error":
        return Verdict(_business(call, answer, fields))
    if answer.code == "denied":
        return Verdict(_denied(call, answer))
    died = (
        answer.kind == "died" and answer.began
    )  # a process that could not be started is no fault of the call
    passing = (
        answer.kind == "died"
        or answer.kind == "timed_out"
        or answer.code in ("retryable", "not_sent", "refused")
        or _network(answer)
    )
    floor = _floor(fields)
    return Verdict(
        _failed(call, spec.timeout_s if timeout_s is None else timeout_s, answer, passing, floor),
        passing=passing,
        died=died,
        retry_after_s=floor,
    )


def effect_of(
    call: CallState, spec: ToolSpec | None, answer: ToolAnswer, timeout_s: float | None = None
) -> EffectEnded:
    """T11: what is known of an effect after one attempt of it.

    A value means that it happened, also one that does not fit what the tool declares. What the tool says itself (BusinessError, PermissionDenied) means that it did not,
    and is final; NotSent and Refused mean the same, and are tried again. Everything else leaves it unknown.
    """
    command_id = call_command_id(call.call_id)
    if isinstance(answer, ToolReturned):
        assert spec is not None, "what is not loaded returns nothing"
        result = returned(call, spec, answer).result
        return EffectEnded(command_id, call.attempt, EffectState.HAPPENED, result)
    if answer.kind == "result_invalid":
        return EffectEnded(command_id, call.attempt, EffectState.HAPPENED, done_unfit(call, answer))
    fields = dict(answer.fields or {})
    no_effect = call.idempotent and fields.get("no_effect") is True
    came, final = EffectState.REFUSED, None
    match answer.code:
        case "business_error":
            came, final = EffectState.BUSINESS_ERROR, _business(call, answer, fields)
        case "denied":
            final = _denied(call, answer)
        case "invalid_arguments":
            final = _invalid(call, answer)
    if final is not None:
        return EffectEnded(command_id, call.attempt, came, final, no_effect=no_effect)
    had_s = call.timeout_s if timeout_s is None else timeout_s
    failed_ = _failed(call, had_s, answer, True, _floor(fields))
    if answer.code in ("not_sent", "refused") or not answer.began:
        came = EffectState.REFUSED if answer.code == "refused" else EffectState.NOT_SENT
        delay_s = _floor(fields) or 0.0
        return EffectEnded(command_id, call.attempt, came, failed_, again=True, delay_s=delay_s)
    died = answer.kind == "died"
    return EffectEnded(command_id, call.attempt, EffectState.RECONCILING, failed_, died=died)


def done_unfit(call: CallState, answer: ToolFailed) -> CallResult:
    """The outcome of an effect that happened, where what the tool returned of it is wrong: done, and nothing to show."""
    note = (
        f"it was done, so do not do it again; what {call.tool} returned does not fit what it declares "
        f"({answer.message}), and is not shown"
    )
    notes = (note, *_edited(call))
    content = success(b"null", provenance=call.tool, notes=notes, reason=ReasonCode.RESULT_INVALID)
    return replace(_ok(call, content, answer.seconds, None), reason=str(ReasonCode.RESULT_INVALID))


def not_happened(call: CallState) -> CallResult:
    """The outcome of a call that was asked for, did not happen, and may not be tried again."""
    message = f"{call.tool} did not happen, and its attempts are used up."
    content = error(outcome=CallOutcome.FAILED, reason=ReasonCode.NOT_SENT, message=message, retryable=True)
    return _result(call, CallOutcome.FAILED, ReasonCode.NOT_SENT, content, 0.0)


def _floor(fields: Mapping[str, object]) -> float | None:
    retry_after_s = fields.get("retry_after_s")
    return float(retry_after_s) if isinstance(retry_after_s, (int, float)) else None


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
    "result_invalid": ReasonCode.RESULT_INVALID,
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
    call: CallState, timeout_s: float, answer: ToolFailed, passing: bool, retry_after_s: float | None
) -> CallResult:
    reason = _REASONS.get(answer.kind, ReasonCode.EXCEPTION)
    content = error(
        outcome=CallOutcome.FAILED,
        reason=reason,
        message=f"{call.tool} failed: {_cause(timeout_s, answer)}.",
        retryable=passing,
        retry_after_s=retry_after_s,
        suggested_action="go_on_without_it_or_tell_the_user",
    )
    return _result(call, CallOutcome.FAILED, reason, content, answer.seconds)


def _cause(timeout_s: float, answer: ToolFailed) -> str:
    """Why, without the text of foreign exceptions: it may hold what nobody should read."""
    match answer.kind:
        case "timed_out":
            return f"it did not answer within {timeout_s:g} s"
        case "died":
            return "the process that ran it ended before it answered"
        case "not_json":
            return f"its result cannot be given on ({answer.message})"
        case "too_large":
            return f"its result is too large ({answer.message})"
        case "result_invalid":
            return f"what it returned does not fit what it declares ({answer.message})"
        case "not_loaded":
            return "it is not loaded where it should have run"
        case "tool_changed":
            return "it was changed since this request began, so it was not run"
        case _ if answer.code in ("tool_error", "retryable", "not_sent", "refused"):
            return answer.message
        case _:
            return f"it raised {answer.error_type or 'an error'}"


def _result(call: CallState, outcome: CallOutcome, reason: str, content: str, seconds: float) -> CallResult:
    return CallResult(
        call.call_id, call.index, outcome, content, reason=str(reason), attempt=call.attempt, tool_s=seconds
    )
