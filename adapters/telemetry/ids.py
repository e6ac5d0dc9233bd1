"""Trace and span ids that every process can compute, and the two headers of W3C Trace Context. Pure, no SDK.

A step is worked on in one process and its parent in another, and nothing but ids travels between them. So the id of a
span is a hash of what it stands for; docs/decisions/0006 says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from toolfleet.schemas.ids import CallId, RunId

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
SAMPLED: Final = 0x01

# https://www.w3.org/TR/trace-context/#traceparent-header: later versions may append fields; ff is invalid.
_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE_CHARS_MAX: Final = 512


def trace_id_of(run_id: RunId) -> int:
    """The trace of a run that was submitted without a trace context; 128 bits, not 0."""
    return _hash(f"trace\0{run_id}", 16)


def submit_span_id(run_id: RunId) -> int:
    return _hash(f"submit\0{run_id}", 8)


def decide_span_id(run_id: RunId, turn: int) -> int:
    """Of the decision that was stored: one per turn."""
    return _hash(f"decide\0{run_id}\0{turn}", 8)


def attempt_span_id(call_id: CallId, attempt: int) -> int:
    """Of one attempt of a call, from 1; 1 also stands for a call that was answered without being run."""
    return _hash(f"attempt\0{call_id}\0{attempt}", 8)


def merge_span_id(run_id: RunId, turn: int) -> int:
    """Of the one merge of a turn."""
    return _hash(f"merge\0{run_id}\0{turn}", 8)


@dataclass(frozen=True, slots=True)
class Traceparent:
    """Where a run was submitted: the trace it belongs to, and the span that asked for it."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""

    def headers(self) -> dict[str, str]:
        """As it travels with the run."""
        flags = "01" if self.sampled else "00"
        headers = {TRACEPARENT: f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags}"}
        return {**headers, TRACESTATE: self.state} if self.state else headers


def read(headers: Mapping[str, str]) -> Traceparent | None:
    """What the headers say; None where there is no trace context, or none that can be trusted."""
    text = headers.get(TRACEPARENT)
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None or (found[1] == "00" and found[5] is not None):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    state = headers.get(TRACESTATE, "")
    if len(state) > _TRACESTATE_CHARS_MAX:
        state = ""
    return Traceparent(trace_id, span_id, bool(int(found[4], 16) & SAMPLED), state)


def _hash(of: str, size: int) -> int:
    return int.from_bytes(blake2b(of.encode(), digest_size=size).digest(), "big") or 1  # 0 is no id
