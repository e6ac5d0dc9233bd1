"""One world from one seed: the real handlers in several processes over in-memory ports, on virtual time.

`simulate(seed)` draws runs and faults; `simulate(seed, scenario)` takes them from a set-up aimed at something.
"""

from __future__ import annotations

import gc
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.ending import Ending
from tests.simulation.faults import Faults, Rates, Trap, draw_rates
from tests.simulation.front import Front
from tests.simulation.logs import Logs
from tests.simulation.loop import Stuck, VirtualLoop
from tests.simulation.oracle import Oracle
from tests.simulation.outside import Ledger
from tests.simulation.plan import AGENTS, TOOLS, RunPlan, draw_runs
from tests.simulation.ports import Broker, LayerPort, StorePort, finished
from tests.simulation.process import Process, WorldClock, outside, task_factory
from tests.simulation.roles import Deployed, deploy
from tests.simulation.rows import Rows
from tests.simulation.story import Story
from toolfleet.adapters.broker.memory import MemoryLayer
from toolfleet.adapters.store.memory import MemoryStore
from toolfleet.queues.envelope import Codec, KeyRing
from toolfleet.queues.policy import CLAIM_S
from toolfleet.schemas.ids import LeaseToken, RunId
from toolfleet.workers.machine import MACHINE

