"""Batches as data: what a file of requests becomes, what each line may come to, and how far all of them are.

A batch is a row, each of its lines an item. An item is pending, then running (it has a run), then ended for good;
`resume` alone makes an ended item pending again. Names of statuses are those of the OpenAI Batch API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from toolfleet.schemas.ids import RunId
from toolfleet.schemas.run import NewRun
from toolfleet.schemas.views import DueRow

REQUESTS_MAX: Final = 50_000  # lines of one file; the limit of the OpenAI Batch API, as is the next one
FILE_BYTES_MAX: Final = 200_000_000
LINE_BYTES_MAX: Final = 4_000_000  # an input of INPUT_BYTES_MAX, escaped
FAULTS_MAX: Final = 100  # faults of one file that are told; reading ends there
CUSTOM_ID_CHARS_MAX: Final = 256
WINDOW_S: Final = 24 * 3600.0  # completion window
WINDOW_S_MIN: Final = 60.0
WINDOW_S_MAX: Final = 30 * 24 * 3600.0
IN_FLIGHT_MAX: Final = 500  # items of all batches that are at work at a time, in the whole fleet
PARKED_MAX: Final = 1000  # items that wait for people do not count as at work, up to so many
FEED_MAX: Final = 50  # runs made in one transaction: more would keep interactive ones waiting for the writer
ACCOUNT_FAULTS_MAX: Final = 3  # items failed by the model's account in a row: then the batch pauses
VALIDATING_SILENT_S: Final = 300.0  # an upload nobody has written to for so long was cut off
ACCOUNT_FAULTS: Final = frozenset({"quota", "auth"})  # kinds of ModelFault
PAUSED_ACCOUNT: Final = "account"


class BatchStatus(StrEnum):
    """Where a batch is. The last four are terminal."""

    VALIDATING = "validating"  # its lines are being stored; none runs
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # its time is over, and what has begun runs to its end
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"  # the file was refused; nothing ran
    EXPIRED = "expired"
    CANCELLED = "cancelled"


OPEN_BATCHES: Final = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)
ENDED_BATCHES: Final = frozenset(
    {BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)


class ItemStatus(StrEnum):
    """Where a line is. The last four are terminal."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"  # in the output file; all other ended ones are in the error file
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class ItemCode(StrEnum):
    """Why an item that has no run, or whose run was stopped with its batch, ended; the first two are OpenAI's."""

    BATCH_EXPIRED = "batch_expired"
    BATCH_CANCELLED = "batch_cancelled"
    BATCH_COST_LIMIT = "batch_cost_limit"


@dataclass(frozen=True, slots=True)
class BatchFault:
    """What is wrong with a file. `line` counts from 1 and is where it was noticed; None: with the file as a whole.
    `param`: the field at fault. `lines`: every line it is about."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`cost_usd_max`: of all its runs together, reserved before each begins. `concurrency_max`: items at work at a
    time. None: no limit of its own."""

    cost_usd_max: float | None = None
    concurrency_max: int | None = None


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch as a front door opens it: nothing of it runs before it is released. `endpoint` is the url of its lines,
    and the shape of its answers; `content_hash` of everything that was asked, so that one idempotency key with two
    requests is a conflict."""

    batch_id: str
    tenant: str
    endpoint: str
    window_s: float
    limits: BatchLimits = BatchLimits()
    metadata: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    content_hash: str = ""
    file_name: str = ""
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class NewItem:
    """A line that was accepted; `run` is what will be submitted for it, under an id that is made then."""

    line: int
    custom_id: str
    run: NewRun


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Items by status: of distinct items, counted when asked."""

    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.pending + self.running + self.ended

    @property
    def ended(self) -> int:
        return self.completed + self.not_completed

    @property
    def not_completed(self) -> int:
        """Ended, and in the error file."""
        return self.failed + self.expired + self.cancelled


@dataclass(frozen=True, slots=True)
class BatchUse:
    """What the ended items have used, and what those at work have so far. Seconds are sums over runs."""

    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    model_s: float = 0.0
    tool_s: float = 0.0
    queue_s: float = 0.0
    wait_s: float = 0.0  # everything else between a run's beginning and its end: people, backoff
    running_cost_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as it is now. `paused`: why nothing of it is begun at the moment (PAUSED_ACCOUNT), or empty."""

    batch_id: str
    tenant: str
    status: BatchStatus
    endpoint: str
    counts: BatchCounts
    limits: BatchLimits
    window_s: float
    created_at: float
    expires_at: float
    released_at: float | None = None
    stopping_at: float | None = None
    ended_at: float | None = None
    faults: tuple[BatchFault, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    file_name: str = ""
    paused: str = ""
    resumes: int = 0
    content_hash: str = ""
    ignored: Mapping[str, int] = field(default_factory=dict)
    now_s: float = 0.0

    @property
    def ended(self) -> bool:
        return self.status in ENDED_BATCHES


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A line and what it came to. `code`: why it did not complete. `output`, `structured` as of its run."""

    line: int
    custom_id: str
    status: ItemStatus
    agent: str
    run_id: str | None = None
    run_status: str | None = None
    code: str | None = None
    output: str | None = None
    structured: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0
    model_calls: int = 0
    tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What a batch came to. `outcomes`: items by (status, code), the most frequent first."""

    view: BatchView
    use: BatchUse
    outcomes: Sequence[tuple[ItemStatus, str, int]]
    wall_s: float


@dataclass(frozen=True, slots=True)
class Advanced:
    """What one advance of all open batches did: `runs` made for items, rows to be published after its commit, runs that
    are to be cancelled. `more`: there may be more to do at once."""

    runs: tuple[NewRun, ...] = ()
    publish: tuple[DueRow, ...] = ()
    cancel: tuple[RunId, ...] = ()
    more: bool = False
