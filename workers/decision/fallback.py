"""What follows from a failed model call: the same model again, the next one of the agent, or the end of the run. Pure."""

from __future__ import annotations

from typing import Final, Literal

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.model import ModelFault

Follows = Literal["again", "next", "end"]

FAILURES_BEFORE_NEXT: Final = 2  # one may be an accident
WAIT_FOR_IT_MAX_S: Final = (
    30.0  # a model that wants a longer wait is left for the next one, where there is one
)
ABOUT_THE_REQUEST: Final = frozenset(  # no other model makes it right by luck
    {"bad_request", "context_length", "content_filter"}
)


def what_follows(fault: ModelFault, *, failures: int, left: int) -> Follows:
    """`failures`: of this model in this turn, this one included. `left`: models of the agent after this one.

    A refused request is our bug or the schema's: never sent again blindly, to another model neither. A used-up quota,
    a wrong key and an unknown model do not heal by waiting. Everything else is transient.
    """
    if fault.kind in ABOUT_THE_REQUEST:
        return "again" if fault.retryable else "end"
    if not fault.retryable:
        return "next" if left else "end"
    too_long = (fault.retry_after_s or 0.0) > WAIT_FOR_IT_MAX_S
    return "next" if left and (too_long or failures >= FAILURES_BEFORE_NEXT) else "again"


def on_model(agent: AgentSpec, index: int) -> AgentSpec:
    """The agent as it asks its model number `index`: 0 is its own, then its fallback models; the last one stays."""
    if index <= 0 or not agent.fallback_models:
        return agent
    model = agent.fallback_models[min(index, len(agent.fallback_models)) - 1]
    return agent.model_copy(update={"model": model, "price": None})


def models_left(agent: AgentSpec, index: int) -> int:
    """How many models come after number `index`."""
    return max(0, len(agent.fallback_models) - index)
