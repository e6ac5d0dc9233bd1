"""The Protocols the workers need of the world. One contract suite per port, run over every implementation.

Everything here is implemented in `adapters/` and by a fake; workers know only this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from toolfleet.schemas.access import AccessStore
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.batch_port import BatchStore
from toolfleet.schemas.conversation import MergeItem
from toolfleet.schemas.events import Event
from toolfleet.schemas.files import FileStore
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId
from toolfleet.schemas.ledger_port import LedgerStore
from toolfleet.schemas.model import ModelReply, ModelRequest, Usage
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.pace import (
    BreakerView,
    Ended,
    ModelEntry,
    ModelLane,
    ModelPermit,
    ModelWait,
    Open,
    Permit,
    RateHint,
    ToolEntry,
    Wait,
)
from toolfleet.schemas.records import Record, Step
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, NewRun, RunState
from toolfleet.schemas.tools import CallFacts, ToolContext, ToolSpec
from toolfleet.schemas.views import (
    AgentVersion,
    CachedResult,
    CallView,
    Conversation,
    DeadLetter,
    DueRow,
    HeldLease,
    QueueLoad,
    RunEvent,
    RunInfo,
    RunView,
    StepView,
    StoredItem,
    WorkerBeat,
    WorkerView,
)


class Clock(Protocol):
    """The only reader of time. `monotonic_s` for durations and deadlines, `now_s` (epoch) for people."""

    def now_s(self) -> float: ...

    def monotonic_s(self) -> float: ...

    def boot_s(self) -> float:
        """As monotonic_s, and goes on while the machine is suspended."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Machine(Protocol):
    """The pure heart, as the store needs it: what follows, and what a merge looks like."""

    def reduce(self, state: RunState | None, event: Event, now_s: float) -> Step: ...

    def merge(self, calls: Sequence[CallState], results: Mapping[str, CallResult]) -> MergeItem: ...


@dataclass(frozen=True, slots=True)
class Transition:
    """One event for one run, to be reduced and stored in one transaction."""

    run_id: RunId
    event: Event


@dataclass(frozen=True, slots=True)
class Applied:
    """What a transition came to.

    `missed` set: the state did not change, and only the records of the miss were written (R6). `publish`: rows this transition put or made due and that are due now,
    unleased: to be published after the commit, then `mark_sent`. `now_s` is the time of the database. `records`: what
    was written beside the state, for those who count and watch.
    """

    state: RunState | None
    before: RunState | None
    missed: str | None
    publish: tuple[DueRow, ...]
    now_s: float
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class SentMark:
    """A row was published at `at_s`; counts only while its `due_at` is still the same."""

    command_id: CommandId
    due_at: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Submission:
    """What a submit came to: the run it made, or the run the idempotency key had made before."""

    run_id: RunId
    created: bool
    publish: tuple[DueRow, ...]


