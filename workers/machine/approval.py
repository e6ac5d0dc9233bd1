"""Approvals as transitions: asked for (T9), decided (T19). What became of them is settled by `present.refused`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.effects import Approval, ApprovalStatus, Audit, arguments_hash
from toolfleet.schemas.events import ApprovalDecided, ApprovalRequested
from toolfleet.schemas.ids import call_command_id
from toolfleet.schemas.outcomes import CallWaiting, Tier
from toolfleet.schemas.records import AppendAudit, Step
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import deadline
from toolfleet.workers.machine.draft import Draft, miss, stopping
from toolfleet.workers.machine.present import before_it_begins

_DECIDED = (ApprovalStatus.PENDING, ApprovalStatus.GRANTED, ApprovalStatus.REJECTED)


def requested(state: RunState, event: ApprovalRequested, now_s: float) -> Step:
    """T9: the question exists, and the call waits for its answer or for the end of its time."""
    found = before_it_begins(state, event.command_id, event.token, now_s)
    if isinstance(found, str):
        return miss(state, found)
    row, call = found
    if stopping(state):
        return miss(state, "run is stopping")
    if not (call.terms.asks or (call.terms.grantable and event.permissions)):
        return miss(state, "nobody has to be asked")
    if event.arguments_hash != arguments_hash(call.arguments):
        return miss(state, "not the arguments of this call")
    if call.approval is not None and call.approval.status in _DECIDED and fits(call, event.permissions):
        return miss(state, "asked already")
    asked = _question(call, event, now_s)
    draft = Draft(state, now_s)
    draft.set_call(call.call_id, deadline_at=deadline.asked_again(call, now_s))
    if asked.standing is not None:
        draft.put(row.due(now_s))
        draft.set_call(call.call_id, approval=asked, waiting=CallWaiting.READY)
        draft.add(_audit(state, call, asked, "standing", asked.granted_by[0], True, "standing"))
        return draft.step()
    draft.put(row.due(asked.expires_at))
    draft.set_call(call.call_id, approval=asked, waiting=CallWaiting.AWAITING_APPROVAL)
    draft.add(_audit(state, call, asked, "ask", event.requested_by, True, "asked"))
    draft.event(
        "approval.requested",
        approval_id=asked.id,
        call_id=call.call_id,
        turn=state.turn,
        tool=call.tool,
        tier=call.tier.value,
        expires_at=asked.expires_at,
        permissions=list(asked.permissions),
    )
    return draft.step()


def fits(call: CallState, permissions: Sequence[str] = ()) -> bool:
    """The question asked last is about these arguments, at this tier, and grants no less than these permissions."""
    asked = call.approval
    return (
        asked is not None
        and asked.tier is call.tier
        and asked.arguments_hash == arguments_hash(call.arguments)
        and set(permissions) <= set(asked.permissions)
    )


def asks(call: CallState) -> bool:
    """Somebody's yes is needed: by its tier, or because a permission was missing and is asked for."""
    return call.terms.asks or (call.approval is not None and bool(call.approval.permissions))


def granted(call: CallState, sent_hash: str, now_s: float) -> bool:
    """What is about to be sent was approved, by enough people, and the approval is alive."""
    if not asks(call):
        return True
    asked = call.approval
    return (
        asked is not None
        and asked.status is ApprovalStatus.GRANTED
        and asked.expires_at > now_s
        and asked.arguments_hash == sent_hash
        and asked.tier is call.tier
    )


def lapsed(state: RunState, row: CommandRow, call: CallState, why: str, now_s: float) -> Step:
    """T10: what granted the call holds no more where it is about to be used. It is not sent, and is asked for anew."""
    asked = call.approval
    assert asked is not None, "only what was granted lapses"
    asked = replace(asked, status=ApprovalStatus.WITHDRAWN)
    draft = Draft(state, now_s)
    draft.put(row.due(now_s))
    draft.set_call(call.call_id, approval=asked, waiting=CallWaiting.READY)
    draft.add(_audit(state, call, asked, "claim", ", ".join(asked.granted_by), False, why))
    draft.event(
        "approval.lapsed",
        approval_id=asked.id,
        call_id=call.call_id,
        turn=state.turn,
        tool=call.tool,
        reason=why,
    )
    return draft.step()


