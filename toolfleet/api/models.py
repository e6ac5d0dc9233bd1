"""The bodies of answers. Times are UTC, ISO 8601; money is US dollars; fields are only ever added."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from toolfleet.client import CancelAck, output_of
from toolfleet.schemas.access import Quota, TenantUse
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.effects import EffectState
from toolfleet.schemas.outcomes import CallOutcome, RunStatus, Tier
from toolfleet.schemas.pace import BreakerView
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.views import (
    ApprovalView,
    DeadLetter,
    EffectView,
    RunEvent,
    RunView,
    StoredItem,
    WorkerView,
)

T = TypeVar("T")
V = TypeVar("V")

BODY_CHARS_MAX = 4000  # of a dead message


class Answer(BaseModel):
    """A body that we send."""

    model_config = ConfigDict(frozen=True)


class Page(Answer, Generic[T]):
    """Some of a list. `next_cursor`: for `?cursor=`, where there may be more."""

    data: list[T]
    has_more: bool
    next_cursor: str | None

    @classmethod
    def of(
        cls, found: Sequence[V], limit: int, shape: Callable[[V], T], cursor: Callable[[V], object]
    ) -> Page[T]:
        """The first `limit` of what was found; whoever asked for one more knows by it that there is more."""
        return cls.read(found[:limit], len(found) > limit, shape, cursor)

    @classmethod
    def read(
        cls,
        page: Sequence[V],
        more: bool,
        shape: Callable[[V], T],
        cursor: Callable[[V], object],
    ) -> Page[T]:
        """One that was read as a page; `more`: there are others after it."""
        following = str(cursor(page[-1])) if more else None
        return cls(data=[shape(one) for one in page], has_more=more, next_cursor=following)

    @classmethod
    def at(cls, found: Sequence[V], start: int, limit: int, shape: Callable[[V], T]) -> Page[T]:
        """Of a list without an order of its own, from a position on; `next_cursor` is the position after it."""
        page, more = found[start : start + limit], len(found) > start + limit
        following = str(start + limit) if more else None
        return cls(data=[shape(one) for one in page], has_more=more, next_cursor=following)


class RunOut(Answer):
    """A run as it is now. Of its context only the names are shown."""

    id: str
    agent: str
    agent_version: str
    status: RunStatus
    reason: str | None
    finished: bool
    input: str
    output: Any
    lane: str
    tenant: str
    principal: str
    previous_run_id: str | None
    retry_of: str | None
    created_at: str
    finished_at: str | None
    deadline_at: str | None
    turns: int
    model_calls: int
    tool_calls: int
    corrections: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost_usd: float
    model_s: float
    tool_s: float
    queue_s: float
    metadata: dict[str, str]
    context_keys: list[str]

    @classmethod
    def of(cls, view: RunView) -> RunOut:
        info, state = view.info, view.state
        used = state.counters
        return cls(
            id=info.run_id,
            agent=info.agent,
            agent_version=info.agent_version,
            status=state.status,
            reason=state.reason,
            finished=state.terminal,
            input=info.input,
            output=output_of(state),
            lane=state.lane.value,
            tenant=info.tenant,
            principal=info.principal,
            previous_run_id=info.previous_run_id,
            retry_of=info.retry_of,
            created_at=at(info.created_at),
            finished_at=maybe_at(info.finished_at),
            deadline_at=maybe_at(state.deadline_at),
            turns=state.turn,
            model_calls=used.model_calls,
            tool_calls=used.tool_calls,
            corrections=used.corrections,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cached_tokens=used.cached_tokens,
            reasoning_tokens=used.reasoning_tokens,
            cost_usd=used.cost_usd,
            model_s=used.model_s,
            tool_s=used.tool_s,
            queue_s=used.queue_s,
            metadata=info.metadata,
            context_keys=sorted(info.context),
        )


class CancelOut(Answer):
    """From now on no effect of the run begins; `running`: calls whose effects had begun, and run to their outcome."""

    id: str
    status: RunStatus
    running: list[str]

    @classmethod
    def of(cls, ack: CancelAck) -> CancelOut:
        return cls(id=ack.run_id, status=ack.status, running=list(ack.running))


class ItemCallOut(Answer):
    call_id: str
    name: str
    arguments: Any


class ItemResultOut(Answer):
    call_id: str
    outcome: CallOutcome
    content: Any


class ItemOut(Answer):
    """One entry of the conversation: what the user said, a reply, all results of a turn, or a notice."""

    seq: int
    turn: int
    kind: Literal["user", "assistant", "merge", "notice"]
    text: str | None = None
    calls: list[ItemCallOut] = Field(default_factory=list)
    results: list[ItemResultOut] = Field(default_factory=list)

    @classmethod
    def of(cls, stored: StoredItem) -> ItemOut:
        item = stored.item
        calls = [
            ItemCallOut(call_id=one.call_id, name=one.name, arguments=parsed(one.arguments))
            for one in getattr(item, "calls", ())
        ]
        results = [
            ItemResultOut(call_id=one.call_id, outcome=one.outcome, content=parsed(one.content))
            for one in getattr(item, "results", ())
        ]
        text = getattr(item, "text", None)
        return cls(seq=stored.seq, turn=stored.turn, kind=item.kind, text=text, calls=calls, results=results)


class CallOut(Answer):
    """The outcome of one call; `content` is what the model got."""

    call_id: str
    turn: int
    index: int
    outcome: CallOutcome
    reason: str | None
    attempt: int
    tool_s: float
    content: Any

    @classmethod
    def of(cls, turn: int, one: CallResult) -> CallOut:
        return cls(
            call_id=one.call_id,
            turn=turn,
            index=one.index,
            outcome=one.outcome,
            reason=one.reason,
            attempt=one.attempt,
            tool_s=one.tool_s,
            content=parsed(one.content),
        )


class EventOut(Answer):
    """Something that happened to a run. `seq` counts from 1 without gaps."""

    run_id: str
    seq: int
    type: str
    at: str
    data: dict[str, Any]

    @classmethod
    def of(cls, one: RunEvent) -> EventOut:
        return cls(run_id=one.run_id, seq=one.seq, type=one.type, at=at(one.at), data=one.data)


class ToolOut(Answer):
    name: str
    description: str
    tier: Tier
    effect: bool
    parameters: dict[str, Any]


class AgentOut(Answer):
    """An agent as its callers see it: what it is called with and may do, not how it is instructed."""

    name: str
    version: str
    prompt_version: str
    toolset_version: str
    model: str
    lane: str
    tools: list[ToolOut]
    limits: dict[str, Any]

    @classmethod
    def of(cls, spec: AgentSpec) -> AgentOut:
        return cls(
            name=spec.name,
            version=spec.version,
            prompt_version=spec.prompt_version,
            toolset_version=spec.toolset_version,
            model=spec.model,
            lane=spec.lane.value,
            tools=[
                ToolOut(
                    name=tool.name,
                    description=tool.description,
                    tier=tool.tier,
                    effect=tool.effect,
                    parameters=tool.parameters,
                )
                for tool in spec.tools
            ],
            limits=spec.limits.model_dump(),
        )


class ApprovalOut(Answer):
    """A question: the canonical arguments as they would be sent, and the tool's own summary."""

    id: str
    status: str
    tier: Tier
    tool: str
    tenant: str
    run_id: str
    turn: int
    call_id: str
    summary: str
    arguments: Any
    arguments_hash: str
    permissions: list[str] = Field(description="what a yes grants for this call")
    steps: int
    granted_by: list[str]
    requested_by: str
    requested_at: str
    expires_at: str
    reason: str

    @classmethod
    def of(cls, view: ApprovalView) -> ApprovalOut:
        asked = view.approval
        return cls(
            id=asked.id,
            status=asked.status.value,
            tier=asked.tier,
            tool=view.tool,
            tenant=view.tenant,
            run_id=view.run_id,
            turn=view.turn,
            call_id=view.call_id,
            summary=asked.summary,
            arguments=parsed(view.arguments),
            arguments_hash=asked.arguments_hash,
            permissions=list(asked.permissions),
            steps=asked.steps,
            granted_by=list(asked.granted_by),
            requested_by=asked.requested_by,
            requested_at=at(asked.requested_at),
            expires_at=at(asked.expires_at),
            reason=asked.reason,
        )