class RunStore(AccessStore, LedgerStore, Protocol):
    """The truth. Writes of many callers may share one transaction; each caller is answered after the commit."""

    @property
    def batches(self) -> BatchStore | None:
        """Batches of the same database; None: a store of simulations, which has none."""
        ...

    @property
    def files(self) -> FileStore | None:
        """Rows of files; None: as with batches."""
        ...

    async def submit(self, runs: Sequence[NewRun]) -> list[Submission]:
        """T1 for each run, one transaction. A known idempotency key (per tenant) answers with its run and writes
        nothing; with another request_hash it raises IdempotencyConflict. Unknown or unfinished previous run:
        UnknownRun, RunNotFinished; more runs in flight than `in_flight_max` of a new one allows its tenant:
        QuotaExceeded. A batch that has one bad run stores none."""
        ...

    async def transact(self, transitions: Sequence[Transition]) -> list[Applied]:
        """Lock, load, reduce, write; one result per transition, in order. An unknown run is a miss. A transition
        that raises fails alone: its exception is raised here after the others of the call were carried out."""
        ...

    async def peek_calls(self, command_ids: Sequence[CommandId]) -> list[CallView | None]:
        """T6 without a lock; None where the row is gone or is no exec row."""
        ...

    async def conversation(self, run_id: RunId) -> Conversation | None: ...

    async def mark_sent(self, marks: Sequence[SentMark]) -> None:
        """Returns at once; written with the next group commit (`sent_at`, `sends` + 1)."""
        ...

    async def renew(self, leases: Sequence[tuple[CommandId, LeaseToken]], lease_s: float) -> set[CommandId]:
        """T25: extends all in one statement; returns those still held."""
        ...

    async def due_rows(
        self, *, limit: int, broker: str, waiting_since_s: Mapping[str, float] = MappingProxyType({})
    ) -> list[DueRow]:
        """T15: rows due, no token, and either unsent for UNSENT_AFTER_S since they were written (so a row written to be
        due later goes out when it is due), or lost (sent longer ago than lost_after_s, doubled with each further send,
        at most LOST_BACKOFF_MAX times), or sent before that broker's `reset_at`. Oldest due first.

        `waiting_since_s`, by queue: what the broker says of its oldest message nobody has fetched. A row sent after
        that only waits in a long queue, and is no lost one."""
        ...

    async def expired_leases(self, *, limit: int) -> list[tuple[RunId, CommandId, LeaseToken]]: ...

    async def held_leases(self, *, limit: int) -> list[HeldLease]:
        """All leases, expired or not: for a process that takes over a folder whose holder is dead."""
        ...

    async def overdue_runs(self, *, limit: int) -> list[RunId]:
        """Runs not terminal whose deadline_at has passed."""
        ...

    async def broker_marker(self, name: str) -> str:
        """The database's marker of that broker, made when it is asked for first."""
        ...

    async def note_broker_reset(self, name: str) -> None:
        """T18: reset_at = now."""
        ...

    async def register_agents(self, agents: Sequence[AgentSpec]) -> None: ...

    async def agent(self, name: str, version: str | None = None) -> AgentSpec | None:
        """The stored definition; without a version the one registered last."""
        ...

    async def agents(self) -> list[AgentSpec]: ...

    async def agent_versions(self, name: str | None = None) -> list[AgentVersion]:
        """Every stored version, by name, the one registered last first; of one agent, or of all."""
        ...

    async def finished(self, run_ids: Sequence[RunId]) -> set[RunId]:
        """Those of the runs that are terminal: what everybody who waits asks, in one reading."""
        ...

    async def run(self, run_id: RunId) -> RunView | None: ...

    async def runs(
        self,
        *,
        limit: int,
        before: RunId | None = None,
        status: str | None = None,
        agent: str | None = None,
        tenant: str | None = None,
    ) -> list[RunView]:
        """Newest first; `before` is the cursor."""
        ...

    async def items(self, run_id: RunId) -> list[StoredItem]: ...

    async def results(self, run_id: RunId) -> list[tuple[int, CallResult]]:
        """(turn, result), in turn and call order."""
        ...

    async def items_page(
        self, run_id: RunId, *, after: int = -1, limit: int
    ) -> tuple[list[StoredItem], bool]:
        """Items after that `seq`, and whether there are more: at most `limit`, and no more characters than PAGE_CHARS_MAX
        beyond the first."""
        ...

    async def results_page(
        self, run_id: RunId, *, after: tuple[int, int] = (0, -1), limit: int
    ) -> tuple[list[tuple[int, CallResult]], bool]:
        """As `items_page`: results after that (turn, index of the call), without `full`."""
        ...

    async def full_result(self, run_id: str, call_id: str) -> str | None:
        """What that call came to: the whole data where the model got less of it, else the envelope it got. The call is of
        that run or of an earlier one of its conversation, of the same tenant; None: there is no such call."""
        ...

    async def cached_result(self, key: str) -> CachedResult | None: ...

    async def keep_result(self, key: str, *, tenant: str, tool: str, body: str, ttl_s: float) -> None: ...

    async def steps(self, run_id: RunId) -> list[StepView]: ...

    async def usage(self, run_id: RunId) -> list[dict[str, Any]]: ...

    async def events(self, run_id: RunId, *, after: int = 0, limit: int = 1000) -> list[RunEvent]: ...

    async def add_dead(self, letter: DeadLetter) -> None: ...

    async def dead(
        self, *, limit: int, before: str | None = None, tenant: str | None = None
    ) -> list[DeadLetter]: ...

    async def dead_letter(self, dead_id: str) -> DeadLetter | None: ...

    async def discard_dead(self, dead_id: str) -> bool: ...

    async def counts(self) -> dict[str, int]:
        """For doctor and progress: runs per status, outstanding commands, leases, dead letters."""
        ...

    async def beat(self, beat: WorkerBeat) -> None:
        """A worker process is there; forgets those that have been silent for WORKER_FORGOTTEN_S."""
        ...

    async def leave(self, worker_id: str) -> None:
        """A worker process ends in an orderly way."""
        ...

    async def workers(self) -> list[WorkerView]:
        """Worker processes that did not leave, the one that started last first."""
        ...

    async def loads(self) -> list[QueueLoad]:
        """What is outstanding, by queue; queues with nothing are left out."""
        ...

    async def now(self) -> float: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A signed message for a queue."""

    queue: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as fetched. `redelivered`: some worker had it before. `handle` belongs to the layer."""

    queue: str
    body: bytes
    redelivered: bool
    handle: Any


