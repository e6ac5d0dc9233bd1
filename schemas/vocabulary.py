"""The vocabulary of results: what a model is told of a call, field by field, and what each outcome means to whom.

The one place these rules are written down. `envelopes` writes by them, the tests hold the machine against them, and the
tables of docs/tools.md are made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolfleet.schemas.outcomes import CallOutcome

Status = Literal["success", "error", "pending"]
Retried = Literal["no", "before it comes to this", "by the model"]
Ends = Literal["no", "yes", "unless on_denied=tell_model", "when corrections are used up"]


class FieldError(BaseModel):
    """What is wrong with one argument."""

    model_config = ConfigDict(extra="forbid")

    path: str
    message: str


class ResultEnvelope(BaseModel):
    """The JSON object a model gets for each of its calls; fields that say nothing are left out, the order is fixed."""

    model_config = ConfigDict(extra="forbid")

    status: Status = Field(
        description="success, error, or pending: it is not known yet, and must not be tried again"
    )
    data: Any = Field(default=None, description="success: the declared fields of the tool's result")
    data_truncated: Literal[True] | None = Field(
        default=None, description="`data` is only the beginning of the result, as text"
    )
    data_omitted: Literal[True] | None = Field(
        default=None, description="an old result, left out of this request to save room"
    )
    reference: str | None = Field(
        default=None, description="where the whole result is kept; `read_result` reads on in it"
    )
    error_type: CallOutcome | None = Field(default=None, description="the outcome, where it is not `ok`")
    reason_code: str | None = Field(
        default=None, description="why, for programs; tools have codes of their own"
    )
    message: str | None = Field(default=None, description="what happened and what to do next, for the model")
    field_errors: list[FieldError] | None = Field(
        default=None, description="what is wrong with which argument"
    )
    retryable: bool | None = Field(default=None, description="the same call may succeed later")
    retryable_by_model: bool | None = Field(
        default=None, description="a call with changed arguments may succeed"
    )
    retry_after_s: float | None = Field(default=None, description="not before so many seconds")
    suggested_action: str | None = Field(default=None, description="the next step, as a code")
    user_action_required: Literal[True] | None = Field(default=None, description="only the user can go on")
    operation_id: str | None = Field(
        default=None, description="pending: what the operation can be asked for by"
    )
    provenance: str | None = Field(default=None, description="the tool the data is from")
    notes: list[str] | None = Field(
        default=None, description="what was changed, cut or summarised, and how to read it"
    )
    untrusted_text_omitted: Literal[True] | None = Field(
        default=None, description="text that is not declared, or outside text that was too long, was left out"
    )
    next_actions: list[str] | None = Field(
        default=None, description="what may follow: names of tools or the tool's codes"
    )
    notice: str | None = Field(default=None, description="the runtime's word to the model: a repeat, a limit")


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """What an outcome of a call means. `retried`: by the fleet, of the very same call. `ends_run`: after its turn was
    merged. `told`: who is told beside the model, which always is."""

    status: Status
    retried: Retried
    ends_run: Ends
    told: str = "nobody else"


OUTCOME_RULES: Final[dict[CallOutcome, OutcomeRule]] = {
    CallOutcome.OK: OutcomeRule("success", "no", "no"),
    CallOutcome.INVALID_ARGUMENTS: OutcomeRule("error", "by the model", "when corrections are used up"),
    CallOutcome.UNKNOWN_TOOL: OutcomeRule("error", "by the model", "when corrections are used up"),
    CallOutcome.NOT_AVAILABLE: OutcomeRule("error", "no", "no"),
    CallOutcome.NOT_RUN: OutcomeRule("error", "no", "no"),
    CallOutcome.BUSINESS_ERROR: OutcomeRule("error", "no", "no"),
    CallOutcome.DENIED: OutcomeRule("error", "no", "unless on_denied=tell_model", "the user, in a sentence"),
    CallOutcome.REJECTED: OutcomeRule("error", "no", "no", "the audit log"),
    CallOutcome.APPROVAL_EXPIRED: OutcomeRule("error", "no", "no", "the audit log"),
    CallOutcome.FAILED: OutcomeRule(
        "error", "before it comes to this", "no", "operators, in events and metrics"
    ),
    CallOutcome.CANCELLED: OutcomeRule("error", "no", "no", "who cancelled"),
    CallOutcome.NEEDS_HUMAN: OutcomeRule("pending", "no", "no", "operators and the user"),
}
