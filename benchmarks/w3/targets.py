"""The targets of the fleet, and whether the figures reach them. Only what was measured here is judged."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from toolfleet.schemas.limits import LEASE_S

KIND: Final = "streams"
NOTE: Final = (
    "T4 is judged by the end that is stored with the run. A target that is not measured says why where its figure "
    "would be."
)
CPU_MS, CPU_MS_STRETCH = 6.0, 4.0
DURABLE_MS: Final = 3.0
SLOW_RUNS, SLOW_WALL_S = 2000, 5.0
ADDED_P50_MS, ADDED_P95_MS, SYNCS_IN_A_RUN = 15.0, 25.0, 6
CALL_MS, CALL_MS_STRETCH = 0.30, 0.15
FLAT_WITHIN: Final = 0.15
PEAK_MB: Final = 250.0
SDK_MS: Final = 1.5
WIPE_S: Final = 2.0

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """`reached`: None where it was not measured."""

    name: str
    wanted: str
    found: str
    reached: bool | None


def judged(bench: Figures) -> list[Judged]:
    return [one for judge in _JUDGES for one in judge(bench)]


def good(bench: Figures, name: str, kind: str = KIND) -> list[Figures]:
    found = bench.get(name, {}).get(kind, [])
    several = found if isinstance(found, list) else [found]
    return [one for one in several if "failed" not in one and "left_out" not in one]


def ms_per_call(bench: Figures, kind: str = KIND) -> float | None:
    """CPU of one more tool call, from the narrowest to the widest turn."""
    found = good(bench, "fan", kind)
    if len(found) < 2:
        return None
    first, last = found[0], found[-1]
    calls = 2 * (last["shape"]["fan"] - first["shape"]["fan"])
    return float((last["cpu_ms"] - first["cpu_ms"]) / calls)


def _missing(name: str, wanted: str, why: str = "no round of it ended well") -> Judged:
    return Judged(name, wanted, why, None)


def _cpu(bench: Figures) -> Iterator[Judged]:
    wanted = f"CPU per run with the official client ≤ {CPU_MS:g} ms (stretch {CPU_MS_STRETCH:g})"
    found = [one["cpu_ms"] for one in good(bench, "overhead")]
    if not found:
        yield _missing("T1", wanted)
        return
    middle = statistics.median(found)
    celery = [one["cpu_ms"] for one in good(bench, "overhead", "celery")]
    beside = f"; celery by hand in the same rounds {statistics.median(celery):.1f} ms" if celery else ""
    yield Judged("T1", wanted, f"{middle:.1f} ms{beside}", middle <= CPU_MS)


def _durable(bench: Figures) -> Iterator[Judged]:
    wanted = f"queue, merge and durability alone ≤ {DURABLE_MS:g} ms CPU per run"
    found = [one["cpu_ms"] for one in good(bench, "scripted")]
    if found:
        middle = statistics.median(found)
        yield Judged("T2", wanted, f"{middle:.1f} ms, without any HTTP", middle <= DURABLE_MS)
    else:
        yield _missing("T2", wanted)


def _slow(bench: Figures) -> Iterator[Judged]:
    wanted = f"{SLOW_RUNS:,} runs at once, 200/20 ms: ≤ {SLOW_WALL_S:g} s"
    found = good(bench, "slow")
    if not found:
        yield _missing("T3", wanted)
    elif found[0]["n"] < SLOW_RUNS:
        yield Judged("T3", wanted, f"{found[0]['wall_s']:.1f} s for {found[0]['n']:,} runs only", None)
    else:
        yield Judged("T3", wanted, f"{found[0]['wall_s']:.1f} s", found[0]["wall_s"] <= SLOW_WALL_S)


def _latency(bench: Figures) -> Iterator[Judged]:
    syncs = SYNCS_IN_A_RUN * bench["made"]["fdatasync_ms"]
    p50, p95 = ADDED_P50_MS + syncs, ADDED_P95_MS + syncs
    wanted = (
        f"added one at a time: p50 ≤ {ADDED_P50_MS:g} ms, p95 ≤ {ADDED_P95_MS:g} ms, each + {SYNCS_IN_A_RUN} fdatasync "
        f"(here {p50:.0f} and {p95:.0f} ms)"
    )
    found = good(bench, "single")
    if not found:
        yield _missing("T4", wanted)
        return
    one = found[0]
    told = f"{one['added_p50_ms']:.0f} and {one['added_p95_ms']:.0f} ms"
    yield Judged("T4", wanted, told, one["added_p50_ms"] <= p50 and one["added_p95_ms"] <= p95)


def _fan(bench: Figures) -> Iterator[Judged]:
    wanted = f"one more parallel call ≤ {CALL_MS:.2f} ms CPU (stretch {CALL_MS_STRETCH:.2f})"
    each = ms_per_call(bench)
    yield _missing("T5", wanted) if each is None else Judged("T5", wanted, f"{each:.2f} ms", each <= CALL_MS)


def _growth(bench: Figures) -> Iterator[Judged]:
    sizes = good(bench, "scale")
    wanted = f"CPU per run at most {FLAT_WITHIN:.0%} more from 100 to 5,000 runs"
    if len(sizes) < 2:
        yield _missing("T6", wanted)
    else:
        costs = [one["cpu_ms"] for one in sizes]
        growth = max(costs[1:]) / costs[0] - 1
        told = f"{growth:+.0%} from {sizes[0]['n']:,} to {sizes[-1]['n']:,}"
        yield Judged("T6", wanted, told, growth <= FLAT_WITHIN)
    wanted = f"peak PSS ≤ {PEAK_MB:g} MB at {SLOW_RUNS:,} in flight"
    slow = good(bench, "slow")
    if not slow or slow[0]["n"] < SLOW_RUNS:
        yield _missing("T6", wanted, "not that many runs in this run")
    else:
        peak = slow[0]["peak_pss_mb"]
        yield Judged("T6", wanted, f"{peak:.0f} MB, broker and database included", peak <= PEAK_MB)


def _client(bench: Figures) -> Iterator[Judged]:
    wanted = f"the client's CPU of a call with 42 messages and 20 tools ≤ {SDK_MS:g} ms"
    found = bench.get("client", {}).get("alone", {})
    if "long_ms" not in found:
        yield _missing("T7", wanted)
        return
    told = f"{found['long_ms']:.2f} ms (2 messages, 3 tools: {found['short_ms']:.2f} ms)"
    yield Judged("T7", wanted, told, found["long_ms"] <= SDK_MS)


def _calls(bench: Figures) -> Iterator[Judged]:
    wanted = "exactly 3 model calls per run without faults"
    names = ("overhead", "slow", "fan", "scale", "single", "counted")
    wrong = [
        one["failed"]
        for name in names
        for one in _listed(bench.get(name, {}).get(KIND, []))
        if "model calls" in one.get("failed", "")
    ]
    right = sum(len(good(bench, name)) for name in names)
    yield Judged(
        "T8", wanted, f"{right} rounds with exactly 3, {len(wrong)} without", right > 0 and not wrong
    )
    wanted = "after the kill of a decision worker at most one more for each decision it held"
    killed = good(bench, "killed")
    if not killed:
        yield _missing("T8", wanted, "no worker was killed in this run")
    else:
        one = killed[0]
        told = f"{one['extra_model_calls']} more, {one['steps_held']} held"
        yield Judged("T8", wanted, told, one["extra_model_calls"] <= one["steps_held"])


def _recovery(bench: Figures) -> Iterator[Judged]:
    wanted = f"kill -9 of a worker: over after one lease, {LEASE_S:g} s"
    killed = good(bench, "killed")
    if killed:
        took = killed[0]["recovery_s"]
        yield Judged("T9", wanted, f"{took:.1f} s", took <= LEASE_S)
    else:
        yield _missing("T9", wanted, "no worker was killed in this run")
    wanted = f"a wiped broker: all published again within {WIPE_S:g} s"
    flushed = good(bench, "flushed")
    if flushed:
        took = flushed[0]["published_again_s"]
        told = f"{took:.2f} s for {flushed[0]['outstanding_rows']} rows"
        yield Judged("T9", wanted, told, took <= WIPE_S)
    else:
        yield _missing("T9", wanted, "nothing was wiped in this run")


def _listed(found: Figures | list[Figures]) -> list[Figures]:
    return found if isinstance(found, list) else [found]


_JUDGES: Final[tuple[Callable[[Figures], Iterator[Judged]], ...]] = (
    _cpu,
    _durable,
    _slow,
    _latency,
    _fan,
    _growth,
    _client,
    _calls,
    _recovery,
)
