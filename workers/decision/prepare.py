"""From a leased decision to the request that is sent: the rules of the step, hooks, and what fits into the context.

Hooks are functions of the user's, named by the agent and loaded by the process that decides. A hook that is missing or
raises ends the run: rules that cannot be asked cannot be kept.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.control import CHOICES, Control, Narrowing, PolicyStep, Unsatisfiable
from toolfleet.schemas.conversation import Item, UserItem
from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.outcomes import ReasonCode
from toolfleet.schemas.ports import ToolPace
from toolfleet.schemas.run import RunState
from toolfleet.schemas.views import Conversation, RunInfo
from toolfleet.workers.decision.context import Fitted, TooLong, fit, tighter_than, with_summary
from toolfleet.workers.decision.policy import Candidates, Given, candidates, control
from toolfleet.workers.decision.request import build_request
from toolfleet.workers.decision.tokens import TokenCounter, counter_for
from toolfleet.workers.decision.transcript import Transcript, early_tools

log = structlog.get_logger("toolfleet.decision")

SAID_MAX: Final = 4  # user texts that retrieval looks at, the newest ones
Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that may be sent, and what was decided for it."""

    request: ModelRequest
    control: Control
    fitted: Fitted
    counter: TokenCounter

    async def tighter(self) -> int | None:
        """The budget to try where the provider finds it too long."""
        return await asyncio.to_thread(tighter_than, self.request.agent, self.fitted, self.counter)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no request: the run ends with this reason."""

    reason: ReasonCode
    message: str


class Preparer:
    """Holds what a process brings to the rules: its hooks, and who knows the open breakers."""

    def __init__(self, hooks: Mapping[str, Hook] | None = None, breakers: ToolPace | None = None) -> None:
        self._hooks = dict(hooks or {})
        self._breakers = breakers

    async def prepare(
        self, agent: AgentSpec, state: RunState, conversation: Conversation, *, grants: bool = True
    ) -> Prepared | Refused:
        """The request of the outstanding decision. `grants`: somebody can be asked for a permission that is missing."""
        info = conversation.info
        given = Given(
            tenant=info.tenant,
            permissions=info.permissions,
            grants=grants,
            metadata=info.metadata,
            said=_said(conversation.items),
            breakers_open=await self._open(agent, info.tenant),
            early=early_tools(agent, Transcript(conversation.items)),
        )
        try:
            found = candidates(agent, state, given)
            narrow = await self._narrow(agent, state, info, conversation.items, found)
        except _HookFailed as exc:
            return Refused(ReasonCode.POLICY_ERROR, str(exc))
        except InvalidDefinition as exc:
            return Refused(ReasonCode.POLICY_ERROR, exc.message)
        decided = control(agent, state, found, narrow)
        if isinstance(decided, Unsatisfiable):
            return Refused(ReasonCode.REQUIRED_TOOL_UNAVAILABLE, decided.message)
        counter = counter_for(agent.model)
        # Counting is work, and the counter takes a while to load: not on the loop that renews leases.
        counted = agent.context.tokens_max is not None or state.context_tokens_max is not None
        fitting = partial(fit, agent, conversation.items, counter, tighter=state.context_tokens_max)
        fitted = await asyncio.to_thread(fitting) if counted else fitting()
        if isinstance(fitted, TooLong):
            return Refused(ReasonCode.CONTEXT_LENGTH, fitted.message)
        fitted = await self._summed_up(agent, fitted, counter)
        return Prepared(build_request(agent, state, info, decided, fitted.items), decided, fitted, counter)

    async def _open(self, agent: AgentSpec, tenant: str) -> frozenset[str]:
        if self._breakers is None or not agent.tools:
            return frozenset()
        return frozenset(await self._breakers.open_breakers(tenant))

    async def _narrow(
        self, agent: AgentSpec, state: RunState, info: RunInfo, items: tuple[Item, ...], found: Candidates
    ) -> Narrowing | None:
        name = agent.control.hook
        if name is None:
            return None
        step = PolicyStep(
            agent=agent.name,
            tenant=info.tenant,
            turn=state.turn,
            items=items,
            candidates=found.allowed,
            succeeded=frozenset(state.succeeded),
            context=info.context,
            metadata=info.metadata,
        )
        answer = await self._call(name, step)
        if answer is None or isinstance(answer, Narrowing):
            return _checked(name, answer, agent)
        raise _HookFailed(f"the policy hook {name!r} answered {type(answer).__name__}, not Narrowing or None")

    async def _summed_up(self, agent: AgentSpec, fitted: Fitted, counter: TokenCounter) -> Fitted:
        """With the summariser's text for what was dropped; without it where it fails, for it is no rule."""
        name = agent.context.summariser
        if name is None or not fitted.dropped:
            return fitted
        try:
            text = await self._call(name, fitted.dropped)
        except _HookFailed as exc:
            log.warning("summariser_failed", agent=agent.name, error=str(exc))
            return fitted
        return with_summary(fitted, text, counter) if isinstance(text, str) and text else fitted

    async def _call(self, name: str, given: object) -> Any:
        hook = self._hooks.get(name)
        if hook is None:
            raise _HookFailed(
                f"the hook {name!r} is not loaded in this worker; load the app that declares it"
            )
        try:
            answer = hook(given)
            return await answer if isinstance(answer, Awaitable) or inspect.isawaitable(answer) else answer
        except Exception as exc:  # the user's code: any of them, and none of its text, which may hold secrets
            raise _HookFailed(f"the hook {name!r} raised {type(exc).__name__}") from exc


class _HookFailed(Exception):
    """Says which hook failed and how; never leaves this module."""


def _checked(name: str, answer: Narrowing | None, agent: AgentSpec) -> Narrowing | None:
    asked = None if answer is None else answer.tool_choice
    if asked is not None and asked not in CHOICES and agent.tool(asked) is None:
        raise _HookFailed(
            f"the policy hook {name!r} asks for the tool {asked!r}, which the agent does not have"
        )
    return answer


def _said(items: Sequence[Item]) -> tuple[str, ...]:
    return tuple(item.text for item in items if isinstance(item, UserItem))[-SAID_MAX:]