def _question(call: CallState, event: ApprovalRequested, now_s: float) -> Approval:
    number = 1 if call.approval is None else int(call.approval.id.rpartition("_")[2]) + 1
    steps = 2 if call.terms.two_person or call.terms.double_confirm else 1
    by_another = call.tier is Tier.IRREVERSIBLE or bool(event.permissions)
    standing = event.standing if steps == 1 and not by_another else None
    return Approval(
        id=f"apr_{call.call_id.removeprefix('call_')}_{number}",
        status=ApprovalStatus.PENDING if standing is None else ApprovalStatus.GRANTED,
        tier=call.tier,
        arguments_hash=event.arguments_hash,
        requested_at=now_s,
        expires_at=now_s + event.expires_s,
        requested_by=event.requested_by,
        summary=event.summary,
        steps=steps,
        distinct=call.terms.two_person,
        by_another=by_another,
        granted_by=() if standing is None else (f"standing:{standing}",),
        decided_at=None if standing is None else now_s,
        standing=standing,
        permissions=event.permissions,
    )


def decided(state: RunState, event: ApprovalDecided, now_s: float) -> Step:
    """T19: granted, confirmed once of twice, changed, or rejected. What is refused is written down as well."""
    call = state.call(event.call_id)
    refused = _refusal(state, call, event, now_s)
    if call is None or call.approval is None or refused is not None:
        why = refused or "unknown"
        return Step(
            state, (_audit(state, call, None, event.answer, event.by, False, why, event),), missed=why
        )
    draft = Draft(state, now_s)
    asked = call.approval
    if event.answer == "reject":
        asked = replace(asked, status=ApprovalStatus.REJECTED, decided_at=now_s, reason=event.reason)
    else:
        changed = event.arguments is not None and event.arguments != call.arguments
        if changed:
            assert event.arguments is not None
            asked = replace(asked, arguments_hash=arguments_hash(event.arguments))
            draft.set_call(call.call_id, arguments=event.arguments, edited=True)
        by = (
            (event.by,) if changed else (*asked.granted_by, event.by)
        )  # who confirmed the old ones did not these
        enough = len(by) >= asked.steps
        status = ApprovalStatus.GRANTED if enough else ApprovalStatus.PENDING
        asked = replace(
            asked,
            status=status,
            granted_by=by,
            reason=event.reason,
            decided_at=now_s if enough else None,
        )
    draft.set_call(call.call_id, approval=asked)
    if asked.status is not ApprovalStatus.PENDING:
        row = state.command(call_command_id(call.call_id))
        assert row is not None, "looked at above"
        draft.put(row.due(now_s))
        draft.set_call(call.call_id, waiting=CallWaiting.READY)
    draft.add(_audit(state, call, asked, event.answer, event.by, True, asked.status.value, event))
    draft.event(
        "approval.decided",
        approval_id=asked.id,
        call_id=call.call_id,
        answer=event.answer,
        status=asked.status.value,
        by=event.by,
    )
    return draft.step()


def _refusal(state: RunState, call: CallState | None, event: ApprovalDecided, now_s: float) -> str | None:
    """Why this decision does not count, as a code; None: it does."""
    asked = None if call is None else call.approval
    if call is None or asked is None or asked.id != event.approval_id:
        return "unknown"
    if asked.status is not ApprovalStatus.PENDING:
        return f"already_{asked.status.value}"
    row = state.command(call_command_id(call.call_id))
    if not call.open or stopping(state) or row is None or row.token is not None:
        return "call_closed"
    if asked.expires_at <= now_s:
        return "expired"
    if event.arguments_hash != asked.arguments_hash:
        return "arguments_changed"
    if event.answer == "reject":
        return None
    if asked.by_another and event.by == asked.requested_by:
        return "requester"
    if asked.distinct and event.by in asked.granted_by:
        return "same_person"
    if asked.steps > 1 and not asked.distinct and asked.granted_by and event.by not in asked.granted_by:
        return "another_person"
    return None


def _audit(
    state: RunState,
    call: CallState | None,
    asked: Approval | None,
    action: str,
    by: str,
    accepted: bool,
    reason: str,
    event: ApprovalDecided | None = None,
) -> AppendAudit:
    data: dict[str, Any] = {"said": event.reason} if event is not None and event.reason else {}
    if call is not None:
        data |= {"tool": call.tool, "tier": call.tier.value}
    if asked is not None and asked.permissions:
        data |= {"permissions": list(asked.permissions)}
    if event is not None and event.arguments is not None and call is not None:
        data |= {"arguments_before": call.arguments, "arguments": event.arguments}
    return AppendAudit(
        Audit(
            action=action,
            accepted=accepted,
            reason=reason,
            by=by,
            run_id=state.run_id,
            call_id=event.call_id if event is not None else (call.call_id if call is not None else None),
            approval_id=event.approval_id if event is not None else (asked.id if asked is not None else None),
            data=data,
        )
    )
