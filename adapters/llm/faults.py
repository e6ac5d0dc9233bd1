"""Everything a model's server can do wrong -> one ModelFault: what kind, whether trying again can help, and when.

Messages name host, status and the provider's code, never what the provider wrote: its sentences quote the request.
Fault.status is set where the server refused the request, so that nothing was used; None where it may have worked on it.
"""

from __future__ import annotations

import email.utils
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import aiohttp
import openai

from toolfleet.adapters.llm.rate_headers import rate_hint
from toolfleet.adapters.llm.strict_json import loads
from toolfleet.schemas.model import ModelFault

Kind = Literal[
    "rate_limited",
    "quota",
    "unavailable",
    "timeout",
    "connection",
    "bad_request",
    "context_length",
    "content_filter",
    "auth",
    "bad_reply",
    "not_found",
]

RETRY_AFTER_MAX_S: Final = 86_400.0  # a longer one is a mistake; the run's own limits end the wait anyway
_TEXT_CHARS_MAX: Final = 4_000
_EPOCH_MS_MIN: Final = 1e11  # larger numbers are dates
_DURATION: Final = re.compile(
    r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_UNITS_S: Final = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
_CODE: Final = re.compile(
    r"[A-Za-z0-9_.\[\]-]{1,64}"
)  # an identifier or a path such as tools[16].function.name
_KINDS: Final[Mapping[int, tuple[Kind, bool]]] = {
    401: ("auth", False),
    402: ("quota", False),  # DeepSeek, OpenRouter: no balance; waiting does not help
    403: ("auth", False),
    404: ("not_found", False),
    408: ("timeout", True),
    413: ("context_length", False),  # Anthropic: request_too_large
    409: ("unavailable", True),  # OpenAI: lock timeout
    425: ("unavailable", True),
    429: ("rate_limited", True),
    504: ("timeout", True),
}
# What codes and types mean where they say more than the status: OpenAI, Azure, Anthropic, DeepSeek, Mistral,
# OpenRouter, Perplexity, Groq, Google. Compared in lower case.
_KIND_OF_CODES: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(
        (
            "insufficient_quota",
            "billing_hard_limit_reached",
            "billing_not_active",
            "billing_error",
            "insufficient_balance",
            "insufficient_credits",
            "credit_balance_too_low",
            "payment_required",
        ),
        "quota",
    ),
    **dict.fromkeys(
        (
            "context_length_exceeded",
            "too_many_prompt_tokens",
            "context_window_exceeded",
            "model_context_window_exceeded",
            "prompt_too_long",
            "request_too_large",
        ),
        "context_length",
    ),
    **dict.fromkeys(
        (
            "content_filter",
            "content_policy_violation",
            "responsibleaipolicyviolation",
            "moderation_blocked",
            "invalid_prompt",
            "cyber_policy_violation",
        ),
        "content_filter",
    ),
    **dict.fromkeys(
        (
            "invalid_api_key",
            "authentication_error",
            "permission_error",
            "permission_denied",
            "unauthenticated",
        ),
        "auth",
    ),
    **dict.fromkeys(("model_not_found", "not_found_error", "deploymentnotfound"), "not_found"),
    **dict.fromkeys(
        (
            "rate_limit_error",
            "rate_limit_exceeded",
            "too_many_requests",
            "resource_exhausted",
            "tokens",
            "requests",
        ),
        "rate_limited",
    ),
    **dict.fromkeys(("timeout_error", "deadline_exceeded"), "timeout"),
    **dict.fromkeys(
        (
            "server_error",
            "api_error",
            "internal_server_error",
            "internal_error",
            "internal",
            "overloaded_error",
            "overloaded",
            "engine_overloaded",
            "service_unavailable",
            "service_unavailable_error",
            "unavailable",
        ),
        "unavailable",
    ),
}
_STATUS_OF_KINDS: Final[Mapping[Kind, int]] = {
    "quota": 429,
    "rate_limited": 429,
    "context_length": 400,
    "content_filter": 400,
    "auth": 401,
    "not_found": 404,
    "timeout": 504,
    "unavailable": 500,
}
_TRANSIENT: Final = frozenset({"rate_limited", "unavailable", "timeout", "connection", "bad_reply"})
# Words, where neither code nor header says it. Read and never shown: a provider's sentences quote the request.
_KIND_OF_TEXTS: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (
        re.compile(
            r"(context|prompt|input|messages?)\b.{0,60}\b(too long|exceed|maximum|too many tokens)"
            r"|maximum context|context (length|window|size)|reduce the length|too many (input |prompt )?tokens",
            re.IGNORECASE | re.DOTALL,
        ),
        "context_length",
    ),
    (
        re.compile(
            r"credit balance|insufficient (balance|credits?|funds)|exceeded your current quota|billing",
            re.IGNORECASE,
        ),
        "quota",
    ),
    (
        re.compile(
            r"content (management )?policy|safety (system|filter)|flagged as|content filter", re.IGNORECASE
        ),
        "content_filter",
    ),
    (re.compile(r"\b(incorrect|invalid|missing)\b.{0,20}\bapi[ _-]?key", re.IGNORECASE), "auth"),
)
_TEXT_DECIDES: Final = frozenset(
    {"bad_request", "rate_limited", "quota"}
)  # what other statuses say is precise
_SAID_WAIT: Final = re.compile(
    r"(?:try again|retry|retrying)[^.0-9]{0,30}?\bin\s+(?:(\d+)\s*h)?\s*(?:(\d+)\s*m(?!s))?\s*(?:(\d+(?:\.\d+)?)\s*(ms|s))?",
    re.IGNORECASE,
)
_ADVICE: Final[Mapping[Kind, str]] = {
    "auth": " Check the API key and what it may do.",
    "quota": " The account has no quota left: waiting does not help.",
    "not_found": " Check the model's name and the base URL.",
    "bad_request": " The request itself is refused: sending it again cannot help.",
    "context_length": " The conversation is longer than the model takes.",
    "content_filter": " Its content policy refuses this conversation: sending it again cannot help.",
}


