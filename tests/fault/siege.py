"""A fleet of real processes before a provider that misbehaves, with a fault at every point of the code around an effect.

Before a process is struck it is given a wave of runs, one for each behaviour of the provider. A pair (fault, behaviour) is
counted for each run that was in flight when the fault struck. What came of all of it is judged by the provider's ledger.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fault.ledger_app import AGENT, ASKED, SEND_BY_S, TOOLS, fleet
from tests.fault.ledger_server import BEHAVIOURS
from tests.fault.stack import LEASE_S, ROLES, ROOT, Process, Stack, wait_until
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.workers.points import POINTS

JUDGED: Final = ("streams", "embedded")  # the stacks whose reports stand in docs/ledger: one on each database
SLEEP: Final = "SIGSTOP between claim and send"
FAULTS: Final = (*POINTS, SLEEP)
ROLE_OF: Final = {"decide": "decide", "exec": "exec", "collect": "collect", "keeper": "keep", SLEEP: "exec"}
APP: Final = "tests.fault.ledger_app:fleet"
SLEEPS_S: Final = (0.5, SEND_BY_S + 0.5, LEASE_S + SEND_BY_S + 1.0)  # sent, given up, overtaken
MISSED_S: Final = 30.0  # a victim that nothing came to is given more
END_S: Final = 900.0  # hundreds of runs, each with deadlines and quiet times, on a machine that is busy
RUNS_MIN: Final = 200  # of a whole siege
FAULTS_MIN: Final = 500
PATIENCE_S: Final = 600.0  # for one step of a siege; the test's own timeout is what ends it
TWINS: Final = 0.1  # share of the runs that ask for a refund somebody else asks for


@contextmanager
def provider() -> Iterator[str]:
    """The ledger server's address."""
    command = [sys.executable, "-m", "tests.fault.ledger_server"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        with server:
            server.wait()


def told(address: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@dataclass(slots=True)
class Victim:
    """A process that will be struck at a point; `wakes_at`: it sleeps until then."""

    process: Process
    fault: str
    wakes_at: float | None = None


@dataclass(slots=True)
class Siege:
    """`faults`: those that strike, each as often as it is named. `waves`: sets of runs that are in flight then."""

    stack: Stack
    address: str
    rng: random.Random
    faults: Sequence[str]
    waves: int = 1
    runs: dict[str, tuple[str, str]] = field(default_factory=dict)  # run: (tool, order)
    pairs: dict[str, Counter[str]] = field(default_factory=dict)
    strikes: Counter[str] = field(default_factory=Counter)
    _does: dict[str, str] = field(default_factory=dict)  # order: behaviour
    _drawn_orders: list[tuple[str, str]] = field(default_factory=list)
    _submitted_at: float = 0.0

    @property
    def embedded(self) -> bool:
        return self.stack.kind == "embedded"

    def play(self) -> None:
        steady = self._struck(self._plans())
        self.stack.wait_all(seconds=END_S)
        self.stack.end(*steady)

    # -- processes that are struck -------------------------------------------------------------------------------------

    def _plans(self) -> dict[str, list[str]]:
        """By role, the faults to come, in an order of this seed."""
        plans: dict[str, list[str]] = {"all": []} if self.embedded else {role: [] for role in ROLES}
        for fault in self.rng.sample(self.faults, len(self.faults)):
            role = "all" if self.embedded else ROLE_OF.get(fault, ROLE_OF[fault.partition(".")[0]])
            plans[role].append(fault)
        return plans

    def _struck(self, plans: dict[str, list[str]]) -> list[Process]:
        """Until every fault has struck; returns the processes that nothing will strike any more."""
        victims: dict[str, Victim] = {}
        steady: list[Process] = []
        sleeping: list[Victim] = []
        while True:
            for role, plan in plans.items():
                if role not in victims and plan:
                    victims[role] = self._victim(role, plan.pop(0))
                elif role not in victims and all(one.role != role for one in steady):
                    steady.append(self.stack.start(role, wait=False))
            if not victims and not sleeping:
                self.stack.wait_for(*steady, seconds=PATIENCE_S)
                return steady
            self._feed(victims.values())
            wait_until(
                lambda: self._any_struck(victims, sleeping),
                "something is struck, or wants to be",
                seconds=PATIENCE_S,
            )
            for role, victim in list(victims.items()):
                if self._is_struck(victim):
                    self._count(victim.fault)
                    del victims[role]
                    if victim.fault == SLEEP:
                        victim.wakes_at = time.monotonic() + self.rng.choice(SLEEPS_S)
                        sleeping.append(victim)
                        if self.embedded:
                            victims[role] = victim  # nobody else may take its place while it sleeps
                    else:
                        self.stack.end(victim.process)
            for victim in [one for one in sleeping if time.monotonic() >= (one.wakes_at or 0.0)]:
                sleeping.remove(victim)
                self._woken(victim)
                if self.embedded:
                    del victims["all"]

    def _woken(self, victim: Victim) -> None:
        """It goes on, ends what it held, and is gone."""
        held = "SELECT count(*) FROM commands WHERE token IS NOT NULL AND owner LIKE :owner"
        victim.process.signal(signal.SIGCONT)
        owner = f"%:{victim.process.pid}"
        wait_until(lambda: self.stack.query(held, owner=owner)[0][0] == 0, "it lets go", seconds=PATIENCE_S)
        self.stack.end(victim.process)

    def _victim(self, role: str, fault: str) -> Victim:
        name = f"exec.after_lease:{self.rng.choice((1, 2))}:stop" if fault == SLEEP else fault
        if fault == "keeper.after_reset" and not self.embedded:
            self._lose_marker()
        process = self.stack.start(role, extra={"TOOLFLEET_FAULT_POINT": name}, wait=False)
        return Victim(process, fault)

    def _lose_marker(self) -> None:
        """As a broker that is new: no marker of ours."""
        fleet = self.stack.fleet()
        fleet.client()
        assert fleet._layer is not None
        fleet._run(fleet._layer.set_marker("somebody else's"))

    def _is_struck(self, victim: Victim) -> bool:
        if victim.wakes_at is not None:
            return False
        if victim.fault == SLEEP:
            return _state(victim.process) in ("T", "t")
        status = victim.process.popen.poll()
        assert status in (None, -signal.SIGKILL), victim.process.tail()
        return status is not None

    def _any_struck(self, victims: dict[str, Victim], sleeping: Sequence[Victim]) -> bool:
        now = time.monotonic()
        if any(self._is_struck(victim) for victim in victims.values()):
            return True
        return now - self._submitted_at > MISSED_S or any(now >= (one.wakes_at or 0.0) for one in sleeping)

    def _count(self, fault: str) -> None:
        """The behaviours that runs in flight meet, at this strike."""
        self.strikes[fault] += 1
        open_ = self.stack.query("SELECT id FROM runs WHERE finished_at IS NULL")
        does = [self._does[self.runs[run][1]] for (run,) in open_ if run in self.runs]
        self.pairs.setdefault(fault, Counter()).update(does)

    # -- work ------------------------------------------------------------------------------------------------------------

    def _feed(self, victims: Iterable[Victim]) -> None:
        """A wave for those that wait to be struck; what only the keeper can send, where it is the keeper."""
        waiting = [victim.fault for victim in victims if victim.wakes_at is None]
        if waiting:
            keeps = any(fault.startswith("keeper.") for fault in waiting) and self.rng.random() < 0.5
            for _ in range(self.waves):
                self._submit(BEHAVIOURS, unpublished=keeps)

    def _submit(self, behaviours: Sequence[str], *, unpublished: bool = False) -> None:
        inputs = [self._drawn(does) for does in behaviours]
        submit = self.stack.submit_unpublished if unpublished else self.stack.submit
        try:
            runs = submit([f"{name} {order}" for name, order in inputs])
        except StoreUnavailable:  # a process that sleeps in the middle of a write keeps SQLite's one lock
            assert self.embedded, "PostgreSQL locks rows, not everything"
            return
        self.runs.update(zip(runs, inputs, strict=True))
        self._submitted_at = time.monotonic()

    def _drawn(self, does: str) -> tuple[str, str]:
        """A tool and an order the provider will treat so; now and then one that was asked for already."""
        asked = [one for one in self._drawn_orders if self._does[one[1]] == does]
        if asked and self.rng.random() < TWINS:
            return self.rng.choice(asked)
        order = str(len(self._does) + 1)
        times = 0 if does == "answers" else self.rng.choice((1, 1, 2))
        silent = self.rng.choice((0, 0, 1, 2))
        told(self.address, "/plan", {order: {"does": does, "times": times, "silent": silent}})
        chosen = (self.rng.choice(TOOLS).spec.name, order)
        self._does[order] = does
        self._drawn_orders.append(chosen)
        return chosen


def _state(process: Process) -> str:
    """As /proc has it: T is stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- the judge -------------------------------------------------------------------------------------------------------------


def judged(siege: Siege, seed: int) -> dict[str, Any]:
    """The report. Raises AssertionError where the provider's ledger and ours do not agree, or something was lost."""
    ledger = told(siege.address, "/ledger")
    acts = {order: len(one["acts"]) for order, one in ledger.items()}
    twice = {order: ledger[order] for order, count in acts.items() if count > 1}
    assert twice == {}, f"effects that happened more than once: {twice}"

    stack = siege.stack
    ends = {
        run: (status, reason) for run, status, reason in stack.query("SELECT id, status, reason FROM runs")
    }
    assert set(siege.runs) <= set(ends), "a run is lost"
    # A decision that was in the hands of three workers when they were struck is given up, and says so.
    poisoned = {
        run for (run,) in stack.query("SELECT run_id FROM dead WHERE call_id IS NULL AND kind = 'step'")
    }
    unended = {run: end for run, end in ends.items() if end != ("completed", None) and run not in poisoned}
    assert unended == {}, "a run came to nothing"
    assert all(ends[run] == ("failed", "worker_lost") for run in poisoned)

    outcomes: Counter[str] = Counter()
    states: Counter[str] = Counter()
    given_up = {call for (call,) in stack.query("SELECT call_id FROM dead WHERE call_id IS NOT NULL")}
    rows = stack.query(
        "SELECT r.run_id, r.call_id, r.outcome, e.state FROM results r LEFT JOIN effects e ON e.call_id = r.call_id"
    )
    assert {run for run, *_ in rows} | poisoned == set(siege.runs), "a call has no outcome"
    for run, call, outcome, state in rows:
        name, order = siege.runs[run]
        outcomes[outcome] += 1
        states[state or "shared, or none"] += 1
        what = f"{name} {order} ({call}): {outcome}, ledger {state}, {ledger.get(order)}"
        assert state not in ("dispatched", "reconciling"), what
        match outcome:
            case "ok":
                assert acts[order] == 1, what
            case "needs_human":
                asked_in_vain = name in ASKED and acts.get(order) and call not in given_up
                assert not asked_in_vain, f"it happened, and whoever was asked said so: {what}"
            case "failed":
                assert acts.get(order, 0) == 0, what
            case _:
                raise AssertionError(what)
    _same_key_for_all_attempts(ledger)
    return _report(siege, seed, ledger, outcomes, states)


def _same_key_for_all_attempts(ledger: dict[str, Any]) -> None:
    """The provider sees one key for all attempts of a call, and another for another call."""
    keys: dict[str, set[str]] = {}
    for one in ledger.values():
        for request in one["requests"]:
            keys.setdefault(request["call"], set()).add(request["key"])
    assert all(len(of_one) == 1 for of_one in keys.values())
    assert len({key for of_one in keys.values() for key in of_one}) == len(keys)


def _report(
    siege: Siege, seed: int, ledger: dict[str, Any], outcomes: Counter[str], states: Counter[str]
) -> dict[str, Any]:
    server: Counter[str] = Counter()
    for one in ledger.values():
        server.update(request["did"] for request in one["requests"] if request["did"] != "answers")
        server["question dropped"] += one["dropped_questions"]
    met = sum(counted.total() for counted in siege.pairs.values())
    return {
        "stack": siege.stack.kind,
        "seed": seed,
        "runs": len(siege.runs),
        "orders": len(ledger),
        "faults": siege.strikes.total() + server.total(),
        "met": met + server.total(),
        "strikes": dict(sorted(siege.strikes.items())),
        "pairs": {fault: dict(sorted(siege.pairs[fault].items())) for fault in sorted(siege.pairs)},
        "provider": dict(sorted(server.items())),
        "acts_per_order_max": max(len(one["acts"]) for one in ledger.values()),
        "outcomes": dict(sorted(outcomes.items())),
        "effects": dict(sorted(states.items())),
    }


def empty_pairs(report: dict[str, Any], faults: Sequence[str] = FAULTS) -> list[tuple[str, str]]:
    """Pairs that did not occur."""
    pairs = report["pairs"]
    return [(one, two) for one in faults for two in BEHAVIOURS if not pairs.get(one, {}).get(two)]


def laid(stack: Stack, address: str, seed: int, faults: Sequence[str], waves: int = 1) -> Siege:
    """A siege of that stack. Breakers stay out of it: they would keep calls from the provider."""
    stack.app, stack.agent = APP, AGENT
    stack.variables = {
        "LEDGER_SERVER": address,
        "TOOLFLEET_BREAKER_CALLS_MIN": "100000",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    store = stack.fleet().client().store
    stack.fleet()._run(store.register_agents(list(fleet.registry.agents.values())))
    return Siege(stack, address, random.Random(seed), faults, waves)
