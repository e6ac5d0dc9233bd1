"""Who carries a run that the command line submits: the fleet of another process, or an embedded one in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolfleet.brokers import is_embedded
from toolfleet.commands.place import Place, holder, shown
from toolfleet.schemas.limits import WORKER_SILENT_S

if TYPE_CHECKING:
    from toolfleet.client import Client
    from toolfleet.fleet import Fleet

LOOK_AGAIN_S = 1.0


class Host:
    """Joins the fleet that runs on this database, or becomes it; `client` submits to it. `tell` gets lines for people.

    If the other process ends while we wait, the fleet of `-A` goes on here; without one the run is kept, and waits.
    """

    def __init__(self, place: Place, tell: Callable[[str], None]) -> None:
        self._place = place
        self.tell = tell
        self._client: Client | None = None
        self._remote: Fleet | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.here = False

    @property
    def client(self) -> Client:
        assert self._client is not None, "joined first"
        return self._client

    async def join(self) -> None:
        """Raises UnsafeSettings, NotMigrated and NewerSchema, and InputError where nothing could carry a run."""
        if not is_embedded(self._place.settings):
            await self._join_shared()
            return
        if holder(self._place.settings) is None:
            await self._try_here()
        if self.here:
            assert self._place.fleet is not None
            self._client = self._place.fleet.client()
            return
        if holder(self._place.settings) is None:
            raise _nobody(self._place)
        self._client = self._remote_client()
        self._keeping = asyncio.create_task(self._keep())

    async def _join_shared(self) -> None:
        """Worker processes of a shared broker carry the run; the keeper sends it if nobody else can."""
        client = self._remote_client()
        listed = [view for view in await client.store.workers() if view.silent_s < WORKER_SILENT_S]
        if not listed:
            self.tell(
                "no worker process is listed: the run waits until one is started (toolfleet up, toolfleet worker)"
            )
        self._client = client

    def _remote_client(self) -> Client:
        """A client that knows only what the fleet has registered: our own definitions may be of another version."""
        from toolfleet.fleet import Fleet

        self._remote = Fleet(settings=self._place.settings)
        return self._remote.client()

    async def leave(self) -> None:
        """Stop what was started here, within the grace period; outstanding work is kept."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._remote is not None:
            await self._remote.stop_async()
        if self.here:
            assert self._place.fleet is not None
            await self._place.fleet.stop_async()

    def tell_of_drain(self) -> None:
        """Say why `leave` may take a while."""
        if self.here:
            self.tell(
                f"stopping: waiting up to {self._place.settings.drain_s:g} s for steps in flight; "
                "Ctrl-C to stop at once"
            )

    async def _try_here(self) -> None:
        from toolfleet.schemas.errors import FleetBusy

        if self._place.fleet is not None:
            with contextlib.suppress(FleetBusy):  # then the other process carries the run
                await self._place.fleet.start_async()
                self.here = True

    async def _keep(self) -> None:
        """Until the fleet runs here: look whether the other process is still there."""
        from toolfleet.schemas.errors import ToolfleetError

        told = False
        while not self.here:
            await asyncio.sleep(LOOK_AGAIN_S)
            if holder(self._place.settings) is not None:
                told = False
                continue
            try:
                await self._try_here()
            except ToolfleetError as exc:
                self.tell(f"the fleet cannot go on here: {exc.message}")
                return
            if self.here:
                self.tell("the other process has stopped its fleet; going on here")
            elif not told:
                told = True
                self.tell("the fleet has stopped; the run is kept and goes on at the next `toolfleet up`")


def _nobody(place: Place) -> Exception:
    from toolfleet.schemas.errors import FleetBusy, ToolfleetError

    if place.fleet is not None:
        return FleetBusy(
            "the fleet of this database has just stopped or is just starting", hint="Run this command again."
        )
    return ToolfleetError(
        f"no fleet is running on {shown(place.settings.database)}, so nobody would work on the run; "
        "nothing was submitted",
        hint="Start one (toolfleet up -A myapp:fleet), or run it in this process: toolfleet run -A myapp:fleet …",
    )
