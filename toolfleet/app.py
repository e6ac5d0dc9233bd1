"""Composition root and MAP of the system: here ports meet adapters, and here alone.

    submit ─► decide.* ─► Decider ─► exec.<tier> ─► Executor ─► results ─► Collector ─► decide.* …
              (model)               (tools)                     (one merge per turn)
    Keeper: what no message will ever wake.            RunStore: the truth.            MessageLayer: a cache of intent.

`EmbeddedFleet` is all roles in one process over SQLite and in-process queues: needs no server, survives kill -9.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.engine import make_url

from toolfleet.adapters.broker.memory import MemoryLayer
from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.folder_lock import FolderLock
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.adapters.tools.python_function import PythonTools
from toolfleet.definitions import Registry
from toolfleet.queues.envelope import Codec, KeyRing
from toolfleet.queues.policy import POLICIES
from toolfleet.schemas.commands import DECIDE_QUEUES, EXEC_QUEUES, RESULTS_QUEUE
from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.schemas.ids import new_token
from toolfleet.schemas.outcomes import Lane, Tier
from toolfleet.schemas.ports import Clock, MessageLayer, ModelClient, RunStore, ToolBackend
from toolfleet.schemas.views import HeldLease
from toolfleet.settings import Settings
from toolfleet.workers.collector.handle import Collector
from toolfleet.workers.consumer import Consumer
from toolfleet.workers.decision.handle import Decider
from toolfleet.workers.executor.handle import Executor
from toolfleet.workers.keeper.handle import Keeper
from toolfleet.workers.keeper.leases import take_over
from toolfleet.workers.keeper.relay import heal_wipe
from toolfleet.workers.leases import Leases
from toolfleet.workers.machine import MACHINE
from toolfleet.workers.points import Point, unarmed
from toolfleet.workers.publisher import Publisher

log = structlog.get_logger("toolfleet.app")

GATED_TIERS = (Tier.HIGH, Tier.IRREVERSIBLE)


def open_store(settings: Settings) -> SqlStore:
    """The store of these settings. Raises NotMigrated, NewerSchema, StoreUnavailable when it is used first."""
    return SqlStore(settings.database, MACHINE)


def check_tiers(registry: Registry, settings: Settings) -> list[str]:
    """The tools above medium; refused unless approvals are switched off on purpose."""
    gated = sorted(name for name, tool in registry.tools.items() if tool.spec.tier in GATED_TIERS)
    if gated and settings.approvals != "off":
        raise UnsafeSettings(
            f"{len(gated)} tool(s) are above tier medium and nobody would be asked before they run: {', '.join(gated)}",
            hint='Approvals are not built yet. Run without these tools, or accept it with approvals="off" '
            "(TOOLFLEET_APPROVALS=off).",
        )
    return gated


class Roles:
    """The workers of one process over given ports: consumers, keeper and leases, started and stopped together."""

    def __init__(
        self,
        *,
        store: RunStore,
        layer: MessageLayer,
        codec: Codec,
        model: ModelClient,
        tools: ToolBackend,
        clock: Clock,
        settings: Settings,
        point: Point = unarmed,
    ) -> None:
        owner = f"{socket.gethostname()}:{os.getpid()}"
        self.publisher = Publisher(store, layer, codec, clock.now_s)
        self.leases = Leases(store, clock, lease_s=settings.lease_s)
        self._clock = clock
        draw = random.Random().random
        working: dict[str, Any] = {
            "store": store,
            "publisher": self.publisher,
            "leases": self.leases,
            "clock": clock,
            "owner": owner,
            "draw": draw,
            "token": new_token,
            "point": point,
        }
        decider = Decider(model=model, **working)
        executor = Executor(tools=tools, **working)
        collector = Collector(store=store, publisher=self.publisher, clock=clock, point=point)
        self._counted = (decider, executor, collector)
        feed: dict[str, Any] = {"layer": layer, "codec": codec, "store": store, "clock": clock}
        self.consumers = _consumers(decider, executor, collector, settings, feed)
        self.keeper = Keeper(
            store=store,
            layer=layer,
            publisher=self.publisher,
            clock=clock,
            point=point,
            period_s=settings.keeper_period_s,
            lease_s=settings.lease_s,
        )
        self._drain_s = settings.drain_s
        self._consuming: list[asyncio.Task[None]] = []
        self._keeping: list[asyncio.Task[None]] = []

    @property
    def dropped(self) -> int:
        """Messages that found no work: repeated, late, or overtaken ones."""
        return sum(role.dropped for role in self._counted)

    def start(self) -> None:
        """Start consuming and keeping, on the running loop."""
        self._consuming = [asyncio.create_task(consumer.run()) for consumer in self.consumers]
        self._keeping = [asyncio.create_task(self.keeper.run()), asyncio.create_task(self.leases.run())]
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


def _consumers(
    decider: Decider, executor: Executor, collector: Collector, settings: Settings, feed: dict[str, Any]
) -> list[Consumer]:
    """One consumer for decisions (interactive first), one for results, one for each tier."""
    decide_queues = [DECIDE_QUEUES[Lane.INTERACTIVE], DECIDE_QUEUES[Lane.BATCH]]
    decide_batch = POLICIES[decide_queues[0]].fetch_max
    results_batch = POLICIES[RESULTS_QUEUE].fetch_max
    return [
        Consumer(decider, decide_queues, slots=settings.decide_slots, batch=decide_batch, **feed),
        Consumer(collector, [RESULTS_QUEUE], slots=2 * results_batch, batch=results_batch, **feed),
        *(
            Consumer(executor, [queue], slots=settings.exec_slots, batch=POLICIES[queue].fetch_max, **feed)
            for queue in EXEC_QUEUES.values()
        ),
    ]


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("role_ended", exc_info=task.exception())


class EmbeddedFleet:
    """Every role in this process: SQLite, in-process queues, children for plain functions."""

    def __init__(
        self, registry: Registry, settings: Settings, model: ModelClient, *, store: SqlStore | None = None
    ) -> None:
        check_tiers(registry, settings)
        if settings.broker != "memory://":
            raise UnsafeSettings(
                f"broker {settings.broker!r} is not known",
                hint="This release has the embedded one: memory://.",
            )
        self._registry = registry
        self._settings = settings
        self._model = model
        self._lock = FolderLock(lock_path(settings.database))
        self._owns_store = store is None
        self.store = store if store is not None else open_store(settings)
        self._tools: PythonTools | None = None
        self._roles: Roles | None = None
        self._layer: MemoryLayer | None = None

    @property
    def publisher(self) -> Publisher:
        assert self._roles is not None, "the fleet is not started"
        return self._roles.publisher

    @property
    def dropped(self) -> int:
        return 0 if self._roles is None else self._roles.dropped

    async def start(self) -> None:
        """Take the folder's lock, take over what a dead process left, start all roles. Raises FleetBusy."""
        self._lock.acquire()
        try:
            await self._start()
        except BaseException:
            self._lock.release()
            raise

    async def _start(self) -> None:
        settings = self._settings
        clock = SystemClock()
        self._tools = PythonTools(self._registry.tools, children=settings.children)
        self._layer = MemoryLayer()
        self._roles = Roles(
            store=self.store,
            layer=self._layer,
            codec=Codec(_keys(settings), clock.now_s),
            model=self._model,
            tools=self._tools,
            clock=clock,
            settings=settings,
        )
        await self.store.register_agents(list(self._registry.agents.values()))
        await heal_wipe(self.store, self._layer, unarmed)
        await take_over(self.store, self._roles.publisher, self._could_kill)
        self._roles.start()
        log.info("fleet_started", database=make_url(settings.database).render_as_string(hide_password=True))

    async def stop(self, *, drain_s: float | None = None) -> None:
        """Drain and stop; what is left is outstanding in the database and goes on at the next start."""
        if self._roles is not None:
            await self._roles.stop(drain_s=drain_s)
        if self._tools is not None:
            await self._tools.aclose()
        await self._model.aclose()
        if self._layer is not None:
            await self._layer.aclose()
        if self._owns_store:
            await self.store.aclose()
        self._lock.release()

    def _could_kill(self, held: HeldLease) -> bool:
        """Only a tool that ran inside the dead process can have killed it."""
        if held.tool is None:
            return False
        tool = self._registry.tools.get(held.tool)
        return tool is not None and tool.spec.runner == "loop"


def lock_path(database: str) -> Path:
    """The lock file beside an SQLite database. Raises UnsafeSettings for a database that cannot be embedded."""
    url = make_url(database)
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        raise UnsafeSettings(
            f"an embedded fleet needs an SQLite file, not {url.render_as_string(hide_password=True)!r}",
            hint="Use --database sqlite:///path/to/fleet.db.",
        )
    if url.database.startswith("file:") or "uri" in url.query:
        raise UnsafeSettings(
            f"an embedded fleet needs a plain path, not the SQLite URI {url.database!r}",
            hint="Use --database sqlite:///path/to/fleet.db.",
        )
    path = Path(url.database).resolve()  # a symbolic link to the file is the same fleet
    if path.exists() and path.stat().st_nlink > 1:
        raise UnsafeSettings(
            f"{path.name} has {path.stat().st_nlink} hard links, so two fleets could run on one database",
            hint="Remove the other names, or copy the file.",
        )
    return path.with_name(path.name + ".lock")


def _keys(settings: Settings) -> KeyRing:
    if settings.signing_keys is None:
        return KeyRing.ephemeral()
    return KeyRing.parse(settings.signing_keys.get_secret_value())
