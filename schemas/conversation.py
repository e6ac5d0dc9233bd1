"""Conversation items: provider-neutral, append-only, the provider's own form kept verbatim beside them.

An item is stored once and never changes. A turn with calls is two items, the assistant's and the merge; they
belong together and are trimmed together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolfleet.schemas.outcomes import CallOutcome


@dataclass(frozen=True, slots=True)
class UserItem:
    """What the user said. What is more than text stands in `provider`, and goes to its own wire as it is."""

    text: str
    wire: str | None = None  # which wire `provider` is of
    provider: dict[str, Any] | None = None  # the message as that wire has it: images, documents, other roles
    kind: Literal["user"] = "user"


@dataclass(frozen=True, slots=True)
class ItemCall:
    """One call as it stands in the conversation.

    `arguments` is always the text of a JSON object (the raw text of an invalid call is kept in `provider`).
    `wire_id` is what the provider's wire pairs the result by: unique in its turn, not in the conversation.
    """

    call_id: str
    wire_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AssistantItem:
    """One model reply, or (`by_runtime`) a sentence the runtime closes a run with."""

    text: str | None
    calls: tuple[ItemCall, ...] = ()
    by_runtime: bool = False
    wire: str | None = None  # which wire `provider` is of, e.g. "chat_completions"
    provider: dict[str, Any] | None = None  # the provider's own message, verbatim
    kind: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True)
class ItemResult:
    """One result as the model gets it: `content` is the text of our result envelope (JSON)."""

    call_id: str
    wire_id: str
    outcome: CallOutcome
    content: str


@dataclass(frozen=True, slots=True)
class MergeItem:
    """All results of one turn, in call order: the one message that resumes the conversation."""

    results: tuple[ItemResult, ...]
    kind: Literal["merge"] = "merge"


@dataclass(frozen=True, slots=True)
class NoticeItem:
    """What the runtime tells the model outside a result (an empty reply is asked again); rendered as user text."""

    text: str
    kind: Literal["notice"] = "notice"


Item = UserItem | AssistantItem | MergeItem | NoticeItem


def groups(items: Sequence[Item]) -> list[list[Item]]:
    """Items in the units that may be dropped: an assistant item with calls and its merge are one unit."""
    units: list[list[Item]] = []
    for item in items:
        last = units[-1] if units else []
        if isinstance(item, MergeItem) and last and isinstance(last[-1], AssistantItem) and last[-1].calls:
            last.append(item)
        else:
            units.append([item])
    return units


def trimmed(items: Sequence[Item], *, keep_from: int) -> list[Item]:
    """The items from index `keep_from` on, moved forwards so that no call is parted from its results."""
    kept: list[Item] = []
    position = 0
    for unit in groups(items):
        if position >= keep_from:
            kept.extend(unit)
        position += len(unit)
    return kept
