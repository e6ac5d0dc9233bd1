"""The demo's fleet as processes of their own, over a broker and a database they share.

What the demo tells them comes in environment variables; `fleet_app.py` is the app they load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from toolfleet.adapters.store.migrate import upgrade
from toolfleet.fleet import Fleet
from toolfleet.supervisor import Supervisor, children_of, watch

APP: Final = "toolfleet.examples.airline_desk.fleet_app:fleet"
URL: Final = "TOOLFLEET_DEMO_URL"
SEED: Final = "TOOLFLEET_DEMO_SEED"
MODEL_NAME: Final = "TOOLFLEET_DEMO_MODEL"
ENFORCE: Final = "TOOLFLEET_DEMO_ENFORCE"
APPROVERS: Final = "TOOLFLEET_DEMO_APPROVERS"


class Processes:
    """Workers of this fleet, supervised while the demo runs."""

    def __init__(
        self, fleet: Fleet, workers: int, told: Mapping[str, str], tell: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._workers = workers
        self._told = told
        self._tell = tell
        self._supervisor: Supervisor | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Migrates the database, starts the processes, and returns when all of them are there."""
        settings = self._fleet.settings
        await asyncio.to_thread(upgrade, settings.database)
        keys = settings.signing_keys
        extra = {
            **self._told,
            "TOOLFLEET_SIGNING_KEYS": "" if keys is None else keys.get_secret_value(),
            "TOOLFLEET_LOG_LEVEL": "error",
        }
        children = children_of(APP, settings, self._workers, extra)
        self._supervisor = Supervisor(children, grace_s=settings.drain_s, tell=self._tell)
        self._supervisor.start()
        ready = asyncio.Event()
        self._watching = asyncio.create_task(watch(self._supervisor, self._fleet.client().store, ready.set))
        await ready.wait()
        self._tell(f"{len(children)} worker processes are ready")

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._supervisor is not None:
            await self._supervisor.stop()
