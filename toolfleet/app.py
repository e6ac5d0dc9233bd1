"""Composition root and MAP of the system: here ports meet adapters, and here alone.

    submit ─► decide.* ─► Decider ─► exec.<tier> ─► Executor ─► results ─► Collector ─► decide.* …
              (model)               (tools)                     (one merge per turn)
    Keeper: what no message will ever wake.            RunStore: the truth.            MessageLayer: a cache of intent.

`EmbeddedFleet` is all roles in one process over SQLite and in-process queues: needs no server, survives kill -9.
`Worker` (worker.py) is some roles in one process over a shared broker and database; `roles.py` has what both start.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import structlog
from sqlalchemy.engine import make_url

from toolfleet.adapters.broker.memory import MemoryLayer
from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.files.folder import FolderFiles
from toolfleet.adapters.folder_lock import FolderLock
from toolfleet.adapters.store.engine import READERS
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.adapters.tools.python_function import PythonTools
from toolfleet.brokers import open_codec, refuse_unsafe_numbers
from toolfleet.cache import Cache, open_cache, refuse_unsafe_cache
from toolfleet.definitions import Registry
from toolfleet.fault_points import armed
from toolfleet.files import Files
from toolfleet.health import HealthServer
from toolfleet.prices import refuse_unpriced
from toolfleet.roles import Roles
from toolfleet.schemas.errors import StoreUnavailable, UnsafeSettings
from toolfleet.schemas.limits import DEFAULT_LIMITS
from toolfleet.schemas.outcomes import ASKED_TIERS
from toolfleet.schemas.ports import ModelClient, RunStore
from toolfleet.schemas.views import HeldLease
from toolfleet.settings import Settings
from toolfleet.telemetry import Instruments
from toolfleet.tiers import raise_tiers
from toolfleet.workers.executor.contract import ContractTools
from toolfleet.workers.keeper.leases import take_over
from toolfleet.workers.keeper.relay import heal_wipe
from toolfleet.workers.machine import MACHINE
from toolfleet.workers.publisher import Publisher

log = structlog.get_logger("toolfleet.app")

LOOK_S: Final = 15.0


def open_store(settings: Settings, *, role: str = "client", readers: int = READERS) -> SqlStore:
    """The store of these settings. Raises NotMigrated, NewerSchema, StoreUnavailable when it is used first.

    `role` and `readers`: what its connections are called, and how many read at a time (docs/postgresql.md).
    """
    return SqlStore(settings.database, MACHINE, role=role, readers=readers)


def open_files(settings: Settings, store: RunStore) -> Files | None:
    """Files that are handed in; None where these settings name no place for their bytes."""
    folder = settings.files
    url = make_url(settings.database)
    if folder is None and url.get_backend_name() == "sqlite" and url.database:
        folder = Path(f"{url.database}.files")
    if folder is None or store.files is None:
        return None
    return Files(
        store.files,
        FolderFiles(folder),
        bytes_max=settings.http_file_bytes_max,
        tenant_bytes_max=settings.files_tenant_bytes_max,
    )


def contract_tools(registry: Registry, settings: Settings, store: RunStore) -> ContractTools:
    """The tools of this process, each held to its contract."""
    return ContractTools(
        PythonTools(registry.runnable, children=settings.children),
        results=store,
        credentials=registry.credentials,
        cache=store,
        summarised=registry.summarised,
    )


def asked_tools(registry: Registry) -> list[str]:
    """The tools above tier medium: an approver is asked before each of their calls, unless approvals are off."""
    return sorted(name for name, tool in registry.tools.items() if tool.spec.tier in ASKED_TIERS)


class EmbeddedFleet:
    """Every role in this process: SQLite, in-process queues, children for plain functions."""

    def __init__(
        self, registry: Registry, settings: Settings, model: ModelClient, *, store: SqlStore | None = None
    ) -> None:
        raise_tiers(registry, settings)
        refuse_unpriced(registry.agents.values(), settings, model)
        refuse_unsafe_numbers(settings)
        self._registry = registry
        self._settings = settings
        self._model = model
        self._lock = FolderLock(lock_path(settings.database))
        self._owns_store = store is None
        self.instruments = Instruments(settings, tools=registry.tools)
        self.store: RunStore = self.instruments.observe(store if store is not None else open_store(settings))
        self._tools: ContractTools | None = None
        self._roles: Roles | None = None
        self._layer: MemoryLayer | None = None
        self._health: HealthServer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._cache = open_cache(settings)

    @property
    def publisher(self) -> Publisher:
        assert self._roles is not None, "the fleet is not started"
        return self._roles.publisher

    @property
    def cache(self) -> Cache:
        """The breakers and rates of this process."""
        return self._cache

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
        await refuse_unsafe_cache(settings, self._registry, processes=False)
        clock = SystemClock()
        point = armed(settings.fault_point)
        self._tools = contract_tools(self._registry, settings, self.store)
        self._layer = MemoryLayer()
        self._roles = Roles(
            store=self.store,
            layer=self._layer,
            codec=open_codec(settings, clock),
            model=self._model,
            tools=self._tools,
            clock=clock,
            settings=settings,
            point=point,
            longest_s=longest_step_s(self._registry),
            hooks=self._registry.hooks,
            telemetry=self.instruments.telemetry,
            pace=self._cache.pace,
            governor=self._cache.governor,
        )
        self.instruments.watch(self._roles.progress, lambda: self.dropped)
        self.instruments.start()
        await self.store.register_agents(list(self._registry.agents.values()))
        await heal_wipe(self.store, self._layer, point)
        await take_over(self.store, self._roles.publisher, self._could_kill)
        self._roles.start()
        if settings.health_port is not None:
            await self._answer(settings.health_host, settings.health_port)
        log.info(
            "fleet_started",
            database=make_url(settings.database).render_as_string(hide_password=True),
            health=self.health,
        )

    async def stop(self, *, drain_s: float | None = None) -> None:
        """Drain and stop; what is left is outstanding in the database and goes on at the next start."""
        if self._looking is not None:
            self._looking.cancel()
        if self._roles is not None:
            await self._roles.stop(drain_s=drain_s)
        if self._health is not None:
            await self._health.stop()
        if self._tools is not None:
            await self._tools.aclose()
        await self._cache.aclose()
        await self._model.aclose()
        if self._layer is not None:
            await self._layer.aclose()
        if self._owns_store:
            await self.store.aclose()
        await self.instruments.stop()
        self._lock.release()

    @property
    def health(self) -> str:
        """Where /live, /ready and /metrics are; empty: nowhere."""
        return "" if self._health is None else self._health.address

    async def _answer(self, host: str, port: int) -> None:
        self._health = HealthServer(
            host, port, live=self._live, ready=lambda: {"ok": True}, metrics=self.instruments.expose
        )
        await self._health.start()
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """For /metrics, until cancelled: what is outstanding. It reads every row of `commands`."""
        while True:
            try:
                self.instruments.look(await self.store.loads())
            except StoreUnavailable as exc:
                log.warning("look_failed", error=exc.message)
            await asyncio.sleep(LOOK_S)

    def _live(self) -> dict[str, Any]:
        stuck = "" if self._roles is None else self._roles.stuck([])
        return {"ok": not stuck, "stuck": stuck}

    def _could_kill(self, held: HeldLease) -> bool:
        """Only a tool that ran inside the dead process can have killed it."""
        if held.tool is None:
            return False
        tool = self._registry.tools.get(held.tool)
        return tool is not None and tool.spec.runner == "loop"


def longest_step_s(registry: Registry) -> float:
    """The longest deadline of a step this process may have in its hands, seconds."""
    tools = (tool.spec.timeout_s for tool in registry.tools.values())
    models = (agent.limits.model_timeout_s for agent in registry.agents.values())
    return max([DEFAULT_LIMITS.model_timeout_s, *tools, *models])


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
