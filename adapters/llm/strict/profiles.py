"""What the providers take as a strict schema: dated facts, read from data/*.json, each with its source.

A newer fact is a new file, not an edit of the old one: an agent that was registered under a profile keeps it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Final, Literal

from toolfleet.schemas.errors import InputError

NEWEST: Final[Mapping[str, str]] = {"openai": "2026-02", "anthropic": "2026-02"}


@dataclass(frozen=True, slots=True)
class Fact:
    """What a provider says about one rule, in our words, and where it says so."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a strict schema may be; None: the provider names no limit. All counts are of the whole schema.

    `depth`: objects inside objects. `string_chars`: names of properties and definitions, enum and const values.
    `long_enum_*`: an enum of more texts than that may have so many characters. `optional` and `unions` are shared by
    all strict tools of a request.
    """

    properties: int | None = None
    depth: int | None = None
    enum_values: int | None = None
    string_chars: int | None = None
    long_enum_values: int | None = None
    long_enum_chars: int | None = None
    optional: int | None = None
    unions: int | None = None


@dataclass(frozen=True, slots=True)
class StrictProfile:
    """One provider's strict subset of JSON Schema at one date.

    `optional`: how a property that may be absent is written: "nullable" lists it in required and takes null for
    absent; "nullable_then_left_out" does so until the limit of unions is reached and leaves the others out of
    required. `min_items`: the values minItems may have; None: any. Names that do not match their pattern get an alias.
    """

    name: str
    dated: str
    source: str
    read_at: str
    keywords: frozenset[str]
    formats: frozenset[str]
    min_items: tuple[int, ...] | None
    recursion: bool
    optional: Literal["nullable", "nullable_then_left_out"]
    tool_name: str
    property_name: str | None
    limits: Limits
    strict_tools_max: int | None
    facts: Mapping[str, Fact] = field(default_factory=dict, hash=False)

    @property
    def id(self) -> str:
        return f"{self.name}-{self.dated}"

    def takes_tool_name(self, name: str) -> bool:
        return re.fullmatch(self.tool_name, name) is not None

    def takes_property_name(self, name: str) -> bool:
        return self.property_name is None or re.fullmatch(self.property_name, name) is not None


@functools.cache
def strict_profile(provider: str, dated: str | None = None) -> StrictProfile:
    """The profile of that provider; the newest one where no date is given. Raises InputError for one there is not."""
    date = dated or NEWEST.get(provider)
    known = profile_ids()
    if date is None or f"{provider}-{date}" not in known:
        raise InputError(
            f"there is no strict profile {provider}{f' of {dated}' if dated else ''}",
            hint=f"There are: {', '.join(known)}.",
        )
    text = (resources.files(__package__) / "data" / f"{provider}-{date}.json").read_text(encoding="utf-8")
    given = json.loads(text)
    source = given["source"]
    facts = {
        rule: Fact(fact, source) if isinstance(fact, str) else Fact(fact["text"], fact["source"])
        for rule, fact in given.pop("facts").items()
    }
    return StrictProfile(
        **given
        | {
            "keywords": frozenset(given["keywords"]),
            "formats": frozenset(given["formats"]),
            "min_items": None if given["min_items"] is None else tuple(given["min_items"]),
            "limits": Limits(**given["limits"]),
            "facts": facts,
        }
    )


@functools.cache
def profile_ids() -> tuple[str, ...]:
    """All profiles there are, as `<provider>-<date>`, in alphabetical order."""
    files = (resources.files(__package__) / "data").iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))