ROLES = ("decider", "executor", "collector", "keeper")
END_AFTER_S = 3_000.0  # since faults stopped: nothing takes this long
RESTART_S = (0.5, 2.0, 20.0)
QUIET_S = 3.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A set-up that is not drawn. `check` may add violations of its own at the end."""

    runs: tuple[RunPlan, ...]
    rates: Rates = field(default_factory=Rates)
    traps: Callable[[World], Sequence[Trap]] = lambda world: ()
    check: Callable[[World], None] = lambda world: None
    scripted: Mapping[tuple[str, int], str] = field(
        default_factory=dict
    )  # (tool or "model", attempt) -> what it comes to
    each: int = 2  # processes of each role


@dataclass(frozen=True, slots=True)
class Report:
    """What one seed came to."""

    seed: int
    violations: tuple[str, ...]
    faults: Counter[str]
    lines: tuple[str, ...]
    digest: str
    virtual_s: float
    statuses: Counter[str]
    commits: int
    late_acts: int
    final_doubles: int

    def without_lines(self) -> Report:
        return replace(self, lines=())


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, scenario: Scenario | None, machine: Any = MACHINE) -> None:
        self.seed = seed
        rng = random.Random(f"toolfleet:{seed}")
        self.runs = scenario.runs if scenario is not None else draw_runs(random.Random(rng.random()))
        rates = scenario.rates if scenario is not None else draw_rates(random.Random(rng.random()))
        self._each = scenario.each if scenario is not None else 2
        shuffle = random.Random(rng.random())
        self.loop = VirtualLoop(shuffle if rng.random() < 0.5 else None)
        self.loop.set_task_factory(task_factory)
        self.loop.set_exception_handler(self._loop_error)
        self.clock = WorldClock(self.loop)
        self.story = Story(self.loop.time)
        self.rng = random.Random(rng.random())
        self.faults = Faults(
            random.Random(rng.random()), rates, self.story, self.loop.time, self.kill, self.freeze, self.stop
        )
        self.store = MemoryStore(machine, time_source=self.clock.now_s)
        self.broker = Broker(MemoryLayer(claim_s=CLAIM_S, clock=self.clock), self.faults, self.later)
        self.ledger = Ledger(self.story, self.loop.time)
        self.rows = Rows(self.store)
        self.oracle = Oracle(self.rows, self.ledger, self.story, self.clock.now_s)
        self.codec = Codec(KeyRing({"s": b"0123456789abcdef"}), self.clock.now_s)
        self.plans = {plan.index: plan for plan in self.runs}
        self.alive: dict[tuple[str, int], Deployed] = {}
        self._commits: Counter[RunId] = Counter()
        self._generation = itertools.count(1)
        self.front = Front(self)
        self.oracle.said = self.front.said
        self._tokens = itertools.count(1)
        self._coming_back = 0
        self._over = False
        if scenario is not None:
            self.faults.traps = list(scenario.traps(self))
            self.faults.scripted = scenario.scripted

    # -- time ------------------------------------------------------------------------------------------------------

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Outside every process; what is on its way is waited for at the end."""
        self.ledger.pending += 1

        def do() -> None:
            self.ledger.pending -= 1
            work()

        self.loop.call_later(seconds, do, context=outside())

    def run(self) -> None:
        """The whole life of the world."""
        finished(self.store.register_agents(list(AGENTS.values())))
        for kind in ROLES:
            for slot in range(self._each):
                self._start(kind, slot)
        for when, keep_marker in self.faults.rates.wipes:
            self.loop.call_at(when, self._wipe, keep_marker, context=outside())
        for kind, windows in (
            ("store", self.faults.rates.outages),
            ("broker", self.faults.rates.broker_outages),
        ):
            for when, seconds in windows:
                self.loop.call_at(when, self._outage, kind, seconds, context=outside())
        self.front.start()
        try:
            self.loop.run_until_complete(self._live())
        except Stuck as exc:
            self.story.violation("11", str(exc))
        finally:
            self._close()

    async def _live(self) -> None:
        step_s = 0.5
        ending: Ending | None = None
        quiet_s = 0.0
        while not self.story.violations:
            await self.clock.sleep(step_s)
            self._ended_roles()
            now = self.loop.time()
            if ending is None and self._faults_over():
                ending = Ending(self.oracle, self.rows, self.broker, self.clock.now_s())
                self.story.say("world", "faults have stopped")
            if ending is not None:
                ending.watch(self.front.accepted, self.clock.now_s())
            quiet_s = quiet_s + step_s if self._at_rest() else 0.0
            if quiet_s > QUIET_S:
                ending = ending or Ending(self.oracle, self.rows, self.broker, self.clock.now_s())
                ending.judge(self.runs, self.front.accepted)
                return
            if now > self.faults.rates.active_s + END_AFTER_S:
                self.story.violation("11", f"not at rest at the end: {self._unrest()}")
                return

    def _faults_over(self) -> bool:
        cut_off = any(one.process.cut_off_until > self.loop.time() for one in self.alive.values())
        waiting = any(trap.armed for trap in self.faults.traps)
        return not (self.faults.active or self._coming_back or self._frozen() or cut_off or waiting)

    def _at_rest(self) -> bool:
        return not any(self._unrest().values())

    def _unrest(self) -> dict[str, Any]:
        return {
            "runs to come": self.front.expected,
            "not terminal": [r for r in self.front.accepted if not self.oracle.last[r].state.terminal],
            "messages": sum(finished(self.broker.layer.depths()).values()) + self.broker.on_the_way,
            "on the way": self.ledger.pending,
            "frozen": self._frozen(),
            "coming back": self._coming_back,
            "stops to come": self.front.cancels_to_come(),
        }

    def _frozen(self) -> int:
        return sum(1 for one in self.alive.values() if one.process.frozen)

    # -- commits (ports.Judge) -------------------------------------------------------------------------------------

    def committed(self, run_id: RunId) -> None:
        self.oracle.committed(run_id)
        self._commits[run_id] += 1
        self.front.committed(run_id, self._commits[run_id])

    def renewed(self, command_ids: Sequence[str]) -> None:
        self.oracle.renewed(command_ids)

    # -- processes -------------------------------------------------------------------------------------------------

    def new_process(self, kind: str, slot: int) -> Process:
        process = Process(self.loop, kind, slot, next(self._generation), self.faults.skew_s())
        if self.faults.chooses("unloaded"):
            process.missing = frozenset({self.rng.choice(sorted(TOOLS))})
            self.story.fault("unloaded", f"{sorted(process.missing)} in {process.name}")
        return process

    def store_port(self, process: Process) -> StorePort:
        return StorePort(self.store, process, self.faults, self.later, self)

    def layer_port(self, process: Process) -> LayerPort:
        return LayerPort(self.broker, process)

    def token(self) -> LeaseToken:
        return LeaseToken(f"t{next(self._tokens)}")

    def _start(self, kind: str, slot: int) -> None:
        process = self.new_process(kind, slot)
        self.alive[kind, slot] = deploy(self, process)
        self.story.say("world", f"{process.name} starts")

    def _restart(self, process: Process) -> None:
        self._coming_back += 1

        def start() -> None:
            self._coming_back -= 1
            if not self._over:
                self._start(process.kind, process.slot)

        self.loop.call_later(self.rng.choice(RESTART_S), start, context=outside())

    def kill(self, process: Process) -> None:
        """It never does anything again; its messages come back or are lost; a fresh one starts after a while."""
        if process.dead:
            return
        self.story.say(process.name, "is killed")
        process.kill()
        self.broker.holder_died(process)
        self._restart(process)

    def freeze(self, process: Process, seconds: float, clock_stands: bool) -> None:
        if process.dead or process.frozen:
            return
        self.story.say(
            process.name, f"freezes for {seconds:.1f} s, its clock {'stands' if clock_stands else 'runs'}"
        )
        process.freeze(clock_stands=clock_stands)

        def thaw() -> None:
            if not process.dead:
                self.story.say(process.name, "wakes up")
                process.thaw()

        self.loop.call_later(seconds, thaw, context=outside())

    def stop(self, process: Process, grace_s: float | None = None) -> None:
        """SIGTERM: as the composition root does it, then gone. `grace_s`: how long it waits for steps in flight."""
        grace_s = self.rng.choice((0.0, 1.0)) if grace_s is None else grace_s
        deployed = self.alive[process.kind, process.slot]
        if deployed.process is not process or deployed.stopping:
            return
        deployed.stopping = True

        async def stop() -> None:
            await deployed.stop(grace_s)
            self.story.say(process.name, "has stopped")
            self.kill(process)

        process.start(stop())

    def _wipe(self, keep_marker: bool) -> None:
        if self.faults.active:
            self.story.fault("wipe", "marker kept" if keep_marker else "")
            self.broker.wipe(keep_marker=keep_marker)

    def outage(self, seconds: float) -> None:
        """The database is away for everybody from now on, whatever was drawn."""
        until = self.loop.time() + seconds
        self.story.fault("store_away", f"for {seconds} s")
        for one in (self.front.process, *(deployed.process for deployed in self.alive.values())):
            one.cut_off_until = until

    def _outage(self, kind: str, seconds: float) -> None:
        if self.faults.active:
            self.story.fault(f"{kind}_away", f"for {seconds} s")

    def _ended_roles(self) -> None:
        for one in self.alive.values():
            for exc in one.process.ended:
                self.story.violation("role", f"{one.process.name} ended: {exc!r}")

    def _loop_error(self, loop: Any, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        if isinstance(exc, Exception):
            self.story.violation("task", f"{context.get('message')}: {exc!r}")

    def _close(self) -> None:
        self._over = True
        for one in self.alive.values():
            one.process.kill()
        self.front.process.kill()
        self.loop.run_until_complete(self.clock.sleep(1.0))
        self.loop.close()


def simulate(seed: int, scenario: Scenario | None = None, machine: Any = MACHINE) -> Report:
    """Run one seed to its end. Same seed, same scenario, same code: same report."""
    world = World(seed, scenario, machine)
    with Logs(world.story):
        world.run()
        if scenario is not None and not world.story.violations:
            scenario.check(world)
    states = [one.state for one in world.oracle.last.values()]
    report = Report(
        seed=seed,
        violations=tuple(world.story.violations),
        faults=world.story.faults,
        lines=tuple(world.story.lines),
        digest=world.story.digest(),
        virtual_s=world.loop.time(),
        statuses=Counter(state.status.value for state in states),
        commits=world.oracle.commits,
        late_acts=world.oracle.late_acts,
        final_doubles=world.oracle.final_doubles,
    )
    del world
    if seed % 20 == 0:
        gc.collect()  # worlds are full of cycles
    return report