class EffectOut(Answer):
    """A change in the outside world, and what is known of it."""

    call_id: str
    run_id: str
    turn: int
    tool: str
    tier: Tier
    tenant: str
    state: EffectState
    key: str
    attempt: int
    arguments: Any
    sent_by: str
    as_of: str
    resolved_by: str | None
    answer: Any

    @classmethod
    def of(cls, view: EffectView) -> EffectOut:
        return cls(
            call_id=view.call_id,
            run_id=view.run_id,
            turn=view.turn,
            tool=view.tool,
            tier=view.tier,
            tenant=view.tenant,
            state=view.entry.state,
            key=view.entry.key,
            attempt=view.entry.attempt,
            arguments=parsed(view.arguments),
            sent_by=at(view.entry.send_by),
            as_of=at(view.changed_at),
            resolved_by=view.resolved_by,
            answer=None if view.answer is None else parsed(view.answer),
        )


class DeadLetterOut(Answer):
    """What could not be processed, and why. `body`: the start of a message's bytes, as text that was never trusted."""

    id: str
    kind: str
    queue: str
    reason: str
    at: str
    tenant: str | None
    run_id: str | None
    turn: int | None
    call_id: str | None
    detail: str
    body: str | None

    @classmethod
    def of(cls, one: DeadLetter) -> DeadLetterOut:
        body = None if one.body is None else one.body[:BODY_CHARS_MAX].decode(errors="backslashreplace")
        return cls(
            id=one.id,
            kind=one.kind,
            queue=one.queue,
            reason=one.reason,
            at=at(one.at),
            tenant=one.tenant,
            run_id=one.run_id,
            turn=one.turn,
            call_id=one.call_id,
            detail=one.detail,
            body=body,
        )


