"""The benchmark of W3: the same work over every stack, on this machine, measured from outside.

    python -m benchmarks.w3.run [--quick] [--stacks embedded,streams,rabbitmq,celery] [--out bench.json]
    python -m benchmarks.w3.run --profile [--stacks streams]

Writes the figures as JSON; `python -m benchmarks.w3.report` makes docs/performance.md of them. A round that fails is
told with its reason and has no figures; what time does not allow is told as left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.w3 import profiling, rounds
from benchmarks.w3.made import loop_ms, made
from benchmarks.w3.rounds import Model
from benchmarks.w3.safety import refuse_unsafe
from benchmarks.w3.shape import BUSY, SLOW, Shape, without_http
from benchmarks.w3.stacks import STACKS, Stack, StackFailed, missing, model_server, stack_of
from benchmarks.w3.submits import submits

WARM: Final = 50  # connections are open, statements compiled, code paths known
SLOW_PROCESSES: Final = 16  # of celery in the slow batch: with two, 2,000 runs would take 12 minutes
CELERY_RUNS_MAX: Final = 1000  # at once; more would take it minutes, and it is linear
IDLE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `share`: celery's part of the larger rounds, which cost it 5 to 10 times as much."""

    minutes: float
    rounds: int
    n: int
    singles: int
    slow: int
    fans: tuple[int, ...]
    fan_n: int
    scale: tuple[int, ...]
    counted: int
    killed: int
    flushed: int
    client_calls: int
    profile_s: float
    share: int
    posts: int
    lines: int


FULL: Final = Plan(
    minutes=40,
    rounds=3,
    n=200,
    singles=40,
    slow=2000,
    fans=(1, 3, 10, 30),
    fan_n=100,
    scale=(100, 1000, 5000),
    counted=500,
    killed=200,
    flushed=1000,
    client_calls=500,
    profile_s=15.0,
    share=1,
    posts=2000,
    lines=20000,
)
QUICK: Final = Plan(
    minutes=4,
    rounds=2,
    n=100,
    singles=8,
    slow=300,
    fans=(1, 30),
    fan_n=40,
    scale=(100, 500),
    counted=100,
    killed=0,
    flushed=300,
    client_calls=100,
    profile_s=0.0,
    share=4,
    posts=500,
    lines=5000,
)
SMOKE: Final = Plan(
    minutes=2,
    rounds=1,
    n=10,
    singles=1,
    slow=10,
    fans=(1, 3),
    fan_n=5,
    scale=(10,),
    counted=10,
    killed=0,
    flushed=0,
    client_calls=0,
    profile_s=0.0,
    share=2,
    posts=20,
    lines=100,
)