class MessageLayer(Protocol):
    """Batch-shaped and small. At least once, any order; what is not settled comes again."""

    name: str

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Returns when the broker has them all; raises BrokerUnavailable where that is not known."""
        ...

    async def fetch(self, queues: Sequence[str], limit: int, *, wait_s: float) -> list[Delivery]:
        """Up to `limit` messages of `queues`, earlier queues first; waits up to wait_s for the first one."""
        ...

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Done with them, whatever came of it. Settling twice, or one that was taken over, is harmless."""
        ...

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Still working: keeps them from being taken over."""
        ...

    async def release(self, deliveries: Sequence[Delivery], *, delay_s: float) -> None:
        """Put back, not before delay_s; does not count as a delivery failure."""
        ...

    async def marker(self) -> str | None:
        """The broker's wipe marker; None when it was emptied or is new."""
        ...

    async def set_marker(self, value: str) -> None: ...

    async def depths(self) -> dict[str, int]:
        """Messages per queue, those in flight included."""
        ...

    async def waiting_since_s(self) -> dict[str, float]:
        """By queue, when its oldest message that nobody has fetched was published (epoch, the broker's clock). A queue
        where nothing waits is left out, and so is every queue of a broker that cannot tell."""
        ...

    async def aclose(self) -> None: ...


class ModelClient(Protocol):
    """Speaks to models. Raises ModelError with a ModelFault and nothing else; makes one attempt."""

    async def complete(self, request: ModelRequest) -> ModelReply: ...

    def render(self, request: ModelRequest) -> bytes:
        """The request body, byte for byte as it would be sent."""
        ...

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A tool came back. `value_json` is strict JSON; `notes` say what was changed to make it so.

    `shown_json` is what the model gets in its place, if it is not the same: texts from outside cut, or a summary
    (`summarised`). `omitted`: text was left out for being outside text or not declared.
    """

    value_json: bytes
    seconds: float
    notes: tuple[str, ...] = ()
    shown_json: bytes | None = None
    summarised: bool = False
    omitted: bool = False
    next_actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFailed:
    """A tool did not come back with a usable value.

    `kind`: raised | timed_out | died | not_json | too_large | result_invalid | not_loaded. `error_type` is the exception's class
    name; `code` and `fields` are those of a ToolError; `began` is False only where no line of the tool ran.
    """

    kind: str
    message: str
    seconds: float
    error_type: str = ""
    code: str = ""
    fields: Mapping[str, Any] | None = None
    began: bool = True
    detail: str = ""


ToolAnswer = ToolReturned | ToolFailed


class Credentials(Protocol):
    """Where tools get their credentials from; asked for each attempt, so that a rotated one is used at once."""

    async def credential(self, tenant: str, name: str) -> str:
        """Raises whatever it likes where it has none: the call fails with the name of the credential and no more."""
        ...


class ResultCache(Protocol):
    """Keeps results of reads for other runs. May forget at any time; times are the store's own."""

    async def cached_result(self, key: str) -> CachedResult | None:
        """What was kept under that key, unless its time is over."""
        ...

    async def keep_result(self, key: str, *, tenant: str, tool: str, body: str, ttl_s: float) -> None:
        """Keep it in place of what was there."""
        ...


class StoredResults(Protocol):
    """Whole results of a run, for who reads on in one."""

    async def full_result(self, run_id: str, call_id: str) -> str | None:
        """What that call came to: the whole data where the model got less of it, else the envelope it got. The call is of
        that run or of an earlier one of its conversation, of the same tenant; None: there is no such call."""
        ...


MayBegin = Callable[[], bool]
NOT_IN_TIME = ToolFailed("raised", "its request was not sent in time", 0.0, code="not_sent", began=False)


class ToolPlace(Protocol):
    """Room for one attempt of one tool."""

    async def run(
        self,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        timeout_s: float,
        part: str | None = None,
        may_begin: MayBegin | None = None,
    ) -> ToolAnswer:
        """Under a hard deadline; never raises for what the tool does. `part`: not the tool, but what it brings beside
        it (`precheck`, `reconcile`). `may_begin` is asked as the last thing before the tool begins; False: it does
        not, and the answer is NOT_IN_TIME."""
        ...


