"""Dataclass to row and back. JSON columns hold what no statement searches; what is stored decodes to an equal value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import orjson
from sqlalchemy import RowMapping

from toolfleet.adapters.store.rules import check_at
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
from toolfleet.schemas.effects import NO_TERMS, Terms
from toolfleet.schemas.ids import CallId, CommandId, LeaseToken, RunId
from toolfleet.schemas.limits import Counters, Limits
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, Lane, RunStatus, Tier, TurnPhase
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, NewRun, RunState, Signature

Row = RowMapping


def dump(value: Any) -> str:
    """Compact JSON. Dataclasses become objects, enums their values."""
    return orjson.dumps(value).decode()


# -- runs --------------------------------------------------------------------------------------------------------------


def run_values(state: RunState, now: float) -> dict[str, Any]:
    """The columns of a run that transitions write. `finished_at` is `now` for a terminal run, which is written once."""
    used = state.counters
    rest = {
        "turn_started_at": state.turn_started_at,
        "model_attempt": state.model_attempt,
        "model_failures": state.model_failures,
        "model_index": state.model_index,
        "draft": state.draft,
        "withdrawn": state.withdrawn,
        "came_back": state.came_back,
        "succeeded": state.succeeded,
        "context_tokens_max": state.context_tokens_max,
        "structured": state.structured,
        "ending": state.ending,
        "output": state.output,
        "turn_tool_s": state.turn_tool_s,
        "item_count": state.item_count,
        "event_count": state.event_count,
        "empty_replies": used.empty_replies,
        "reserved_usd": used.reserved_usd,
        "next_reserve_usd": used.next_reserve_usd,
    }
    window = [[s.signature, s.call_id, s.turn, s.read_only, s.ok] for s in state.window]
    return {
        "lane": state.lane.value,
        "deadline_at": state.deadline_at,
        "status": state.status.value,
        "reason": state.reason,
        "turn": state.turn,
        "phase": state.phase.value,
        "finished_at": now if state.terminal else None,
        "model_calls": used.model_calls,
        "tool_calls": used.tool_calls,
        "corrections": used.corrections,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.cached_tokens,
        "reasoning_tokens": used.reasoning_tokens,
        "cost_usd": used.cost_usd,
        "active_s": used.active_s,
        "model_s": used.model_s,
        "tool_s": used.tool_s,
        "queue_s": used.queue_s,
        "signatures": dump(window),
        "state": dump(rest),
    }


def new_run_values(new: NewRun, created_at: float) -> dict[str, Any]:
    """The columns of a run that never change."""
    return {
        "id": new.run_id,
        "tenant": new.tenant,
        "agent": new.agent,
        "agent_version": new.agent_version,
        "previous_run_id": new.previous_run_id,
        "idempotency_key": new.idempotency_key,
        "created_at": created_at,
    }


def input_values(new: NewRun) -> dict[str, Any]:
    return {
        "run_id": new.run_id,
        "prompt_version": new.prompt_version,
        "toolset_version": new.toolset_version,
        "retry_of": new.retry_of,
        "request_hash": new.request_hash,
        "correlation_id": new.correlation_id,
        "limits": new.limits.model_dump_json(),
        "trace": dump(new.trace),
        "metadata": dump(new.metadata),
        "context": dump(new.context),
        "input": new.input,
        "principal": new.principal,
        "permissions": dump(new.permissions),
        "effect_scope": new.effect_scope,
    }


def run_state(row: Row, calls: Sequence[CallState], commands: Sequence[CommandRow]) -> RunState:
    """The state of a run. `row` has the columns of `run_values`, `id` and `limits`."""
    rest = orjson.loads(row["state"])
    return RunState(
        run_id=RunId(row["id"]),
        status=RunStatus(row["status"]),
        lane=Lane(row["lane"]),
        limits=_limits(row["limits"]),
        turn=row["turn"],
        phase=TurnPhase(row["phase"]),
        turn_started_at=rest["turn_started_at"],
        calls=tuple(calls),
        commands=tuple(commands),
        counters=_counters(row, rest),
        model_attempt=rest["model_attempt"],
        model_failures=rest["model_failures"],
        draft=rest.get("draft"),
        model_index=rest.get("model_index", 0),  # runs stored before there were fallback models have none
        window=tuple(Signature(*entry) for entry in orjson.loads(row["signatures"])),
        withdrawn=tuple(rest["withdrawn"]),
        came_back=tuple(
            rest.get("came_back", ())
        ),  # runs stored before these were kept have none of the four
        succeeded=tuple(rest.get("succeeded", ())),
        context_tokens_max=rest.get("context_tokens_max"),
        structured=rest.get("structured", False),
        ending=rest["ending"],
        reason=row["reason"],
        output=rest["output"],
        deadline_at=row["deadline_at"],
        turn_tool_s=rest["turn_tool_s"],
        item_count=rest["item_count"],
        event_count=rest["event_count"],
    )


def _counters(row: Row, rest: dict[str, Any]) -> Counters:
    return Counters(
        model_calls=row["model_calls"],
        tool_calls=row["tool_calls"],
        corrections=row["corrections"],
        empty_replies=rest["empty_replies"],
        active_s=row["active_s"],
        model_s=row["model_s"],
        tool_s=row["tool_s"],
        queue_s=row["queue_s"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cached_tokens=row["cached_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        cost_usd=row["cost_usd"],
        reserved_usd=rest["reserved_usd"],
        next_reserve_usd=rest["next_reserve_usd"],
    )


@lru_cache(maxsize=256)
def _limits(text: str) -> Limits:
    """Most runs of an agent have equal limits, and parsing them costs more than the rest of the row."""
    return Limits.model_validate_json(text)


# -- calls and results -------------------------------------------------------------------------------------------------


def call_values(run_id: RunId, turn: int, call: CallState) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "turn": turn,
        "position": call.index,
        "call_id": call.call_id,
        "tool": call.tool,
        "tier": call.tier.value,
        "signature": call.signature,
        "wire_id": call.wire_id,
        "effect": call.effect,
        "idempotent": call.idempotent,
        "repaired": call.repaired,
        "tell_on_denied": call.tell_on_denied,
        "repeatable": call.repeatable,
        "attempts_max": call.attempts_max,
        "timeout_s": call.timeout_s,
        "waiting": call.waiting.value,
        "attempt": call.attempt,
        "outcome": None if call.outcome is None else call.outcome.value,
        "arguments": call.arguments,
        "terms": "" if call.terms == NO_TERMS else dump(call.terms),
        "waits_key": call.waits_key,
        "edited": call.edited,
        "call_timeout_s": call.call_timeout_s,
        "deadline_at": call.deadline_at,
    }


def changed_call_values(call: CallState) -> dict[str, Any]:
    """The columns of a call that transitions change."""
    return {
        "tier": call.tier.value,
        "waiting": call.waiting.value,
        "attempt": call.attempt,
        "outcome": None if call.outcome is None else call.outcome.value,
        "arguments": call.arguments,
        "terms": "" if call.terms == NO_TERMS else dump(call.terms),
        "waits_key": call.waits_key,
        "edited": call.edited,
        "deadline_at": call.deadline_at,
    }


_TERMS: Final = frozenset(Terms.__dataclass_fields__)


@lru_cache(maxsize=256)
def _terms(text: str) -> Terms:
    """A later release may have written more than is known here."""
    return NO_TERMS if not text else Terms(**{k: v for k, v in orjson.loads(text).items() if k in _TERMS})


def call_state(row: Row) -> CallState:
    outcome = row["outcome"]
    return CallState(
        call_id=CallId(row["call_id"]),
        index=row["position"],
        tool=row["tool"],
        tier=Tier(row["tier"]),
        arguments=row["arguments"],
        signature=row["signature"],
        wire_id=row["wire_id"],
        effect=row["effect"],
        idempotent=row["idempotent"],
        attempts_max=row["attempts_max"],
        timeout_s=row["timeout_s"],
        waiting=CallWaiting(row["waiting"]),
        attempt=row["attempt"],
        outcome=None if outcome is None else CallOutcome(outcome),
        repaired=row["repaired"],
        tell_on_denied=row["tell_on_denied"],
        repeatable=row["repeatable"],
        terms=_terms(row["terms"]),
        waits_key=row["waits_key"],
        edited=row["edited"],
        call_timeout_s=row["call_timeout_s"],
        deadline_at=row["deadline_at"],
    )


def result_values(run_id: RunId, turn: int, result: CallResult, now: float) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "turn": turn,
        "call_id": result.call_id,
        "position": result.index,
        "outcome": result.outcome.value,
        "reason": None if result.reason is None else str(result.reason),
        "attempt": result.attempt,
        "tool_s": result.tool_s,
        "queue_s": result.queue_s,
        "stored_at": now,
        "content": result.content,
        "full_text": result.full,
    }


def call_result(row: Row) -> CallResult:
    return CallResult(
        call_id=CallId(row["call_id"]),
        index=row["position"],
        outcome=CallOutcome(row["outcome"]),
        content=row["content"],
        reason=row["reason"],
        attempt=row["attempt"],
        full=row["full_text"],
        tool_s=row["tool_s"],
        queue_s=row["queue_s"],
    )


# -- commands ----------------------------------------------------------------------------------------------------------


def command_values(row: CommandRow, now: float) -> dict[str, Any]:
    """The columns of a command that transitions write."""
    return {
        "queue": row.queue,
        "due_at": row.due_at,
        "sent_at": row.sent_at,
        "sends": row.sends,
        "lost_after_s": row.lost_after_s,
        "check_at": check_at(row, now),
        "deaths": row.deaths,
        "owner": row.owner,
        "token": row.token,
        "lease_until": row.lease_until,
    }


def new_command_values(run_id: RunId, trace: dict[str, str], row: CommandRow, now: float) -> dict[str, Any]:
    return {
        "id": row.id,
        "run_id": run_id,
        "turn": row.turn,
        "call_id": row.call_id,
        "body": dump({"trace": trace}),
        **command_values(row, now),
    }


def command_row(row: Row, *, id_column: str = "id") -> CommandRow:
    token = row["token"]
    return CommandRow(
        id=CommandId(row[id_column]),
        queue=row["queue"],
        turn=row["turn"],
        due_at=row["due_at"],
        call_id=None if row["call_id"] is None else CallId(row["call_id"]),
        sent_at=row["sent_at"],
        sends=row["sends"],
        lost_after_s=row["lost_after_s"],
        deaths=row["deaths"],
        owner=row["owner"],
        token=None if token is None else LeaseToken(token),
        lease_until=row["lease_until"],
    )


# -- items -------------------------------------------------------------------------------------------------------------


def item_of(body: str) -> Item:
    """The item whose JSON `dump` made."""
    fields = orjson.loads(body)
    kind = fields.pop("kind")
    match kind:
        case "user":
            return UserItem(**fields)
        case "assistant":
            fields["calls"] = tuple(ItemCall(**call) for call in fields["calls"])
            return AssistantItem(**fields)
        case "merge":
            return MergeItem(tuple(_item_result(result) for result in fields["results"]))
        case "notice":
            return NoticeItem(**fields)
        case _:
            raise ValueError(f"items of kind {kind!r} are not known to this version")


def _item_result(fields: dict[str, Any]) -> ItemResult:
    return ItemResult(fields["call_id"], fields["wire_id"], CallOutcome(fields["outcome"]), fields["content"])
