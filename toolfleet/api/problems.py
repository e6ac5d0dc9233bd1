"""Errors as the API answers them: RFC 9457 problem documents with an `error` member that clients of OpenAI's API read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from toolfleet.schemas import errors
from toolfleet.schemas.batches import BatchFault

MEDIA_TYPE: Final = "application/problem+json"
ERRORS_MAX: Final = 20  # of one problem document
RETRY_S: Final = 2.0  # for what is away and may be back soon

TITLES: Final = {
    400: "The request cannot be read",
    401: "Who is asking?",
    403: "Not allowed",
    404: "Not found",
    405: "This route has no such method",
    406: "Not in that form",
    408: "The request did not come in whole",
    409: "Not as things stand",
    413: "Too large",
    415: "This form of body is not read here",
    422: "The request cannot be accepted",
    429: "Too much for now",
    500: "Something of ours is broken",
    503: "Not available now",
}
KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
UNAUTHENTICATED: Final = ("no_key", "unknown_key", "expired_key", "revoked_key")
# Decisions that are refused because of who decides; all others are refused because of how things stand.
FORBIDDEN: Final = ("unknown_token", "not_allowed", "requester", "same_person", "another_person")
NOT_THIS: Final = "not_this_"  # tenant, tool, tier, grant: not for this person
STATUSES: Final[tuple[tuple[type[errors.ToolfleetError], int], ...]] = (
    (errors.UnknownAgent, 404),
    (errors.UnknownRun, 404),
    (errors.UnknownDead, 404),
    (errors.UnknownApproval, 404),
    (errors.UnknownEffect, 404),
    (errors.UnknownBatch, 404),
    (errors.UnknownFile, 404),
    (errors.BatchBusy, 409),
    (errors.RunNotFinished, 409),
    (errors.IdempotencyConflict, 422),
    (errors.TooLarge, 413),
    (errors.InputError, 422),
    (errors.QuotaExceeded, 429),
    (errors.StoreError, 503),
    (errors.BrokerUnavailable, 503),
    (errors.FilesUnavailable, 503),
    (errors.CacheUnavailable, 503),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One error answer. `code` is stable; `param`: what of the request it is about; `errors`: JSON pointers and why;
    `faults`: what is wrong with a file, all that were found."""

    status: int
    code: str
    detail: str
    hint: str = ""
    param: str | None = None
    errors: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[BatchFault, ...] = ()

    def document(self, request_id: str) -> dict[str, Any]:
        kind = KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        said = {"message": self.detail, "type": kind, "param": self.param, "code": self.code}
        document: dict[str, Any] = {
            "type": f"urn:toolfleet:problem:{self.code}",
            "title": TITLES.get(self.status, "Error"),
            "status": self.status,
            "detail": self.detail,
            "hint": self.hint,
            "request_id": request_id,
            "error": said,
        }
        if self.errors:
            document["errors"] = [
                {"pointer": where, "detail": why} for where, why in self.errors[:ERRORS_MAX]
            ]
        if self.faults:
            document["errors"] = [
                {
                    "pointer": f"/{self.param}",
                    "detail": one.message,
                    "code": one.code,
                    "line": one.line,
                    "lines": one.lines,
                    "param": one.param,
                }
                for one in self.faults
            ]
        return document

    def response(self, request_id: str) -> Response:
        body = orjson.dumps(self.document(request_id))
        return Response(body, status_code=self.status, media_type=MEDIA_TYPE, headers=dict(self.headers))


INTERNAL: Final = Problem(
    500,
    "internal_error",
    "the request failed for a reason of ours",
    "Send it again; if it fails again, say the request id.",
)


class ProblemRaised(Exception):
    """Ends a request with that problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def problem_of(error: errors.ToolfleetError) -> Problem:
    """The answer to an error of ours."""
    match error:
        case errors.KeyRefused() if error.reason in UNAUTHENTICATED:
            challenge = {"WWW-Authenticate": f'Bearer error="{error.reason}"', "x-should-retry": "false"}
            return Problem(401, error.reason, error.message, error.hint, headers=challenge)
        case errors.KeyRefused():
            return Problem(403, error.reason, error.message, error.hint)
        case errors.NotAllowed():
            person = error.reason in FORBIDDEN or error.reason.startswith(NOT_THIS)
            status = 403 if person else 409
            return Problem(status, error.code, error.message, error.hint, headers=_final(status))
        case errors.BatchRefused():
            hint = f"Mend it and send it again. Kept: GET /api/v1/batches/{error.fields['batch_id']}"
            return Problem(
                422, error.code, error.message, hint, param="input_file_id", faults=tuple(error.faults)
            )
        case errors.QuotaExceeded():
            headers = retry_after(error.retry_after_s)
            if error.retry_after_s > 60:
                headers["x-should-retry"] = "false"  # nobody waits for midnight
            return Problem(429, error.code, error.message, error.hint, param=error.quota, headers=headers)
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    headers = retry_after(RETRY_S) if status == 503 else _final(status)
    return Problem(status, error.code, error.message, error.hint, headers=headers)


def retry_after(seconds: float) -> dict[str, str]:
    return {
        "Retry-After": str(max(1, math.ceil(seconds))),
        "retry-after-ms": str(max(1, math.ceil(seconds * 1000))),
    }


def _final(status: int) -> dict[str, str]:
    """A conflict stays one however often it is sent."""
    return {"x-should-retry": "false"} if status == 409 else {}


def request_id_of(request: Request) -> str:
    return str(request.scope.get("toolfleet.request_id", ""))
