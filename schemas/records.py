"""What a transition leaves behind beside the new state: append-only facts, stored in the same transaction.

The machine returns `Step(state, records)`. Commands need no record: they are part of the state, and the store
writes the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toolfleet.schemas.conversation import Item
from toolfleet.schemas.effects import Audit, EffectState
from toolfleet.schemas.ids import CallId, LeaseToken
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState


@dataclass(frozen=True, slots=True)
class AppendItem:
    """Append to the conversation at position `seq` (from 0) of this run."""

    seq: int
    turn: int
    item: Item


@dataclass(frozen=True, slots=True)
class StoreResult:
    """Insert the outcome of a call; the first one wins. Never written for a call that has one."""

    turn: int
    result: CallResult


@dataclass(frozen=True, slots=True)
class ReuseResult:
    """Insert the outcome of `call_id` as a copy of the stored result of `source`, with a notice for the model."""

    turn: int
    call_id: CallId
    index: int
    source: CallId
    notice: str


@dataclass(frozen=True, slots=True)
class AppendMerge:
    """Append one item that carries the stored results of all `calls` of `turn`, in call order, at position `seq`."""

    seq: int
    turn: int
    calls: tuple[CallState, ...]


@dataclass(frozen=True, slots=True)
class OpenUsage:
    """A model call is about to be made: what it may cost stands as spent until the reply replaces it."""

    token: LeaseToken  # of the decide lease: names this one model call
    turn: int
    attempt: int
    model: str
    reserved_usd: float


@dataclass(frozen=True, slots=True)
class CloseUsage:
    """The usage row of that lease, if it still stands as reserved, gets what was really used."""

    token: LeaseToken
    status: str  # replied | failed
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class AppendStep:
    """One finished step, with the facts of DESIGN section 11."""

    kind: str  # decide | call | merge
    turn: int
    outcome: str
    call_id: CallId | None = None
    tool_name: str | None = None
    attempt: int = 0
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppendEvent:
    """Something a watcher of the run is told. `seq` counts from 1 without gaps."""

    seq: int
    type: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppendDead:
    """A step that was given up after too many deaths; inspectable and replayable as a new run."""

    command_id: str
    queue: str
    turn: int
    call_id: CallId | None
    reason: str
    deaths: int


@dataclass(frozen=True, slots=True)
class AppendAudit:
    """A decision about an approval, or one that was refused; kept for good."""

    audit: Audit


@dataclass(frozen=True, slots=True)
class ResolveEffect:
    """The ledger's row of that call, of whatever turn, gets the operator's answer."""

    call_id: CallId
    state: EffectState
    by: str
    answer: str | None


Record = (
    AppendItem
    | StoreResult
    | ReuseResult
    | AppendMerge
    | OpenUsage
    | CloseUsage
    | AppendStep
    | AppendEvent
    | AppendDead
    | AppendAudit
    | ResolveEffect
)


@dataclass(frozen=True, slots=True)
class Step:
    """What `reduce` returns.

    `missed` set: somebody was faster or the step is gone; the state is unchanged, and only the records (the usage of
    a late reply, evidence) are written.
    """

    state: RunState
    records: tuple[Record, ...] = ()
    missed: str | None = None