def fault_of_status(
    status: int, headers: Mapping[str, str], body: Any, host: str, *, now_s: float | None = None
) -> ModelFault:
    """The fault of an answer that is no reply. `body` is parsed JSON, or anything else where there was none.

    Class by code and type, then by the status with its hints of when to come back, then by words.
    """
    details = _error_object(body)
    codes = _codes(details)
    kind, retryable = _kind(status, headers, details, codes)
    told = headers.get("x-should-retry")
    if told in ("true", "false"):
        retryable = told == "true"
    wait_s = _asked_wait_s(headers, details, kind, now_s) if retryable else None
    shown = [code for code in codes if code != str(status)][:1]
    if _is_code(details.get("param")):
        shown.append(f"at {details['param']}")
    message = f"{host} answered {status}" + (f" ({', '.join(shown)})" if shown else "") + "."
    if 300 <= status < 400:
        message += " Redirects are not followed: correct the base URL."
    elif not retryable or kind == "auth":
        message += _ADVICE.get(kind, "")
    if wait_s is not None:
        message += f" It asks to wait {wait_s:g} s."
    return ModelFault(
        kind,
        message,
        retryable,
        retry_after_s=wait_s,
        status=status,
        request_id=request_id_of(headers, body),
        rate=rate_hint(headers),
    )


def _kind(
    status: int, headers: Mapping[str, str], details: Mapping[str, Any], codes: list[str]
) -> tuple[Kind, bool]:
    kind, retryable = _KINDS.get(status, ("unavailable", True) if status >= 500 else ("bad_request", False))
    named = next((_KIND_OF_CODES[code.lower()] for code in codes if code.lower() in _KIND_OF_CODES), None)
    if named is not None and 400 <= status < 500:
        # A code can make a request final, or say what is wrong with it; that one can be sent again is for the status.
        if kind != "rate_limited" or named == "quota":
            kind = named
            retryable = retryable and named in _TRANSIENT
        return kind, retryable
    if kind not in _TEXT_DECIDES or _hinted_s(headers) is not None:
        return kind, retryable
    text = _text_of(details)
    for pattern, said in _KIND_OF_TEXTS:
        # A rate limit stays one whatever it says of tokens; only that nothing is left makes it final.
        if (kind != "rate_limited" or (said == "quota" and _said_wait_s(text) is None)) and pattern.search(
            text
        ):
            return said, retryable and said in _TRANSIENT
    return kind, retryable


def fault_in_body(body: Any, headers: Mapping[str, str], host: str) -> ModelFault | None:
    """The fault of an error that came with status 200; None where the body holds no error."""
    if not isinstance(body, dict) or not body.get("error"):
        return None
    details = _error_object(body)
    for key in ("status", "status_code", "code"):
        value = details.get(key)
        if isinstance(value, int | str) and str(value).isdecimal() and 400 <= int(value) <= 599:
            return fault_of_status(int(value), headers, body, host)
    named = _named(details)
    if named is not None:
        return fault_of_status(_STATUS_OF_KINDS[named], headers, body, host)
    if "invalid_request_error" in _codes(details):
        return fault_of_status(400, headers, body, host)
    return bad_reply(host, "an error inside an answer of status 200", request_id_of(headers, body))


