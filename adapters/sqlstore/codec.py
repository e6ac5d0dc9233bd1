"""Rows and what they mean: states, calls, items, results to columns and back. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import orjson

from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.conversation import (
    AssistantItem,
    Item,
    ItemCall,
    ItemResult,
    MergeItem,
    NoticeItem,
    UserItem,
)
from toolfleet.schemas.ids import CallId, CommandId, LeaseToken, RunId
from toolfleet.schemas.limits import Counters, Limits
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, Lane, RunStatus, Tier, TurnPhase
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, NewRun, RunState, Signature
from toolfleet.schemas.views import RunInfo

Row = Mapping[str, Any]

_COUNTED = (
    "model_calls",
    "tool_calls",
    "corrections",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cost_usd",
    "model_s",
    "tool_s",
    "queue_s",
)
_IN_STATE = (
    "turn_started_at",
    "model_attempt",
    "model_failures",
    "withdrawn",
    "ending",
    "turn_tool_s",
    "item_count",
    "event_count",
)


def dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


def state_columns(state: RunState, finished_at: float | None) -> dict[str, Any]:
    """The columns of `runs` that a transition may change."""
    rest: dict[str, Any] = {name: getattr(state, name) for name in _IN_STATE}
    rest["limits"] = state.limits.model_dump()
    rest["counters"] = state.counters
    rest["window"] = state.window
    return {
        "status": state.status.value,
        "reason": state.reason,
        "turn": state.turn,
        "phase": state.phase.value,
        "output": state.output,
        "deadline_at": state.deadline_at,
        "finished_at": finished_at,
        "state": dumps(rest),
        **{name: getattr(state.counters, name) for name in _COUNTED},
    }


def new_run_columns(new: NewRun, now_s: float) -> dict[str, Any]:
    """The columns of `runs` that never change."""
    return {
        "run_id": new.run_id,
        "tenant": new.tenant,
        "agent": new.agent,
        "agent_version": new.agent_version,
        "prompt_version": new.prompt_version,
        "toolset_version": new.toolset_version,
        "lane": new.lane.value,
        "input": new.input,
        "previous_run_id": new.previous_run_id,
        "retry_of": new.retry_of,
        "idempotency_key": new.idempotency_key,
        "request_hash": new.request_hash,
        "correlation_id": new.correlation_id,
        "context": dumps(new.context),
        "metadata": dumps(new.metadata),
        "trace": dumps(new.trace),
        "created_at": now_s,
    }


def run_state(row: Row, calls: tuple[CallState, ...], commands: tuple[CommandRow, ...]) -> RunState:
    rest = orjson.loads(row["state"])
    return RunState(
        run_id=RunId(row["run_id"]),
        status=RunStatus(row["status"]),
        lane=Lane(row["lane"]),
        limits=Limits.model_construct(**rest["limits"]),
        turn=row["turn"],
        phase=TurnPhase(row["phase"]),
        turn_started_at=rest["turn_started_at"],
        calls=calls,
        commands=commands,
        counters=Counters(**rest["counters"]),
        model_attempt=rest["model_attempt"],
        model_failures=rest["model_failures"],
        window=tuple(Signature(**entry) for entry in rest["window"]),
        withdrawn=tuple(rest["withdrawn"]),
        ending=rest["ending"],
        reason=row["reason"],
        output=row["output"],
        deadline_at=row["deadline_at"],
        turn_tool_s=rest["turn_tool_s"],
        item_count=rest["item_count"],
        event_count=rest["event_count"],
    )


def run_info(row: Row) -> RunInfo:
    return RunInfo(
        run_id=RunId(row["run_id"]),
        agent=row["agent"],
        agent_version=row["agent_version"],
        prompt_version=row["prompt_version"],
        toolset_version=row["toolset_version"],
        tenant=row["tenant"],
        previous_run_id=row["previous_run_id"],
        retry_of=row["retry_of"],
        correlation_id=row["correlation_id"],
        input=row["input"],
        context=orjson.loads(row["context"]),
        metadata=orjson.loads(row["metadata"]),
        trace=orjson.loads(row["trace"]),
        created_at=row["created_at"],
        finished_at=row["finished_at"],
    )


_CALL_FIELDS = tuple(field.name for field in dataclasses.fields(CallState))
_COMMAND_FIELDS = tuple(field.name for field in dataclasses.fields(CommandRow))


def call_columns(call: CallState, run_id: RunId, turn: int) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(call, name) for name in _CALL_FIELDS}
    columns["tier"] = call.tier.value
    columns["waiting"] = call.waiting.value
    columns["outcome"] = None if call.outcome is None else call.outcome.value
    return {**columns, "run_id": run_id, "turn": turn}


def call_state(row: Row) -> CallState:
    fields = {name: row[name] for name in _CALL_FIELDS}
    fields["tier"] = Tier(row["tier"])
    fields["waiting"] = CallWaiting(row["waiting"])
    fields["outcome"] = None if row["outcome"] is None else CallOutcome(row["outcome"])
    return CallState(**fields)


def command_columns(command: CommandRow, run_id: RunId) -> dict[str, Any]:
    columns: dict[str, Any] = {name: getattr(command, name) for name in _COMMAND_FIELDS}
    columns["run_id"] = run_id
    return columns


def command_row(row: Row) -> CommandRow:
    return CommandRow(
        id=CommandId(row["id"]),
        queue=row["queue"],
        turn=row["turn"],
        due_at=row["due_at"],
        call_id=None if row["call_id"] is None else CallId(row["call_id"]),
        sent_at=row["sent_at"],
        sends=row["sends"],
        lost_after_s=row["lost_after_s"],
        deaths=row["deaths"],
        owner=row["owner"],
        token=None if row["token"] is None else LeaseToken(row["token"]),
        lease_until=row["lease_until"],
    )


def item_body(item: Item) -> str:
    return dumps(item)


def item_of(body: str) -> Item:
    """The item of a stored body. Raises ValueError for a kind this release does not know."""
    fields = orjson.loads(body)
    match fields.pop("kind"):
        case "user":
            return UserItem(**fields)
        case "assistant":
            fields["calls"] = tuple(ItemCall(**call) for call in fields["calls"])
            return AssistantItem(**fields)
        case "merge":
            return MergeItem(
                tuple(ItemResult(**{**r, "outcome": CallOutcome(r["outcome"])}) for r in fields["results"])
            )
        case "notice":
            return NoticeItem(**fields)
        case kind:
            raise ValueError(f"a stored item is of kind {kind!r}, which this release does not know")


def result_columns(result: CallResult, run_id: RunId, turn: int, now_s: float) -> dict[str, Any]:
    columns: dict[str, Any] = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    columns["outcome"] = result.outcome.value
    return {**columns, "run_id": run_id, "turn": turn, "at": now_s}


def result_of(row: Row) -> CallResult:
    return CallResult(
        call_id=CallId(row["call_id"]),
        index=row["index"],
        outcome=CallOutcome(row["outcome"]),
        content=row["content"],
        reason=row["reason"],
        attempt=row["attempt"],
        full=row["full"],
        tool_s=row["tool_s"],
        queue_s=row["queue_s"],
    )
