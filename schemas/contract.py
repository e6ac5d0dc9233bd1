"""The parts of a tool's contract, as data: where arguments come from, what must come first, what a result may show.

Shapes only. The text a model reads of them is made in `tool_text`, results are projected in `projection`.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

# A path that ends in it and another path goes on as that one does. A release that does not know it shows nothing there.
AGAIN: Final = "↻"
STRICTNESS: Final = {"data": 0, "untrusted": 1, "secret": 2}
TOOL_NAME_PATTERN: Final = r"^[a-zA-Z0-9_-]{1,64}$"
UNTRUSTED_CHARS_MAX: Final = 2_000  # of one outside text, where its declaration says nothing else

Source = Literal["user", "context", "upstream"]
"""Where the value of an argument comes from: the user's words, the run's context or the agent's instructions, or the
result of an earlier call. What the runtime fills in is no argument of the model's: it is in `injected`."""

INJECTABLE: Final = ("tenant", "principal", "run_id", "call_id", "agent", "correlation_id", "idempotency_key")
"""What the runtime can fill in, beside `context.<key>` (given with the run) and `credential:<name>`."""
INJECTED_PATTERN: Final = rf"^({'|'.join(INJECTABLE)}|context\.[A-Za-z0-9_]+|credential:[A-Za-z0-9_.-]+)$"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolExample(_Part):
    """A call as it should be; `when` is the situation it belongs to."""

    arguments: dict[str, Any]
    when: str = ""


class Prerequisite(_Part):
    """A call that must have succeeded earlier in the conversation, in an earlier turn.

    same: argument of this tool -> argument of that call, or `result.<path>` in its data; the values must be equal.
    result: fields of that call's data (paths as above, without `result.`) and what they must be.
    """

    tool: str = Field(pattern=TOOL_NAME_PATTERN)
    same: dict[str, str] = Field(default_factory=dict)
    result: dict[str, Any] = Field(default_factory=dict)

    def __str__(self) -> str:
        """`get_order with the same order_id, whose result has can_refund = true`."""
        equal = [
            mine if mine == theirs else f"{mine} equal to its {theirs}" for mine, theirs in self.same.items()
        ]
        said = [f" with the same {', '.join(equal)}"] if equal else []
        needed = [f"{path} = {_json(value)}" for path, value in self.result.items()]
        said += [f"whose result has {' and '.join(needed)}"] if needed else []
        return self.tool + ", ".join(said)


class ResultField(_Part):
    """A place in a tool's result that may be shown: `order_id`, `customer.name`, `items[].sku`, `by_sku{}.price` (each
    value of a map, whatever its key); "" is the whole. `parent.children[]↻parent`: what is there goes on as `parent` does,
    to any depth.

    data: as it is, a text, number, flag or null unless `deep`. untrusted: text from outside, fenced and cut at
    `chars_max`. secret: never leaves the executor; a mark stands in its place.
    """

    path: str
    mark: Literal["data", "untrusted", "secret"] = "data"
    deep: bool = False  # whatever is below it, too
    chars_max: int = Field(default=UNTRUSTED_CHARS_MAX, ge=1)

    @field_validator("path")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        place, again, as_at = value.partition(AGAIN)
        if place and not all(place.split(".")):
            raise ValueError(
                f"{value!r} is no path; write names joined by dots, [] after a list, {{}} after a map: items[].sku"
            )
        if again and not place.startswith(as_at):
            raise ValueError(f"{value!r} goes on as a place it is not in; name one it begins with")
        return value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
