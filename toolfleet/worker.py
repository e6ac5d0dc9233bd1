"""One worker process of a fleet: some roles over a broker and a database that many processes share."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import structlog

from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.store.engine import READERS
from toolfleet.app import contract_tools, longest_step_s, open_store
from toolfleet.brokers import open_codec, open_layer, refuse_unsafe
from toolfleet.cache import Cache, open_cache, refuse_unsafe_cache
from toolfleet.definitions import Registry
from toolfleet.fault_points import armed
from toolfleet.health import HealthServer
from toolfleet.prices import refuse_unpriced
from toolfleet.queues.topology import Role, queues_of
from toolfleet.roles import ALL_ROLES, KEEPER, Roles
from toolfleet.schemas.errors import InputError, StoreUnavailable
from toolfleet.schemas.limits import WORKER_BEAT_S
from toolfleet.schemas.ports import MessageLayer, ModelClient, RunStore
from toolfleet.schemas.views import QueueLoad, WorkerBeat
from toolfleet.settings import Settings
from toolfleet.telemetry import Instruments
from toolfleet.tiers import raise_tiers
from toolfleet.version import __version__
from toolfleet.watchdog import LoopWatch
from toolfleet.workers.executor.contract import ContractTools
from toolfleet.workers.publisher import Publisher

log = structlog.get_logger("toolfleet.worker")

# Reading connections: an executor looks calls up before it runs them, a decision reads a conversation and an agent.
READERS_OF: Final = {Role.DECISION.value: 2, Role.EXECUTOR.value: 4, Role.COLLECTOR.value: 1, KEEPER: 1}
LOOK_EVERY: Final = 3  # beats: the question what is outstanding reads every row of `commands`
STUCK_BEATS: Final = 2  # a worker that is stuck at that many looks in a row says so and ends


class Worker:
    """Starts, beats, drains and stops. Owns its connections; nothing of it outlives the process.

    `queues`: those it reads, and `keeper`. `on_stuck` is called with the reason when it does not get on for long,
    `on_blocked`, from another thread, with seconds and stack when its event loop stands still.
    """

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        make_model: Callable[[], ModelClient],
        *,
        queues: Collection[str] = ALL_ROLES,
        on_stuck: Callable[[str], object] | None = None,
        on_blocked: Callable[[float, str], object] | None = None,
    ) -> None:
        unknown = sorted(set(queues) - set(ALL_ROLES))
        if unknown or not queues:
            raise InputError(
                f"no role of a worker is called {', '.join(unknown) or '(none given)'}",
                hint=f"Roles: {', '.join(ALL_ROLES)}.",
            )
        raise_tiers(registry, settings)
        self._registry = registry
        self._settings = settings
        self.queues = tuple(name for name in ALL_ROLES if name in queues)
        decides = not set(self.queues).isdisjoint(queues_of(Role.DECISION))
        self._model = make_model() if decides else None  # the others need no key
        if self._model is not None:
            refuse_unpriced(registry.agents.values(), settings, self._model)
        self._on_stuck = on_stuck
        self._on_blocked = on_blocked
        self._watch: LoopWatch | None = None
        self._roles: Roles | None = None
        self._layer: MessageLayer | None = None
        self._tools: ContractTools | None = None
        self._health: HealthServer | None = None
        self._beating: asyncio.Task[None] | None = None
        self._id = ""
        self._started_at = time.time()
        self._stuck = ""
        self._stopping = False
        self._cache = open_cache(settings)
        self.instruments = Instruments(settings, tools=registry.tools)
        self.store: RunStore = self.instruments.observe(
            open_store(settings, role=_names(self.queues), readers=_readers(self.queues))
        )

    @property
    def publisher(self) -> Publisher:
        assert self._roles is not None, "the worker is not started"
        return self._roles.publisher

    @property
    def cache(self) -> Cache:
        """The breakers and rates of this process."""
        return self._cache

    @property
    def dropped(self) -> int:
        return 0 if self._roles is None else self._roles.dropped

    async def start(self) -> None:
        """Raises UnsafeSettings, NotMigrated, NewerSchema; StoreUnavailable and BrokerUnavailable where it may be
        tried again. What was opened is closed then."""
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        settings, clock = self._settings, SystemClock()
        codec = open_codec(settings, clock)
        self._layer = open_layer(settings)
        await refuse_unsafe(settings, self.store)
        await refuse_unsafe_cache(settings, self._registry, processes=True)
        executes = not set(self.queues).isdisjoint(queues_of(Role.EXECUTOR))
        self._tools = contract_tools(self._registry if executes else Registry(), settings, self.store)
        self._roles = Roles(
            store=self.store,
            layer=self._layer,
            codec=codec,
            model=self._model,
            tools=self._tools,
            clock=clock,
            settings=settings,
            point=armed(settings.fault_point),
            queues=self.queues,
            longest_s=longest_step_s(self._registry),
            hooks=self._registry.hooks,
            telemetry=self.instruments.telemetry,
            pace=self._cache.pace,
            governor=self._cache.governor,
        )
        self.instruments.watch(self._roles.progress, lambda: self.dropped)
        self.instruments.start()
        self._id = f"{self._roles.owner}:{secrets.token_hex(4)}"
        await self.store.register_agents(list(self._registry.agents.values()))
        await self._layer.depths()  # the broker answers: say now if it does not
        if settings.health_port is not None:
            if KEEPER in self.queues:
                self.instruments.look(await self.store.loads())
            self._health = HealthServer(
                settings.health_host,
                settings.health_port,
                live=self._live,
                ready=self._ready,
                metrics=self.instruments.expose,
            )
            await self._health.start()
        if self._on_blocked is not None:
            self._watch = LoopWatch(asyncio.get_running_loop(), settings.loop_blocked_s, self._on_blocked)
            self._watch.start()
        self._roles.start()
        await self.store.beat(self._beat())
        self._beating = asyncio.create_task(self._beat_on())
        log.info("worker_started", roles=self.queues, worker=self._id)

    async def stop(self, *, drain_s: float | None = None) -> bool:
        """Fetch no more, let steps in flight end for that long, give back the rest. True: all had ended."""
        self._stopping = True
        drained = True
        if self._roles is not None:
            drained = await self._roles.stop(drain_s=drain_s)
        await self._close()
        return drained

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
            try:
                await self.store.leave(self._id)
            except StoreUnavailable as exc:
                log.info("leave_failed", error=exc.message)  # it is listed as silent
        if self._health is not None:
            await self._health.stop()
        if self._tools is not None:
            await self._tools.aclose()
        await self._cache.aclose()
        if self._layer is not None:
            await self._layer.aclose()
        if self._model is not None:
            await self._model.aclose()
        await self.store.aclose()
        await self.instruments.stop()

    def stats(self) -> dict[str, Any]:
        """Plain numbers for people and programs: `celery inspect`, `toolfleet workers ls`, /live."""
        progress = [] if self._roles is None else self._roles.progress()
        return {
            "in_flight": sum(one.in_flight for one in progress),
            "taken": sum(one.taken for one in progress),
            "settled": sum(one.settled for one in progress),
            "dropped": self.dropped,
            "stuck": self._stuck,
            "cache": self._cache.mode,
            "health": "" if self._health is None else self._health.address,
        }

    def _beat(self) -> WorkerBeat:
        host, pid, _ = self._id.split(":")
        return WorkerBeat(self._id, host, int(pid), self.queues, __version__, self._started_at, self.stats())

    async def _beat_on(self) -> None:
        """Until cancelled. A database that is away is no reason to end."""
        beats = stuck_for = 0
        while True:
            await asyncio.sleep(WORKER_BEAT_S)
            beats += 1
            try:
                if (
                    beats % LOOK_EVERY == 0 and not self._stopping
                ):  # who drains has ended its loops on purpose
                    self._look(await self.store.loads())
                    self._cache.known.look(await self.store.workers())
                    stuck_for = stuck_for + 1 if self._stuck else 0
                await self.store.beat(self._beat())
            except StoreUnavailable as exc:
                log.warning("beat_failed", error=exc.message)
            if stuck_for >= STUCK_BEATS and not self._stopping and self._on_stuck is not None:
                self._on_stuck(self._stuck)

    def _look(self, loads: list[QueueLoad]) -> None:
        assert self._roles is not None
        if KEEPER in self.queues:  # once a fleet, not once a worker
            self.instruments.look(loads)
        before, self._stuck = self._stuck, self._roles.stuck(loads)
        if self._stuck and not before:
            log.error("worker_stuck", reason=self._stuck)

    def _live(self) -> dict[str, Any]:
        stats = self.stats()
        if self._roles is not None and not self._stopping and not self._stuck:
            stats["stuck"] = self._roles.stuck([])  # what can be seen at once, without the database
        return {"ok": not stats["stuck"], "roles": self.queues, **stats}

    def _ready(self) -> dict[str, Any]:
        return {"ok": not self._stopping and self._beating is not None, "roles": self.queues}


def _kinds(queues: Collection[str]) -> list[str]:
    """The roles behind these queues, in the order of a turn, and the keeper."""
    kinds = [role.value for role in Role if not set(queues).isdisjoint(queues_of(role))]
    return [*kinds, *([KEEPER] if KEEPER in queues else [])]


def _names(queues: Collection[str]) -> str:
    return "+".join(_kinds(queues))


def _readers(queues: Collection[str]) -> int:
    """Reading connections of a process with these roles."""
    return min(READERS, sum(READERS_OF.get(kind, 1) for kind in _kinds(queues)))
