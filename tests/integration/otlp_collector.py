"""A collector for tests: takes OTLP/HTTP protobuf on loopback, keeps every span, and can be down, slow or refusing."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

WAIT_S = 60.0


@dataclass(frozen=True)
class Span:
    """A span as it came in; ids are hex texts, attributes plain values."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]  # (trace, span)
    started_ns: int
    ended_ns: int
    failed: bool
    resource: dict[str, Any]

    @property
    def step(self) -> str:
        """The name without the model or the tool in it."""
        return self.name.split(" ")[0]


@dataclass
class Collector:
    """What has arrived. `raw` are the bodies, byte for byte. While `held` it takes them and does not answer."""

    url: str = ""
    raw: list[bytes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    held: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, body: bytes) -> None:
        with self._changed:
            self.raw.append(body)
            self.spans.extend(_spans(body))
            self._changed.notify_all()

    def answer(self) -> None:
        with self._changed:
            self.held = False
            self._changed.notify_all()

    def wait_until_answering(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self.held, WAIT_S)

    def wait(self, enough: Callable[[list[Span]], bool]) -> list[Span]:
        """All spans, once there are enough."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: enough(self.spans), WAIT_S)
            assert arrived, sorted(span.name for span in self.spans)
            return list(self.spans)

    def of(self, step: str) -> list[Span]:
        return [span for span in self.spans if span.step == step]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector in a thread of its own."""
    collector, loop = Collector(), asyncio.new_event_loop()

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        collector.take(body)
        await asyncio.to_thread(collector.wait_until_answering)
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/traces", take)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_S)
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        collector.answer()
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _spans(body: bytes) -> Iterator[Span]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {one.key: _plain(one.value) for one in of_resource.resource.attributes}
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    {one.key: _plain(one.value) for one in span.attributes},
                    tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == 2,  # STATUS_CODE_ERROR
                    resource,
                )


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)
