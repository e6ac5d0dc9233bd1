"""The queue of spans: nothing waits, nothing is lost without being counted, nothing outlives its bound."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from toolfleet.adapters.telemetry.export import AT_STOP, EXPORT_FAILED, QUEUE_FULL, SpanQueue
from toolfleet.adapters.telemetry.otlp import otlp_exporter

WAIT_S = 30.0


class _Held(SpanExporter):
    """Takes nothing before it is let go."""

    def __init__(self, *, heeds_shutdown: bool = True) -> None:
        self.began = threading.Event()
        self.go = threading.Event()
        self._heeds = heeds_shutdown

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.set()
        return SpanExportResult.SUCCESS if self.go.wait(WAIT_S) else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        if self._heeds:
            self.go.set()


class _Failing(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise OSError("no network")

    def shutdown(self) -> None:
        pass


def _spans(count: int) -> list[ReadableSpan]:
    return [ReadableSpan(f"span {i}") for i in range(count)]


def _total(queue: SpanQueue) -> int:
    return queue.counts.exported + sum(queue.counts.dropped.values())


def test_what_waits_is_exported_at_the_end() -> None:
    exporter = InMemorySpanExporter()
    queue = SpanQueue(lambda: exporter, delay_s=WAIT_S)
    queue.start()
    for span in _spans(1000):
        queue.put(span)
    queue.stop()

    assert len(exporter.get_finished_spans()) == queue.counts.exported == 1000
    assert sum(queue.counts.dropped.values()) == 0


def test_a_full_queue_drops_and_counts_and_never_waits() -> None:
    exporter = _Held()
    queue = SpanQueue(lambda: exporter, size=10, batch=10, delay_s=WAIT_S)
    queue.start()
    for span in _spans(10):
        queue.put(span)
    assert exporter.began.wait(WAIT_S)
    for span in _spans(15):  # ten go out, ten wait, five have no room
        queue.put(span)

    assert queue.counts.dropped[QUEUE_FULL] == 5
    exporter.go.set()
    queue.stop()
    assert (queue.counts.exported, _total(queue)) == (20, 25)


@pytest.mark.parametrize(
    "make", [_Failing, lambda: otlp_exporter("http://127.0.0.1:9/v1/traces")], ids=["raises", "no collector"]
)
def test_spans_of_a_failed_export_are_counted(make: Callable[[], SpanExporter]) -> None:
    queue = SpanQueue(make, delay_s=WAIT_S)
    queue.start()
    for span in _spans(7):
        queue.put(span)
    queue.stop(0.5)

    assert queue.counts.exported == 0 and _total(queue) == 7
    assert queue.counts.dropped[EXPORT_FAILED] + queue.counts.dropped[AT_STOP] == 7


def test_an_exporter_that_hangs_does_not_hold_the_stop() -> None:
    exporter = _Held(heeds_shutdown=False)
    queue = SpanQueue(lambda: exporter, batch=5, delay_s=WAIT_S)
    queue.start()
    for span in _spans(8):
        queue.put(span)
    began_at = time.monotonic()
    queue.stop(0.2)

    assert time.monotonic() - began_at < 5.0
    assert queue.counts.dropped[AT_STOP] == 8
    queue.put(_spans(1)[0])
    assert queue.counts.dropped[AT_STOP] == 9
    exporter.go.set()


# B095
def test_a_forked_child_exports_its_own_spans_and_the_parent_its_own() -> None:
    code = """
import os, sys
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from toolfleet.adapters.telemetry.export import SpanQueue
made = []
def make():
    made.append(InMemorySpanExporter())
    return made[-1]
queue = SpanQueue(make, delay_s=60)
queue.start()
queue.put(ReadableSpan("parent"))
child = os.fork()
if not child:
    queue.put(ReadableSpan("child"))
queue.stop()
said = f"{len(made)} {[span.name for span in made[-1].get_finished_spans()]} {queue.counts.exported}"
if not child:
    os.write(1, f"child {said}\\n".encode())
    os._exit(0)
os.waitpid(child, 0)
os.write(1, f"parent {said}\\n".encode())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )

    said = [line for line in done.stdout.splitlines() if line.startswith(("child ", "parent "))]
    assert said == ["child 2 ['child'] 1", "parent 1 ['parent'] 1"], done.stdout + done.stderr
