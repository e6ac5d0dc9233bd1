"""What the model is asked: pure. Nothing dynamic goes into the prefix; what is forbidden now is refused by code."""

from __future__ import annotations

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.control import Control
from toolfleet.schemas.conversation import Item
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.run import RunState
from toolfleet.schemas.views import RunInfo


def build_request(
    agent: AgentSpec, state: RunState, info: RunInfo, control: Control, items: tuple[Item, ...]
) -> ModelRequest:
    """The request of the outstanding decision; equal states give equal requests.

    Definitions stay whole; `control` says what may be called now. A forced function needs no list beside it.
    """
    return ModelRequest(
        agent=agent,
        items=items,
        tools=agent.tools,
        allowed=control.allowed,
        tool_choice=control.choice,
        parallel=control.parallel,
        output_tokens_max=state.limits.output_tokens_max,
        timeout_s=state.limits.model_timeout_s,
        user=info.metadata.get("user"),
        output=agent.output,
        cache_key=agent.cache_key,
    )
