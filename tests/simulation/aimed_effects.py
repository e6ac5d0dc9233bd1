"""Set-ups aimed at the effect ledger and at approvals: lost words, late requests, sleeping senders, people of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.aimed import (
    DONE,
    FAILED,
    HUMAN,
    OK,
    ONE_PAY,
    ONE_POST,
    ONE_SEND,
    ONE_WIRE,
    acts,
    came_to,
    expect,
    freeze,
    kill,
    outcomes,
    status,
    trapped,
)
from tests.simulation.faults import Rates, Trap
from tests.simulation.plan import APPROVAL_EXPIRES_S, RunPlan, call, turn
from tests.simulation.world import Scenario, World
from toolfleet.schemas.effects import ApprovalStatus
from toolfleet.schemas.limits import LEASE_S, SEND_BY_S
from toolfleet.schemas.outcomes import CallOutcome, RunStatus

REJECTED, EXPIRED = CallOutcome.REJECTED, CallOutcome.APPROVAL_EXPIRED
ONE_FIRE = RunPlan(0, (turn(call("fire", 1)),))
TWINS = RunPlan(0, (turn(call("send", 1), call("send", 1)), turn(call("send", 1))))
WIRE_TWINS = RunPlan(0, (turn(call("wire", 1), call("wire", 1)),))


def scripted(run: RunPlan, check: Callable[[World], None], **said: str) -> Scenario:
    """`send_1="late"`: the first attempt of `send` comes to that."""
    script = {(name.rpartition("_")[0], int(name.rpartition("_")[2])): what for name, what in said.items()}
    return Scenario((run,), Rates(of_the_dead=(1, 0, 0)), check=check, scripted=script)


# What is not known is asked for; what is known to be nothing is tried again.
LOST_WORDS: dict[str, Scenario] = {
    "a lost answer, and nobody to ask": scripted(
        ONE_SEND, came_to(DONE, HUMAN, acts_=1), send_1="silent_after"
    ),
    "a lost answer of an effect that can be looked up": scripted(
        ONE_WIRE, came_to(DONE, OK, acts_=1), wire_1="silent_after"
    ),
    "an exception after the effect": scripted(ONE_WIRE, came_to(DONE, OK, acts_=1), wire_1="raised_after"),
    "a child that died after the effect": scripted(
        ONE_WIRE, came_to(DONE, OK, acts_=1, deaths_=1), wire_1="died_after"
    ),
    "a request that got lost, where nobody is sure": scripted(
        ONE_WIRE, came_to(DONE, HUMAN, acts_=0), wire_1="silent_before"
    ),
    "a request that got lost, where the answer is final": scripted(
        ONE_POST, came_to(DONE, OK, acts_=1), post_1="silent_before"
    ),
    "a request that is late, where the answer is final": scripted(
        ONE_POST, came_to(DONE, OK, acts_=1), post_1="late_45"
    ),
    "nobody answers what became of it": scripted(
        ONE_POST, came_to(DONE, HUMAN, acts_=1), post_1="silent_after", reconcile_0="silent"
    ),
    "a lost answer of an effect that takes a key": scripted(
        ONE_PAY, came_to(DONE, OK, acts_=1), pay_1="silent_after"
    ),
    "not sent, twice": scripted(ONE_SEND, came_to(DONE, OK, acts_=1), send_1="not_sent", send_2="not_sent"),
    "refused for a while": scripted(ONE_SEND, came_to(DONE, OK, acts_=1), send_1="refused"),
    "never sent": scripted(
        ONE_SEND, came_to(DONE, FAILED, acts_=0), send_1="not_sent", send_2="refused", send_3="not_sent"
    ),
}

# A sender that sleeps between its claim and its first byte, with clocks that tell.
SLEEPERS: dict[str, Scenario] = {
    "a sender that wakes up too late to send": trapped(
        ONE_SEND, "exec.after_lease", freeze(2 * SEND_BY_S), came_to(DONE, OK, acts_=1, deaths_=0)
    ),
    "a sender that wakes up after somebody asked a human": trapped(
        ONE_SEND, "exec.after_lease", freeze(4 * LEASE_S), came_to(DONE, HUMAN, acts_=0, deaths_=1)
    ),
    "a sender that wakes up after it was sent by another": trapped(
        ONE_POST, "exec.after_lease", freeze(6 * LEASE_S), came_to(DONE, OK, acts_=1, deaths_=1)
    ),
    "a sender killed between claim and first byte": trapped(
        ONE_POST, "exec.after_lease", kill, came_to(DONE, OK, acts_=1, deaths_=1)
    ),
    "whoever asks is killed": trapped(
        ONE_WIRE,
        "tool.reconcile",
        kill,
        came_to(DONE, OK, acts_=1, deaths_=1),
        scripted={("wire", 1): "silent_after"},
    ),
}


def _two_senders(world: World) -> list[Trap]:
    """The first one sleeps with its word in its hand, the second one with its request."""
    return [
        Trap("exec.after_tool", lambda hit: world.freeze(hit.process, 130.0, False)),
        Trap("tool.before", lambda hit: world.freeze(hit.process, 60.0, False), skip=1),
    ]


SLEEPERS["the word of an old attempt, while a new one is out"] = Scenario(
    (ONE_POST,),
    Rates(of_the_dead=(1, 0, 0)),
    _two_senders,
    came_to(DONE, OK, acts_=1),
    scripted={("post", 1): "business"},
)


def shared(world: World) -> None:
    expect(world, acts(world) == 1, f"{acts(world)} acts of one effect")
    expect(world, outcomes(world) == [OK, OK, OK], f"the calls came to {outcomes(world)}")


# Equal calls are one effect; whoever comes second waits for the first and shares what it came to.
TWIN_EFFECTS: dict[str, Scenario] = {
    "equal effects": Scenario((TWINS,), check=shared),
    "equal effects, the first of them slow to tell": scripted(
        WIRE_TWINS, came_to(DONE, OK, OK, acts_=1), wire_1="silent_after"
    ),
    "equal effects, one holder killed": trapped(
        WIRE_TWINS, "tool.acted", kill, came_to(DONE, OK, OK, acts_=1, deaths_=1)
    ),
    "equal effects nobody can tell of": scripted(
        RunPlan(0, (turn(call("send", 1), call("send", 1)),)),
        came_to(DONE, HUMAN, HUMAN, acts_=1),
        send_1="silent_after",
    ),
}


def asked(outcome: CallOutcome, acts_: int, approval: ApprovalStatus) -> Callable[[World], None]:
    def check(world: World) -> None:
        came_to(DONE, outcome, acts_=acts_)(world)
        views = world.store.ledger.approvals(limit=9, status=None, tenant=None, run_id=None)
        found = [view.approval.status for view in views]
        expect(world, found == [approval], f"the questions are {found}")

    return check


def withdrawn(world: World) -> None:
    expect(world, status(world) is RunStatus.CANCELLED, f"the run is {status(world)}")
    views = world.store.ledger.approvals(limit=9, status=None, tenant=None, run_id=None)
    open_ = [view for view in views if view.approval.status is ApprovalStatus.PENDING]
    expect(world, not open_ and acts(world) == 0, f"{len(open_)} questions are open, {acts(world)} acts")


GRANTED = ApprovalStatus.GRANTED
ASKED: dict[str, Scenario] = {
    "approved": Scenario((ONE_WIRE,), check=asked(OK, 1, GRANTED)),
    "rejected": Scenario(
        (replace(ONE_WIRE, approver="reject"),), check=asked(REJECTED, 0, ApprovalStatus.REJECTED)
    ),
    "nobody answers": Scenario(
        (replace(ONE_WIRE, approver="never"),), check=asked(EXPIRED, 0, ApprovalStatus.EXPIRED)
    ),
    "other arguments": Scenario((replace(ONE_WIRE, approver="edit"),), check=asked(OK, 1, GRANTED)),
    "two people": Scenario((ONE_FIRE,), check=asked(OK, 1, GRANTED)),
    "two people, after the requester and one of them twice": Scenario(
        (replace(ONE_FIRE, approver="muddle"),), check=asked(OK, 1, GRANTED)
    ),
    "two people, other arguments": Scenario(
        (replace(ONE_FIRE, approver="edit"),), check=asked(OK, 1, GRANTED)
    ),
    "granted, and too late when it is sent again": trapped(
        ONE_WIRE,
        "exec.after_lease",
        freeze(APPROVAL_EXPIRES_S + 5.0),
        came_to(DONE, EXPIRED, acts_=0, deaths_=1),
    ),
    **{
        f"cancelled {seconds:g} s after it was accepted, unanswered": Scenario(
            (replace(ONE_WIRE, approver="never", cancel_at=seconds),), check=withdrawn
        )
        for seconds in (3.0, 20.0)
    },
}

ALL = LOST_WORDS | SLEEPERS | TWIN_EFFECTS | ASKED
