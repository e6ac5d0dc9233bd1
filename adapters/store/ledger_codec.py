"""Rows of the effect ledger and of approvals, to dataclass and back."""

from __future__ import annotations

from typing import Any

import orjson

from toolfleet.adapters.store.codec import Row, dump
from toolfleet.schemas.effects import (
    Approval,
    ApprovalStatus,
    Audit,
    EffectState,
    Entry,
    StandingApproval,
)
from toolfleet.schemas.ids import CallId, RunId
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.run import CallState
from toolfleet.schemas.views import ApprovalView, EffectView

ENTRY_COLUMNS = (
    "tier", "key", "state", "attempt", "send_by", "asked_at", "tries", "doubt", "approval_id", "changed_at",
)  # fmt: skip
APPROVAL_COLUMNS = (
    "status", "arguments", "arguments_hash", "granted_by", "decided_at", "reason",
)  # fmt: skip


def entry_values(call: CallState, now: float) -> dict[str, Any]:
    """The columns of a ledger row that transitions write."""
    entry = call.entry
    assert entry is not None
    return {
        "tier": call.tier.value,
        "key": entry.key,
        "state": entry.state.value,
        "attempt": entry.attempt,
        "send_by": entry.send_by,
        "asked_at": entry.asked_at,
        "tries": entry.tries,
        "doubt": entry.doubt,
        "approval_id": entry.approval_id,
        "changed_at": now,
    }


def new_entry_values(run_id: RunId, turn: int, tenant: str, call: CallState, now: float) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "run_id": run_id,
        "turn": turn,
        "tenant": tenant,
        "tool": call.tool,
        "opened_at": now,
        "resolved_by": None,
        "answer": None,
        **entry_values(call, now),
    }


def entry(row: Row) -> Entry:
    return Entry(
        key=row["key"],
        state=EffectState(row["state"]),
        attempt=row["attempt"],
        send_by=row["send_by"],
        asked_at=row["asked_at"],
        tries=row["tries"],
        doubt=row["doubt"],
        approval_id=row["approval_id"],
    )


def effect_view(row: Row) -> EffectView:
    return EffectView(
        call_id=CallId(row["call_id"]),
        run_id=RunId(row["run_id"]),
        turn=row["turn"],
        tenant=row["tenant"],
        tool=row["tool"],
        tier=Tier(row["tier"]),
        arguments=row["arguments"],
        timeout_s=row["timeout_s"],
        entry=entry(row),
        opened_at=row["opened_at"],
        changed_at=row["changed_at"],
        resolved_by=row["resolved_by"],
        answer=row["answer"],
    )


def approval_values(call: CallState) -> dict[str, Any]:
    """The columns of an approval that transitions change."""
    asked = call.approval
    assert asked is not None
    return {
        "status": asked.status.value,
        "arguments": call.arguments,
        "arguments_hash": asked.arguments_hash,
        "granted_by": dump(asked.granted_by),
        "decided_at": asked.decided_at,
        "reason": asked.reason,
    }


def new_approval_values(run_id: RunId, turn: int, tenant: str, call: CallState) -> dict[str, Any]:
    asked = call.approval
    assert asked is not None
    return {
        "id": asked.id,
        "run_id": run_id,
        "turn": turn,
        "call_id": call.call_id,
        "tenant": tenant,
        "tool": call.tool,
        "tier": asked.tier.value,
        "summary": asked.summary,
        "requested_by": asked.requested_by,
        "requested_at": asked.requested_at,
        "expires_at": asked.expires_at,
        "steps": asked.steps,
        "distinct_people": asked.distinct,
        "by_another": asked.by_another,
        "standing": asked.standing,
        "permissions": dump(asked.permissions),
        **approval_values(call),
    }


def approval(row: Row) -> Approval:
    return Approval(
        id=row["id"],
        status=ApprovalStatus(row["status"]),
        tier=Tier(row["tier"]),
        arguments_hash=row["arguments_hash"],
        requested_at=row["requested_at"],
        expires_at=row["expires_at"],
        requested_by=row["requested_by"],
        summary=row["summary"],
        steps=row["steps"],
        distinct=row["distinct_people"],
        by_another=row["by_another"],
        granted_by=tuple(orjson.loads(row["granted_by"])),
        decided_at=row["decided_at"],
        reason=row["reason"],
        standing=row["standing"],
        permissions=tuple(orjson.loads(row["permissions"])),
    )


def approval_view(row: Row) -> ApprovalView:
    return ApprovalView(
        approval=approval(row),
        call_id=CallId(row["call_id"]),
        run_id=RunId(row["run_id"]),
        turn=row["turn"],
        tenant=row["tenant"],
        tool=row["tool"],
        arguments=row["arguments"],
    )


def standing_values(standing: StandingApproval, now: float) -> dict[str, Any]:
    return {
        "id": standing.id,
        "tenant": standing.tenant,
        "tool": standing.tool,
        "tier_max": standing.tier_max.value,
        "arguments": dump(standing.arguments),
        "expires_at": standing.expires_at,
        "created_by": standing.created_by,
        "created_at": now,
    }


def standing(row: Row) -> StandingApproval:
    return StandingApproval(
        id=row["id"],
        tenant=row["tenant"],
        tool=row["tool"],
        arguments=orjson.loads(row["arguments"]),
        expires_at=row["expires_at"],
        created_by=row["created_by"],
        created_at=row["created_at"],
        tier_max=Tier(row["tier_max"]),
    )


def audit_values(audit: Audit, tenant: str, now: float) -> dict[str, Any]:
    return {
        "at": now,
        "action": audit.action,
        "accepted": audit.accepted,
        "reason": audit.reason,
        "person": audit.by,
        "tenant": audit.tenant or tenant,
        "run_id": audit.run_id,
        "call_id": audit.call_id,
        "approval_id": audit.approval_id,
        "data": dump(audit.data),
    }


def audit(row: Row) -> Audit:
    return Audit(
        action=row["action"],
        accepted=row["accepted"],
        reason=row["reason"],
        by=row["person"],
        tenant=row["tenant"],
        run_id=row["run_id"],
        call_id=row["call_id"],
        approval_id=row["approval_id"],
        data=orjson.loads(row["data"]),
        at=row["at"],
    )
