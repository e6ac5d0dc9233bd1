"""How much of a conversation a model is sent: the budget an agent declares, and what was left out at a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ContextPolicy(BaseModel):
    """What to do when a conversation grows. Without `tokens_max` nothing is left out until the provider refuses it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens_max: int | None = Field(default=None, ge=256)  # of one request: prefix and history, not the reply
    results_kept: int = Field(default=2, ge=0)  # newest turns whose results are never replaced by references
    summariser: str | None = None  # name of a function of the fleet: dropped items -> one text in their place


@dataclass(frozen=True, slots=True)
class ContextFacts:
    """What the one place that decides left out of a request; stored with the step.

    `tokens` is the count of what is sent, prefix included, exact or estimated upwards (`counter` names which).
    """

    budget: int | None = None
    tokens: int = 0
    counter: str = ""
    dropped_items: int = 0
    replaced: tuple[str, ...] = ()  # call ids whose result stands in the request as a reference
    summarised: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """For the step row; empty where nothing was decided."""
        if self.budget is None:
            return {}
        return {
            "context": {
                "budget_tokens": self.budget,
                "tokens": self.tokens,
                "counter": self.counter,
                "dropped_items": self.dropped_items,
                "replaced_results": list(self.replaced),
                "summarised": self.summarised,
            }
        }
