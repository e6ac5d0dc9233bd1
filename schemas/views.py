"""What is read from the store without deciding anything: for handlers before they act, and for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.conversation import Item
from toolfleet.schemas.effects import Approval, Entry
from toolfleet.schemas.ids import CallId, CommandId, LeaseToken, RunId
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.run import CallState, RunState

PAGE_CHARS_MAX: Final = (
    4_000_000  # of what one page holds of a run: a merge may carry a megabyte, and a page has 200
)


@dataclass(frozen=True, slots=True)
class CallView:
    """A call as an executor reads it before it starts (T6), without a lock.

    `read_at`: when it asked for it, by its own monotonic clock; filled in by itself.
    """

    row: CommandRow
    call: CallState
    run_id: RunId
    run_status: str
    turn: int
    agent: str
    agent_version: str
    tenant: str
    correlation_id: str
    context: dict[str, Any]
    trace: dict[str, str]
    now_s: float  # the database's time of this reading
    principal: str = ""
    permissions: tuple[str, ...] = ()
    effect_scope: str = ""
    read_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The facts of a run that its state does not need: pinned versions, who asked, when."""

    run_id: RunId
    agent: str
    agent_version: str
    prompt_version: str
    toolset_version: str
    tenant: str
    previous_run_id: RunId | None
    retry_of: RunId | None
    correlation_id: str
    input: str
    context: dict[str, Any]
    metadata: dict[str, str]
    trace: dict[str, str]
    created_at: float
    finished_at: float | None
    principal: str = ""
    permissions: tuple[str, ...] = ()
    effect_scope: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """All items before the outstanding decision: those of the earlier runs of the chain, then this run's."""

    info: RunInfo
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as a person or a program looks at it."""

    info: RunInfo
    state: RunState


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run; `seq` counts from 1 without gaps."""

    run_id: RunId
    seq: int
    type: str
    at: float
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One item with its place."""

    seq: int
    turn: int
    item: Item


@dataclass(frozen=True, slots=True)
class StepView:
    """One step row (DESIGN section 11)."""

    turn: int
    kind: str
    outcome: str
    call_id: str | None
    tool_name: str | None
    attempt: int
    at: float
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """A definition under the version runs are pinned to; `registered_at` is when it was registered last (None: never)."""

    version: str
    registered_at: float | None
    spec: AgentSpec


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What could not be processed, with the reason. `kind`: message (never trusted) or step (given up)."""

    id: str
    kind: str
    queue: str
    reason: str
    at: float
    run_id: str | None = None
    turn: int | None = None
    call_id: str | None = None
    body: bytes | None = None
    detail: str = ""
    tenant: str | None = None  # of its run


@dataclass(frozen=True, slots=True)
class EffectView:
    """An effect as an operator looks at it. `arguments` are the canonical ones that were sent; `resolved_by` who
    answered for it, `answer` the JSON they gave."""

    call_id: CallId
    run_id: RunId
    turn: int
    tenant: str
    tool: str
    tier: Tier
    arguments: str
    timeout_s: float
    entry: Entry
    opened_at: float
    changed_at: float
    resolved_by: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """A question as whoever decides looks at it: the canonical arguments as they would be sent now."""

    approval: Approval
    call_id: CallId
    run_id: RunId
    turn: int
    tenant: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease somebody holds, with what tells whether its step could have killed its holder."""

    run_id: RunId
    command_id: CommandId
    token: LeaseToken
    owner: str
    queue: str
    tool: str | None


@dataclass(frozen=True, slots=True)
class DueRow:
    """A row the keeper publishes, with what its message needs."""

    run_id: RunId
    row: CommandRow
    trace: dict[str, str]


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """What a worker process says of itself, again and again.

    `roles`: the queues it reads, and `keeper`. `state`: in_flight, taken, settled (counts since its start), `stuck`
    (why it does not get on, or empty) and `health` (where it answers, or empty).
    """

    id: str
    host: str
    pid: int
    roles: tuple[str, ...]
    version: str
    started_at: float
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker process as it was last heard of; `silent_s` is how long ago, by the database's clock."""

    beat: WorkerBeat
    seen_at: float
    silent_s: float


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What is outstanding for a queue: rows, those of them leased, and for how long the oldest unleased one is due."""

    queue: str
    rows: int
    leased: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A result kept for other runs, and how long ago it was stored, seconds."""

    body: str
    age_s: float
