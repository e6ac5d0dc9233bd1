"""What an agent is: a versioned definition, pinned by its content hash for every run."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from toolfleet.schemas.context import ContextPolicy
from toolfleet.schemas.control import CHOICES, NONE, REQUIRED, ControlPolicy
from toolfleet.schemas.limits import DEFAULT_LIMITS, Limits
from toolfleet.schemas.outcomes import Lane
from toolfleet.schemas.output import OutputSpec
from toolfleet.schemas.tools import ToolSpec, digest

# Fields of a request that decide what the model may do and what it is told; one way to set each of them.
_OURS = frozenset(
    {
        "model",
        "messages",
        "input",
        "system",
        "instructions",
        "tool_choice",
        "parallel_tool_calls",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "temperature",
        "stream",
        "stream_options",
        "store",
        "background",
        "previous_response_id",
        "conversation",
        "n",
    }
)
AGENT_NAME_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$"


class Price(BaseModel):
    """US dollars for a million tokens. Without a price, the price table decides; unknown models cost 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd: float = Field(ge=0)
    output_usd: float = Field(ge=0)
    cached_input_usd: float | None = Field(default=None, ge=0)


class ExampleCall(BaseModel):
    """A call in a few-shot turn, with its result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    arguments: dict[str, Any]
    result: Any


class ExampleTurn(BaseModel):
    """One few-shot example as a real chain: user, calls with results, answer. Ids are static."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str
    calls: tuple[ExampleCall, ...] = ()
    answer: str


class AgentSpec(BaseModel):
    """The definition of an agent, as data: what a run is pinned to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=AGENT_NAME_PATTERN)
    model: str
    instructions: str = ""
    selection_rules: str = ""  # when to use which tool; stands behind the instructions, counted as rules
    examples: tuple[ExampleTurn, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    limits: Limits = DEFAULT_LIMITS
    lane: Lane = Lane.INTERACTIVE
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    tool_choice: str = (
        "auto"  # auto | required | none | a tool's name; the middle and the last until a call is made
    )
    parallel_tool_calls: Literal["auto", "on", "off"] = (
        "auto"  # auto: off when a tool with an effect is among them
    )
    control: ControlPolicy = ControlPolicy()
    context: ContextPolicy = ContextPolicy()
    output: OutputSpec | None = None
    price: Price | None = None  # of `model`; fallback models have those of the table
    fallback_models: tuple[
        str, ...
    ] = ()  # asked in this order where the one before fails or has no quota left
    # More of the request, as the provider names it: {"reasoning": {"effort": "low"}}, {"tools": [{"type": "web_search"}]}.
    provider_options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("fallback_models")
    @classmethod
    def _each_once(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        names = (info.data.get("model"), *value)
        if len(set(names)) != len(names):
            raise ValueError("a model stands twice in the chain of model and fallback_models")
        return value

    @model_validator(mode="after")
    def _names_are_known(self) -> AgentSpec:
        """What would otherwise be found out at the first request, or never."""
        names = {tool.name for tool in self.tools}
        if self.tool_choice not in CHOICES and self.tool_choice not in names:
            raise ValueError(
                f"tool_choice {self.tool_choice!r} is none of {', '.join(CHOICES)} and no tool of it"
            )
        if self.tool_choice == REQUIRED and not names:
            raise ValueError("tool_choice is required, and it has no tools; give it one, or choose auto")
        unknown = sorted(self.control.names - names)
        if unknown:
            raise ValueError(
                f"control speaks of {', '.join(unknown)}, which it does not have; add the tool or mend the name"
            )
        _check_control(self.control, self.tool_choice, self.tools)
        both = sorted({"response_format", "text", "output_config"} & self.provider_options.keys())
        if self.output is not None and both:
            raise ValueError(f"provider_options has {both[0]}, and it has an output; leave the first out")
        if self.output is not None and (twice := sorted(self.output.constants & names)):
            raise ValueError(
                f"its output schema offers the choice of {', '.join(twice)}, which are its tools as well; let the model "
                "call them, or take them out of tools= and act on the decision in your code"
            )
        return self

    @property
    def system_text(self) -> str:
        """What stands in the system role: instructions, then selection rules. Nothing of it changes within a version."""
        return "\n\n".join(text for text in (self.instructions, self.selection_rules) if text)

    @property
    def parallel(self) -> bool:
        """Whether several calls of one turn may run."""
        if self.parallel_tool_calls == "auto":
            return not any(tool.effect for tool in self.tools)
        return self.parallel_tool_calls == "on"

    @field_validator("provider_options")
    @classmethod
    def _only_what_is_not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(value.keys() & _OURS)
        if taken:
            raise ValueError(
                f"provider_options cannot set {', '.join(taken)}: the runtime does, from the agent's own fields"
            )
        return value

    @cached_property
    def version(self) -> str:
        """Hash of the whole definition, 16 hex digits."""
        return digest(self.model_dump(mode="json"))

    @cached_property
    def prompt_version(self) -> str:
        """Hash of what the model reads beside the tools: instructions, rules, examples, sampling, model, output."""
        return digest(
            self.model_dump(
                mode="json",
                include={
                    "model",
                    "instructions",
                    "selection_rules",
                    "examples",
                    "temperature",
                    "top_p",
                    "provider_options",
                    "output",
                    "context",
                },
            )
        )

    @cached_property
    def toolset_version(self) -> str:
        """Hash of the tool definitions, in their order, and of the rules about them."""
        return digest(
            self.model_dump(mode="json", include={"tools", "tool_choice", "parallel_tool_calls", "control"})
        )

    @property
    def cache_key(self) -> str:
        """What routes equal prefixes to one cache of the provider: the same for all runs of a version."""
        return f"{self.prompt_version}-{self.toolset_version}"

    def tool(self, name: str) -> ToolSpec | None:
        """The tool of that name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)


def _check_control(control: ControlPolicy, tool_choice: str, tools: tuple[ToolSpec, ...]) -> None:
    demands = control.first is not None or bool(control.answer_only_after)
    if tool_choice == NONE and demands:
        raise ValueError("tool_choice is none, and its control demands a call; one of them has to go")
    waiting = {tool.name: {one.tool for one in tool.requires} for tool in tools if tool.requires}
    if control.first in waiting:
        raise ValueError(f"control.first is {control.first}, which requires another call before it")
    while waiting:  # every round takes out at least one tool, or there is a circle
        free = [name for name, needed in waiting.items() if not needed & waiting.keys()]
        if not free:
            raise ValueError(f"what its tools require goes round in a circle: {', '.join(sorted(waiting))}")
        waiting = {name: needed for name, needed in waiting.items() if name not in free}