def fault_of_error(body: Mapping[str, Any], headers: Mapping[str, str], host: str) -> ModelFault:
    """The fault of a reply that says of itself that it failed (status `failed` of a Responses answer)."""
    fault = fault_in_stream("error", body, headers, host)
    assert fault is not None, "an event of that name is one"
    return fault


def fault_in_stream(
    name: str, chunk: Mapping[str, Any] | None, headers: Mapping[str, str], host: str
) -> ModelFault | None:
    """The fault of an event that ends a stream of status 200; None where it is a piece of a reply.

    The server had taken the request and begun to answer: whatever broke is passing, unless a code says that it is not
    (key, quota, length, content). Tokens may have been used, so it carries no status.
    """
    if chunk is None:
        return bad_reply(host, "a stream with an event that is no JSON", request_id_of(headers))
    error = chunk.get("error")
    if name != "error" and chunk.get("type") != "error" and not (isinstance(error, dict | str) and error):
        return None
    details = _error_object(chunk)
    named = _named(details)
    kind: Kind = named if named is not None else "bad_reply"
    retryable = kind in _TRANSIENT
    shown = _codes(details)[:1]
    message = f"{host} broke off its stream" + (f" ({shown[0]})" if shown else "") + "."
    message += "" if retryable else _ADVICE.get(kind, "")
    wait_s = _asked_wait_s(headers, details, kind, None) if retryable else None
    return ModelFault(
        kind, message, retryable, retry_after_s=wait_s, request_id=request_id_of(headers, chunk)
    )


def broken_stream(host: str, headers: Mapping[str, str]) -> ModelFault:
    """A stream that ended before its reply was whole: nothing of it counts."""
    return ModelFault(
        "connection",
        f"{host} ended its stream before the reply was whole.",
        retryable=True,
        request_id=request_id_of(headers),
    )


def fault_of_exception(exc: BaseException, host: str, timeout_s: float) -> ModelFault:
    """The fault of a request that got no whole answer."""
    causes = list(_causes(exc))
    if isinstance(exc, openai.APIStatusError):
        # 'error' is unwrapped by the SDK in `body` where it is there; read it from the answer itself.
        try:
            body = loads(exc.response.content)
        except (ValueError, RuntimeError):  # RuntimeError: httpx, the body was cut off while it was read
            body = None
        return fault_of_status(exc.status_code, exc.response.headers, body, host)
    # The transport calls every cut connection a timeout; what aiohttp says further down is right.
    timed_out = any(isinstance(cause, TimeoutError | openai.APITimeoutError) for cause in causes)
    cut = any(
        isinstance(cause, aiohttp.ClientConnectionError) and not isinstance(cause, TimeoutError)
        for cause in causes
    )
    if timed_out and not cut:
        return ModelFault(
            "timeout", f"{host} did not answer in time (limit {timeout_s:g} s).", retryable=True
        )
    if any(isinstance(cause, aiohttp.ClientResponseError) for cause in causes):
        return bad_reply(host, "something that is not HTTP", None)
    if any(isinstance(cause, aiohttp.ClientConnectorError | ConnectionRefusedError) for cause in causes):
        return ModelFault(
            "connection", f"{host} cannot be reached: {_reason(causes)}. Is the server up?", retryable=True
        )
    return ModelFault(
        "connection", f"{host} closed the connection before its answer was whole.", retryable=True
    )


def bad_reply(host: str, what: str, request_id: str | None) -> ModelFault:
    """An answer of status 200 that is no reply. Tokens may have been used, so it carries no status."""
    return ModelFault("bad_reply", f"{host} sent {what}.", retryable=True, request_id=request_id)


def request_id_of(headers: Mapping[str, str], body: Any = None) -> str | None:
    """The provider's id of the exchange, for its support. Anthropic repeats it in the body of an error."""
    found = headers.get("x-request-id") or headers.get("request-id") or headers.get("apim-request-id")
    if not found and isinstance(body, dict) and isinstance(body.get("request_id"), str):
        found = body["request_id"]
    return found or None


def retry_after_s(headers: Mapping[str, str], *, now_s: float | None = None) -> float | None:
    """Seconds the server asks to wait: retry-after-ms, then Retry-After as seconds or date (RFC 9110, 10.2.3).

    A date is compared with the server's own Date where it sent one, so that its clock may be wrong.
    """
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
        return _within(seconds)
    due = _http_date(headers.get("retry-after"))
    if due is None:
        return None
    sent = _http_date(headers.get("date"))
    return _within(due - (sent if sent is not None else now_s if now_s is not None else time.time()))


