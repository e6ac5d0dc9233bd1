"""Where people decide: approvals, effects nobody could tell of, and who may answer for them.

An approver is whoever holds a key with the scope `approve` (access.py). Two keys of one name are one person. What cannot
be decided is refused with the reason, and written down as well as what was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

from toolfleet.access import TOKEN_PREFIX_APPROVER, Access, hashed
from toolfleet.schemas.access import ANY, Key, Scope
from toolfleet.schemas.effects import ApprovalStatus, Audit, EffectState
from toolfleet.schemas.errors import InputError, NotAllowed, UnknownApproval, UnknownEffect
from toolfleet.schemas.events import ApprovalDecided, EffectResolved
from toolfleet.schemas.ids import RunId, idempotency_key_of
from toolfleet.schemas.limits import QUIET_S
from toolfleet.schemas.ports import Applied, RunStore, Transition
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.tools import ToolSpec
from toolfleet.schemas.views import ApprovalView, DueRow, EffectView, RunEvent, RunInfo
from toolfleet.workers.decision.arguments import Valid, read_arguments

REASON_CHARS_MAX: Final = 2000
REFUSALS: Final = {
    "unknown": "it is no question of this call any more",
    "call_closed": "its call was settled or its run is stopping",
    "already_granted": "it was granted already",
    "already_rejected": "it was rejected already",
    "already_expired": "it has expired",
    "already_withdrawn": "it was withdrawn",
    "expired": "it has expired",
    "arguments_changed": "the arguments are not those you have seen; look at it again",
    "requester": "whoever the run acts for may not approve it",
    "same_person": "you confirmed it already; it takes another person",
    "another_person": "whoever confirmed first has to confirm again",
}

EVENTS_MAX: Final = 10_000

Publish = Callable[[Sequence[DueRow]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Looked:
    """What the tool's `reconcile` says of an effect now. `at`: the database's time, read before the question was sent.
    `result`: of `happened`, the JSON of what the tool would have returned; `why`: of `nothing`, why nobody knows."""

    answer: Literal["happened", "did_not_happen", "nothing"]
    at: float
    result: str | None = None
    why: str = ""


Look = Callable[[EffectView], Awaitable[Looked]]


@dataclass(frozen=True, slots=True)
class EffectFile:
    """All that is known of an effect: what an operator needs to find it at the other side, and to decide."""

    view: EffectView
    info: RunInfo
    idempotency_key: str
    result: CallResult | None
    approvals: tuple[ApprovalView, ...]
    events: tuple[RunEvent, ...]
    audits: tuple[Audit, ...]


@dataclass(slots=True)
class Approving:
    """The front door for decisions. `publish`: sends what became due, if this process can. `look`: asks a tool what
    became of its effect, where its code is loaded."""

    store: RunStore
    publish: Publish | None = None
    look: Look | None = None

    # -- questions -------------------------------------------------------------------------------------------------

    async def approvals(
        self,
        *,
        status: str | None = ApprovalStatus.PENDING,
        tenant: str | None = None,
        run_id: str | None = None,
        limit: int = 100,
    ) -> list[ApprovalView]:
        """The oldest question first; `status` None: whatever became of them."""
        if status is not None and status not in set(ApprovalStatus):
            known = ", ".join(one.value for one in ApprovalStatus)
            raise InputError(f"there is no approval status {status!r}", hint=f"One of: {known}.")
        return await self.store.approvals(limit=limit, status=status, tenant=tenant, run_id=run_id)

    async def approval(self, approval_id: str) -> ApprovalView:
        """Raises UnknownApproval."""
        found = await self.store.approval(approval_id)
        if found is None:
            raise UnknownApproval(
                f"there is no approval {approval_id!r}", hint="List them: toolfleet approvals ls"
            )
        return found

    async def approve(
        self, approval_id: str, *, token: str, reason: str = "", arguments_hash: str | None = None
    ) -> ApprovalView:
        """One confirmation. `arguments_hash`: of what the approver has seen, so that nothing else is approved.

        Raises UnknownApproval, NotAllowed with the reason."""
        return await self._decide(approval_id, "approve", token, reason, arguments_hash)

    async def reject(self, approval_id: str, *, token: str, reason: str) -> ApprovalView:
        """The model is told the reason. Raises as `approve`."""
        return await self._decide(approval_id, "reject", token, reason, None)

    async def edit(
        self,
        approval_id: str,
        *,
        token: str,
        arguments: Mapping[str, Any],
        reason: str = "",
        arguments_hash: str | None = None,
    ) -> ApprovalView:
        """Approve with other arguments: all of them, checked as the model's are; the model is told what really ran.

        Raises as `approve`, and InputError for arguments the tool does not take."""
        view = await self.approval(approval_id)
        text = await self._checked(view, arguments)
        return await self._decide(approval_id, "edit", token, reason, arguments_hash, text)

    async def _decide(
        self,
        approval_id: str,
        answer: str,
        token: str,
        reason: str,
        seen_hash: str | None,
        arguments: str | None = None,
    ) -> ApprovalView:
        if len(reason) > REASON_CHARS_MAX:
            raise InputError(f"the reason is longer than {REASON_CHARS_MAX} characters", hint="Shorten it.")
        view = await self.approval(approval_id)
        who = await self._entitled(view, answer, token)
        if view.approval.status is not ApprovalStatus.PENDING:
            await self._note(view, answer, who.name, f"already_{view.approval.status.value}")
            raise await self._refused(view, f"already_{view.approval.status.value}")
        event = ApprovalDecided(
            call_id=view.call_id,
            approval_id=approval_id,
            answer=answer,
            by=who.name,
            arguments_hash=view.approval.arguments_hash if seen_hash is None else seen_hash,
            reason=reason,
            arguments=arguments,
        )
        applied = await self._transition(view.run_id, event)
        now = await self.approval(approval_id)
        if applied.missed is not None:
            raise await self._refused(now, applied.missed)
        return now

    async def _refused(self, view: ApprovalView, missed: str) -> NotAllowed:
        """Why a decision did not count; where there was one before it, which: its status, by whom, when."""
        asked = view.approval
        why, first = REFUSALS.get(missed, missed), {}
        if missed.startswith("already_"):
            by = list(asked.granted_by) or await self._decided_by(view)
            first = {"decision": asked.status.value, "by": by, "decided_at": asked.decided_at}
            why += f" (by {', '.join(by)})" if by else ""
        return NotAllowed(
            f"approval {asked.id} was not changed: {why}",
            hint=f"toolfleet approvals show {asked.id} tells how it stands.",
            reason=missed,
            **first,
        )

    async def _decided_by(self, view: ApprovalView) -> list[str]:
        found = await self.store.audits(limit=100, call_id=view.call_id)
        return [
            one.by
            for one in found
            if one.accepted and one.action == "reject" and one.approval_id == view.approval.id
        ]

    async def _entitled(self, view: ApprovalView, answer: str, token: str) -> Key:
        """Whose token it is, if they may decide this. A refusal is written down."""
        who = await self._approver(token)
        if who is None:
            await self._note(view, answer, "", "unknown_token")
            raise NotAllowed(
                "this token is of no approver, or has expired or was revoked",
                hint="toolfleet approvers ls",
                reason="unknown_token",
            )
        asked = {"tenant": view.tenant, "tool": view.tool, "tier": view.approval.tier.value}
        missing = view.approval.permissions if answer != "reject" else ()
        what = who.may_approve(**asked, grants=missing)
        if what is not None:
            await self._note(view, answer, who.name, f"not_this_{what}")
            raise NotAllowed(
                f"{who.name} may not decide for {what} {asked.get(what, ', '.join(missing))!r}",
                hint="Ask somebody whose approver row allows it: toolfleet approvers ls",
                reason=f"not_this_{what}",
            )
        return who

    async def _approver(self, token: str) -> Key | None:
        """Who holds that token, if it is one that may approve, and is in force."""
        key = await self.store.key_of(hashed(token))
        return key if key is not None and key.state == "active" and Scope.APPROVE in key.scopes else None

    async def _note(self, view: ApprovalView, action: str, by: str, reason: str) -> None:
        await self.store.add_audit(
            Audit(
                action=action,
                accepted=False,
                reason=reason,
                by=by,
                tenant=view.tenant,
                run_id=view.run_id,
                call_id=view.call_id,
                approval_id=view.approval.id,
            )
        )

    async def _checked(self, view: ApprovalView, arguments: Mapping[str, Any]) -> str:
        """The canonical text of edited arguments."""
        spec = await self._spec(view)
        found = read_arguments(orjson.dumps(dict(arguments)).decode(), spec)
        if isinstance(found, Valid):
            return found.text
        wrong = "; ".join(f"{one['path']}: {one['message']}" for one in getattr(found, "field_errors", ()))
        raise InputError(
            found.message, hint=wrong or f"toolfleet tools show {view.tool} tells what it takes."
        )

    async def _spec(self, view: ApprovalView) -> ToolSpec:
        run = await self.store.run(RunId(view.run_id))
        assert run is not None, "an approval is of a run"
        agent = await self.store.agent(run.info.agent, run.info.agent_version)
        spec = None if agent is None else next((one for one in agent.tools if one.name == view.tool), None)
        if spec is None:
            raise InputError(
                f"the definition of {view.tool} is not stored, so other arguments cannot be checked",
                hint="Approve or reject it as it is.",
            )
        return spec

    # -- effects nobody could tell of ------------------------------------------------------------------------------

    async def effects(
        self,
        *,
        state: str | None = None,
        tenant: str | None = None,
        run_id: str | None = None,
        limit: int = 100,
    ) -> list[EffectView]:
        """The one that changed last first."""
        return await self.store.effects(limit=limit, state=state, tenant=tenant, run_id=run_id)

    async def effect(self, call_id: str) -> EffectView:
        """Raises UnknownEffect."""
        found = await self.store.effect(call_id)
        if found is None:
            raise UnknownEffect(f"no effect is held by call {call_id!r}", hint="toolfleet effects ls")
        return found

    async def effect_file(self, call_id: str) -> EffectFile:
        """The effect, what its call came to, who approved it, and every word that came later. Raises UnknownEffect."""
        view = await self.effect(call_id)
        run = await self.store.run(view.run_id)
        assert run is not None, "an effect is of a run"
        results = await self.store.results(view.run_id)
        approvals = await self.store.approvals(limit=EVENTS_MAX, run_id=view.run_id)
        events = await self.store.events(view.run_id, limit=EVENTS_MAX)
        return EffectFile(
            view=view,
            info=run.info,
            idempotency_key=idempotency_key_of(view.call_id),
            result=next((one for _, one in results if one.call_id == view.call_id), None),
            approvals=tuple(one for one in approvals if one.call_id == view.call_id),
            events=tuple(one for one in events if one.data.get("call_id") == view.call_id),
            audits=tuple(reversed(await self.store.audits(limit=EVENTS_MAX, call_id=view.call_id))),
        )

    async def resolve(
        self,
        call_id: str,
        *,
        happened: bool,
        token: str,
        note: str,
        answer: Any = None,
        confirmed: bool = False,
    ) -> EffectView:
        """T26: what somebody found out about an effect that waits for a human. `answer`: what the tool would have
        returned.

        "Did not happen" frees the key, so the tool's `reconcile` is asked once more first: where it knows better, that is
        refused; where nobody can be asked, it takes `confirmed`. Raises UnknownEffect, NotAllowed."""
        view = await self.effect(call_id)
        who = await self._approver(token)
        if who is None or who.may_approve(tenant=view.tenant, tool=view.tool, tier=view.tier):
            reason = "unknown_token" if who is None else "not_allowed"
            by = "" if who is None else who.name
            raise await self._not_resolved(
                view, by, reason, "this token may not answer for this effect", "toolfleet approvers ls"
            )
        asked = ""
        if not happened and view.entry.state is EffectState.NEEDS_HUMAN:
            asked = await self._asked_again(view, who, confirmed)
        text = None if answer is None else orjson.dumps(answer).decode()
        event = EffectResolved(view.call_id, happened, who.name, note, text, asked)
        applied = await self._transition(view.run_id, event)
        if applied.missed is not None:
            raise NotAllowed(
                f"the effect of {call_id} was not changed: {applied.missed}",
                hint=f"toolfleet effects show {call_id}",
                reason="not_waiting",
            )
        return await self.effect(call_id)

    async def _asked_again(self, view: EffectView, who: Key, confirmed: bool) -> str:
        """What was asked before the key is given free, and what came of it. Raises NotAllowed."""
        now = await self.store.now()
        until = view.entry.send_by + view.timeout_s + QUIET_S
        if now <= until:
            said = f"a request of it may still be on its way until {_utc(until)}"
            raise await self._not_resolved(
                view, who.name, "too_early", said, "Look again at the other side after that."
            )
        unasked = Looked("nothing", now, why="its code is not loaded here (name the fleet with -A)")
        looked = unasked if self.look is None else await self.look(view)
        as_of = f"as of {_utc(looked.at)}"
        if looked.answer == "happened":
            said = f"the other side says that it happened ({as_of}): {looked.result or 'null'}"
            hint = f"toolfleet effects resolve {view.call_id} happened --answer …"
            raise await self._not_resolved(view, who.name, "it_happened", said, hint)
        if looked.answer == "did_not_happen":
            return f"reconcile: did not happen, {as_of}"
        if confirmed:
            return f"confirmed; nobody could be asked {as_of}: {looked.why}"
        last = f"last asked at {_utc(view.entry.asked_at)}" if view.entry.asked_at else "never asked"
        said = (
            f"nobody can be asked whether {view.tool} took effect: {looked.why}. It was sent at or before "
            f"{_utc(view.entry.send_by)}, {last}; this is {as_of}"
        )
        hint = "Find out at the other side, then confirm that it may be made again (--yes, confirmed=True)."
        raise await self._not_resolved(view, who.name, "not_confirmed", said, hint)

    async def _not_resolved(
        self, view: EffectView, by: str, reason: str, message: str, hint: str
    ) -> NotAllowed:
        """The refusal, written down."""
        audit = Audit(
            action="resolve",
            accepted=False,
            reason=reason,
            by=by,
            tenant=view.tenant,
            run_id=view.run_id,
            call_id=view.call_id,
            data={"said": message},
        )
        await self.store.add_audit(audit)
        return NotAllowed(
            f"the effect of {view.call_id} was not changed: {message}", hint=hint, reason=reason
        )

    # -- who may decide --------------------------------------------------------------------------------------------

    async def add_approver(
        self,
        name: str,
        *,
        tenants: Sequence[str] = (ANY,),
        tools: Sequence[str] = (ANY,),
        tiers: Sequence[str] = (ANY,),
        grants: Sequence[str] = (),
    ) -> str:
        """The token, which is not stored and never shown again. `grants`: permissions they may grant for one call."""
        made = await Access(self.store).create(
            name,
            tenants=tenants,
            scopes=(Scope.APPROVE,),
            tools=tools,
            tiers=tiers,
            grants=grants,
            prefix=TOKEN_PREFIX_APPROVER,
        )
        return made.token

    async def approvers(self) -> list[Key]:
        """Whoever holds a key that may approve, also one that was revoked."""
        return [key for key in await self.store.keys() if Scope.APPROVE in key.scopes]

    async def revoke_approver(self, approver_id: str) -> None:
        """Its token is worth nothing from now on. Raises InputError for an unknown one."""
        if not await self.store.revoke_key(approver_id):
            raise InputError(
                f"there is no approver {approver_id!r} that could be revoked", hint="toolfleet approvers ls"
            )

    async def _transition(self, run_id: str, event: ApprovalDecided | EffectResolved) -> Applied:
        (applied,) = await self.store.transact([Transition(RunId(run_id), event)])
        if self.publish is not None and applied.publish:
            await self.publish(applied.publish)
        return applied


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
