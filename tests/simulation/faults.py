"""What goes wrong: rates and budgets drawn from the seed, and traps set at one place on purpose.

Each seed switches on a part of the kinds and draws how often they strike, so that some seeds see much of one kind
instead of a little of all. Everything that strikes is told to the story, which counts it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.plan import POISON
from tests.simulation.process import Process
from tests.simulation.story import Story
from toolfleet.schemas.limits import LEASE_S


@dataclass(frozen=True, slots=True)
class Rates:
    """Chances per place passed, per message, per call; and how often at most. The default: nothing goes wrong."""

    kill: float = 0.0
    kills_max: int = 0
    stop: float = 0.0  # SIGTERM: drained, handed back
    stops_max: int = 0
    freeze: float = 0.0
    freezes_max: int = 0
    publish_lost: float = 0.0
    publish_unknown: float = 0.0  # published, and the publisher is told that it failed
    duplicate: float = 0.0
    echoes: tuple[float, ...] = ()  # every message comes again after each of these
    late: float = 0.0  # overtaken by later ones
    lost_later: float = 0.0
    answer_lost: float = 0.0  # committed, and the worker is told that the database is away
    mark_lost: float = 0.0
    model_fault: float = 0.0
    model_fatal: float = 0.0
    model_slow: float = 0.0
    tool_fault: float = 0.0
    reconcile_silent: float = 0.0
    unloaded: float = 0.0  # a process has not loaded a tool
    skew: float = 0.0  # a process has a wall clock that is wrong
    cut_off: float = 0.0  # one process cannot reach the store for a while
    cut_offs_max: int = 0
    of_the_dead: tuple[int, int, int] = (
        6,
        2,
        1,
    )  # what a dead process held: again at once, after its claim, lost
    outages: tuple[tuple[float, float], ...] = ()  # of the store: (from, seconds)
    broker_outages: tuple[tuple[float, float], ...] = ()
    wipes: tuple[tuple[float, bool], ...] = ()  # (when, its marker is kept)
    active_s: float = 0.0  # nothing goes wrong after this


@dataclass(frozen=True, slots=True)
class Hit:
    """A place somebody passes: a named point, `store.<Event>.before/after`, `tool.before`, `tool.acted`."""

    at: str
    process: Process
    ids: Mapping[str, Any]


@dataclass(slots=True)
class Trap:
    """Does `do` the next `times` times somebody passes `at` where `where` holds, after letting `skip` pass."""

    at: str
    do: Callable[[Hit], None]
    where: Callable[[Hit], bool] = lambda hit: True
    times: int = 1
    skip: int = 0
    sprung_at: list[float] = field(default_factory=list)

    @property
    def armed(self) -> bool:
        return len(self.sprung_at) < self.times

    def springs(self, hit: Hit) -> bool:
        if self.at != hit.at or not self.armed or not self.where(hit):
            return False
        if self.skip:
            self.skip -= 1
            return False
        return True


_ECHOES_S = (0.01, 0.3, 1.0, 2.0, 4.0, 15.0, 33.0, 61.0)


def draw_rates(rng: random.Random) -> Rates:
    def some(*choices: float) -> float:
        return rng.choice(choices) if rng.random() < 0.55 else 0.0

    active_s = rng.choice((30.0, 60.0, 120.0, 200.0))
    windows = [
        (round(rng.uniform(0, 40), 3), rng.choice((0.5, 5.0, 20.0, 70.0)))
        for _ in range(rng.choice((0, 0, 1, 1, 2)))
    ]
    broker_windows = [
        (round(rng.uniform(0, 40), 3), rng.choice((1.0, 15.0))) for _ in range(rng.choice((0, 0, 0, 1)))
    ]
    wipes = [
        (round(rng.uniform(0.5, 40), 3), rng.random() < 0.3) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))
    ]
    return Rates(
        kill=some(0.004, 0.02, 0.05),
        kills_max=rng.choice((1, 3, 6, 12)),
        stop=some(0.002, 0.01),
        stops_max=3,
        freeze=some(0.003, 0.02),
        freezes_max=rng.choice((1, 2, 4)),
        publish_lost=some(0.02, 0.1, 0.4),
        publish_unknown=some(0.02, 0.1),
        duplicate=some(0.05, 0.2, 0.5),
        late=some(0.05, 0.3),
        lost_later=some(0.01, 0.1),
        answer_lost=some(0.01, 0.05, 0.1),
        mark_lost=some(0.05, 0.3),
        echoes=tuple(rng.choice(_ECHOES_S) for _ in range(rng.choice((0, 0, 0, 0, 1, 2)))),
        model_fault=some(0.05, 0.3),
        model_fatal=some(0.02),
        model_slow=some(0.05, 0.2),
        tool_fault=some(0.1, 0.3, 0.6),
        reconcile_silent=some(0.2, 0.6),
        unloaded=some(0.3) if rng.random() < 0.3 else 0.0,
        skew=some(0.3) if rng.random() < 0.5 else 0.0,
        cut_off=some(0.003, 0.02),
        cut_offs_max=2,
        outages=tuple(windows),
        broker_outages=tuple(broker_windows),
        wipes=tuple(wipes),
        active_s=active_s,
    )


@dataclass(slots=True)
class Faults:
    """Draws whether something goes wrong here. `kill`, `freeze` and `stop` are the world's."""

    rng: random.Random
    rates: Rates
    story: Story
    now: Callable[[], float]
    kill: Callable[[Process], None]
    freeze: Callable[[Process, float, bool], None]
    stop: Callable[[Process], None]
    traps: Sequence[Trap] = field(default_factory=list)
    lose_next_answer: bool = False  # set by a trap at store.<Event>.after
    lose_first: set[str] = field(default_factory=set)  # queues whose next message is lost
    scripted: Mapping[tuple[str, int], str] = field(
        default_factory=dict
    )  # (tool or "model", attempt) -> what it comes to
    _left: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._left = {
            "kill": self.rates.kills_max,
            "stop": self.rates.stops_max,
            "freeze": self.rates.freezes_max,
            "cut_off": self.rates.cut_offs_max,
        }

    @property
    def active(self) -> bool:
        return self.now() < self.rates.active_s

    def cease(self) -> None:
        """From here on only poison and traps strike."""
        self.rates = replace(self.rates, active_s=0.0)

    def strikes(self, kind: str, what: str = "") -> bool:
        rate: float = getattr(self.rates, kind)
        if not rate or not self.active or self.rng.random() >= rate:
            return False
        self.story.fault(kind, what)
        return True

    def chooses(self, kind: str) -> bool:
        """As `strikes`, told by the caller."""
        rate: float = getattr(self.rates, kind)
        return bool(rate) and self.active and self.rng.random() < rate

    def within(self, windows: Sequence[tuple[float, float]]) -> bool:
        now = self.now()
        return any(start <= now < start + seconds for start, seconds in windows)

    async def hit(self, process: Process, at: str, **ids: Any) -> None:
        """Somebody passes this place: traps first, then chance; then the gate, where the dead and frozen stay."""
        if not process.dead:
            for trap in self.traps:
                hit = Hit(at, process, ids)
                if trap.springs(hit):
                    trap.sprung_at.append(self.now())
                    self.story.fault("trap", f"{at} {process.name}")
                    trap.do(hit)
            self._chance(process, at)
        await process.gate()

    def _chance(self, process: Process, at: str) -> None:
        if process.kind == "front" or not self.active or process.dead or process.frozen:
            return
        for kind in ("kill", "stop", "freeze", "cut_off"):
            if self._left[kind] and self.chooses(kind):
                self._left[kind] -= 1
                self.story.fault(kind, f"{process.name} at {at}")
                self._strike(kind, process)
                return

    def _strike(self, kind: str, process: Process) -> None:
        match kind:
            case "kill":
                self.kill(process)
            case "stop":
                self.stop(process)
            case "cut_off":
                process.cut_off_until = self.now() + LEASE_S * self.rng.uniform(0.1, 3.0)
            case _:
                # about as often just longer than a lease: somebody else is then in the middle of the step
                leases = self.rng.choice((self.rng.uniform(1.0, 1.3), self.rng.uniform(1.0, 4.0)))
                self.freeze(process, LEASE_S * leases, self.rng.random() < 0.5)

    def poison(self, process: Process, what: str) -> None:
        self.story.fault("poison", f"{what} ends {process.name}")
        self.kill(process)

    def silent_reconcile(self, tool: str) -> bool:
        """Nobody answers what became of an effect, this time."""
        if ("reconcile", 0) in self.scripted:
            return self.scripted["reconcile", 0] == "silent"
        return self.strikes("reconcile_silent", tool)

    def model_fault(self, asked: int) -> str | None:
        """`asked`: the how manieth model call of the run this is."""
        if ("model", asked) in self.scripted:
            kind = self.scripted["model", asked]
        elif self.chooses("model_fatal"):
            kind = self.rng.choice(("bad_request", "auth", "not_found"))
        elif self.chooses("model_fault"):
            kind = self.rng.choice(("rate_limited", "unavailable", "timeout", "connection", "bad_reply"))
        else:
            return None
        self.story.fault(f"model_{kind}")
        return kind

    def model_latency_s(self, timeout_s: float) -> float:
        if self.chooses("model_slow"):
            self.story.fault("model_slow")
            return timeout_s * self.rng.choice((0.7, 1.5))
        return self.rng.choice((0.05, 0.3, 1.0, 2.0))

    def skew_s(self) -> float:
        """By how much the wall clock of a new process is wrong."""
        return self.rng.choice((-20.0, -2.0, 2.0, 20.0)) if self.strikes("skew") else 0.0

    def tool_outcome(self, tool: str, attempt: int, weights: Mapping[str, int], rng: random.Random) -> str:
        """`rng` belongs to the attempt, so that a repeat of it comes to the same."""
        if (tool, attempt) in self.scripted:
            return self.scripted[tool, attempt]
        if tool in POISON or not self.active or rng.random() >= self.rates.tool_fault:
            return "ok"
        what = rng.choices(list(weights), list(weights.values()))[0]
        self.story.fault(f"tool_{what}", tool)
        return what
