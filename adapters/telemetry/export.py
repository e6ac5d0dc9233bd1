"""The way of spans out of the process: a bounded queue, and a thread that exports it in batches.

Nothing is lost silently: every span that was put in is exported, waiting, or counted as dropped with its reason. `put`
never waits. The exporter is made by `start`, so after any fork of the host; a process that is forked from a running
one begins with an empty queue, a thread and an exporter of its own (the parent exports what was in the old one).
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = structlog.get_logger("toolfleet.telemetry")

QUEUE_FULL: Final = "queue_full"
EXPORT_FAILED: Final = "export_failed"
AT_STOP: Final = "at_stop"
REASONS: Final = (QUEUE_FULL, EXPORT_FAILED, AT_STOP)
FLUSH_S: Final = 3.0  # below the 5 s that a host gives a worker to close what is open


@dataclass(slots=True)
class Exported:
    """What became of the spans so far."""

    exported: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))


class SpanQueue:
    """`size` spans wait at most; they go out when `batch` of them wait, and every `delay_s`."""

    def __init__(
        self,
        make_exporter: Callable[[], SpanExporter],
        *,
        size: int = 8192,
        batch: int = 512,
        delay_s: float = 5.0,
    ) -> None:
        self._make_exporter = make_exporter
        self._size = size
        self._batch = max(1, min(batch, size))
        self._delay_s = delay_s
        self._begin()
        os.register_at_fork(after_in_child=_on(self, SpanQueue._begin))

    def _begin(self) -> None:
        """As new: nothing waits, nothing was counted, no thread runs."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._spans: deque[ReadableSpan] = deque()
        self._going_out = 0
        self._stopping = False
        self._exporter: SpanExporter | None = None
        self._thread: threading.Thread | None = None
        self.counts = Exported()

    def start(self) -> None:
        """Make the exporter and its thread, in this process. Raises what the exporter raises for wrong settings."""
        with self._lock:
            if self._thread is not None:
                return
            self._exporter = self._make_exporter()
            self._thread = threading.Thread(target=self._run, name="toolfleet-spans", daemon=True)
            self._thread.start()
        atexit.register(_on(self, SpanQueue.stop))

    def put(self, span: ReadableSpan) -> None:
        """Returns at once; a span for which there is no room is counted."""
        if self._thread is None and not self._stopping:
            self.start()  # in a child that was forked from a traced process
        with self._lock:
            if self._stopping:
                self.counts.dropped[AT_STOP] += 1
            elif len(self._spans) >= self._size:
                self.counts.dropped[QUEUE_FULL] += 1
            else:
                self._spans.append(span)
                if len(self._spans) >= self._batch:
                    self._wake.set()

    def stop(self, within_s: float = FLUSH_S) -> None:
        """Export what waits, for that long at most; the rest is counted. Idempotent."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._wake.set()
        thread, exporter = self._thread, self._exporter
        if thread is None or exporter is None:
            return
        until = time.monotonic() + within_s
        thread.join(within_s * 0.8)
        exporter.shutdown()  # ends a wait between two tries of an exporter that gets no answer
        thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            self.counts.dropped[AT_STOP] += len(self._spans) + self._going_out
            self._spans.clear()
            self._going_out = 0
        dropped = {reason: count for reason, count in self.counts.dropped.items() if count}
        (log.warning if dropped else log.info)("spans_ended", exported=self.counts.exported, **dropped)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._delay_s)
            self._wake.clear()
            while batch := self._taken():
                self._export(batch)
            if self._stopping:
                return

    def _taken(self) -> list[ReadableSpan]:
        with self._lock:
            count = min(len(self._spans), self._batch)
            batch = [self._spans.popleft() for _ in range(count)]
            self._going_out = count
            return batch

    def _export(self, batch: list[ReadableSpan]) -> None:
        assert self._exporter is not None, "made before the thread"
        try:
            taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:
            log.exception("export_failed", spans=len(batch))
            taken = False
        with self._lock:
            if not self._going_out:
                return  # given up by `stop` meanwhile, and counted there
            self._going_out = 0
            if taken:
                self.counts.exported += len(batch)
            else:
                self.counts.dropped[EXPORT_FAILED] += len(batch)


def _on(queue: SpanQueue, method: Callable[[SpanQueue], object]) -> Callable[[], None]:
    """`method` of the queue while it lives: what is registered with the process must not keep it alive."""
    reference = weakref.ref(queue)

    def call() -> None:
        alive = reference()
        if alive is not None:
            method(alive)

    return call
