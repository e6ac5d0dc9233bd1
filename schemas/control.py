"""What a model may do at one step: the rules an agent declares, and what they come to.

`ControlPolicy` is data and part of the agent's version. It is evaluated before each model call
(workers/decision/policy) and gives a `Control`: what the provider is told, and what the runtime holds whatever the
provider lets through. A hook of the user's (a function) may narrow it further and never widen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolfleet.schemas.conversation import Item

AUTO = "auto"
REQUIRED = "required"
NONE = "none"
CHOICES = (AUTO, REQUIRED, NONE)  # every other tool_choice is the name of a tool
INTENT = "intent"  # the key of a run's metadata that names its intent

Band = Literal["fine", "noted", "too_many", "retrieved"]


class ControlPolicy(BaseModel):
    """The declared rules of an agent, beside those in the contracts of its tools (prerequisites, stages). Names are those
    of its tools; an unknown one is an error of the definition.

    "Succeeded" is an outcome `ok` in this run; "came back" is any outcome the tool itself gave, a refusal included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: str | None = None  # the first call of a run is of this tool
    answer_only_after: tuple[str, ...] = ()  # no final answer before each of these came back
    finish_after: tuple[str, ...] = ()  # once each of these succeeded: no call any more, only the answer
    tenants: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)  # tool -> the only tenants it is for
    intents: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict
    )  # metadata["intent"] of the run -> its tools
    top_k: int | None = Field(default=None, ge=1, le=128)  # offer the k tools that fit what the user said
    always: tuple[str, ...] = ()  # offered whatever top_k finds
    hook: str | None = None  # name of a function of the fleet that may narrow what is left

    @property
    def names(self) -> frozenset[str]:
        """Every tool these rules speak of."""
        found = {*self.answer_only_after, *self.finish_after, *self.always, *self.tenants}
        found.update(*self.intents.values())
        return frozenset(found | ({self.first} if self.first else set()))


@dataclass(frozen=True, slots=True)
class Control:
    """What one step may do. `allowed` None: all tools of the agent. `missing`: what has to come back before an answer.

    `excluded`: (tool, why) of every tool that may not be called now, in the order of the definitions. `rules`: which
    rules had a say in choice and order of calls.
    """

    choice: str = AUTO
    allowed: tuple[str, ...] | None = None
    parallel: bool = True
    missing: tuple[str, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    rules: tuple[str, ...] = ()
    band: Band = "fine"

    @property
    def callable(self) -> frozenset[str] | None:
        """The tools a call of this step may name; None: all of them."""
        if self.choice == NONE:
            return frozenset()
        if self.choice not in CHOICES:
            return frozenset({self.choice})
        return None if self.allowed is None else frozenset(self.allowed)

    @property
    def must_call(self) -> bool:
        """Whether a reply without a call is refused."""
        return self.choice not in (AUTO, NONE)


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """The rules demand a call of a tool that cannot be called: the run ends, for answering without it is forbidden."""

    message: str


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """What a hook is shown. It must answer the same to the same step, quickly, and without reaching outside."""

    agent: str
    tenant: str
    turn: int
    items: tuple[Item, ...]
    candidates: tuple[str, ...]  # what the declared rules leave, in the order of the definitions
    succeeded: frozenset[str]  # tools with an outcome ok in this run
    context: Mapping[str, Any]  # what the submitter gave for the tools
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A hook's answer: None leaves a thing as it is. Tools that are no candidates are not let in by naming them."""

    allowed: frozenset[str] | None = None
    tool_choice: str | None = None
    one_at_a_time: bool = False
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
