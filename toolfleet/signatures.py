"""What a function's annotations say of a tool's contract: where arguments come from, and what of its result is marked
(what follows of that: `result_types`).

def get_order(
    order_id: Annotated[str, From("user", "upstream")],
    tenant: Annotated[str, Injected("tenant")],
) -> Order: ...

class Order(BaseModel):
    order_id: str
    note: Annotated[str, Untrusted(chars_max=500)]
    courier_token: Annotated[str, Secret()]
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from toolfleet.schemas.contract import UNTRUSTED_CHARS_MAX, Source


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class From:
    """Marks an argument: its value is taken from one of these, and is refused as invented where it is in none."""

    sources: tuple[Source, ...]

    def __init__(self, *sources: Source) -> None:
        object.__setattr__(self, "sources", sources)


@dataclasses.dataclass(frozen=True, slots=True)
class Injected:
    """Marks an argument the runtime fills in: tenant, principal, run_id, call_id, agent, correlation_id,
    idempotency_key, context.KEY or credential:NAME. It is in no schema, transcript or log."""

    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Untrusted:
    """Marks text from outside in a result model: fenced as data, and cut for the model at `chars_max` characters."""

    chars_max: int = UNTRUSTED_CHARS_MAX


@dataclasses.dataclass(frozen=True, slots=True)
class Secret:
    """Marks a field of a result model that must not leave the executor."""


def sources_of(hints: Mapping[str, Any]) -> dict[str, tuple[Source, ...]]:
    """The arguments that are marked with From, and where each comes from."""
    return {name: mark.sources for name, mark in _marked(hints, From)}


def injected_of(hints: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that are marked with Injected, and what is filled in."""
    return {name: mark.source for name, mark in _marked(hints, Injected)}


def _marked(hints: Mapping[str, Any], kind: type) -> Iterator[tuple[str, Any]]:
    for name, hint in hints.items():
        if typing.get_origin(hint) is Annotated and name != "return":
            yield from ((name, mark) for mark in hint.__metadata__ if isinstance(mark, kind))
