"""What a run had found when it was stopped: the data of its calls that succeeded, as much as fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.results import CallResult

FOUND_BYTES_MAX: Final = 64_000  # of data, in all; the newest first


@dataclass(frozen=True, slots=True)
class Found:
    """What one call found. `data` is what the model got of it; None, with `left_out`: there was no room for it here, and
    `results` of the run has it."""

    call_id: str
    tool: str
    data: Any = None
    left_out: bool = False


def found_in(results: Sequence[CallResult], *, bytes_max: int = FOUND_BYTES_MAX) -> tuple[Found, ...]:
    """Of each call that succeeded what it found, in call order; of the oldest the data is left out first."""
    room, made = bytes_max, []
    for one in reversed([one for one in results if one.outcome is CallOutcome.OK]):
        envelope = orjson.loads(one.content)
        tool = str(envelope.get("provenance", ""))
        room -= len(one.content)
        if room < 0:
            made.append(Found(one.call_id, tool, left_out=True))
        else:
            made.append(Found(one.call_id, tool, envelope.get("data")))
    return tuple(reversed(made))
