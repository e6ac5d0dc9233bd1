"""The state the machine reduces: one run, its current turn with its calls, and its outstanding commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.effects import NO_TERMS, Approval, Entry, Terms
from toolfleet.schemas.ids import CallId, RunId
from toolfleet.schemas.limits import Counters, Limits
from toolfleet.schemas.outcomes import (
    TERMINAL_STATUSES,
    CallOutcome,
    CallWaiting,
    Lane,
    RunStatus,
    Tier,
    TurnPhase,
)


@dataclass(frozen=True, slots=True)
class CallState:
    """One call of the current turn. Open while `outcome` is None; then closed for good.

    `attempt` is the number of the try that is due or running, from 1. `entry` is the ledger's row of a call with an
    effect, from its first claim on. `waits_key`: the effect key it waits for, held by another call. `edited`: an approver
    changed its arguments.
    """

    call_id: CallId
    index: int
    tool: str
    tier: Tier
    arguments: str  # canonical JSON of the object; "{}" where there was none
    signature: str  # tool and canonical arguments, hashed
    wire_id: str
    effect: bool = False
    idempotent: bool = False
    attempts_max: int = 1
    timeout_s: float = 30.0
    waiting: CallWaiting = CallWaiting.READY
    attempt: int = 1
    call_timeout_s: float | None = None  # for all its attempts together
    deadline_at: float | None = None  # when that is over; counted from when an executor took it first
    outcome: CallOutcome | None = None
    repaired: bool = False
    tell_on_denied: bool = False  # a denial goes to the model instead of ending the run
    repeatable: bool = False
    terms: Terms = NO_TERMS
    entry: Entry | None = None
    approval: Approval | None = None  # the question asked last
    waits_key: str = ""
    edited: bool = False

    @property
    def open(self) -> bool:
        return self.outcome is None

    @property
    def dispatched(self) -> bool:
        """An attempt of its effect may have begun, and what came of it is not known."""
        return self.entry is not None and self.entry.begun


@dataclass(frozen=True, slots=True)
class Signature:
    """One call of an earlier turn, as the repeat gate remembers it."""

    signature: str
    call_id: CallId
    turn: int
    read_only: bool
    ok: bool


@dataclass(frozen=True, slots=True)
class RunState:
    """The whole persisted state that decides what may happen next to one run."""

    run_id: RunId
    status: RunStatus
    lane: Lane
    limits: Limits
    turn: int = 1
    phase: TurnPhase = TurnPhase.DECIDING
    turn_started_at: float = 0.0
    calls: tuple[CallState, ...] = ()  # of the current turn, in call order
    commands: tuple[CommandRow, ...] = ()
    counters: Counters = field(default_factory=Counters)
    model_attempt: int = 0  # tries of the current turn's model call that were begun
    model_failures: int = 0  # of those, the ones the model's server failed
    model_index: int = 0  # 0 is the agent's own model, then its fallback models
    draft: str | None = None  # what the model said last beside calls, cut at DRAFT_CHARS_MAX
    window: tuple[Signature, ...] = ()  # newest last, bounded
    withdrawn: tuple[str, ...] = ()  # tools no longer offered in this run
    came_back: tuple[
        str, ...
    ] = ()  # tools that answered a call of this run, sorted; a refusal of theirs counts
    succeeded: tuple[str, ...] = ()  # of those, the ones with an outcome ok
    context_tokens_max: int | None = None  # the tighter budget, once the provider found a request too long
    ending: str | None = None  # reason code of a limit that ends the run once its turn is merged
    reason: str | None = None
    output: str | None = None
    structured: bool = False  # `output` is the JSON of a value that fits the agent's output schema
    deadline_at: float | None = None
    turn_tool_s: float = 0.0  # the longest tool time among the results of the current turn
    item_count: int = 0
    event_count: int = 0

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL_STATUSES

    @property
    def open_calls(self) -> tuple[CallState, ...]:
        return tuple(call for call in self.calls if call.open)

    def command(self, command_id: str) -> CommandRow | None:
        return next((row for row in self.commands if row.id == command_id), None)

    def call(self, call_id: str) -> CallState | None:
        return next((call for call in self.calls if call.call_id == call_id), None)


@dataclass(frozen=True, slots=True)
class NewRun:
    """What a front door hands in, already checked: agent known, sizes within limits, previous run terminal."""

    run_id: RunId
    agent: str
    agent_version: str
    prompt_version: str
    toolset_version: str
    input: str
    lane: Lane
    limits: Limits
    tenant: str = "default"
    previous_run_id: RunId | None = None
    retry_of: RunId | None = None
    idempotency_key: str | None = None
    request_hash: str = ""  # of what was asked, so that one key with two requests is refused
    correlation_id: str = ""
    context: dict[str, Any] = field(default_factory=dict)  # for tools: injected, never shown to the model
    metadata: dict[str, str] = field(default_factory=dict)  # for the submitter
    deadline_s: float | None = None
    reserve_usd: float = 0.0
    principal: str = ""  # whom the run acts for; may not approve what is irreversible
    permissions: tuple[str, ...] = ()  # what that principal may do; tools name what they need
    effect_scope: str = ""  # what effect keys of this run begin with; empty: its id
    trace: dict[str, str] = field(default_factory=dict)
    in_flight_max: int | None = None  # of its tenant, this one included; is not stored
