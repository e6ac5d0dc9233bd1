"""What happens to a request before anything of it is parsed: its id, its size, its time, its form.

One ASGI layer around everything else. A body is taken in whole, never above the cap and never for longer than the deadline;
only then is the application called, with a body that is known to be JSON. Files pass through (incoming.py).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import orjson
import structlog
import uuid_utils
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet.api.incoming import Passing, Streamed
from toolfleet.api.problems import INTERNAL, Problem

log = structlog.get_logger("toolfleet.api")

JSON_TYPES: Final = re.compile(r"application/(?:[\w.+-]+\+)?json")
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
TARGET_BYTES_MAX: Final = 8192  # of path and query
BODYLESS: Final = ("GET", "HEAD", "OPTIONS", "DELETE")


class _Refused(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


@dataclass(slots=True)
class Edge:
    """The outermost layer. `open_door`: no key is asked for, so only this machine's own names are answered. `streamed`: by
    method and path, bodies that are not taken in here."""

    app: ASGIApp
    body_bytes_max: int
    body_s: float
    open_door: bool = False
    streamed: Mapping[tuple[str, str], Streamed] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else f"req_{uuid_utils.uuid7().hex}"
        scope["toolfleet.request_id"] = request_id
        scope["toolfleet.headers"] = {}
        answer = _Answer(scope, send, request_id)
        try:
            self._check(scope, headers)
            streamed = self.streamed.get((scope["method"], scope["path"]))
            if streamed is not None:
                answer.passing = passing = Passing(streamed, headers, receive)
                if (refusal := streamed.refusal(headers)) is not None:
                    raise _Refused(refusal)
                await self.app(scope, passing, answer)
                return
            body = await self._body(scope["method"], headers, receive)
            scope["toolfleet.body"] = body
            await self.app(scope, _replayed(body, receive), answer)
        except _Refused as refused:
            await refused.problem.response(request_id)(scope, receive, answer)
        except Exception:
            log.exception("request_failed", method=scope["method"], request_id=request_id)
            if answer.complete:
                return  # it was told already
            if answer.started:
                raise  # the connection is cut, so that nobody takes what was sent for the whole
            await INTERNAL.response(request_id)(scope, receive, answer)

    def _check(self, scope: Scope, headers: Headers) -> None:
        target = scope.get("raw_path", b"") + b"?" + scope["query_string"]
        if len(target) > TARGET_BYTES_MAX:
            raise _Refused(Problem(400, "target_too_long", "path and query are too long", "Shorten them."))
        if b"\x00" in unquote_to_bytes(target):
            raise _Refused(Problem(400, "nul_in_target", "path or query hold a NUL", "Leave it out."))
        if self.open_door and not is_loopback(_name(headers.get("host", ""))):
            raise _Refused(
                Problem(
                    403,
                    "wrong_host",
                    "without keys only requests to this machine's own names are answered",
                    "Ask for http://127.0.0.1:PORT, or serve with keys: TOOLFLEET_HTTP_AUTH=required.",
                )
            )
        origin = headers.get("origin")
        if self.open_door and origin is not None and not is_loopback(_name(origin.partition("://")[2])):
            raise _Refused(
                Problem(403, "wrong_origin", "pages of other sites may not ask here", "Serve with keys.")
            )

    async def _body(self, method: str, headers: Headers, receive: Receive) -> bytes:
        length = headers.get("content-length")
        chunked = "transfer-encoding" in headers
        if length is not None and not length.isdigit():
            raise _Refused(
                Problem(400, "bad_length", "Content-Length is no number", "Send its size in bytes.")
            )
        if length is not None and int(length) > self.body_bytes_max:
            raise _Refused(self._too_large())
        if not chunked and not int(length or 0):
            return b""
        if "content-encoding" in headers:
            raise _Refused(
                Problem(
                    415, "encoded_body", "compressed bodies are not read", "Send it without Content-Encoding."
                )
            )
        body = await self._whole(receive)
        if method in BODYLESS or not body:
            return b""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not JSON_TYPES.fullmatch(kind):
            raise _Refused(
                Problem(
                    415,
                    "wrong_content_type",
                    f"a body of type {kind[:100] or '(none given)'} is not read here",
                    "Send JSON with Content-Type: application/json.",
                )
            )
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as exc:
            raise _Refused(
                Problem(400, "bad_json", f"the body is no JSON: {exc}", "Send one JSON object, in UTF-8.")
            ) from None
        return body

    async def _whole(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.body_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refused(Problem(400, "cut_off", "the request was cut off", "Send it again."))
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self.body_bytes_max:
                        raise _Refused(self._too_large())
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise _Refused(
                Problem(
                    408,
                    "slow_body",
                    f"the body did not come in whole within {self.body_s:g} s",
                    "Send it faster, or in smaller pieces of work.",
                    headers={"Connection": "close"},
                )
            ) from None
        return b"".join(parts)

    def _too_large(self) -> Problem:
        return Problem(
            413,
            "body_too_large",
            f"a body may have {self.body_bytes_max} bytes",
            "Put large material where a tool can read it, and pass a reference.",
            headers={"Connection": "close"},
        )


class _Answer:
    """Sends on, with the headers that every answer has."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self.started = self.complete = False
        self.passing: Passing | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            if self.passing is not None and not await self.passing.throw_away():
                headers["Connection"] = "close"
            headers["x-request-id"] = self._request_id
            headers.setdefault("Cache-Control", "no-store")
            headers["X-Content-Type-Options"] = "nosniff"
            for name, value in self._scope["toolfleet.headers"].items():
                headers[name] = value
        await self._send(message)
        self.complete = message["type"] == "http.response.body" and not message.get("more_body", False)


def _replayed(body: bytes, receive: Receive) -> Callable[[], Awaitable[MutableMapping[str, Any]]]:
    """A `receive` that gives the body that is here already, and then whatever comes after it."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _name(host: str) -> str:
    """The host without its port, and without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine is meant."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
