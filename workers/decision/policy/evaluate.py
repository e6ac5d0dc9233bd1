"""The rules, in the order in which they are asked. Pure: equal inputs give equal answers in every process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.control import (
    AUTO,
    CHOICES,
    INTENT,
    NONE,
    REQUIRED,
    Band,
    Control,
    Narrowing,
    Unsatisfiable,
)
from toolfleet.schemas.limits import TOOLS_NOTED_ABOVE, TOOLS_WARNED_ABOVE
from toolfleet.schemas.outcomes import ReasonCode
from toolfleet.schemas.run import RunState
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.policy.retrieve import ranked

# Why a tool may not be called now; the model is told some of it, the step row all of it.
WITHDRAWN: Final = "withdrawn"
FINISHED: Final = "finish_after"
OUT_OF_ORDER: Final = (str(ReasonCode.PREREQUISITE), str(ReasonCode.STAGE))  # by the contract of the tool
TENANT: Final = "tenant"
PERMISSION: Final = "permission"
BREAKER: Final = "breaker_open"
INTENDED: Final = "intent"
NOT_RETRIEVED: Final = "not_retrieved"
HOOK: Final = "hook"
TOOL_CHOICE: Final = "tool_choice"


@dataclass(frozen=True, slots=True)
class Given:
    """What the rules are asked about beside the agent and the run's state.

    `said`: what the user wrote in this conversation, newest last. `breakers_open`: tools nobody may call just now.
    `early`: tools whose own contract wants something first, with the reason code. `permissions`: those of whom the run
    acts for; `grants`: somebody can be asked for one that is missing.
    """

    tenant: str = "default"
    permissions: tuple[str, ...] = ()
    grants: bool = True
    metadata: Mapping[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    breakers_open: frozenset[str] = frozenset()
    early: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tools the declared rules leave, in the order of the definitions, and why the others are out."""

    allowed: tuple[str, ...]
    excluded: Mapping[str, str]
    band: Band


def candidates(agent: AgentSpec, state: RunState, given: Given) -> Candidates:
    """What the declared rules leave of the agent's tools. The first rule that says no is the reason."""
    excluded: dict[str, str] = {}
    for tool in agent.tools:
        why = _why_not(agent, state, given, tool)
        if why is not None:
            excluded[tool.name] = why
    left = [tool.name for tool in agent.tools if tool.name not in excluded]
    policy, band = agent.control, band_of(len(left))
    if policy.top_k is not None and len(left) > policy.top_k:
        kept = _kept(agent, state)
        chosen = _retrieved(agent, left, given.said, kept, policy.top_k)
        excluded.update({name: NOT_RETRIEVED for name in left if name not in chosen})
        left = [name for name in left if name in chosen]
        band = "retrieved"
    return Candidates(tuple(left), excluded, band)


def control(
    agent: AgentSpec, state: RunState, found: Candidates, narrow: Narrowing | None = None
) -> Control | Unsatisfiable:
    """What this step may do. Unsatisfiable where a call is demanded and none that would do is possible."""
    allowed, excluded = list(found.allowed), dict(found.excluded)
    rules: list[str] = []
    if narrow is not None and narrow.allowed is not None:
        excluded.update({name: HOOK for name in allowed if name not in narrow.allowed})
        allowed = [name for name in allowed if name in narrow.allowed]
        rules.append(_hook_rule(narrow))
    missing = tuple(name for name in agent.control.answer_only_after if name not in state.came_back)
    choice = _choice(agent, state, missing, rules)
    choice = _narrowed(choice, narrow, rules)
    if choice == NONE and missing:
        return Unsatisfiable(f"no tool may be called, and {', '.join(missing)} has to be before the answer")
    stuck = _stuck(choice, allowed, missing, excluded)
    if stuck is not None:
        return Unsatisfiable(stuck)
    parallel = _parallel(agent, allowed) and not (narrow is not None and narrow.one_at_a_time)
    whole = len(allowed) == len(agent.tools)
    return Control(
        choice=choice,
        allowed=None if whole else tuple(allowed),
        parallel=parallel,
        missing=missing,
        excluded=tuple((tool.name, excluded[tool.name]) for tool in agent.tools if tool.name in excluded),
        rules=tuple(rules),
        band=found.band,
    )


