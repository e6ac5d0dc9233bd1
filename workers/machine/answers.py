"""What the rules of a step forbid of a reply, whatever the provider let through: an answer that comes too early or does
not fit its schema, and calls outside the allowed tools. Also which tools of a run have come back so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from toolfleet.schemas.control import CHOICES, Control
from toolfleet.schemas.envelopes import error
from toolfleet.schemas.events import ModelReplied
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState

CAME_BACK: Final = frozenset(  # the tool, or who decides about it, has said something
    {
        CallOutcome.OK,
        CallOutcome.BUSINESS_ERROR,
        CallOutcome.DENIED,
        CallOutcome.REJECTED,
        CallOutcome.APPROVAL_EXPIRED,
        CallOutcome.FAILED,
        CallOutcome.NEEDS_HUMAN,
    }
)
_NAMES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Correction:
    """An answer that is not accepted: why, for programs, and what the model is told."""

    reason: ReasonCode
    notice: str


def refused_answer(event: ModelReplied) -> Correction | None:
    """What is wrong with a final answer, or None where it may end the run."""
    control, output = event.control, event.output
    if control is not None and control.must_call:
        return Correction(ReasonCode.TOOL_REQUIRED, _call_first(control))
    if control is not None and control.missing:
        return Correction(ReasonCode.ANSWERED_TOO_EARLY, _call_first(control))
    if output is not None and output.text is None:
        return Correction(ReasonCode.OUTPUT_INVALID, output.message)
    return None


def outside(event: ModelReplied, call: CallState) -> CallResult | None:
    """The answer of a call that this step does not allow; None where it does."""
    allowed = None if event.control is None else event.control.callable
    if allowed is None or call.tool in allowed:
        return None
    content = error(outcome=CallOutcome.NOT_AVAILABLE, message=f"{call.tool} cannot be called at this point")
    return CallResult(call.call_id, call.index, CallOutcome.NOT_AVAILABLE, content)


def progress(state: RunState) -> dict[str, Any]:
    """Which tools have come back and which have succeeded, with the current turn; fields of RunState."""
    back = {call.tool for call in state.calls if call.outcome in CAME_BACK}
    succeeded = {call.tool for call in state.calls if call.outcome is CallOutcome.OK}
    return {
        "came_back": tuple(sorted(back.union(state.came_back))),
        "succeeded": tuple(sorted(succeeded.union(state.succeeded))),
    }


def _call_first(control: Control) -> str:
    if control.choice not in CHOICES:
        return f"This answer was not accepted: {control.choice} has to be called first. Call it now."
    if control.missing:
        names = ", ".join(control.missing[:_NAMES_MAX])
        return f"This answer was not accepted: it may only be given after {names}. Call that first."
    return "This answer was not accepted: a tool has to be called at this point. Call one now."
