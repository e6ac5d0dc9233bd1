"""Everything that can happen to a run: the inputs of the machine.

`token` fences: a commit by a worker whose lease was taken away misses. A member added to `Event` without a branch
in `reduce` is a type error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from toolfleet.schemas.context import ContextFacts
from toolfleet.schemas.control import Control
from toolfleet.schemas.effects import NO_TERMS, EffectState, Entry, Holder, Terms
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
    call_timeout_s: float | None = None
    repaired: bool = False
    terms: Terms = NO_TERMS


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
    """T6: an executor takes the lease before it tries the call, or, of an effect, before it looks at its gates."""

    command_id: CommandId
    token: LeaseToken
    owner: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class CallFinished:
    """T7: an executor stores the outcome of a read-only call; the collector counts it. `token` None: not leased."""

    command_id: CommandId
    token: LeaseToken | None
    attempt: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class CallRefused:
    """T9: a gate of the present says no; `result` is the outcome. `attempt` is the one that was not begun."""

    command_id: CommandId
    token: LeaseToken | None
    attempt: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class CallDeferred:
    """T9: a gate of the present says not now. No attempt is used up."""

    command_id: CommandId
    token: LeaseToken | None
    attempt: int
    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class TierRaised:
    """T9: with these arguments the call is of a higher tier; it goes on in the queue of that tier."""

    command_id: CommandId
    token: LeaseToken | None
    tier: Tier
    asks: bool  # somebody has to approve it there


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """T9: somebody has to be asked. `standing`: a standing approval covers it, so nobody is. `permissions`: what is
    missing, and would be granted with it."""

    command_id: CommandId
    token: LeaseToken | None
    arguments_hash: str
    expires_s: float
    requested_by: str = ""
    summary: str = ""
    standing: str | None = None
    permissions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """T19: somebody decides. `answer`: approve | reject | edit; `arguments`: the canonical ones that take the place of
    the model's (edit). `arguments_hash`: of the arguments the decider has seen."""

    call_id: CallId
    approval_id: str
    answer: str
    by: str
    arguments_hash: str
    reason: str = ""
    arguments: str | None = None


@dataclass(frozen=True, slots=True)
class EffectClaimed:
    """T10: the executor takes the lease and the key, and is about to send. `arguments_hash`: of what it will send.
    Filled in by the store, under the lock: `holder`, who holds the key now; `lapsed`, why what granted the call holds no
    more (empty: it does)."""

    command_id: CommandId
    token: LeaseToken
    owner: str
    lease_s: float
    key: str
    arguments_hash: str
    holder: Holder | None = None
    lapsed: str = ""


@dataclass(frozen=True, slots=True)
class EffectEnded:
    """T11: what the sender says of its attempt; counts whoever holds the lease. `came`: HAPPENED, BUSINESS_ERROR,
    REFUSED, NOT_SENT, or RECONCILING (unknown). `again`: it may be tried again, after `delay_s`. `no_effect`: the tool
    answers for earlier attempts under the key as well."""

    command_id: CommandId
    attempt: int
    came: EffectState
    result: CallResult
    again: bool = False
    delay_s: float = 0.0
    died: bool = False
    no_effect: bool = False
    found: Entry | None = None  # the ledger's row, filled in by the store for a call of an earlier turn


@dataclass(frozen=True, slots=True)
class ReconcileStarted:
    """T13: an executor is about to ask what became of an effect."""

    command_id: CommandId
    token: LeaseToken
    owner: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class ReconcileAnswered:
    """T14: the answer. `came`: HAPPENED, DID_NOT_HAPPEN or RECONCILING (no answer). `result`: the outcome, where it
    happened; where it did not, what the call comes to if it may not be tried again."""

    command_id: CommandId
    token: LeaseToken
    attempt: int
    came: EffectState
    result: CallResult
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class CallWoken:
    """What a call waits for is free: it is due now."""

    command_id: CommandId
    key: str


@dataclass(frozen=True, slots=True)
class EffectResolved:
    """T26: an operator answers what nobody could. `asked`: what was asked once more before, and what came of it.
    `found` is filled in by the store, under the lock."""

    call_id: CallId
    happened: bool
    by: str
    note: str = ""
    answer: str | None = None
    asked: str = ""
    found: Entry | None = None


@dataclass(frozen=True, slots=True)
class CallRetry:
    """T8: an attempt of a read-only call failed and may be tried again; `result` is its outcome if it may not.
    `taken_at`: when the executor took it, by the database's clock; None: under this lease."""

    command_id: CommandId
    token: LeaseToken | None
    attempt: int
    delay_s: float
    died: bool  # the child that ran it died
    result: CallResult
    taken_at: float | None = None


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
    | CallRefused
    | CallDeferred
    | TierRaised
    | ApprovalRequested
    | ApprovalDecided
    | EffectClaimed
    | EffectEnded
    | ReconcileStarted
    | ReconcileAnswered
    | CallWoken
    | EffectResolved
    | CallRetry
    | CallsSettled
    | CallAnswered
    | LeaseExpired
    | HandedBack
    | CancelRequested
    | DeadlineReached
)
