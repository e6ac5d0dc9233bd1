"""Effects, approvals and approvers of the store in memory: the fake's counterpart of `ledger_rows.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from toolfleet.adapters.store.memory_run import MemoryRun
from toolfleet.schemas.access import Key, lapsed
from toolfleet.schemas.effects import HOLDING, ApprovalStatus, Audit, Holder, StandingApproval
from toolfleet.schemas.events import EffectClaimed, EffectEnded, EffectResolved, Event
from toolfleet.schemas.ids import CommandId, RunId
from toolfleet.schemas.run import RunState
from toolfleet.schemas.views import ApprovalView, EffectView


class MemoryLedger:
    """What is not of one run, and looking across all of them. `runs` are the store's own."""

    def __init__(self, runs: dict[RunId, MemoryRun]) -> None:
        self._runs = runs
        self._standing: dict[str, StandingApproval] = {}
        self._audits: list[Audit] = []

    def informed(self, event: Event, state: RunState, keys: Iterable[Key] = (), now: float = 0.0) -> Event:
        match event:
            case EffectClaimed():
                why = self._lapsed(state, event.command_id, tuple(keys), now)
                return replace(event, holder=self._holder(event.key), lapsed=why)
            case EffectResolved():
                found = self._runs[state.run_id].effects.get(event.call_id)
                return replace(event, found=None if found is None else found.entry)
            case EffectEnded() if state.call(event.command_id) is None:
                found = self._runs[state.run_id].effects.get(event.command_id)
                return replace(event, found=None if found is None else found.entry)
            case _:
                return event

    def _lapsed(self, state: RunState, call_id: str, keys: Sequence[Key], now: float) -> str:
        call = state.call(call_id)
        asked = None if call is None else call.approval
        if call is None or asked is None or asked.status is not ApprovalStatus.GRANTED:
            return ""
        tenant = self._runs[state.run_id].new.tenant
        found = None if asked.standing is None else self._standing.get(asked.standing)
        return lapsed(asked, tenant=tenant, tool=call.tool, keys=keys, standing=found, now=now)

    def _effects(self) -> Iterable[EffectView]:
        return (view for run in self._runs.values() for view in run.effects.values())

    def _holder(self, key: str) -> Holder | None:
        held = [view for view in self._effects() if view.entry.key == key and view.entry.state in HOLDING]
        assert len(held) <= 1, "two effects hold one key"
        if not held:
            return None
        (view,) = held
        result = self._runs[view.run_id].results.get((view.turn, view.call_id))
        return Holder(view.run_id, view.call_id, view.entry.state, result, view.answer)

    def check_keys(self, changed: MemoryRun) -> None:
        """What the unique index does: raises before anything is written."""
        mine = [one.entry.key for one in changed.effects.values() if one.entry.state in HOLDING]
        others = (
            {
                view.entry.key
                for run_id, run in self._runs.items()
                if run_id != changed.new.run_id
                for view in run.effects.values()
                if view.entry.state in HOLDING
            }
            if mine
            else set()
        )
        assert len(set(mine)) == len(mine) and others.isdisjoint(mine), "two effects hold one key"

    def waiters(self, key: str, limit: int) -> list[tuple[RunId, CommandId]]:
        found = [
            (run_id, row.id)
            for run_id, run in self._runs.items()
            for row in run.state.commands
            if row.token is None and row.call_id is not None
            for call in [run.state.call(row.call_id)]
            if call is not None and call.waits_key == key
        ]
        return found[:limit]

    def effects(
        self,
        *,
        limit: int,
        state: str | None,
        tenant: str | None,
        run_id: str | None,
        before: str | None = None,
    ) -> list[EffectView]:
        last = next(((one.changed_at, one.call_id) for one in self._effects() if one.call_id == before), None)
        found = [
            view
            for view in self._effects()
            if state in (None, view.entry.state.value)
            and tenant in (None, view.tenant)
            and run_id in (None, view.run_id)
            and (before is None or (last is not None and (view.changed_at, view.call_id) < last))
        ]
        return sorted(found, key=lambda view: (view.changed_at, view.call_id), reverse=True)[:limit]

    def effect(self, call_id: str) -> EffectView | None:
        return next((view for view in self._effects() if view.call_id == call_id), None)

    def _approvals(self) -> Iterable[ApprovalView]:
        return (view for run in self._runs.values() for view in run.approvals.values())

    def approvals(
        self,
        *,
        limit: int,
        status: str | None,
        tenant: str | None,
        run_id: str | None,
        after: str | None = None,
    ) -> list[ApprovalView]:
        seen = None if after is None else self.approval(after)
        last = None if seen is None else (seen.approval.requested_at, seen.approval.id)
        found = [
            view
            for view in self._approvals()
            if status in (None, view.approval.status.value)
            and tenant in (None, view.tenant)
            and run_id in (None, view.run_id)
            and (
                after is None or (last is not None and (view.approval.requested_at, view.approval.id) > last)
            )
        ]
        return sorted(found, key=lambda view: (view.approval.requested_at, view.approval.id))[:limit]

    def approval(self, approval_id: str) -> ApprovalView | None:
        return next((view for view in self._approvals() if view.approval.id == approval_id), None)

    def add_standing(self, standing: StandingApproval, audit: Audit, now: float) -> None:
        self._standing[standing.id] = replace(standing, created_at=now)
        self.add_audit(audit, now)

    def standing(self, tenant: str, tool: str, now: float) -> list[StandingApproval]:
        found = [one for one in self._standing.values() if (one.tenant, one.tool) == (tenant, tool)]
        return sorted((one for one in found if one.expires_at > now), key=lambda one: one.id)

    def standings(
        self, limit: int, tenant: str | None, tool: str | None, now: float | None
    ) -> list[StandingApproval]:
        found = [
            one
            for one in self._standing.values()
            if tenant in (None, one.tenant)
            and tool in (None, one.tool)
            and (now is None or one.expires_at > now)
        ]
        return sorted(found, key=lambda one: (one.created_at, one.id), reverse=True)[:limit]

    def standing_of(self, standing_id: str) -> StandingApproval | None:
        return self._standing.get(standing_id)

    def end_standing(self, standing_id: str, audit: Audit, now: float) -> bool:
        found = self._standing.get(standing_id)
        if found is None or found.expires_at <= now:
            return False
        self._standing[standing_id] = replace(found, expires_at=now)
        self.add_audit(audit, now)
        return True

    def add_audit(self, audit: Audit, now: float) -> None:
        self._audits.append(replace(audit, at=now))

    def audits(self, *, limit: int, call_id: str | None) -> list[Audit]:
        return [one for one in reversed(self._audits) if call_id in (None, one.call_id)][:limit]
