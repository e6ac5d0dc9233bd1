"""The workers of one process over given ports: which consumers there are, started, stopped and judged together.

Every queue has a consumer of its own with slots of its own: no message waits because another queue is long.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import structlog

from toolfleet.queues.envelope import Codec
from toolfleet.queues.policy import POLICIES
from toolfleet.queues.topology import QUEUE_BY_NAME, QUEUES, Role
from toolfleet.schemas.ids import new_token
from toolfleet.schemas.ports import (
    Clock,
    Governor,
    MessageLayer,
    ModelClient,
    RunStore,
    Telemetry,
    ToolBackend,
    ToolPace,
)
from toolfleet.schemas.views import QueueLoad
from toolfleet.settings import Settings
from toolfleet.workers.collector.handle import Collector
from toolfleet.workers.consumer import Consumer
from toolfleet.workers.consumer import Role as Working
from toolfleet.workers.decision.handle import Decider
from toolfleet.workers.decision.pace import ModelPace
from toolfleet.workers.decision.prepare import Preparer
from toolfleet.workers.executor.handle import Executor
from toolfleet.workers.keeper.handle import Keeper
from toolfleet.workers.leases import Leases
from toolfleet.workers.pace import UNPACED
from toolfleet.workers.points import Point, unarmed
from toolfleet.workers.progress import Progress, stuck
from toolfleet.workers.publisher import Publisher
from toolfleet.workers.telemetry import SILENT

log = structlog.get_logger("toolfleet.roles")

KEEPER: Final = "keeper"  # what stands for the keeper where roles are named by their queues
SERVED: Final = tuple(q.name for q in QUEUES if q.role in (Role.DECISION, Role.EXECUTOR, Role.COLLECTOR))
ALL_ROLES: Final = (*SERVED, KEEPER)


class Roles:
    """`queues`: those this process reads, and KEEPER where it keeps; all of them unless told otherwise. `model` may be
    missing where no decisions are read. `hooks`: the functions agents name in their rules."""

    def __init__(
        self,
        *,
        store: RunStore,
        layer: MessageLayer,
        codec: Codec,
        model: ModelClient | None,
        tools: ToolBackend,
        clock: Clock,
        settings: Settings,
        point: Point = unarmed,
        queues: Collection[str] = ALL_ROLES,
        longest_s: float = 0.0,
        telemetry: Telemetry = SILENT,
        pace: ToolPace = UNPACED,
        governor: Governor | None = None,
        hooks: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}"
        self.publisher = Publisher(store, layer, codec, clock.now_s)
        self.leases = Leases(store, clock, lease_s=settings.lease_s)
        self._longest_s = longest_s
        working: dict[str, Any] = {
            "store": store,
            "publisher": self.publisher,
            "leases": self.leases,
            "clock": clock,
            "owner": self.owner,
            "draw": random.Random().random,
            "token": new_token,
            "point": point,
            "telemetry": telemetry,
            "approvals": settings.approvals == "required",
        }
        model_pace = None if governor is None else _model_pace(governor, clock, self.owner, settings)
        preparer = Preparer(hooks, pace)
        self._decider = (
            None if model is None else Decider(model=model, pace=model_pace, preparer=preparer, **working)
        )
        self._executor = Executor(tools=tools, pace=pace, **working)
        told = {name: working[name] for name in ("store", "publisher", "clock", "point", "telemetry")}
        self._collector = Collector(**told)
        feed: dict[str, Any] = {"layer": layer, "codec": codec, "store": store, "clock": clock}
        feed["claim_s"] = settings.broker_claim_s
        self.consumers = [self._consumer(name, settings, feed) for name in SERVED if name in queues]
        self.keeper = Keeper(
            layer=layer,
            period_s=settings.keeper_period_s,
            lease_s=settings.lease_s,
            batch_in_flight_max=settings.batch_in_flight_max,
            **told,
        )
        self._keeps = KEEPER in queues
        self._drain_s = settings.drain_s
        self._consuming: list[asyncio.Task[None]] = []
        self._keeping: list[asyncio.Task[None]] = []

    def _consumer(self, queue: str, settings: Settings, feed: dict[str, Any]) -> Consumer:
        batch = POLICIES[queue].fetch_max
        roles: dict[Role, tuple[Working | None, int]] = {
            Role.DECISION: (self._decider, settings.decide_slots),
            Role.EXECUTOR: (self._executor, settings.exec_slots),
            Role.COLLECTOR: (self._collector, 2 * batch),
        }
        role, slots = roles[QUEUE_BY_NAME[queue].role]
        assert role is not None, "who reads decisions has a model"
        return Consumer(role, [queue], slots=slots, batch=batch, **feed)

    @property
    def dropped(self) -> int:
        """Messages that found no work: repeated, late, or overtaken ones."""
        decider = 0 if self._decider is None else self._decider.dropped
        return decider + self._executor.dropped + self._collector.dropped

    def progress(self) -> list[Progress]:
        """How each consumer gets on."""
        return [consumer.progress() for consumer in self.consumers]

    def stuck(self, loads: list[QueueLoad]) -> str:
        """Why this process does not get on; empty where it does. `loads`: what the database knows is outstanding."""
        ended = [task for task in (*self._consuming, *self._keeping) if task.done()]
        if ended:
            return f"{len(ended)} of its loops ended"
        found = (stuck(one, loads, longest_s=self._longest_s) for one in self.progress())
        return next((reason for reason in found if reason is not None), "")

    def start(self) -> None:
        """Start consuming and keeping, on the running loop."""
        self._consuming = [asyncio.create_task(consumer.run()) for consumer in self.consumers]
        self._keeping = [asyncio.create_task(self.leases.run())]
        if self._keeps:
            self._keeping.append(asyncio.create_task(self.keeper.run()))
        for task in (*self._consuming, *self._keeping):
            task.add_done_callback(_report)

    async def stop(self, *, drain_s: float | None = None) -> bool:
        """Fetch no more, let steps in flight end, give back the rest. True: everything in flight had ended."""
        grace_s = self._drain_s if drain_s is None else drain_s
        for consumer in self.consumers:
            consumer.stop()
        for task in self._consuming:
            task.cancel()
        await asyncio.gather(*self._consuming, return_exceptions=True)
        drained = await asyncio.gather(*(consumer.drain(grace_s=grace_s) for consumer in self.consumers))
        await self.leases.hand_back()
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for consumer in self.consumers:
            await consumer.abandon()
        return all(drained)


def _model_pace(governor: Governor, clock: Clock, owner: str, settings: Settings) -> ModelPace:
    who = f"{owner}:{new_token()}"  # of this start of this process
    return ModelPace(governor, clock, owner=who, draw=random.Random().random, quotas=settings.model_quotas)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("role_ended", exc_info=task.exception())