@dataclass(slots=True)
class Bench:
    """Measurements over the stacks that are up; every figure goes into `found` as soon as it is known."""

    plan: Plan
    model: Model
    stacks: dict[str, Stack]
    found: dict[str, Any] = field(default_factory=dict)

    def tried(self, name: str, kind: str, measure: Callable[[], Any], *, many: bool = False) -> None:
        """Measure, unless time is over; what goes wrong is the result."""
        figures = self._tried(measure)
        mark = "" if "cpu_ms" not in figures else f"{figures['cpu_ms']:.1f} ms CPU/run"
        problem = figures.get("failed") or figures.get("left_out") or ""
        print(
            f"{time.strftime('%H:%M:%S')} {name:<14} {kind:<9} {mark}{problem}", file=sys.stderr, flush=True
        )
        at = self.found.setdefault(name, {})
        if many:
            at.setdefault(kind, []).append(figures)
        else:
            at[kind] = figures

    def _tried(self, measure: Callable[[], Any]) -> dict[str, Any]:
        if time.monotonic() > self.model.ends_at:
            return {"left_out": "time was over"}
        started = time.monotonic()
        try:
            figures: dict[str, Any] = measure()
        except profiling.NoProfiler as exc:
            return {"left_out": str(exc)}
        except (rounds.RoundFailed, StackFailed, OSError, subprocess.SubprocessError) as exc:
            return {"failed": f"{type(exc).__name__}: {exc}"[:2000]}
        return {**figures, "took_s": time.monotonic() - started}

    def share(self, kind: str, n: int) -> int:
        return n // self.plan.share if kind == "celery" else n

    # -- the measurements -----------------------------------------------------------------------------------------

    def warm(self) -> None:
        for kind, stack in self.stacks.items():
            rounds.batch(stack, self.model, BUSY, min(WARM, self.plan.n))
            refuse_unsafe(stack)
            self.tried("idle", kind, lambda s=stack: rounds.idle(s, IDLE_S if self.plan.n >= WARM else 0.5))

    def overhead(self) -> None:
        """Interleaved: what the machine does beside it meets all stacks alike."""
        self.found["loop_ms"] = []
        for _ in range(self.plan.rounds):
            self.found["loop_ms"].append(loop_ms())
            for kind, stack in self.stacks.items():
                n = self.share(kind, self.plan.n)
                self.tried("overhead", kind, lambda s=stack, n=n: self._batch(s, BUSY, n), many=True)
                if kind != "celery":
                    self.tried(
                        "scripted",
                        kind,
                        lambda s=stack, n=n: self._batch(s, without_http(BUSY), n),
                        many=True,
                    )

    def waits(self) -> None:
        for kind, stack in self._fleets():
            self.tried("wait", kind, lambda s=stack: self._batch(s, BUSY, self.plan.n, wait=True))

    def singles(self) -> None:
        for kind, stack in self.stacks.items():
            self.tried("single", kind, lambda s=stack: rounds.single(s, self.model, SLOW, self.plan.singles))

    def submits(self) -> None:
        for kind, stack in self._fleets():
            self.tried("submits", kind, lambda s=stack: submits(s, self.plan.posts, self.plan.lines))

    def counted(self) -> None:
        for kind, stack in self._fleets():
            self.tried(
                "counted", kind, lambda s=stack: rounds.counted(s, self.model, BUSY, self.plan.counted)
            )
            if kind == "streams":
                n = min(50, self.plan.counted)
                self.tried("bytes", kind, lambda s=stack, n=n: rounds.message_bytes(s, self.model, BUSY, n))

    def slow(self) -> None:
        for kind, stack in self._fleets():
            self.tried("slow", kind, lambda s=stack: self._batch(s, SLOW, self.plan.slow, memory=True))
        if "celery" in self.stacks:
            self.tried("slow", "celery", self._slow_celery)

    def _slow_celery(self) -> dict[str, Any]:
        with stack_of("celery", self.model.url, concurrency=SLOW_PROCESSES) as stack:
            rounds.batch(stack, self.model, BUSY, WARM)
            figures = self._batch(stack, SLOW, self.share("celery", self.plan.slow), memory=True)
        return {**figures, "processes": SLOW_PROCESSES}

    def fan(self) -> None:
        for fan in self.plan.fans:
            for kind, stack in self.stacks.items():
                n = self.share(kind, self.plan.fan_n)
                self.tried(
                    "fan", kind, lambda s=stack, n=n, f=fan: self._batch(s, Shape(fan=f), n), many=True
                )

    def scale(self) -> None:
        for size in self.plan.scale:
            for kind, stack in self.stacks.items():
                n = self.share(kind, size)
                if kind == "celery" and n > CELERY_RUNS_MAX:
                    continue
                self.tried(
                    "scale", kind, lambda s=stack, n=n: self._batch(s, BUSY, n, memory=True), many=True
                )

    def faults(self) -> None:
        streams = self.stacks.get("streams")
        if streams is not None and self.plan.flushed:
            self.tried("flushed", "streams", lambda: rounds.flushed(streams, self.model, self.plan.flushed))
        for kind, stack in self._fleets():
            if kind != "embedded" and self.plan.killed:
                self.tried("killed", kind, lambda s=stack: rounds.killed(s, self.model, self.plan.killed))

    def client(self) -> None:
        """The model client alone (benchmarks/model_client.py): a call of a short and of a long conversation."""
        if self.plan.client_calls:
            self.tried("client", "alone", lambda: rounds.client(self.plan.client_calls))

    def profile(self) -> None:
        streams = self.stacks.get("streams")
        if streams is not None and self.plan.profile_s:
            self.tried("profile", "streams", lambda: self._profiled(streams))

    def _profiled(self, stack: Stack) -> dict[str, Any]:
        found = profiling.profile(stack, self.model, BUSY, self.plan.n, self.plan.profile_s)
        return {"roles": profiling.as_json(found)}

    def _fleets(self) -> list[tuple[str, Stack]]:
        return [(kind, stack) for kind, stack in self.stacks.items() if kind != "celery"]

    def _batch(self, stack: Stack, shape: Shape, n: int, **how: bool) -> dict[str, Any]:
        return rounds.batch(stack, self.model, shape, n, **how)

    def measure(self) -> None:
        """The most wanted first."""
        self.warm()
        for step in (
            self.overhead,
            self.singles,
            self.waits,
            self.submits,
            self.counted,
            self.slow,
            self.faults,
            self.fan,
            self.scale,
            self.client,
            self.profile,
        ):
            step()


