"""What a call came to, as a value: the one shape for success and every kind of failure."""

from __future__ import annotations

from dataclasses import dataclass

from toolfleet.schemas.ids import CallId
from toolfleet.schemas.outcomes import CallOutcome


@dataclass(frozen=True, slots=True)
class CallResult:
    """The terminal outcome of one call.

    `content` is the text of the result envelope the model gets (JSON, DESIGN section 7). `full` is the text of the
    whole result where the model gets less. Seconds: in the tool, and between due and start.
    """

    call_id: CallId
    index: int
    outcome: CallOutcome
    content: str
    reason: str | None = None
    attempt: int = 0
    full: str | None = None
    tool_s: float = 0.0
    queue_s: float = 0.0
