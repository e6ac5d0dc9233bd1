"""What the model is asked: pure. Nothing dynamic goes into the prefix; what is forbidden now is refused by code."""

from __future__ import annotations

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.run import RunState
from toolfleet.schemas.views import Conversation

BYTES_PER_TOKEN = 3.0  # a low estimate on purpose: a reservation is rather too high than too low


def build_request(agent: AgentSpec, state: RunState, conversation: Conversation) -> ModelRequest:
    """The request of the outstanding decision; equal states give equal requests.

    Definitions stay whole; `allowed` names what may be called now where a tool is withdrawn. `required` holds for the
    first turn of a run, later ones are free to answer.
    """
    allowed = allowed_tools(agent, state)
    choice = agent.tool_choice
    if choice == "required" and (state.turn > 1 or not allowed):
        choice = "auto"
    return ModelRequest(
        agent=agent,
        items=conversation.items,
        tools=agent.tools,
        allowed=None if len(allowed) == len(agent.tools) else tuple(sorted(allowed)),
        tool_choice=choice,
        parallel=agent.parallel,
        output_tokens_max=state.limits.output_tokens_max,
        timeout_s=state.limits.model_timeout_s,
        user=conversation.info.metadata.get("user"),
    )


def allowed_tools(agent: AgentSpec, state: RunState) -> frozenset[str]:
    """The tools that may be called in this turn."""
    if agent.tool_choice == "none":
        return frozenset()
    return frozenset(tool.name for tool in agent.tools) - set(state.withdrawn)


def estimated_tokens(byte_count: int) -> int:
    """Tokens of that many bytes of text, estimated upwards."""
    return int(byte_count / BYTES_PER_TOKEN) + 1