def measured(plan: Plan, kinds: Sequence[str]) -> dict[str, Any]:
    """All figures. Raises Unsafe where a stack is not as it comes."""
    began = time.monotonic()
    told = {"made": made(), "plan": {name: getattr(plan, name) for name in Plan.__slots__}}
    with ExitStack() as open_:
        url, pid = open_.enter_context(model_server())
        left_out = {kind: why for kind in kinds if (why := missing(kind)) is not None}
        stacks = _up(open_, [kind for kind in kinds if kind not in left_out], url)
        bench = Bench(plan, Model(url, pid, began + plan.minutes * 60), stacks)
        bench.measure()
        processes = {kind: rounds.alive(stack) for kind, stack in stacks.items()}
    ended = {"took_s": time.monotonic() - began, "load_at_end": os.getloadavg()[0]}
    return {
        **told,
        **ended,
        "stacks": list(stacks),
        "left_out": left_out,
        "processes": processes,
        **bench.found,
    }


def _up(open_: ExitStack, kinds: Sequence[str], url: str) -> dict[str, Stack]:
    """All of them, started side by side; each is taken down by `open_`."""
    with ThreadPoolExecutor(max(1, len(kinds))) as pool:
        starting = {kind: pool.submit(open_.enter_context, stack_of(kind, url)) for kind in kinds}
    return {kind: started.result() for kind, started in starting.items()}


def profiled(kind: str, plan: Plan) -> str:
    with model_server() as (url, pid), stack_of(kind, url) as stack:
        told = []
        for title, shape in (("with the model client", BUSY), ("without HTTP", without_http(BUSY))):
            found = profiling.profile(stack, Model(url, pid), shape, plan.n, 15.0)
            told.append(f"\n== {kind}, {title}{profiling.told(found)}")
    return "\n".join(told)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.w3.run", description=(__doc__ or "").split("\n")[0]
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="four minutes, rougher figures")
    size.add_argument(
        "--smoke", action="store_true", help="ten runs: shows that it works, no figures to keep"
    )
    parser.add_argument("--stacks", default=",".join(STACKS), help="some of them, with commas between")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    parser.add_argument("--profile", action="store_true", help="tell where the workers' CPU goes instead")
    chosen = parser.parse_args(given)
    chosen.stacks = chosen.stacks.split(",")
    unknown = set(chosen.stacks) - set(STACKS)
    if unknown:
        parser.error(f"no stack is called {', '.join(sorted(unknown))}; there are {', '.join(STACKS)}")
    return chosen


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # also in the background of a script, where SIGINT is ignored
        signal.signal(number, lambda *_: sys.exit(130))  # servers and workers are stopped on the way out
    plan = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    if chosen.profile:
        for kind in chosen.stacks:
            if kind in ("streams", "rabbitmq"):
                print(profiled(kind, plan), flush=True)
        return 0
    told = measured(plan, chosen.stacks)
    chosen.out.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{chosen.out}: {told['took_s']:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
