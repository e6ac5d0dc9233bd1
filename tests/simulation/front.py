"""The front door: submits the runs of the plan, cancels some, and keeps what it was promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.plan import AGENTS, RunPlan
from toolfleet.schemas.errors import RunNotFinished, StoreUnavailable, UnknownRun
from toolfleet.schemas.events import CancelRequested
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.ports import Applied, Transition
from toolfleet.schemas.run import NewRun
from toolfleet.workers.publisher import Publisher

if TYPE_CHECKING:
    from tests.simulation.world import World

RETRY_S = 0.7


class Front:
    """A process that is never killed; it may not get to publish what it submitted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.process = world.new_process("front", 0)
        self._store = world.store_port(self.process)
        layer = world.layer_port(self.process)
        self._publisher = Publisher(self._store, layer, world.codec, world.clock.now_s)  # type: ignore[arg-type]
        self.accepted: list[RunId] = []
        self.expected = len(world.runs)  # runs that are not accepted yet
        self._cancels = sum(1 for plan in world.runs if plan.cancel_at is not None)

    def start(self) -> None:
        for plan in self._world.runs:
            self.process.keep(self._submit(plan))

    def cancels_to_come(self) -> int:
        return self._cancels

    def committed(self, run_id: RunId, number: int) -> None:
        """After the `number`-th commit of that run: cancels that wait for it."""
        plan = next(plan for plan in self._world.runs if plan.run_id == run_id)
        if plan.cancel_after_commits == number and run_id in self.accepted:
            self.process.keep(self.cancel(run_id))

    async def _submit(self, plan: RunPlan) -> None:
        clock = self.process.clock
        await clock.sleep(plan.submit_at)
        agent = AGENTS[plan.agent]
        new = NewRun(
            run_id=plan.run_id,
            agent=agent.name,
            agent_version=agent.version,
            prompt_version=agent.prompt_version,
            toolset_version=agent.toolset_version,
            input=str(plan.index),
            lane=plan.lane,
            limits=plan.limits,
            previous_run_id=self._world.plans[plan.follows].run_id if plan.follows is not None else None,
            idempotency_key=f"key-{plan.index}",
            request_hash=f"hash-{plan.index}",
            deadline_s=plan.deadline_s,
            reserve_usd=0.005,
        )
        while True:
            try:
                (submission,) = await self._store.submit([new])
                break
            except (StoreUnavailable, RunNotFinished, UnknownRun):
                await clock.sleep(RETRY_S)
        self._world.story.say("front", f"{plan.run_id} is accepted (new: {submission.created})")
        self.accepted.append(plan.run_id)
        self.expected -= 1
        await self._publisher.rows(submission.publish)
        if plan.cancel_at is not None:
            await clock.sleep(plan.cancel_at)
            await self.cancel(plan.run_id)
            self._cancels -= 1

    async def cancel(self, run_id: RunId) -> None:
        """T21, asked again until it is answered; from then on the acknowledgement binds."""
        while True:
            try:
                (applied,) = await self._store.transact([Transition(run_id, CancelRequested("user"))])
                break
            except StoreUnavailable:
                await self.process.clock.sleep(RETRY_S)
        self._acknowledged(run_id, applied)
        await self._publisher.rows(applied.publish)

    def _acknowledged(self, run_id: RunId, applied: Applied) -> None:
        assert applied.state is not None
        running = frozenset(call.call_id for call in applied.state.open_calls if call.dispatched)
        before = applied.before
        if before is not None and before.terminal:
            return  # too late: nothing was cancelled
        self._world.oracle.acknowledged.setdefault(run_id, running)
        self._world.story.fault("cancel", f"{run_id} acknowledged, running: {sorted(running)}")
