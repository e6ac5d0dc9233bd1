"""What one caller may reach: each id is looked up with the tenant it has to belong to, and foreign ones are not there."""

from __future__ import annotations

from dataclasses import dataclass

from toolfleet.api.context import Caller
from toolfleet.api.problems import Problem, ProblemRaised
from toolfleet.definitions import unknown_agent
from toolfleet.files import Files
from toolfleet.schemas.access import among
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.batches import BatchView
from toolfleet.schemas.errors import UnknownApproval, UnknownBatch, UnknownDead, UnknownEffect, UnknownRun
from toolfleet.schemas.files import StoredFile
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.views import ApprovalView, DeadLetter, EffectView, RunView


@dataclass(frozen=True, slots=True)
class Door:
    """The store as that caller sees it."""

    caller: Caller

    def _mine(self, tenant: str | None) -> bool:
        return self.caller.tenant is None or self.caller.tenant == tenant

    async def run(self, run_id: str) -> RunView:
        """Raises UnknownRun, for another tenant's run as for none."""
        view = await self.caller.api.client.store.run(RunId(run_id))
        if view is None or not self._mine(view.info.tenant):
            raise UnknownRun(
                f"no run is called {run_id!r}", hint="List them: GET /api/v1/runs", run_id=run_id
            )
        return view

    async def approval(self, approval_id: str) -> ApprovalView:
        """Raises UnknownApproval."""
        view = await self.caller.api.client.store.approval(approval_id)
        if view is None or not self._mine(view.tenant):
            raise UnknownApproval(
                f"there is no approval {approval_id!r}", hint="List them: GET /api/v1/approvals"
            )
        return view

    async def effect(self, call_id: str) -> EffectView:
        """Raises UnknownEffect."""
        view = await self.caller.api.client.store.effect(call_id)
        if view is None or not self._mine(view.tenant):
            raise UnknownEffect(
                f"no effect is held by call {call_id!r}", hint="List them: GET /api/v1/effects"
            )
        return view

    async def dead_letter(self, dead_id: str) -> DeadLetter:
        """Raises UnknownDead. A refused message belongs to no tenant that could be trusted."""
        letter = await self.caller.api.client.store.dead_letter(dead_id)
        if letter is None or not self._mine(letter.tenant):
            raise UnknownDead(
                f"no dead letter is called {dead_id!r}", hint="List them: GET /api/v1/dead-letters"
            )
        return letter

    async def batch(self, batch_id: str) -> BatchView:
        """Raises UnknownBatch."""
        view = await self.caller.api.batches.store.batch(batch_id, tenant=self.caller.tenant)
        if view is None:
            raise UnknownBatch(f"no batch is called {batch_id!r}", hint="List them: GET /api/v1/batches")
        return view

    async def file(self, file_id: str) -> StoredFile:
        """Raises UnknownFile."""
        return await self.files.get(file_id, tenant=self.caller.tenant)

    @property
    def files(self) -> Files:
        """Raises ProblemRaised where this fleet has no place for them."""
        found = self.caller.api.files
        if found is None:
            raise ProblemRaised(
                Problem(
                    503,
                    "no_files",
                    "this fleet has no place for files",
                    "Whoever runs it sets TOOLFLEET_FILES to a folder, the same for every replica.",
                )
            )
        return found

    def may_use(self, agent: str) -> bool:
        return self.caller.key is None or among(agent, self.caller.key.agents)

    async def agents(self) -> list[AgentSpec]:
        """As registered last, by name; those the caller may use."""
        return [one for one in await self.caller.api.client.store.agents() if self.may_use(one.name)]

    async def agent(self, name: str, version: str | None = None) -> AgentSpec:
        """Raises UnknownAgent, for one that the caller may not use as for none."""
        found = await self.caller.api.client.store.agent(name, version) if self.may_use(name) else None
        if found is None:
            raise unknown_agent(name, [one.name for one in await self.agents()])
        return found
