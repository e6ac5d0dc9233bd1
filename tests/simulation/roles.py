"""Puts one real role into one process, as the composition root does."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.model import ScriptedModel
from tests.simulation.process import Process
from tests.simulation.tools import SimulatedTools
from toolfleet.queues.topology import Role, queues_of
from toolfleet.workers.collector.handle import Collector
from toolfleet.workers.consumer import Consumer
from toolfleet.workers.decision.handle import Decider
from toolfleet.workers.executor.handle import Executor
from toolfleet.workers.keeper.handle import Keeper
from toolfleet.workers.leases import Leases
from toolfleet.workers.publisher import Publisher

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(slots=True)
class Deployed:
    """A running process with its parts."""

    process: Process
    leases: Leases
    consumers: list[Consumer] = field(default_factory=list)
    consuming: list[asyncio.Task[Any]] = field(default_factory=list)
    stopping: bool = False

    async def stop(self, grace_s: float) -> None:
        """T24, in the order of app.Roles.stop."""
        for consumer in self.consumers:
            consumer.stop()
        for task in self.consuming:
            task.cancel()
        await asyncio.gather(*self.consuming, return_exceptions=True)
        for consumer in self.consumers:
            await consumer.drain(grace_s=grace_s)
        await self.leases.hand_back()
        for consumer in self.consumers:
            await consumer.abandon()


def deploy(world: World, process: Process) -> Deployed:
    """Build the role of `process` and start it."""
    store, layer = world.store_port(process), world.layer_port(process)
    clock = process.clock
    publisher = Publisher(store, layer, world.codec, clock.now_s)  # type: ignore[arg-type]
    leases = Leases(store, clock)  # type: ignore[arg-type]

    async def point(name: str) -> None:
        await world.faults.hit(process, name)

    deployed = Deployed(process, leases)
    if process.kind == "keeper":
        keeper = Keeper(store=store, layer=layer, publisher=publisher, clock=clock, point=point)  # type: ignore[arg-type]
        process.keep(keeper.run())
        return deployed
    rng = random.Random(f"{world.seed}:{process.name}")
    working: dict[str, Any] = {
        "store": store,
        "publisher": publisher,
        "leases": leases,
        "clock": clock,
        "owner": process.name,
        "draw": rng.random,
        "token": world.token,
        "point": point,
    }
    role: Any
    if process.kind == "decider":
        model = ScriptedModel(process, world.plans, world.faults, world.ledger)
        role, reads = Decider(model=model, **working), Role.DECISION
    elif process.kind == "executor":
        tools = SimulatedTools(
            process, world.seed, world.faults, world.ledger, _hits(world, process), world.later
        )
        role, reads = Executor(tools=tools, **working), Role.EXECUTOR
    else:
        role = Collector(store=store, publisher=publisher, clock=clock, point=point)  # type: ignore[arg-type]
        reads = Role.COLLECTOR
    consumer = Consumer(
        role,
        queues_of(reads),
        layer=layer,
        codec=world.codec,
        store=store,  # type: ignore[arg-type]
        clock=clock,
        slots=rng.choice((2, 8, 64)),
        batch=rng.choice((1, 4, 32)),
    )
    deployed.consumers = [consumer]
    deployed.consuming = [process.keep(consumer.run())]
    process.keep(leases.run())
    return deployed


def _hits(world: World, process: Process) -> Any:
    async def hit(at: str, **ids: Any) -> None:
        await world.faults.hit(process, at, **ids)

    return hit
