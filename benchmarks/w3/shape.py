"""What one run of W3 is made of, as all stacks are told it: in the input of the run.

W3 = decision -> `fan` parallel tools -> merge -> decision -> `fan` tools -> merge -> decision (final text).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

TOOL_TURNS: Final = 2
MODEL_CALLS: Final = TOOL_TURNS + 1
MODEL: Final = "w3-model"
SCRIPTED: Final = "w3-scripted"  # no HTTP: the model is a function in the decision worker
FINAL_TEXT: Final = "Everything was looked up, and nothing is missing."
INSTRUCTIONS: Final = (
    "You answer questions about orders of a shop. Look everything up with the tools before you answer; "
    "ask for what does not depend on each other at the same time. Be short and polite, and never guess."
)
TOOL_NAMES: Final = ("look_up_order", "look_up_customer", "look_up_stock")
DESCRIPTIONS: Final = (
    "Look an order up by its key.",
    "Look a customer up by a key.",
    "Look up what is in stock under a key.",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Tools in one turn, and how long the model and a tool take."""

    fan: int = 3
    model_ms: int = 0
    tool_ms: int = 0
    scripted: bool = False

    @property
    def ideal_ms(self) -> float:
        """How long a run would take if nothing but the model and the tools took time."""
        return MODEL_CALLS * self.model_ms + TOOL_TURNS * self.tool_ms

    @property
    def calls(self) -> int:
        return TOOL_TURNS * self.fan

    def text(self, number: int) -> str:
        """The input of run `number`."""
        asked = {"fan": self.fan, "model_ms": self.model_ms, "tool_ms": self.tool_ms, "n": number}
        return json.dumps(asked, separators=(",", ":"))


BUSY: Final = Shape()
SLOW: Final = Shape(model_ms=200, tool_ms=20)


def without_http(shape: Shape) -> Shape:
    return replace(shape, scripted=True)


def arguments(turn: int, position: int, tool_ms: int) -> dict[str, Any]:
    """Of the call at that place; what the tool answers is checked against it."""
    return {"key": f"order-{turn}-{position}", "ms": tool_ms}


def result(key: str) -> str:
    """What every tool answers."""
    return f"found {key}: 3 pieces, shipped on Tuesday, paid in full"


def schema() -> dict[str, Any]:
    """The parameters of every tool."""
    properties = {"key": {"type": "string"}, "ms": {"type": "integer"}}
    return {
        "type": "object",
        "properties": properties,
        "required": ["key", "ms"],
        "additionalProperties": False,
    }


def as_json(shape: Shape) -> dict[str, Any]:
    return asdict(shape)