def _why_not(agent: AgentSpec, state: RunState, given: Given, tool: ToolSpec) -> str | None:
    policy, name = agent.control, tool.name
    if agent.tool_choice == NONE:
        return TOOL_CHOICE
    if tool.lacking(given.permissions) and not (tool.grantable and given.grants):
        return PERMISSION  # before what passes: no call of another tool, and no waiting, changes it
    if name in state.withdrawn:
        return WITHDRAWN
    if policy.finish_after and set(policy.finish_after) <= set(state.succeeded):
        return FINISHED
    if name in given.early:
        return given.early[name]
    if name in policy.tenants and given.tenant not in policy.tenants[name]:
        return TENANT
    if name in given.breakers_open:
        return BREAKER
    intent = given.metadata.get(INTENT)
    if intent is not None and policy.intents and name not in policy.intents.get(intent, ()):
        return INTENDED
    return None


def _kept(agent: AgentSpec, state: RunState) -> frozenset[str]:
    """Tools that are offered whatever the user's words are: named by a rule, or used in this run already."""
    policy = agent.control
    named = {*policy.always, *policy.answer_only_after, *policy.finish_after, *state.came_back}
    forced = {policy.first, agent.tool_choice} - {None, *CHOICES}
    return frozenset(named | {name for name in forced if name is not None})


def _retrieved(
    agent: AgentSpec, left: list[str], said: Iterable[str], kept: frozenset[str], top_k: int
) -> frozenset[str]:
    """`top_k` names, the kept ones among them; more only where more have to be kept."""
    chosen = [name for name in left if name in kept]
    for name in ranked(agent.tools, " ".join(said)):
        if len(chosen) >= top_k:
            break
        if name in left and name not in kept:
            chosen.append(name)
    return frozenset(chosen)


def _choice(agent: AgentSpec, state: RunState, missing: tuple[str, ...], rules: list[str]) -> str:
    """auto, required, none or a tool's name: the strictest that is declared for this point of the run."""
    none_yet = state.counters.tool_calls == 0
    policy = agent.control
    if agent.tool_choice == NONE:
        return NONE
    if policy.first is not None and none_yet:
        rules.append("first")
        return policy.first
    if agent.tool_choice != AUTO and none_yet:
        rules.append(TOOL_CHOICE)
        return agent.tool_choice
    if missing:
        rules.append("answer_only_after")
        return REQUIRED
    if policy.finish_after and set(policy.finish_after) <= set(state.succeeded):
        rules.append(FINISHED)
        return NONE
    return AUTO


def _narrowed(choice: str, narrow: Narrowing | None, rules: list[str]) -> str:
    """The hook's choice where it is stricter: auto may become anything, required a tool; nothing becomes looser."""
    asked = None if narrow is None else narrow.tool_choice
    if asked is None or asked in (choice, AUTO):
        return choice
    if choice == AUTO or (choice == REQUIRED and asked not in (NONE, REQUIRED)):
        assert narrow is not None
        rules.append(_hook_rule(narrow))
        return asked
    return choice


def _hook_rule(narrow: Narrowing) -> str:
    return f"hook: {narrow.reason}" if narrow.reason else "hook"


def _stuck(
    choice: str, allowed: list[str], missing: tuple[str, ...], excluded: Mapping[str, str]
) -> str | None:
    """Why the demanded call cannot be made, now or by going on; None where it can."""
    if choice not in CHOICES and choice not in allowed:
        return f"{choice} has to be called now and cannot be ({excluded.get(choice, 'no such tool')})"
    if choice == REQUIRED and not allowed:
        return "a tool has to be called now and none can be"
    final = (
        PERMISSION,
        WITHDRAWN,
        TENANT,
        BREAKER,
        INTENDED,
        FINISHED,
    )  # no call of another tool changes these
    for name in missing:
        if excluded.get(name) in final:
            return f"{name} has to be called before the answer and cannot be ({excluded[name]})"
    return None


def _parallel(agent: AgentSpec, allowed: list[str]) -> bool:
    """Whether several calls of one turn may run: by default not where one has an effect or depends on another."""
    if agent.parallel_tool_calls != "auto":
        return agent.parallel_tool_calls == "on"
    if any(tool.effect for tool in agent.tools if tool.name in allowed):
        return False
    needed = {one.tool for tool in agent.tools if tool.name in allowed for one in tool.requires}
    return not needed & set(allowed)


def band_of(count: int) -> Band:
    """DESIGN section 10: up to 10 fine, 11 to 20 noted, above that retrieve, or be warned."""
    if count <= TOOLS_NOTED_ABOVE:
        return "fine"
    return "noted" if count <= TOOLS_WARNED_ABOVE else "too_many"