class ReplayedOut(Answer):
    """The run that was started in place of the old one; the letter is removed."""

    id: str
    run_id: str
    new_run_id: str


class WorkerOut(Answer):
    """A process of the fleet as it was last heard of."""

    id: str
    host: str
    pid: int
    roles: list[str]
    version: str
    started_at: str
    silent_s: float
    state: dict[str, Any]

    @classmethod
    def of(cls, view: WorkerView) -> WorkerOut:
        beat = view.beat
        return cls(
            id=beat.id,
            host=beat.host,
            pid=beat.pid,
            roles=list(beat.roles),
            version=beat.version,
            started_at=at(beat.started_at),
            silent_s=round(view.silent_s, 3),
            state=beat.state,
        )


class BreakerOut(Answer):
    """Whether a tool fails too often to be called."""

    tenant: str
    tool: str
    state: Literal["closed", "open", "half_open"]
    calls: int
    failures: int
    opened_at: str | None
    until: str | None

    @classmethod
    def of(cls, view: BreakerView) -> BreakerOut:
        return cls(
            tenant=view.tenant,
            tool=view.tool,
            state=view.state,
            calls=view.calls,
            failures=view.failures,
            opened_at=maybe_at(view.opened_at),
            until=maybe_at(view.until_s),
        )


class BreakerReset(Answer):
    tenant: str
    tool: str
    reset: bool


class QuotaOut(Answer):
    """What a tenant may use (null: as much as there is), and what it uses now."""

    tenant: str
    runs_in_flight: int
    runs_in_flight_max: int | None
    requests_per_minute_max: int | None
    cost_usd_today: float
    cost_usd_per_day_max: float | None
    day_left_s: float

    @classmethod
    def of(cls, quota: Quota, use: TenantUse) -> QuotaOut:
        return cls(
            tenant=quota.tenant,
            runs_in_flight=use.runs_in_flight,
            runs_in_flight_max=quota.runs_in_flight_max,
            requests_per_minute_max=quota.requests_per_minute_max,
            cost_usd_today=use.cost_usd_today,
            cost_usd_per_day_max=quota.cost_usd_per_day_max,
            day_left_s=use.day_left_s,
        )


class Health(Answer):
    ok: bool
    detail: str = ""


class ErrorMember(Answer):
    message: str
    type: str
    param: str | None
    code: str


class PointedError(Answer):
    """Of a batch file also the line, every line it is about, the field, and a code."""

    pointer: str
    detail: str
    code: str | None = None
    line: int | None = None
    lines: list[int] = Field(default_factory=list)
    param: str | None = None


class ProblemOut(Answer):
    """RFC 9457, with the `error` member that clients of OpenAI's API read."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:toolfleet:problem:unknown_run",
                    "title": "Not found",
                    "status": 404,
                    "detail": "no run is called 'run_1'",
                    "hint": "List them: GET /api/v1/runs",
                    "request_id": "req_019abc",
                    "error": {
                        "message": "no run is called 'run_1'",
                        "type": "not_found_error",
                        "param": None,
                        "code": "unknown_run",
                    },
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    hint: str
    request_id: str
    error: ErrorMember
    errors: list[PointedError] = Field(default_factory=list)


def at(seconds: float) -> str:
    """Seconds since the epoch as UTC, ISO 8601."""
    found = datetime.fromtimestamp(seconds, UTC)
    return found.isoformat(timespec="microseconds").replace("+00:00", "Z")


def maybe_at(seconds: float | None) -> str | None:
    return None if seconds is None else at(seconds)


def parsed(text: str) -> Any:
    """The JSON value of a stored text; the text itself where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
