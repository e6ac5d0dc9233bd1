"""The queue messages: ids, a version and trace context; constant size whatever the conversation holds.

A message says where to look, not what to believe: the row it names is the truth. Unknown extra fields are ignored;
an unknown version is held, not killed.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolfleet.schemas.outcomes import CallOutcome

MESSAGE_VERSION: Final = 1


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = MESSAGE_VERSION
    run_id: str = Field(max_length=64)
    turn: int = Field(ge=1)
    trace: dict[str, str] = Field(default_factory=dict)  # W3C trace context
    published_at: float = 0.0


class DecideMessage(_Message):
    """Ask the model about a turn."""

    type: Literal["decide"] = "decide"
    command_id: str = Field(max_length=160)
    sends: int = 0


class ExecMessage(_Message):
    """Run one call."""

    type: Literal["exec"] = "exec"
    command_id: str = Field(max_length=160)
    call_id: str = Field(max_length=160)
    sends: int = 0


class InlineResult(BaseModel):
    """A small result of a read-only call that rides along. Outcomes of effects never do."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    index: int = Field(ge=0)
    outcome: CallOutcome
    content: str
    reason: str | None = None
    attempt: int = 0
    full: str | None = None
    tool_s: float = 0.0
    queue_s: float = 0.0


class ResultMessage(_Message):
    """An outcome to be counted: inline, or stored already."""

    type: Literal["result"] = "result"
    command_id: str = Field(max_length=160)
    call_id: str = Field(max_length=160)
    result: InlineResult | None = None
    sends: int = 0


class DeliverMessage(_Message):
    """Send a webhook. The courier that reads it comes with the webhooks."""

    type: Literal["deliver"] = "deliver"
    command_id: str = Field(max_length=160)
    sends: int = 0


Message = DecideMessage | ExecMessage | ResultMessage | DeliverMessage