class DecisionWatch(Protocol):
    """Sees one try of a decision. What happens inside `with` belongs to it."""

    def asking(self, info: RunInfo, request: ModelRequest) -> AbstractContextManager[object]:
        """Around the model call."""
        ...

    def ended(self, event: Event, applied: Applied) -> None: ...


class AttemptWatch(Protocol):
    """Sees one attempt of one call."""

    def ended(self, event: Event, applied: Applied | None) -> None:
        """`applied` None: the result rides in its message and is stored by the collector."""
        ...


class MergeWatch(Protocol):
    """Sees outcomes being counted."""

    def ended(self, applied: Sequence[Applied]) -> None: ...


class SubmitWatch(Protocol):
    """Sees runs being accepted. `runs`: the same, with the trace context that travels with each of them."""

    @property
    def runs(self) -> Sequence[NewRun]: ...

    def ended(self, submitted: Sequence[Submission]) -> None: ...


class Telemetry(Protocol):
    """Told what workers do, as they do it; never in their way: nothing here waits, and nothing here raises.

    `trace` is the W3C trace context a run was submitted with; empty where nobody gave one.
    """

    def submitting(self, runs: Sequence[NewRun]) -> AbstractContextManager[SubmitWatch]: ...

    def decision(
        self, state: RunState, trace: Mapping[str, str]
    ) -> AbstractContextManager[DecisionWatch]: ...

    def attempt(self, view: CallView, call: CallState) -> AbstractContextManager[AttemptWatch]: ...

    def merging(self, traces: Mapping[RunId, Mapping[str, str]]) -> AbstractContextManager[MergeWatch]: ...


class ToolBackend(Protocol):
    """Has the tools of one process, and places to run them in."""

    def spec(self, name: str) -> ToolSpec | None: ...

    def facts(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallFacts | ToolFailed:
        """Key, tier and summary of one call of a tool that is loaded; or what the tool's own functions raised."""
        ...

    def place(self, name: str, tier: Tier) -> AbstractAsyncContextManager[ToolPlace]:
        """What runs one attempt of that tool, ready to begin at once; calls of other tiers than this one are not waited
        for. Waited for before the lease is taken: a call that only queues here must not hold one, and an effect must
        not count as begun."""
        ...

    async def aclose(self) -> None: ...


class ToolPace(Protocol):
    """What all processes share about the pace of tools: breakers, rates, places, serial keys, retry budgets.

    Never waits for its turn and never raises for a cache that is away: what it then counts is this process's own.
    """

    async def enter(self, entry: ToolEntry) -> Permit | Wait | Open:
        """Whether an attempt may begin; takes all that it needs, or nothing. Of all processes before a half-open
        breaker one gets a permit."""
        ...

    async def leave(self, permit: Permit, ended: Ended) -> None:
        """The attempt ended: gives back what it held and counts it. Leaving twice is harmless for what was held."""
        ...

    async def open_breakers(self, tenant: str) -> Mapping[str, float]:
        """Tool -> until when (epoch) its breaker is open for that tenant, as of BREAKERS_SEEN_S ago at most. For the
        decision side: such a tool is not offered. Half open it is not among them: somebody has to make the probe."""
        ...

    async def breakers(self) -> list[BreakerView]:
        """For people: every breaker that counted a failure within a day, the one used last first."""
        ...

    async def reset(self, tenant: str, tool: str) -> bool:
        """Close a breaker and forget its counts. False: there was none."""
        ...

    async def aclose(self) -> None: ...


class Governor(Protocol):
    """Shares the quotas of models among all processes: reserve before a call, settle after it. Never waits itself."""

    async def reserve(self, entry: ModelEntry) -> ModelPermit | ModelWait:
        """A request and its tokens, or when to ask again. Who asks again in time keeps its place: processes take
        turns, interactive ones before batch ones."""
        ...

    async def settle(self, permit: ModelPermit, used_tokens: int | None, hint: RateHint | None) -> None:
        """What the call really used; None: it is not known, and what was reserved stays used. Idempotent it is not:
        once for each permit. A permit that is never settled stays used, and is forgotten with its period."""
        ...

    async def pause(self, lane: ModelLane, wait_s: float | None) -> float:
        """The provider said 429: nobody calls that lane for so long; None: a second, doubled with each 429 in a row.
        Gives the seconds that are left."""
        ...

    async def withdraw(self, entry: ModelEntry) -> None:
        """Nobody of `owner` waits any more: others need not let it go first."""
        ...

    async def aclose(self) -> None: ...
