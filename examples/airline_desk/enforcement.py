"""The desk under a rule of order: before any change to a reservation, its details must have been read.

`toolfleet demo --enforce` gives the changing tools that prerequisite. Which recorded calls are then refused can be told
from the recordings alone (`expected_refusals`); what was refused is read from stored items (`refusals_in`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolfleet.definitions import Tool
from toolfleet.examples.airline_desk import desk
from toolfleet.examples.airline_desk.recordings import Recording
from toolfleet.schemas.contract import Prerequisite
from toolfleet.schemas.conversation import AssistantItem, Item, MergeItem
from toolfleet.schemas.outcomes import ReasonCode
from toolfleet.schemas.tools import ToolSpec

READER: Final = "get_reservation_details"
ARGUMENT: Final = "reservation_id"
REFUSED: Final = "Error"  # what the recorded desk began every refusal with


@dataclass(frozen=True, slots=True, order=True)
class Refusal:
    """One refused call: its conversation, its number among all calls of it (from 0), and what it wanted."""

    conversation: str
    call: int
    tool: str
    reservation_id: str


def changes_a_reservation(spec: ToolSpec) -> bool:
    return spec.effect and ARGUMENT in spec.parameters.get("properties", {})


def enforced_tools() -> tuple[Tool[..., Any], ...]:
    """The desk's tools in their order, the changing ones with the prerequisite."""
    return tuple(_enforced(one) if changes_a_reservation(one.spec) else one for one in desk.TOOLS)


def _enforced(declared: Tool[..., Any]) -> Tool[..., Any]:
    needed = Prerequisite(tool=READER, same={ARGUMENT: ARGUMENT})
    changed = copy.copy(declared)
    changed.spec = declared.spec.model_copy(update={"requires": (*declared.spec.requires, needed)})
    return changed


def expected_refusals(recording: Recording) -> list[Refusal]:
    """The calls that come before the details of their reservation were read, from the recorded messages alone."""
    changing = {one.spec.name for one in desk.TOOLS if changes_a_reservation(one.spec)}
    read: set[str] = set()
    reading: dict[str, str] = {}  # by call id, of the turn whose results are coming in
    found: list[Refusal] = []
    number = 0
    for message in recording.messages:
        if message["role"] == "assistant" and message.get("tool_calls"):
            reading = {}
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                wanted = str(arguments.get(ARGUMENT))
                if name in changing and wanted not in read:
                    found.append(Refusal(recording.id, number, name, wanted))
                if name == READER:
                    reading[call["id"]] = wanted
                number += 1
        elif message["role"] == "tool" and not str(message["content"]).startswith(REFUSED):
            read.update(reading[one] for one in (message["tool_call_id"],) if one in reading)
    return found


def refusals_in(conversation: str, items: Iterable[Item]) -> dict[str, Refusal]:
    """By call id, the calls of these items (of a whole conversation) that were refused for what must come first."""
    found: dict[str, Refusal] = {}
    asked: Sequence[Any] = ()
    number = 0
    for item in items:
        if isinstance(item, AssistantItem):
            asked = item.calls
        elif isinstance(item, MergeItem):
            for call, result in zip(asked, item.results, strict=True):
                if is_refusal(json.loads(result.content)):
                    wanted = json.loads(call.arguments).get(ARGUMENT)
                    found[call.call_id] = Refusal(conversation, number, call.name, str(wanted))
                number += 1
    return found


def is_refusal(envelope: Any) -> bool:
    return isinstance(envelope, dict) and envelope.get("reason_code") == ReasonCode.PREREQUISITE


def refused_from(recording: Recording) -> int | None:
    """The number of the first call that is refused: from there on the conversation is not the recorded one."""
    return next((one.call for one in expected_refusals(recording)), None)
