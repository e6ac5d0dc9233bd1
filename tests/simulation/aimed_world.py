"""Set-ups aimed at what surrounds a step: recovery times, outages, cancels, stops, poison, and a world without faults."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.aimed import (
    DONE,
    FAILED,
    FEW_S,
    HUMAN,
    MIXED,
    OK,
    ONE_PAY,
    ONE_READ,
    ONE_SEND,
    READS,
    RESTART_MAX_S,
    Action,
    came_to,
    deaths,
    expect,
    kill,
    outcomes,
    status,
    trapped,
    within,
)
from tests.simulation.faults import Hit, Rates
from tests.simulation.plan import RunPlan, TurnPlan, call, turn
from tests.simulation.world import Scenario, World
from toolfleet.schemas.limits import (
    DEATHS_MAX,
    KEEPER_PERIOD_S,
    LEASE_S,
    LOST_AFTER_S,
    LOST_MARGIN_S,
    UNSENT_AFTER_S,
)
from toolfleet.schemas.outcomes import CallOutcome, RunStatus

DEADLINE_LOOK_S = 10.0  # of the tool `look`
PUBLISHES_UNSERVED_MAX = 7  # 1, 2, 4, 8, 16 times lost_after_s, and 10 times is waited for


# -- recovery (11) -----------------------------------------------------------------------------------------------------


def lose(queue: str) -> Action:
    def action(world: World, hit: Hit) -> None:
        world.faults.lose_first.add(queue)

    return action


def wipe(*, keep_marker: bool) -> Action:
    def action(world: World, hit: Hit) -> None:
        world.broker.wipe(keep_marker=keep_marker)

    return action


_RELAYED_S = UNSENT_AFTER_S + 2 * KEEPER_PERIOD_S
_AFTER_DEATH_S = LEASE_S + 2.0 + 2 * KEEPER_PERIOD_S + FEW_S

RECOVERY: dict[str, Scenario] = {
    "a kill with a lease is over after one lease": trapped(
        ONE_READ, "decide.before_model", kill, within(_AFTER_DEATH_S, came_to(DONE, OK)), skip=1
    ),
    "a kill of a first try is over when its message comes back": trapped(
        ONE_READ, "tool.before", kill, within(RESTART_MAX_S + FEW_S, came_to(DONE, OK, deaths_=0))
    ),
    "a kill between commit and publish is healed by the keeper": trapped(
        ONE_READ, "decide.after_commit", kill, within(_RELAYED_S + FEW_S, came_to(DONE, OK, deaths_=0))
    ),
    "a kill before an inline result is out": trapped(
        ONE_READ, "exec.after_tool", kill, within(RESTART_MAX_S + FEW_S, came_to(DONE, OK, deaths_=0))
    ),
    "a kill between an effect's outcome and its publish": trapped(
        ONE_SEND,
        "exec.after_store",
        kill,
        within(_RELAYED_S + FEW_S, came_to(DONE, OK, acts_=1, deaths_=0)),
        skip=1,
    ),
    "a wipe while a call waits": trapped(
        ONE_READ, "exec.after_read", wipe(keep_marker=False), within(_RELAYED_S + FEW_S, came_to(DONE, OK))
    ),
    "a wipe while the model is asked": trapped(
        MIXED, "decide.before_model", wipe(keep_marker=False), within(_RELAYED_S + 2 * FEW_S), skip=1
    ),
    "one lost decide message": trapped(
        ONE_READ,
        "store.Submitted.after",
        lose("decide.interactive"),
        within(LOST_AFTER_S + _RELAYED_S + FEW_S),
    ),
    "one lost call": trapped(
        ONE_READ,
        "decide.after_commit",
        lose("exec.low"),
        within(DEADLINE_LOOK_S + LOST_MARGIN_S + _RELAYED_S + FEW_S, came_to(DONE, OK)),
    ),
    "one lost inline result": trapped(
        ONE_READ,
        "exec.after_tool",
        lose("results"),
        within(DEADLINE_LOOK_S + LOST_MARGIN_S + _RELAYED_S + FEW_S, came_to(DONE, OK)),
    ),
    "one lost result of an effect": trapped(
        ONE_SEND,
        "exec.after_tool",
        lose("results"),
        within(LOST_AFTER_S + _RELAYED_S + FEW_S, came_to(DONE, OK, acts_=1)),
    ),
}


# -- outages and stops (7: none of them is a death) --------------------------------------------------------------------


def outage(seconds: float) -> Action:
    """The database is away for everybody from here on."""

    def action(world: World, hit: Hit) -> None:
        world.outage(seconds)

    return action


def stop(world: World, hit: Hit) -> None:
    world.stop(hit.process)


def stop_at_once(world: World, hit: Hit) -> None:
    """Without the time to let anything end."""
    world.stop(hit.process, 0.0)


QUIET: dict[str, Scenario] = {
    f"the database is away for {seconds:g} s from {at} on ({run.turns[0].calls[0].name})": trapped(
        run, at, outage(seconds), came_to(DONE, *outcome, deaths_=0)
    )
    for seconds in (3.0, 2.5 * LEASE_S)
    for at, run, outcome in (
        ("decide.before_model", ONE_READ, (OK,)),
        ("store.DecisionLeased.before", READS, (OK, OK)),
        ("exec.after_read", READS, (OK, OK)),
        ("collect.before_settle", READS, (OK, OK)),
        ("tool.acted", ONE_SEND, (OK,)),
        ("tool.acted", ONE_PAY, (OK,)),
    )
} | {
    f"SIGTERM at {at}": trapped(run, at, stop, came_to(DONE, *outcome, deaths_=0))
    for at, run, outcome in (
        ("decide.after_lease", ONE_READ, (OK,)),
        ("decide.before_model", ONE_READ, (OK,)),
        ("tool.before", READS, (OK, OK)),
        ("collect.before_settle", READS, (OK, OK)),
    )
}


# Its lease is not handed back: nobody may begin it again.
QUIET["SIGTERM while an effect is out"] = trapped(
    ONE_SEND,
    "tool.before",
    stop_at_once,
    came_to(DONE, HUMAN, deaths_=1),
    scripted={("send", 1): "silent_after"},
)
QUIET["SIGTERM while an effect with a key is out"] = trapped(
    ONE_PAY,
    "tool.before",
    stop_at_once,
    came_to(DONE, OK, acts_=1, deaths_=1),
    scripted={("pay", 1): "silent_after"},
)


# -- poison (13) -------------------------------------------------------------------------------------------------------


def killed_at_most(times: int) -> Callable[[World], None]:
    def check(world: World) -> None:
        kills = sum(seen.kills for seen in world.ledger.calls.values()) + world.ledger.decision_kills.total()
        expect(world, kills <= times, f"it ended {kills} processes")
        expect(world, bool(world.rows.dead()), "there is no dead letter")
        for letter in world.rows.dead():
            counted = len(world.oracle.expired[letter.call_id or f"{letter.run_id}/{letter.turn}"])
            expect(world, counted == DEATHS_MAX, f"{counted} deaths of {letter.id}")

    return check


def _poison(tool: str, outcome: CallOutcome, kills: int) -> Scenario:
    def check(world: World) -> None:
        expect(world, outcomes(world)[1] is outcome, f"it came to {outcomes(world)[1]}")
        expect(world, status(world) is DONE, f"its run is {status(world)}")
        if kills > 1:
            killed_at_most(kills)(world)

    run = RunPlan(0, (turn(call("look", 1), call(tool, 2)),))
    return Scenario((run, *_others()), Rates(of_the_dead=(1, 0, 0)), check=check)


def _others() -> tuple[RunPlan, ...]:
    """Runs beside the one at fault. What is leased in a process that dies counts a death as well, so a step that keeps
    company with poison three times is given up like it."""
    return tuple(RunPlan(index, (turn(call("look", index), call("send", index)),)) for index in (1, 2, 3))


POISON: dict[str, Scenario] = {
    "a read-only tool that ends its process": _poison("crash", FAILED, DEATHS_MAX + 1),
    "an effect that ends its process is never tried again": _poison("burn", HUMAN, 1),
    "an effect with a key that ends its process": _poison("scorch", HUMAN, DEATHS_MAX),
    "a decision that ends its process": Scenario(
        (RunPlan(0, (TurnPlan(text="never"),), poison_decision=True), *_others()),
        Rates(of_the_dead=(1, 0, 0)),
        check=lambda world: (
            expect(world, status(world) is RunStatus.FAILED, f"the run is {status(world)}"),
            killed_at_most(DEATHS_MAX)(world),
        )[-1],
    ),
}


# -- cancel at every step, and the deadline (5, P7) --------------------------------------------------------------------

COMMITS_OF_MIXED = 14
CANCELS: dict[str, Scenario] = {
    f"cancel after commit {number}": Scenario(
        (RunPlan(0, MIXED.turns, cancel_after_commits=number),),
        check=lambda world: expect(
            world, status(world) in (RunStatus.CANCELLED, DONE), f"the run is {status(world)}"
        ),
    )
    for number in range(1, COMMITS_OF_MIXED)
} | {
    f"deadline after {seconds:g} s": Scenario(
        (RunPlan(0, MIXED.turns, deadline_s=seconds),),
        check=lambda world: expect(
            world, status(world) in (RunStatus.LIMIT_REACHED, DONE), f"the run is {status(world)}"
        ),
    )
    for seconds in (0.5, 1.0, 2.0, 3.0, 5.0)
}


# -- a world without faults, and one whose queue nobody serves (12) ----------------------------------------------------


def calm(world: World) -> None:
    """Nothing needs the keeper, nobody waits, and every step is taken once."""
    published = world.broker.published
    expect(world, published["keeper"] == 0, f"the keeper published {published['keeper']} rows")
    expect(world, deaths(world) == 0, f"{deaths(world)} deaths")
    expect(world, all(len(seen.begins) == 1 for seen in world.ledger.calls.values()), "a tool began twice")
    for index in world.plans:
        expect(world, status(world, index) is DONE, f"run {index} is {status(world, index)}")


def unserved(world: World) -> None:
    """What waits in a long queue is repeated a few times, not for ever."""
    expect(world, status(world) is DONE, f"the run is {status(world)}")
    published = world.broker.published["keeper"]
    expect(world, published <= PUBLISHES_UNSERVED_MAX, f"one row was published {published} times")


def deaf(queue: str, seconds: float) -> Action:
    """Nobody is given anything from that queue for so long."""

    def action(world: World, hit: Hit) -> None:
        world.broker.deaf.add(queue)
        world.later(seconds, lambda: world.broker.deaf.discard(queue))

    return action


STEADY: dict[str, Scenario] = {
    "a world without faults": Scenario(
        tuple(RunPlan(index, MIXED.turns, submit_at=index * 0.3) for index in range(4)), check=calm
    ),
    "sixty-four calls in one turn": Scenario(
        (RunPlan(0, (turn(*(call("look", n) for n in range(64))),)),), check=calm
    ),
    "a queue that is not served for ten times lost_after_s": trapped(
        ONE_PAY, "store.Submitted.before", deaf("exec.medium", 10 * (30.0 + LOST_MARGIN_S)), unserved
    ),
}

ALL = RECOVERY | QUIET | POISON | CANCELS | STEADY
