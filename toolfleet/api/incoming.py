"""Bodies that are too large to be held: they pass through in pieces, counted and timed, to the one route that takes each.

The key is looked at before the first piece is read. What is left of a body that was refused is thrown away for a while, so
that a client that is still sending gets to read why; then the connection is cut.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from toolfleet.api.problems import Problem, ProblemRaised

OVERHEAD_BYTES: Final = 65_536  # of a form around its file


@dataclass(frozen=True, slots=True)
class Streamed:
    """How a body may come in: of that media type, that many bytes, within `whole_s`, and never silent for `pause_s`."""

    media_type: str
    bytes_max: int
    whole_s: float
    pause_s: float

    def refusal(self, headers: Headers) -> Problem | None:
        """What its headers alone say against it."""
        length = headers.get("content-length")
        if length is not None and not length.isdigit():
            return Problem(400, "bad_length", "Content-Length is no number", "Send its size in bytes.")
        if "content-encoding" in headers:
            return Problem(
                415, "encoded_body", "compressed bodies are not read", "Send it without Content-Encoding."
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != self.media_type:
            return Problem(
                415,
                "wrong_content_type",
                f"a body of type {kind[:100] or '(none given)'} is not read here",
                f"Send a form with Content-Type: {self.media_type}.",
            )
        if int(length or 0) > self.bytes_max:
            return self.too_large()
        return None

    def too_large(self) -> Problem:
        return Problem(
            413, "body_too_large", f"this body may have {self.bytes_max} bytes", "Split what is in it."
        )


@dataclass(slots=True)
class Passing:
    """A `receive` that counts and times what it lets through."""

    rules: Streamed
    headers: Headers
    receive: Receive
    complete: bool = False
    gone: bool = False  # nothing more will come, or nothing in time
    _size: int = 0
    _ends_at: float = field(default=0.0)

    async def __call__(self) -> Message:
        """Raises ProblemRaised: 408, 413, 400 where it was cut off."""
        if self.complete:
            return await self.receive()
        message = await self._within()
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ProblemRaised(Problem(400, "cut_off", "the request was cut off", "Send it again."))
        self._size += len(message.get("body", b""))
        self.complete = not message.get("more_body", False)
        if self._size > self.rules.bytes_max:
            raise ProblemRaised(self.rules.too_large())
        return message

    async def _within(self) -> Message:
        now = asyncio.get_running_loop().time()
        self._ends_at = self._ends_at or now + self.rules.whole_s
        try:
            async with asyncio.timeout(min(self.rules.pause_s, max(0.0, self._ends_at - now))):
                return await self.receive()
        except TimeoutError:
            self.gone = True
            raise ProblemRaised(
                Problem(
                    408,
                    "slow_body",
                    f"the body did not come in within {self.rules.whole_s:g} s, or paused for {self.rules.pause_s:g} s",
                    "Send it faster, or in smaller pieces of work.",
                )
            ) from None

    async def throw_away(self) -> bool:
        """What is left, for as long as a pause may last, and no more than a body may have; whether that was all.

        Who asked first whether to send it (`Expect: 100-continue`) is not told to go on."""
        if "expect" in self.headers and not self._size:
            return self.complete
        left = self.rules.bytes_max
        try:
            async with asyncio.timeout(self.rules.pause_s):
                while not self.complete and not self.gone and left > 0:
                    message = await self.receive()
                    self.gone = message["type"] == "http.disconnect"
                    self.complete = not self.gone and not message.get("more_body", False)
                    left -= len(message.get("body", b""))
        except TimeoutError:
            self.gone = True
        return self.complete
