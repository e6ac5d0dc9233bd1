"""What one process tells the outside about itself, made from its settings: spans, metrics. Nothing is made at import.

Each worker, and each client that has no worker in its process, has one of these: built in its loop's thread, so after
any fork of its host, and stopped with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Container
from functools import lru_cache
from typing import TYPE_CHECKING

from toolfleet.queues.topology import QUEUES
from toolfleet.schemas.ports import RunStore, Telemetry
from toolfleet.schemas.views import QueueLoad
from toolfleet.settings import Settings
from toolfleet.version import __version__
from toolfleet.workers.progress import Progress
from toolfleet.workers.telemetry import SILENT

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from toolfleet.adapters.telemetry.export import SpanQueue
    from toolfleet.adapters.telemetry.metrics import Metrics


class Instruments:
    """Where nothing is switched on, `telemetry` does nothing. `tools`: their names, for labels of metrics."""

    def __init__(self, settings: Settings, *, tools: Container[str] | None = None) -> None:
        """Without `tools` there are no metrics: nobody could read them."""
        self.telemetry: Telemetry = SILENT
        self.spans: SpanQueue | None = None
        self.metrics: Metrics | None = None
        if settings.traced:
            self._trace(settings)
        elif settings.log_format == "json":
            from toolfleet.adapters.telemetry.binding import Binding

            self.telemetry = Binding()
        if tools is not None and settings.health_port is not None:
            self._measure(tools)

    def _trace(self, settings: Settings) -> None:
        from toolfleet.adapters.telemetry.export import SpanQueue
        from toolfleet.adapters.telemetry.otlp import otlp_exporter, sampler_of_environment
        from toolfleet.adapters.telemetry.recording import Recorder
        from toolfleet.adapters.telemetry.tracing import Tracing

        endpoint = settings.otlp_traces_url
        self.spans = SpanQueue(
            lambda: otlp_exporter(endpoint),
            size=settings.spans_max,
            batch=settings.spans_batch,
            delay_s=settings.spans_delay_ms / 1000,
        )
        recorder = Recorder(
            self.spans.put,
            sampler=sampler_of_environment(),
            resource=_resource,
            content=settings.trace_content == "on",
        )
        self.telemetry = Tracing(recorder)

    def _measure(self, tools: Container[str]) -> None:
        from toolfleet.adapters.telemetry.metrics import Metrics

        self.metrics = Metrics(tools)
        spans = self.spans
        if spans is not None:
            self.metrics.spans = lambda: spans.counts

    def observe(self, store: RunStore) -> RunStore:
        """The store; with its commits counted, where there are metrics."""
        if self.metrics is None:
            return store
        from toolfleet.adapters.telemetry.observed import observed

        return observed(store, self.metrics)

    def start(self) -> None:
        """In the loop's thread. Raises what the exporter raises for wrong OTEL_EXPORTER_… settings."""
        if self.spans is not None:
            self.spans.start()

    def watch(self, progress: Callable[[], list[Progress]], dropped: Callable[[], int]) -> None:
        """What /metrics asks the consumers of this process."""
        if self.metrics is not None:
            self.metrics.progress, self.metrics.dropped = progress, dropped

    def look(self, loads: list[QueueLoad]) -> None:
        """What is outstanding in the database, for a worker that keeps."""
        if self.metrics is not None:
            self.metrics.queues = [queue.name for queue in QUEUES]
            self.metrics.loads = loads

    def expose(self) -> tuple[bytes, str]:
        """For /metrics."""
        assert self.metrics is not None, "asked only where there are metrics"
        return self.metrics.expose()

    async def stop(self) -> None:
        """Export what waits, for a bounded time; what is left is counted and logged."""
        if self.spans is not None:
            await asyncio.to_thread(self.spans.stop)


def _resource() -> Resource:
    return _resource_of(os.getpid())


@lru_cache(maxsize=1)  # a forked child is another instance of the service
def _resource_of(pid: int) -> Resource:
    from opentelemetry.sdk.resources import Resource

    made = Resource.create(
        {
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}:{pid}",
            "process.pid": pid,
        }
    )
    if not str(made.attributes["service.name"]).startswith("unknown_service"):
        return made  # OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name it
    return made.merge(Resource({"service.name": "toolfleet"}))
