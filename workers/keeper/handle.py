"""The keeper: what no message will ever wake. Its duties are small files; each is safe to run in several processes."""

from __future__ import annotations

import structlog

from toolfleet.schemas.batches import IN_FLIGHT_MAX
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.limits import KEEPER_PERIOD_S, LEASE_S
from toolfleet.schemas.ports import Clock, MessageLayer, RunStore, Telemetry
from toolfleet.workers.keeper.deadlines import end_overdue
from toolfleet.workers.keeper.feeder import feed
from toolfleet.workers.keeper.leases import expire
from toolfleet.workers.keeper.relay import heal_wipe, relay
from toolfleet.workers.points import Point
from toolfleet.workers.publisher import Publisher
from toolfleet.workers.telemetry import SILENT

log = structlog.get_logger("toolfleet.keeper")


class Keeper:
    """Runs every duty once a period. After a time without the database it waits one whole lease before it expires
    any: an outage counts no deaths."""

    def __init__(
        self,
        *,
        store: RunStore,
        layer: MessageLayer,
        publisher: Publisher,
        clock: Clock,
        point: Point,
        period_s: float = KEEPER_PERIOD_S,
        lease_s: float = LEASE_S,
        telemetry: Telemetry = SILENT,
        batch_in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self._store = store
        self._layer = layer
        self._publisher = publisher
        self._clock = clock
        self._point = point
        self._period_s = period_s
        self._lease_s = lease_s
        self._telemetry = telemetry
        self._batch_in_flight_max = batch_in_flight_max
        self._in_contact_since: float | None = None

    async def run(self) -> None:
        """Keep until cancelled. A duty that fails is logged and tried again in the next period."""
        while True:
            try:
                await self.once()
            except StoreUnavailable as exc:
                self._in_contact_since = None
                log.warning("store_unavailable", error=exc.message)
            except Exception:
                log.exception("keeper_failed")
            await self._clock.sleep(self._period_s)

    async def once(self) -> None:
        """One period."""
        try:
            await heal_wipe(self._store, self._layer, self._point)
        except StoreUnavailable:
            self._in_contact_since = None
            raise
        now = self._clock.monotonic_s()
        if self._in_contact_since is None:
            self._in_contact_since = now
        if now - self._in_contact_since >= self._lease_s:
            await expire(self._store, self._publisher, self._telemetry)
        await end_overdue(self._store, self._publisher)
        await feed(
            self._store,
            self._publisher,
            in_flight_max=self._batch_in_flight_max,
            telemetry=self._telemetry,
        )
        await relay(self._store, self._layer, self._publisher, self._point)
