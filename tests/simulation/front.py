"""The front door: submits the runs of the plan, cancels some, and keeps what it was promised."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import orjson

from tests.simulation.plan import AGENTS, REQUESTER, RunPlan
from toolfleet.schemas.effects import ApprovalStatus, arguments_hash
from toolfleet.schemas.errors import RunNotFinished, StoreUnavailable, UnknownRun
from toolfleet.schemas.events import ApprovalDecided, CancelRequested
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.ports import Applied, Transition
from toolfleet.schemas.run import CallState, NewRun
from toolfleet.workers.publisher import Publisher

if TYPE_CHECKING:
    from tests.simulation.world import World

RETRY_S = 0.7
SLOW_S = 45.0  # longer than a call may take, shorter than a question lives


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
        self._asked: set[str] = set()
        self.said: dict[tuple[str, str], set[tuple[str, str]]] = {}  # (call, arguments) -> (answer, by whom)
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
        for call in self._world.oracle.last[run_id].state.calls:
            asked = call.approval
            if asked is not None and asked.status is ApprovalStatus.PENDING and asked.id not in self._asked:
                self._asked.add(asked.id)
                self.process.keep(self._decide(plan, call))

    async def _decide(self, plan: RunPlan, call: CallState) -> None:
        """What the people who are asked do: the right thing, the wrong one, several, or none."""
        asked = call.approval
        assert asked is not None
        rng = random.Random(f"{self._world.seed}:{asked.id}")
        drawn = rng.choice(("approve", "approve", "approve", "edit", "reject", "never", "muddle"))
        what = drawn if plan.approver == "drawn" else plan.approver
        fixed_s = SLOW_S if what == "slow" else 0.2
        await self.process.clock.sleep(
            rng.choice((0.2, 1.0, 10.0, 59.0)) if plan.approver == "drawn" else fixed_s
        )
        if what == "never":
            return
        edited = orjson.dumps({"n": 1_000_000 + orjson.loads(call.arguments)["n"]}).decode()
        steps: list[tuple[str, str]] = [("bob", what), ("cat", "approve")]
        if what == "muddle":  # the requester, the same person again, and somebody who comes too late
            steps = [(REQUESTER, "approve"), ("bob", "approve"), ("bob", "approve"), ("cat", "approve")]
        seen_hash = asked.arguments_hash
        for by, answer in steps:
            arguments = edited if answer == "edit" else None
            event = ApprovalDecided(call.call_id, asked.id, answer, by, seen_hash, "because", arguments)
            sent = edited if seen_hash != asked.arguments_hash or arguments else call.arguments
            said = self.said.setdefault((call.call_id, sent), set())
            before = (answer, by) in said
            said.add((answer, by))
            applied, again = await self._say(plan.run_id, event)
            if applied.missed is None and arguments is not None:
                seen_hash = arguments_hash(arguments)
            if applied.missed is not None:
                self._world.story.fault("decision_refused", f"{by} {answer} {asked.id}: {applied.missed}")
                if not before and not again:  # the one whose answer was lost may have counted
                    said.discard((answer, by))
            await self._publisher.rows(applied.publish)
            await self.process.clock.sleep(1.0)

    async def _say(self, run_id: RunId, event: ApprovalDecided) -> tuple[Applied, bool]:
        """An answer that was lost is asked for again: what it did, it did once. With whether it was."""
        again = False
        while True:
            try:
                (applied,) = await self._store.transact([Transition(run_id, event)])
                return applied, again
            except StoreUnavailable:
                again = True
                await self.process.clock.sleep(RETRY_S)

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
            principal=REQUESTER,
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
