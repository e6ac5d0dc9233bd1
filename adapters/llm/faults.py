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
from typing import Any, Final, Literal

import aiohttp
import openai

from toolfleet.adapters.llm.strict_json import loads
from toolfleet.schemas.model import ModelFault

Kind = Literal[
    "rate_limited", "unavailable", "timeout", "connection", "bad_request", "auth", "bad_reply", "not_found"
]

RETRY_AFTER_MAX_S: Final = 86_400.0  # a longer one is a mistake; the run's own limits end the wait anyway
_CODE: Final = re.compile(
    r"[A-Za-z0-9_.\[\]-]{1,64}"
)  # an identifier or a path such as tools[16].function.name
_KINDS: Final[Mapping[int, tuple[Kind, bool]]] = {
    401: ("auth", False),
    402: ("rate_limited", False),  # DeepSeek, OpenRouter: no balance; waiting does not help
    403: ("auth", False),
    404: ("not_found", False),
    408: ("timeout", True),
    409: ("unavailable", True),  # OpenAI: lock timeout
    425: ("unavailable", True),
    429: ("rate_limited", True),
    504: ("timeout", True),
}
_QUOTA_CODES: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance"}
)
# Providers put errors into answers of status 200; what they are is then only said by type or code.
_STATUS_OF_CODES: Final[Mapping[str, int]] = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "permission_denied": 403,
    "insufficient_quota": 429,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "tokens": 429,  # OpenAI's type of a token rate limit
    "requests": 429,
    "not_found_error": 404,
    "model_not_found": 404,
    "content_filter": 400,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    "timeout_error": 504,
    "server_error": 500,
    "api_error": 500,
    "internal_server_error": 500,
    "overloaded_error": 529,
    "engine_overloaded": 503,
    "service_unavailable": 503,
}
_ADVICE: Final[Mapping[Kind, str]] = {
    "auth": " Check the API key (OPENAI_API_KEY) and what it may do.",
    "not_found": " Check the model's name and the base URL (OPENAI_BASE_URL).",
    "bad_request": " The request itself is refused: sending it again cannot help.",
}


def fault_of_status(
    status: int, headers: Mapping[str, str], body: Any, host: str, *, now_s: float | None = None
) -> ModelFault:
    """The fault of an answer that is no reply. `body` is parsed JSON, or anything else where there was none."""
    details = _error_object(body)
    codes = [str(details[key]) for key in ("code", "type") if _is_code(details.get(key))]
    kind, retryable = _KINDS.get(status, ("unavailable", True) if status >= 500 else ("bad_request", False))
    told = headers.get("x-should-retry")
    if told in ("true", "false"):
        retryable = told == "true"
    if status == 429 and _QUOTA_CODES.intersection(codes):
        retryable = False
    wait_s = retry_after_s(headers, now_s=now_s) if retryable else None
    shown = [code for code in codes if code != str(status)][:1]
    if _is_code(details.get("param")):
        shown.append(f"at {details['param']}")
    message = f"{host} answered {status}" + (f" ({', '.join(shown)})" if shown else "") + "."
    if 300 <= status < 400:
        message += " Redirects are not followed: correct the base URL."
    elif kind == "rate_limited" and not retryable:
        message += " The account has no quota left: waiting does not help."
    elif not retryable or kind == "auth":
        message += _ADVICE.get(kind, "")
    if wait_s is not None:
        message += f" It asks to wait {wait_s:g} s."
    return ModelFault(
        kind, message, retryable, retry_after_s=wait_s, status=status, request_id=request_id_of(headers)
    )


def fault_in_body(body: Any, headers: Mapping[str, str], host: str) -> ModelFault | None:
    """The fault of an error that came with status 200; None where the body holds no error."""
    if not isinstance(body, dict) or not body.get("error"):
        return None
    details = _error_object(body)
    for key in ("status", "status_code", "code", "type"):
        value = details.get(key)
        if isinstance(value, str) and value.lower() in _STATUS_OF_CODES:
            return fault_of_status(_STATUS_OF_CODES[value.lower()], headers, body, host)
        if isinstance(value, int | str) and str(value).isdecimal() and 400 <= int(value) <= 599:
            return fault_of_status(int(value), headers, body, host)
    return bad_reply(host, "an error inside an answer of status 200", request_id_of(headers))


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


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """The provider's id of the exchange, for its support."""
    return headers.get("x-request-id") or headers.get("request-id") or None


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
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    return error if isinstance(error, dict) else body


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
