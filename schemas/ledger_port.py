"""What the store knows of effects and of approvals, for executors before they act and for people: a part of RunStore."""

from __future__ import annotations

from typing import Protocol

from toolfleet.schemas.effects import Audit, StandingApproval
from toolfleet.schemas.ids import CommandId, RunId
from toolfleet.schemas.views import ApprovalView, EffectView


class LedgerStore(Protocol):
    """The effect ledger, questions to people, and the audit of what was decided."""

    async def key_waiters(self, key: str, *, limit: int) -> list[tuple[RunId, CommandId]]:
        """Calls that wait for that effect key, of whatever run."""
        ...

    async def effects(
        self,
        *,
        limit: int,
        state: str | None = None,
        tenant: str | None = None,
        run_id: str | None = None,
        before: str | None = None,
    ) -> list[EffectView]:
        """The one that changed last first; `before` is the call seen last."""
        ...

    async def effect(self, call_id: str) -> EffectView | None: ...

    async def approvals(
        self,
        *,
        limit: int,
        status: str | None = None,
        tenant: str | None = None,
        run_id: str | None = None,
        after: str | None = None,
    ) -> list[ApprovalView]:
        """The oldest question first; `after` is the one seen last."""
        ...

    async def approval(self, approval_id: str) -> ApprovalView | None: ...

    async def add_standing(self, standing: StandingApproval, audit: Audit) -> None: ...

    async def standing(self, tenant: str, tool: str) -> list[StandingApproval]:
        """Those that are in force."""
        ...

    async def standings(
        self, *, limit: int, tenant: str | None = None, tool: str | None = None, ended: bool = False
    ) -> list[StandingApproval]:
        """The one that was made last first; `ended`: those that are not in force any more, too."""
        ...

    async def standing_of(self, standing_id: str) -> StandingApproval | None: ...

    async def end_standing(self, standing_id: str, audit: Audit) -> bool: ...

    async def add_audit(self, audit: Audit) -> None: ...

    async def audits(self, *, limit: int, call_id: str | None = None) -> list[Audit]:
        """Newest first."""
        ...