def _asked_wait_s(
    headers: Mapping[str, str], details: Mapping[str, Any], kind: Kind, now_s: float | None
) -> float | None:
    """How long to wait: the header made for it, then the resets of used-up limits, then what the text says."""
    wait_s = retry_after_s(headers, now_s=now_s)
    if wait_s is None and kind == "rate_limited":
        wait_s = reset_s(headers, now_s=now_s)
    return wait_s if wait_s is not None else _said_wait_s(_text_of(details))


def reset_s(headers: Mapping[str, str], *, now_s: float | None = None) -> float | None:
    """Seconds until the limit that is used up is whole again, by `x-ratelimit-reset-*` and `anthropic-ratelimit-*-reset`.

    The longest of those whose remaining count is 0, and of all of them where none is.
    """
    used_up: list[float] = []
    others: list[float] = []
    for name, value in headers.items():
        key = name.lower()
        if key.startswith("x-ratelimit-reset"):
            remaining, seconds = key.replace("-reset", "-remaining", 1), _duration_s(value)
        elif key.startswith("anthropic-ratelimit-") and key.endswith("-reset"):
            remaining, seconds = key[: -len("reset")] + "remaining", _until_s(value, now_s)
        else:
            continue
        if seconds is not None:
            (used_up if headers.get(remaining) == "0" else others).append(seconds)
    return _within(max(used_up or others)) if used_up or others else None


def _duration_s(text: str) -> float | None:
    """`1m30s`, `6ms`, `20`, as OpenAI, Groq and Azure write the time that is left; a date in milliseconds as OpenRouter."""
    text = text.strip()
    try:
        seconds = float(text)
        return seconds / 1000 - time.time() if seconds > _EPOCH_MS_MIN else seconds
    except ValueError:
        pass  # no bare number: a text of units
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    return sum(float(count) * unit for count, unit in zip(found.groups(), _UNITS_S, strict=True) if count)


def _until_s(text: str, now_s: float | None) -> float | None:
    try:
        due = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if due.tzinfo is None else due.timestamp() - (time.time() if now_s is None else now_s)


def _hinted_s(headers: Mapping[str, str]) -> float | None:
    return retry_after_s(headers)


def _said_wait_s(text: str) -> float | None:
    """`Please try again in 1.2s`, `Please retry in 22s`, `try again in 6m0s`."""
    found = _SAID_WAIT.search(text)
    if found is None or not any(found.group(1, 2, 3)):
        return None
    hours, minutes, count, unit = found.groups()
    seconds = float(count or 0) / (1000 if unit and unit.lower() == "ms" else 1)
    return _within(3600 * int(hours or 0) + 60 * int(minutes or 0) + seconds)


def _within(seconds: float) -> float | None:
    if math.isnan(seconds) or seconds < 0:
        return None
    return min(seconds, RETRY_AFTER_MAX_S)


def _http_date(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _error_object(body: Any) -> Mapping[str, Any]:
    if isinstance(body, list):  # Google puts it into an array
        body = next((one for one in body if isinstance(one, dict)), None)
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    return error if isinstance(error, dict) else body


def _codes(details: Mapping[str, Any]) -> list[str]:
    """Code and type, the one that says most first: inner code (Azure), code, type, status (Google)."""
    inner = details.get("innererror")
    found = [inner.get("code")] if isinstance(inner, dict) else []
    found += [details.get(key) for key in ("code", "type", "status")]
    return [str(code) for code in found if _is_code(code) and code != "error"]


def _named(details: Mapping[str, Any]) -> Kind | None:
    return next((_KIND_OF_CODES[c.lower()] for c in _codes(details) if c.lower() in _KIND_OF_CODES), None)


def _text_of(details: Mapping[str, Any]) -> str:
    """Every sentence of the error, bounded: searched, and never shown."""
    texts = [details.get(key) for key in ("message", "error", "detail")]
    metadata = details.get("metadata")
    if isinstance(metadata, dict):
        texts.append(metadata.get("raw"))  # OpenRouter: what the provider behind it said
    return "\n".join(text[:_TEXT_CHARS_MAX] for text in texts if isinstance(text, str))


def _is_code(value: Any) -> bool:
    return isinstance(value, str | int) and _CODE.fullmatch(str(value)) is not None


def _causes(exc: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while exc is not None and exc not in causes:
        causes.append(exc)
        exc = exc.__cause__ or exc.__context__
    return causes


def _reason(causes: list[BaseException]) -> str:
    for cause in reversed(causes):
        if isinstance(cause, socket.gaierror):
            return "its name is not known"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
    return "no connection"
