"""Everything that can happen to a run: the inputs of the machine.

`token` fences: a commit by a worker whose lease was taken away misses. A member added to `Event` without a branch
in `reduce` is a type error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from toolfleet.schemas.context import ContextFacts
from toolfleet.schemas.control import Control
from toolfleet.schemas.ids import CallId, CommandId, LeaseToken
from toolfleet.schemas.model import ModelFault, ModelReply
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.output import OutputRead
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import NewRun


@dataclass(frozen=True, slots=True)
class Submitted:
    """T1: a front door hands in a run."""

    new: NewRun


@dataclass(frozen=True, slots=True)
class DecisionLeased:
    """T2: a decision worker takes the lease of the outstanding decision and is about to ask the model."""

    command_id: CommandId
    token: LeaseToken
    owner: str
    lease_s: float
    model: str = ""


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A call of a reply after the pure checks of its shape.

    `answer` is set where the shape alone settles it (unknown tool, invalid arguments); else the call is a candidate.
    """

    index: int
    tool: str
    tier: Tier
    arguments: str
    signature: str
    wire_id: str
    answer: CallResult | None = None
    effect: bool = False
    idempotent: bool = False
    repeatable: bool = False
    tell_on_denied: bool = False
    attempts_max: int = 1
    timeout_s: float = 30.0
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a step leaves behind beside its outcome: who, which model, how long, how much."""

    owner: str = ""
    model: str = ""
    model_version: str = ""
    tool_choice: str = ""
    parallel: bool = True
    allowed: tuple[str, ...] | None = None
    model_s: float = 0.0
    queue_s: float = 0.0
    cost_usd: float = 0.0
    next_reserve_usd: float = 0.0
    request_id: str | None = None
    control: Control | None = None  # what the rules of the agent came to for this step
    context: ContextFacts = field(default_factory=ContextFacts)
    tighter_tokens: int | None = None  # the budget to try where the provider finds the request too long


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """T3, T4: the model's complete reply. `parallel` says whether several of its calls may run, `control` what else the
    rules of this step allow; `output`: its text held against the agent's output schema, where it has one."""

    command_id: CommandId
    token: LeaseToken
    reply: ModelReply
    calls: tuple[ProposedCall, ...]
    parallel: bool
    facts: StepFacts
    control: Control | None = None
    output: OutputRead | None = None


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """T5: no reply. `delay_s` is when to try again, drawn by the worker (Retry-After is its floor)."""

    command_id: CommandId
    token: LeaseToken
    fault: ModelFault
    delay_s: float
    facts: StepFacts
    next_model: bool = False  # the next model of the agent is asked instead, at once


@dataclass(frozen=True, slots=True)
class RunUnworkable:
    """T4: the decision cannot be worked on here or anywhere (its agent is gone); ends the run with a reason."""

    command_id: CommandId
    token: LeaseToken
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DecisionDeferred:
    """T5: the model was not asked, because its quota is used up or it is paused; due again in `delay_s`."""

    command_id: CommandId
    token: LeaseToken
    delay_s: float
    reason: str
    next_model: bool = False


@dataclass(frozen=True, slots=True)
class CallLeased:
    """T6, and for a call with an effect T10: an executor takes the lease before it tries the call."""

    command_id: CommandId
    token: LeaseToken
    owner: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class CallFinished:
    """T7, T11: an executor stores an outcome; the collector counts it. `token` None: the call was not leased."""

    command_id: CommandId
    token: LeaseToken | None
    attempt: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class CallRetry:
    """T8: an attempt of a read-only call failed and may be tried again; `result` is its outcome if it may not."""

    command_id: CommandId
    token: LeaseToken | None
    attempt: int
    delay_s: float
    died: bool  # the child that ran it died
    result: CallResult


@dataclass(frozen=True, slots=True)
class CallsSettled:
    """T12: the collector counts outcomes: those it carries, and those that are stored already."""

    results: tuple[CallResult, ...] = ()


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """T22: a client or a callback answers a waiting call."""

    call_id: CallId
    result: CallResult


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """T16, T17: the keeper finds a lease that ran out without an end.

    `owner_gone`: the sender knows that the holder is dead, whatever `lease_until` says (it holds the lock the holder
    had). `death`: the step may have killed its holder; False where it ran in a child of its own, or on no code of
    ours.
    """

    command_id: CommandId
    token: LeaseToken
    owner_gone: bool = False
    death: bool = True


@dataclass(frozen=True, slots=True)
class HandedBack:
    """T24: a worker that stops gives a lease back; not a death."""

    command_id: CommandId
    token: LeaseToken


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """T21: somebody cancels the run."""

    by: str = ""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """T23: the keeper finds the run's wall deadline passed."""


Event = (
    Submitted
    | DecisionLeased
    | ModelReplied
    | ModelFailed
    | RunUnworkable
    | DecisionDeferred
    | CallLeased
    | CallFinished
    | CallRetry
    | CallsSettled
    | CallAnswered
    | LeaseExpired
    | HandedBack
    | CancelRequested
    | DeadlineReached
)
