"""The bodies of requests and answers about files and batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from toolfleet.api.bodies import Body, Name, Text
from toolfleet.api.models import Answer, at, maybe_at
from toolfleet.schemas.batches import (
    WINDOW_S,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    BatchFault,
    BatchLimits,
    BatchReport,
    BatchStatus,
    BatchView,
    ItemStatus,
)
from toolfleet.schemas.files import StoredFile

TEMPLATE_CHARS_MAX = 100_000
WindowS = Annotated[float, Field(ge=WINDOW_S_MIN, le=WINDOW_S_MAX)]


class BatchLimitsBody(Body):
    """Of all runs of a batch together; null: no limit of its own."""

    cost_usd_max: float | None = Field(default=None, gt=0)
    concurrency_max: int | None = Field(default=None, ge=1, le=1_000_000)

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.cost_usd_max, self.concurrency_max)


class CreateBatch(Body):
    """A file of requests that becomes runs. In the format `openai` every line names its agent; rows of plain `jsonl` and
    `csv` are put into a template for one. Principal and permissions are those of the key."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"input_file_id": "file_019abc"},
                {
                    "input_file_id": "file_019abc",
                    "format": "csv",
                    "agent": "triage",
                    "template": "Ticket {id}: {text}",
                    "id_field": "id",
                    "limits": {"cost_usd_max": 20.0, "concurrency_max": 50},
                    "metadata": {"night": "2026-11-30"},
                },
            ]
        }
    )

    input_file_id: Annotated[Text, Field(min_length=1, max_length=64)]
    endpoint: Literal["/v1/runs", "/v1/responses", "/v1/chat/completions"] | None = Field(
        default=None, description="the url every line has to name; null: that of the first"
    )
    format: Literal["openai", "jsonl", "csv"] = "openai"
    agent: Name | None = Field(default=None, description="of every row; with jsonl and csv only")
    template: Annotated[Text, Field(min_length=1, max_length=TEMPLATE_CHARS_MAX)] = "{input}"
    id_field: Name = "custom_id"
    window_s: WindowS = Field(default=WINDOW_S, description="what is not done by then expires")
    limits: BatchLimitsBody = Field(default_factory=BatchLimitsBody)
    metadata: dict[str, str] = Field(default_factory=dict, description="for you")


class ResumeBatch(Body):
    """Run once more what ended and did not complete. What is left out stays as it was."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limits": {"cost_usd_max": 30.0}}]})

    window_s: WindowS | None = None
    limits: BatchLimitsBody | None = None


class FileForm(Body):
    """The form of an upload."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"}, description="exactly one file")]
    purpose: Literal["batch"] = "batch"
    keep_s: float = Field(
        default=2_592_000, ge=3600, le=2_592_000, description="deleted by itself after that many seconds"
    )


class FileOut(Answer):
    """A file that is there whole. `name` is what its sender calls it."""

    id: str
    tenant: str
    name: str
    purpose: str
    size_bytes: int
    sha256: str
    created_by: str
    created_at: str
    expires_at: str

    @classmethod
    def of(cls, one: StoredFile) -> FileOut:
        return cls(
            id=one.file_id,
            tenant=one.tenant,
            name=one.name,
            purpose=one.purpose,
            size_bytes=one.size_bytes,
            sha256=one.sha256,
            created_by=one.created_by,
            created_at=at(one.created_at),
            expires_at=at(one.expires_at),
        )


class BatchFaultOut(Answer):
    """What is wrong with a file. `line` is where it was noticed, from 1; `lines` every one it is about."""

    code: str
    message: str
    line: int | None
    lines: list[int]
    param: str | None

    @classmethod
    def of(cls, one: BatchFault) -> BatchFaultOut:
        return cls(code=one.code, message=one.message, line=one.line, lines=list(one.lines), param=one.param)


class BatchCountsOut(Answer):
    """Of distinct requests."""

    total: int
    pending: int
    running: int
    completed: int
    failed: int
    expired: int
    cancelled: int


class BatchOut(Answer):
    """A batch as it is now. `errors`: why its file was refused. `paused`: why nothing of it is begun at the moment."""

    id: str
    tenant: str
    status: BatchStatus
    ended: bool
    paused: str | None
    endpoint: str
    file_name: str
    counts: BatchCountsOut
    cost_usd_max: float | None
    concurrency_max: int | None
    window_s: float
    created_at: str
    released_at: str | None
    expires_at: str
    ended_at: str | None
    resumes: int
    ignored: dict[str, int] = Field(description="fields of bodies that were left out, and in how many lines")
    errors: list[BatchFaultOut]
    metadata: dict[str, str]

    @classmethod
    def of(cls, view: BatchView) -> BatchOut:
        counts = view.counts
        names = (name for name in BatchCountsOut.model_fields if name != "total")
        return cls(
            id=view.batch_id,
            tenant=view.tenant,
            status=view.status,
            ended=view.ended,
            paused=view.paused or None,
            endpoint=view.endpoint,
            file_name=view.file_name,
            counts=BatchCountsOut(total=counts.total, **{name: getattr(counts, name) for name in names}),
            cost_usd_max=view.limits.cost_usd_max,
            concurrency_max=view.limits.concurrency_max,
            window_s=view.window_s,
            created_at=at(view.created_at),
            released_at=maybe_at(view.released_at),
            expires_at=at(view.expires_at),
            ended_at=maybe_at(view.ended_at),
            resumes=view.resumes,
            ignored=dict(view.ignored),
            errors=[BatchFaultOut.of(one) for one in view.faults],
            metadata=dict(view.metadata),
        )


class ResumedOut(Answer):
    """`resumed`: how many requests run again."""

    batch: BatchOut
    resumed: int


class BatchOutcomeOut(Answer):
    status: ItemStatus
    code: str | None
    count: int


class BatchUseOut(Answer):
    """Of what has ended; `running_cost_usd` of what is at work. Seconds are sums over runs."""

    cost_usd: float
    running_cost_usd: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    model_calls: int
    tool_calls: int
    queue_s: float
    model_s: float
    tool_s: float
    wait_s: float


class BatchReportOut(Answer):
    """What a batch came to so far: outcomes by reason, tokens, cost, seconds. `rate_per_s` and `eta_s` are of its whole
    time at work; null where nothing can be said."""

    batch: BatchOut
    outcomes: list[BatchOutcomeOut]
    used: BatchUseOut
    wall_s: float
    rate_per_s: float | None
    eta_s: float | None

    @classmethod
    def of(cls, report: BatchReport) -> BatchReportOut:
        view = report.view
        left = view.counts.total - view.counts.ended
        known = report.wall_s > 0 and view.counts.ended > 0 and view.resumes == 0
        rate = view.counts.ended / report.wall_s if known else None
        going = rate is not None and not view.ended and not view.paused
        return cls(
            batch=BatchOut.of(view),
            outcomes=[
                BatchOutcomeOut(status=status, code=code or None, count=count)
                for status, code, count in report.outcomes
            ],
            used=BatchUseOut(**{name: getattr(report.use, name) for name in BatchUseOut.model_fields}),
            wall_s=report.wall_s,
            rate_per_s=rate,
            eta_s=left / rate if going and rate else None,
        )
