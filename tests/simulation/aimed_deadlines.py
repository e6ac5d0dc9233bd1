"""Set-ups aimed at the time of a call over all its attempts: attempts cut, waits that end it, effects that outlive it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.aimed import DONE, FAILED, FEW_S, HUMAN, OK, Action, came_to, expect, trapped
from tests.simulation.aimed_effects import EXPIRED, REJECTED, scripted
from tests.simulation.faults import Hit
from tests.simulation.plan import BRIEF, RunPlan, call, turn
from tests.simulation.world import Scenario, World
from toolfleet.schemas.outcomes import ReasonCode

ONE_BRIEF = RunPlan(0, (turn(call("brief", 1)),))
ONE_REMIT = RunPlan(0, (turn(call("remit", 1)),))
ONE_TOPUP = RunPlan(0, (turn(call("topup", 1)),))
ONE_DEAL = RunPlan(0, (turn(call("deal", 1)),))
TWINS = RunPlan(0, (turn(call("remit", 1), call("remit", 1)),))


def ended_by(reason: ReasonCode, check: Callable[[World], None]) -> Callable[[World], None]:
    def checked(world: World) -> None:
        check(world)
        reasons = {result.reason for _, result in world.oracle.last[world.plans[0].run_id].results}
        expect(world, reasons == {reason}, f"the reasons are {reasons}")

    return checked


LATE = ReasonCode.CALL_TIMEOUT
FAILED_LATE = ended_by(LATE, came_to(DONE, FAILED, acts_=0))


def executors_sleep(seconds: float) -> Action:
    """Nobody looks at a call for so long."""

    def action(world: World, hit: Hit) -> None:
        for one in world.alive.values():
            if one.process.kind == "executor":
                world.freeze(one.process, seconds, False)

    return action


def cut(world: World) -> None:
    """Two attempts of ten seconds each do not fit into its time: the second one is cut, and there is no third."""
    FAILED_LATE(world)
    (seen,) = world.ledger.calls.values()
    attempts = {attempt for _, attempt in seen.begins}
    expect(world, attempts == {1, 2}, f"its attempts were {attempts}")
    expect(world, BRIEF.call_timeout_s is not None and world.loop.time() < 14.0 + FEW_S, "it took too long")


ALL: dict[str, Scenario] = {
    "attempts that are cut to what is left of the deadline": scripted(
        ONE_BRIEF, cut, brief_1="timed_out", brief_2="timed_out"
    ),
    "a backoff beyond the deadline ends a call": scripted(
        ONE_BRIEF, FAILED_LATE, brief_1="timed_out", brief_2="retryable"
    ),
    "an effect not sent, and the deadline over when it is looked at again": trapped(
        ONE_REMIT,
        "exec.after_publish",
        executors_sleep(40.0),
        FAILED_LATE,
        scripted={("remit", 1): "refused"},
    ),
    "an effect that is late, and known only after the deadline": scripted(
        ONE_REMIT, came_to(DONE, OK, acts_=1), remit_1="late_45"
    ),
    "an effect that did not happen, and the deadline over": scripted(
        ONE_REMIT, FAILED_LATE, remit_1="silent_before"
    ),
    "an effect with a key that is asked for before the deadline": scripted(
        ONE_TOPUP, came_to(DONE, OK, acts_=1), topup_1="silent_after"
    ),
    "an effect with a key that cannot be asked for before the deadline": scripted(
        ONE_TOPUP, came_to(DONE, HUMAN, acts_=1), topup_1="silent_after", topup_2="silent_before"
    ),
    "a deadline while somebody is asked": Scenario(
        (replace(ONE_DEAL, approver="slow"),), check=came_to(DONE, OK, acts_=1)
    ),
    "a deadline while somebody is asked, who never answers": Scenario(
        (replace(ONE_DEAL, approver="never"),), check=came_to(DONE, EXPIRED, acts_=0)
    ),
    "a deadline, and a rejection nobody looks at in time": trapped(
        replace(ONE_DEAL, approver="reject"),
        "store.ApprovalRequested.after",
        executors_sleep(40.0),
        came_to(DONE, REJECTED, acts_=0),
    ),
    "a deadline while an equal effect is out": scripted(
        TWINS, came_to(DONE, OK, OK, acts_=1), remit_1="late_45"
    ),
}
