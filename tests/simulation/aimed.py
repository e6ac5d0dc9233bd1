"""Set-ups aimed at one place each: what uniform chance meets too rarely to be relied on.

Each is a scenario with traps and a check of its own; the oracle judges as always.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.simulation.faults import Hit, Rates, Trap
from tests.simulation.plan import RunPlan, call, turn
from tests.simulation.process import EPOCH
from tests.simulation.world import Scenario, World
from toolfleet.schemas.limits import DEATHS_MAX, KEEPER_PERIOD_S, LEASE_S, UNSENT_AFTER_S
from toolfleet.schemas.outcomes import CallOutcome, RunStatus

RESTART_MAX_S = 20.0
FEW_S = 8.0  # model and tool latencies of the rest of a short run
SHORT = 0.5 * LEASE_S

READS = RunPlan(0, (turn(call("look", 1), call("scan", 2)),))
ONE_READ = RunPlan(0, (turn(call("look", 1)),))
ONE_SEND = RunPlan(0, (turn(call("send", 1)),))
ONE_WIRE = RunPlan(0, (turn(call("wire", 1)),))
ONE_POST = RunPlan(0, (turn(call("post", 1)),))
ONE_PAY = RunPlan(0, (turn(call("pay", 1)),))
MIXED = RunPlan(0, (turn(call("look", 1), call("send", 2), call("pay", 3)), turn(call("wire", 4))))

Action = Callable[[World, Hit], None]


def kill(world: World, hit: Hit) -> None:
    world.kill(hit.process)


def freeze(seconds: float, *, clock_stands: bool = False) -> Action:
    return lambda world, hit: world.freeze(hit.process, seconds, clock_stands)


def lose_answer(world: World, hit: Hit) -> None:
    world.faults.lose_next_answer = True


def trapped(
    run: RunPlan | Sequence[RunPlan],
    at: str,
    action: Action,
    check: Callable[[World], None] = lambda world: None,
    *,
    where: Callable[[Hit], bool] = lambda hit: True,
    times: int = 1,
    skip: int = 0,
    rates: Rates | None = None,
    scripted: Mapping[tuple[str, int], str] | None = None,
) -> Scenario:
    """A scenario with one trap; that it sprang is part of every check."""

    def traps(world: World) -> list[Trap]:
        return [Trap(at, lambda hit: action(world, hit), where, times, skip)]

    def checked(world: World) -> None:
        sprung = len(world.faults.traps[0].sprung_at)
        expect(world, sprung == times, f"the trap at {at} sprang {sprung} of {times} times")
        check(world)

    runs = (run,) if isinstance(run, RunPlan) else tuple(run)
    # with nothing drawn, what a dead process held comes again at once
    calm = Rates(of_the_dead=(1, 0, 0))
    return Scenario(runs, rates or calm, traps, checked, scripted or {})


# -- what is checked at the end ----------------------------------------------------------------------------------------


def expect(world: World, holds: bool, what: str) -> None:
    world.oracle.require(holds, "aimed", what)


def status(world: World, run: int = 0) -> RunStatus:
    return world.oracle.last[world.plans[run].run_id].state.status


def outcomes(world: World, run: int = 0) -> list[CallOutcome]:
    return [result.outcome for _, result in world.oracle.last[world.plans[run].run_id].results]


def deaths(world: World) -> int:
    return sum(len(tokens) for tokens in world.oracle.expired.values()) + world.oracle.died.total()


def acts(world: World) -> int:
    return sum(seen.acts for seen in world.ledger.calls.values())


def came_to(
    wanted: RunStatus, *outcome: CallOutcome, acts_: int | None = None, deaths_: int | None = None
) -> Callable[[World], None]:
    """The run ended so, its calls came to these, the world was changed that often, that many leases ran out."""

    def check(world: World) -> None:
        expect(world, status(world) is wanted, f"the run is {status(world)}")
        expect(world, outcomes(world) == list(outcome), f"the calls came to {outcomes(world)}")
        expect(world, acts_ in (None, acts(world)), f"{acts(world)} acts")
        expect(world, deaths_ in (None, deaths(world)), f"{deaths(world)} deaths")

    return check


def within(seconds: float, then: Callable[[World], None] = lambda world: None) -> Callable[[World], None]:
    """The run was over so soon after the trap sprang last."""

    def check(world: World) -> None:
        if world.faults.traps[0].armed:
            return  # which is said already
        view = world.rows.view(world.plans[0].run_id)
        took = (view.info.finished_at or 0.0) - EPOCH - world.faults.traps[0].sprung_at[-1]
        expect(world, took <= seconds, f"it took {took:.1f} s, {seconds:.1f} s were allowed")
        then(world)

    return check


OK, FAILED, HUMAN = CallOutcome.OK, CallOutcome.FAILED, CallOutcome.NEEDS_HUMAN
DONE = RunStatus.COMPLETED

# An unleased first try dies without a death; then three leases do.
DEATHS: dict[str, Scenario] = {
    "three deaths of a read-only call": trapped(
        ONE_READ, "tool.before", kill, came_to(DONE, FAILED, deaths_=DEATHS_MAX), times=1 + DEATHS_MAX
    ),
    "three deaths of an effect that takes a key": trapped(
        ONE_PAY, "tool.acted", kill, came_to(DONE, HUMAN, acts_=1, deaths_=DEATHS_MAX), times=DEATHS_MAX
    ),
    "two deaths of an effect that takes a key": trapped(
        ONE_PAY, "tool.acted", kill, came_to(DONE, OK, acts_=1, deaths_=2), times=2
    ),
    "death of an effect after it acted": trapped(
        ONE_SEND, "tool.acted", kill, came_to(DONE, HUMAN, acts_=1, deaths_=1)
    ),
    "death of an effect before it began": trapped(
        ONE_SEND, "tool.before", kill, came_to(DONE, HUMAN, acts_=0, deaths_=1)
    ),
    "three deaths of a decision": trapped(
        ONE_READ, "decide.before_model", kill, came_to(RunStatus.FAILED, deaths_=DEATHS_MAX), times=DEATHS_MAX
    ),
    "two deaths of a decision": trapped(
        ONE_READ, "decide.after_model", kill, came_to(DONE, OK, deaths_=2), times=2
    ),
    # What is refused then says nothing of the attempt before: it is asked again, and at last a human is.
    **{
        f"{what} after a lost attempt that acted": trapped(
            ONE_PAY, "tool.acted", kill, came_to(DONE, OK, acts_=1, deaths_=1), scripted={("pay", 2): what}
        )
        for what in ("business", "denied", "not_sent", "refused")
    },
    "nothing but refusals after a lost attempt that acted": trapped(
        ONE_PAY,
        "tool.acted",
        kill,
        came_to(DONE, HUMAN, acts_=1, deaths_=1),
        scripted={("pay", 2): "business", ("pay", 3): "business"},
    ),
}


def late_act(wanted: CallOutcome, repeats: int) -> Callable[[World], None]:
    def check(world: World) -> None:
        came_to(DONE, wanted, acts_=1, deaths_=1)(world)
        seen = next(iter(world.ledger.calls.values()))
        expect(world, seen.repeats == repeats, f"{seen.repeats} repeats under the key")
        expect(world, world.oracle.late_acts == (wanted is HUMAN), f"{world.oracle.late_acts} late acts")

    return check


def _freezes() -> dict[str, Scenario]:
    found: dict[str, Scenario] = {}
    for stands in (False, True):
        clock = "its clock standing" if stands else "its clock running"
        for leases in (1.2, 2.0, 4.0):
            sleep = freeze(leases * LEASE_S, clock_stands=stands)
            name = f"between lease and first byte for {leases:g} leases, {clock}"
            found[f"an effect frozen {name}"] = trapped(ONE_SEND, "tool.before", sleep, late_act(HUMAN, 0))
            found[f"an effect with a key frozen {name}"] = trapped(
                ONE_PAY, "tool.before", sleep, late_act(OK, 1)
            )
            found[f"a model reply {leases:g} leases late, {clock}"] = trapped(
                ONE_READ, "decide.after_model", sleep, came_to(DONE, OK, deaths_=1)
            )
            found[f"an effect's outcome {leases:g} leases late, {clock}"] = trapped(
                ONE_SEND, "tool.acted", sleep, came_to(DONE, HUMAN, acts_=1, deaths_=1)
            )
            found[f"a keeper frozen before it expires a lease for {leases:g} leases, {clock}"] = _two_traps(
                ONE_READ, ("decide.before_model", kill), ("store.LeaseExpired.before", sleep)
            )
        found[f"a late model reply while another worker asks, {clock}"] = _two_traps(
            ONE_READ,
            ("decide.before_model", lambda world, hit: None),
            ("decide.after_model", freeze(LEASE_S + 6.0, clock_stands=stands)),
            ("decide.before_model", freeze(15.0)),
        )
    return found


def _two_traps(run: RunPlan, *pairs: tuple[str, Action]) -> Scenario:
    """Each springs once; a second one at the same place the second time somebody passes it."""

    def traps(world: World) -> list[Trap]:
        return [
            _trap(world, at, action, [a for a, _ in pairs[:n]].count(at))
            for n, (at, action) in enumerate(pairs)
        ]

    return Scenario((run,), Rates(of_the_dead=(1, 0, 0)), traps, came_to(DONE, OK))


def _trap(world: World, at: str, action: Action, skip: int) -> Trap:
    return Trap(at, lambda hit: action(world, hit), skip=skip)


FREEZES = _freezes()

# The last two results of a turn, each in the hands of another collector, and each twice.
_EARLY = Rates(echoes=(0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1, 2.4, 2.7, 3.0), active_s=60.0)
_DOUBLED = Rates(duplicate=1.0, late=0.3, active_s=30.0)
RESULTS: dict[str, Scenario] = {
    "the last results, doubled, with two collectors": Scenario(
        (READS,), _DOUBLED, check=came_to(DONE, OK, OK)
    ),
    "the last results with a slow collector": trapped(
        READS, "collect.before_settle", freeze(3.0), came_to(DONE, OK, OK), rates=_DOUBLED
    ),
    "a collector killed between the last result and the resume": trapped(
        READS,
        "collect.after_settle",
        kill,
        within(UNSENT_AFTER_S + 2 * KEEPER_PERIOD_S + FEW_S, came_to(DONE, OK, OK)),
        where=lambda hit: True,
        skip=1,
    ),
    "a collector killed before it counted the last result": trapped(
        READS, "collect.before_settle", kill, within(RESTART_MAX_S + FEW_S, came_to(DONE, OK, OK)), skip=1
    ),
    "a collector frozen for three leases before it counts": trapped(
        READS, "collect.before_settle", freeze(3 * LEASE_S), came_to(DONE, OK, OK), skip=1
    ),
}

# A message that comes again while its step waits for its time: nothing begins before it is due (invariant 10).
EARLY: dict[str, Scenario] = {
    "doubled messages of a decision that waits": Scenario(
        (ONE_READ,),
        _EARLY,
        check=came_to(DONE, OK),
        scripted={("model", n): "rate_limited" for n in (1, 2, 3)},
    ),
    "doubled messages of a call that waits": Scenario(
        (ONE_READ,), _EARLY, check=came_to(DONE, OK), scripted={("look", n): "retryable" for n in (1, 2)}
    ),
}

# "A commit whose answer is lost" must not look like the death of its worker (invariant 7).
ANSWERS: dict[str, Scenario] = {
    f"the answer of {event} is lost": trapped(
        run, f"store.{event}.after", lose_answer, came_to(DONE, *outcome, deaths_=0), times=times
    )
    for event, run, outcome, times in (
        ("DecisionLeased", ONE_READ, (OK,), 3),
        ("ModelReplied", MIXED, (OK, OK, OK, OK), 3),
        ("EffectClaimed", ONE_SEND, (OK,), 1),
        ("EffectEnded", ONE_SEND, (OK,), 1),
        ("ApprovalRequested", ONE_WIRE, (OK,), 1),
        ("ApprovalDecided", ONE_WIRE, (OK,), 1),
        ("CallsSettled", READS, (OK, OK), 1),
        ("Submitted", ONE_READ, (OK,), 3),
    )
}
