"""What a seed asks of the fleet: the agents, the runs, and what the model will say in each turn of each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.model import RawCall
from toolfleet.schemas.outcomes import Lane, Tier
from toolfleet.schemas.tools import ToolSpec

APPROVAL_EXPIRES_S = 60.0
REQUESTER = "ann"  # whom every run acts for
_PARAMETERS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


_QUICK = frozenset({"look", "send", "brief", "remit", "topup", "deal"})


def _tool(
    name: str, tier: Tier = Tier.LOW, *, effect: bool = False, idempotent: bool = False, **more: object
) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=name,
        parameters=_PARAMETERS,
        tier=tier,
        effect=effect,
        idempotent=idempotent,
        timeout_s=10.0 if name in _QUICK else 30.0,
        approval_expires_s=APPROVAL_EXPIRES_S,
        **more,  # type: ignore[arg-type]
    )


LOOK = _tool("look")
SCAN = _tool("scan")
CRASH = _tool("crash")  # read-only, ends the process that runs it
SEND = _tool("send", Tier.MEDIUM, effect=True)
WIRE = _tool("wire", Tier.HIGH, effect=True, parts=("reconcile",))  # asked for; late ones may still come
POST = _tool("post", Tier.MEDIUM, effect=True, parts=("reconcile",), reconcile_is_final=True)
FIRE = _tool(
    "fire",
    Tier.IRREVERSIBLE,
    effect=True,
    parts=("reconcile",),
    two_person=True,
    permissions=("fire",),
    grantable=True,
)  # nobody has that permission: it is granted with the approval, or not
PAY = _tool("pay", Tier.MEDIUM, effect=True, idempotent=True)
BURN = _tool("burn", Tier.MEDIUM, effect=True)  # ends the process that runs it
SCORCH = _tool("scorch", Tier.MEDIUM, effect=True, idempotent=True)  # the same, and takes a key
# With an end to all their attempts together.
BRIEF = _tool("brief", call_timeout_s=14.0)
REMIT = _tool(
    "remit", Tier.MEDIUM, effect=True, parts=("reconcile",), reconcile_is_final=True, call_timeout_s=25.0
)
TOPUP = _tool("topup", Tier.MEDIUM, effect=True, idempotent=True, call_timeout_s=25.0)
DEAL = _tool("deal", Tier.HIGH, effect=True, parts=("reconcile",), call_timeout_s=20.0)
_TIMED = (BRIEF, REMIT, TOPUP, DEAL)
_ALL = (LOOK, SCAN, CRASH, SEND, WIRE, POST, FIRE, PAY, BURN, SCORCH, *_TIMED)
TOOLS = {tool.name: tool for tool in _ALL}
POISON = frozenset({"crash", "burn", "scorch"})

AGENTS = {
    "desk": AgentSpec(name="desk", model="m", tools=tuple(TOOLS.values()), parallel_tool_calls="on"),
    "careful": AgentSpec(name="careful", model="m", tools=tuple(TOOLS.values())),
}


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One reply of the model. No calls: its last."""

    calls: tuple[RawCall, ...] = ()
    text: str | None = None
    finish: str = "stop"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run: when it comes, what it may use, what stops it from outside, what the model will say."""

    index: int
    turns: tuple[TurnPlan, ...]
    agent: str = "desk"
    submit_at: float = 0.0
    lane: Lane = Lane.INTERACTIVE
    limits: Limits = field(default_factory=lambda: Limits(calls_max=200, model_timeout_s=20.0))
    deadline_s: float | None = None
    follows: int | None = None  # the run whose conversation it goes on with
    cancel_at: float | None = None  # seconds after it was accepted
    cancel_after_commits: int | None = None
    approver: str = (
        "approve"  # what is said when somebody is asked: approve | slow | reject | edit | never | drawn
    )
    poison_decision: bool = False  # every process that asks the model about it dies

    @property
    def run_id(self) -> RunId:
        return RunId(f"run_{self.index:02d}")

    def reply(self, turn: int) -> TurnPlan:
        """What the model says when asked for the `turn`-th time (from 1)."""
        return self.turns[turn - 1] if turn <= len(self.turns) else TurnPlan(text="done")


def call(tool: str, n: int, *, provider_id: str | None = None) -> RawCall:
    return RawCall(provider_id or f"p{n}", tool, orjson.dumps({"n": n}).decode())


def turn(*calls: RawCall) -> TurnPlan:
    return TurnPlan(calls=calls, finish="tool_calls")


@dataclass(frozen=True, slots=True)
class Flavour:
    """How one seed draws its runs."""

    effects: float  # share of calls that have an effect
    invalid: float
    repeats: float
    poison: float  # chance of a run to hold a poison call
    stops: float  # chance of a run to be cancelled or to have a deadline


def draw_runs(rng: random.Random) -> tuple[RunPlan, ...]:
    flavour = Flavour(
        effects=rng.choice((0.0, 0.3, 0.6)),
        invalid=rng.choice((0.0, 0.0, 0.15)),
        repeats=rng.choice((0.0, 0.0, 0.2)),
        poison=rng.choice((0.0, 0.0, 0.0, 0.5)),
        stops=rng.choice((0.0, 0.3, 0.7)),
    )
    count = rng.choice((1, 2, 3, 4, 5))
    return tuple(_run(rng, flavour, index) for index in range(count))


def _run(rng: random.Random, flavour: Flavour, index: int) -> RunPlan:
    turns = _turns(rng, flavour, index)
    stopped = rng.random() < flavour.stops
    kind = rng.choice(("time", "commit", "commit", "deadline")) if stopped else ""
    limits = Limits(
        calls_max=rng.choice((200, 200, 200, 200, 200, 200, 200, 5)),
        turns_max=rng.choice((8, 8, 8, 8, 8, 2)),
        corrections_max=rng.choice((1, 1, 0, 3)),
        model_timeout_s=20.0,
        cost_usd_max=rng.choice((1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.012)),
    )
    return RunPlan(
        index=index,
        turns=turns,
        agent=rng.choice(("desk", "desk", "desk", "careful")),
        submit_at=round(rng.uniform(0.0, 10.0), 3),
        lane=rng.choice(tuple(Lane)),
        limits=limits,
        deadline_s=round(rng.uniform(1.0, 60.0), 3) if kind == "deadline" else None,
        follows=index - 1 if index and rng.random() < 0.2 else None,
        cancel_at=round(rng.uniform(0.0, 20.0), 3) if kind == "time" else None,
        cancel_after_commits=rng.randrange(1, 16) if kind == "commit" else None,
        approver="drawn",
        poison_decision=rng.random() < flavour.poison * 0.2,
    )


def _turns(rng: random.Random, flavour: Flavour, index: int) -> tuple[TurnPlan, ...]:
    plans: list[TurnPlan] = []
    poisoned = rng.random() < flavour.poison
    number = 1000 * (index + 1)
    for position in range(rng.choice((1, 2, 2, 3, 4))):
        if rng.random() < 0.04:
            plans.append(TurnPlan(text=None))  # an empty reply
        count = rng.choices((1, 2, 3, 4, 8, 64), (30, 25, 20, 15, 9, 1))[0]
        calls = []
        for _ in range(count):
            number += 1
            calls.append(_call(rng, flavour, number, plans))
        if poisoned and position == 0:
            calls[rng.randrange(count)] = call(rng.choice(sorted(POISON)), number + 500)
        plans.append(turn(*calls))
    if rng.random() < 0.1:
        plans.append(_odd_end(rng))
    return tuple(plans)


def _call(rng: random.Random, flavour: Flavour, number: int, plans: Sequence[TurnPlan]) -> RawCall:
    if rng.random() < flavour.invalid:
        return rng.choice(
            (
                RawCall(None, "look", '{"n": "x"}'),
                RawCall("p", "look", "{"),
                RawCall("p", "no_such_tool", "{}"),
                RawCall("p", "send", '{"n": 1, "m": 2}'),
                RawCall("p", "pay", None),
            )
        )
    earlier = [one for plan in plans for one in plan.calls]
    if earlier and rng.random() < flavour.repeats:
        return rng.choice(earlier)
    if rng.random() < flavour.effects:
        return call(rng.choice(("send", "pay", "wire", "post", "fire", "remit", "topup", "deal")), number)
    return call(rng.choice(("look", "look", "scan", "brief")), number)


def _odd_end(rng: random.Random) -> TurnPlan:
    return rng.choice(
        (
            TurnPlan(text="cut", finish="length"),
            TurnPlan(text=None, finish="content_filter"),
            TurnPlan(text="no", finish="refusal"),
            TurnPlan(text=None),
        )
    )
