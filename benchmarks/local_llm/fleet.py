"""A three-tool agent for each policy, over HTTP, and two records kept outside of the fleet: what the model asked for in
each reply, and which calls the tools really got."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolfleet import (
    ControlPolicy,
    ExampleCall,
    ExampleTurn,
    Fleet,
    Limits,
    OpenAIChatClient,
    Price,
    ToolContext,
)
from toolfleet.schemas.model import ModelReply, ModelRequest

MODEL: Final = "gemma-3-270m"
TOOLS: Final = ("get_weather", "get_order", "send_email")
CALLS_MAX: Final = 2
INSTRUCTIONS: Final = (
    "You are a helpful assistant. Use the tools to answer the user. Answer in one short sentence."
)
_LIMITS: Final = Limits(
    turns_max=4, output_tokens_max=96, model_timeout_s=1800, active_seconds_max=7200, cost_usd_max=1.0
)
# Told in words alone it never calls anything: it goes on with what it has seen, so it is shown a call of each tool, and
# an answer without one.
_SHOWN: Final = (
    (
        "Weather in Quito?",
        "get_weather",
        {"city": "Quito"},
        {"temperature_c": 14},
        "It is 14 degrees in Quito.",
    ),
    (
        "Where is order A-17?",
        "get_order",
        {"order_id": "A-17"},
        {"status": "packed"},
        "Order A-17 is packed.",
    ),
    (
        "Email zoe@x.org about the key",
        "send_email",
        {"to": "zoe@x.org", "subject": "the key"},
        {"queued": True},
        "I have written to zoe@x.org.",
    ),
)
EXAMPLES: Final = (
    *(
        ExampleTurn(
            user=said,
            calls=(ExampleCall(id=f"shown_{number}", name=name, arguments=arguments, result=result),),
            answer=answer,
        )
        for number, (said, name, arguments, result, answer) in enumerate(_SHOWN)
    ),
    ExampleTurn(user="Hello!", answer="Hello! What can I do for you?"),
)
# It was not trained to end a turn: without the first two it goes on with the user's part.
_ENDS: Final = ("<|im_end|>", "<|im_start|>")
_ONE_CALL: Final[dict[str, Any]] = {"stop": [*_ENDS, "</tool_call>"]}
_ANY_CALLS: Final[dict[str, Any]] = {"stop": list(_ENDS)}
_FIELDS: Final[dict[str, Any]] = {
    "model": MODEL,
    "instructions": INSTRUCTIONS,
    "tools": list(TOOLS),
    "examples": EXAMPLES,
    "provider_options": _ONE_CALL,
}
MAY: Final = ("mail",)  # the permissions of whoever asks, but for the policy of that name

POLICIES: Final[dict[str, dict[str, Any]]] = {  # what is declared of each agent
    "free": {},
    "required": {"tool_choice": "required"},
    "none": {"tool_choice": "none"},
    "one_at_a_time": {"parallel_tool_calls": "off", "provider_options": _ANY_CALLS},
    "subset": {"control": ControlPolicy(intents={"weather": ("get_weather",)})},
    "permission": {},
    "answer_after": {"control": ControlPolicy(answer_only_after=("get_order",))},
    "calls_max": {
        "limits": _LIMITS.model_copy(update={"calls_max": CALLS_MAX}),
        "provider_options": _ANY_CALLS,
    },
}


@dataclass(slots=True)
class Asked:
    """One model call: what it was told, and what came back."""

    request: ModelRequest
    reply: ModelReply


@dataclass(slots=True)
class World:
    """Which calls the tools got, as (run, turn, tool)."""

    ran: list[tuple[str, int, str]] = field(default_factory=list)


class Watched(OpenAIChatClient):
    """The client, writing down each exchange."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url)
        self.asked: list[Asked] = []

    async def complete(self, request: ModelRequest) -> ModelReply:
        reply = await super().complete(request)
        self.asked.append(Asked(request, reply))
        return reply


def open_fleet(folder: Path, model: Watched, world: World) -> Fleet:
    """An embedded fleet in that folder, with an agent for each policy."""
    fleet = Fleet(f"sqlite:///{folder / 'fleet.db'}", model=model)
    fleet.configure(decide_slots=1)  # as many as the server answers at a time: nobody stands in its queue

    def ran(context: ToolContext, tool: str) -> None:
        world.ran.append((context.run_id, context.turn, tool))

    @fleet.tool
    async def get_weather(context: ToolContext, city: str) -> dict[str, Any]:
        """Current weather of one city."""
        ran(context, "get_weather")
        return {"city": city, "temperature_c": 21, "sky": "clear"}

    @fleet.tool
    async def get_order(context: ToolContext, order_id: str) -> dict[str, Any]:
        """Status of one order by its id."""
        ran(context, "get_order")
        return {"order_id": order_id, "status": "shipped"}

    @fleet.tool(repeatable=True, permissions=MAY)
    async def send_email(context: ToolContext, to: str, subject: str) -> dict[str, Any]:
        """Send an email to somebody."""
        ran(context, "send_email")
        return {"to": to, "queued": True}

    free = Price(input_usd=0.0, output_usd=0.0)
    for name, declared in POLICIES.items():
        fields = {"limits": _LIMITS, "price": free, "temperature": 0.0, **_FIELDS, **declared}
        fleet.agent(name, **fields)
    return fleet
