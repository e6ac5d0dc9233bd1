"""What the scripted model says next: found from the conversation so far, and from nothing else.

A script is a whole conversation, recorded or planned. Its place in a request is found by the texts of the user, the
turns of the model and the ids its results answer; the content of the results is compared afterwards, so that a wrong
one is named instead of merely not found. Nothing is remembered between requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, Literal

import rfc8785

from toolfleet.examples.airline_desk.difference import same_json
from toolfleet.examples.airline_desk.enforcement import is_refusal
from toolfleet.examples.airline_desk.fanout import FanoutCase
from toolfleet.examples.airline_desk.pairing import text_of
from toolfleet.examples.airline_desk.recordings import Recording

END_TEXT: Final = "(end of recording)"
_START: Final = b"start"


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation to be played; `messages` in the form of Chat Completions, without a system message."""

    id: str
    kind: Literal["recorded", "fanout"]
    messages: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A result that is not the one the script has; `index` counts the script's messages."""

    conversation: str
    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands in a script. `next_turn` is None where the script has no answer any more."""

    script: Script
    position: int

    @property
    def next_turn(self) -> Mapping[str, Any] | None:
        following = self.script.messages[self.position : self.position + 1]
        return following[0] if following and following[0]["role"] == "assistant" else None

    def mismatches(self, messages: Sequence[Mapping[str, Any]], *, enforced: bool = False) -> list[Mismatch]:
        """The results among `messages` (as `spoken` gives them) that differ from the script's.

        `enforced`: calls may be refused for what must come first, and what follows a refusal is not compared.
        """
        found = []
        for index, (given, written) in enumerate(zip(messages, self.script.messages, strict=False)):
            if given["role"] != "tool":
                continue
            if enforced and is_refusal(_parsed(text_of(given["content"]) or "")):
                break
            if (reason := result_problem(given, written["content"])) is not None:
                found.append(Mismatch(self.script.id, index, reason))
        return found


class ScriptBook:
    """All scripts, by every beginning of theirs that a model may be asked to go on from."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        self.scripts = tuple(scripts)
        self._places: dict[bytes, list[Place]] = {}
        for script in self.scripts:
            for position, digest in enumerate(_beginnings(script.messages)):
                if position and script.messages[position - 1]["role"] in ("user", "tool"):
                    self._places.setdefault(digest, []).append(Place(script, position))

    @property
    def ambiguous_count(self) -> int:
        """Beginnings that lead to different turns in different scripts."""
        return sum(len(_different(places)) > 1 for places in self._places.values())

    def find(
        self, messages: Sequence[Mapping[str, Any]], hints: AbstractSet[str] = frozenset()
    ) -> Place | None:
        """The place of this conversation (as `spoken` gives it), or None.

        Where scripts with the same beginning go on differently, one named in `hints` is taken, else one whose
        results are those given, else the first.
        """
        *_, digest = _beginnings(messages)
        places = self._places.get(digest, [])
        if len(_different(places)) > 1:
            named = [place for place in places if place.script.id in hints]
            places = named or [place for place in places if not place.mismatches(messages)] or places
        return places[0] if places else None

    def known_length(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """How many of the messages some script begins with, counted up to where a model may be asked."""
        beginnings = list(_beginnings(messages))
        return next(
            (length for length in range(len(messages), 0, -1) if beginnings[length] in self._places), 0
        )


def recorded_script(recording: Recording) -> Script:
    """A recorded conversation, to be played as it was."""
    return Script(recording.id, "recorded", recording.messages)


def fanout_script(case: FanoutCase) -> Script:
    """A fan-out case as a conversation of two turns: all its calls at once, then a closing sentence."""
    ids = [f"call_{case.id}_{index}" for index in range(len(case.planned_calls))]
    calls = [
        {"id": one, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for one, call in zip(ids, case.planned_calls, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": one, "content": json.dumps(result)}
        for one, result in zip(ids, case.results_expected, strict=True)
    ]
    return Script(
        case.id,
        "fanout",
        (
            {"role": "user", "content": case.user_text},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *results,
            {"role": "assistant", "content": f"All {len(calls)} results are in."},
        ),
    )


def spoken(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages that belong to a script: no instructions, and no closing sentence of this server's own."""
    return [
        message
        for message in messages
        if message["role"] not in ("system", "developer")
        and not (message["role"] == "assistant" and message.get("content") == END_TEXT)
    ]


def result_problem(message: Mapping[str, Any], recorded: str) -> str | None:
    """What is wrong with a tool message, or None: our result envelope has to hold the recorded result.

    `data` of a success equals it as JSON where the recorded text parses, else as text; `message` of an error is it.
    """
    envelope = _parsed(text_of(message["content"]) or "")
    if not isinstance(envelope, dict):
        return "its content is no result envelope (a JSON object with a status)"
    match envelope.get("status"):
        case "success":
            if "data" in envelope and same_json(envelope["data"], _parsed(recorded)):
                return None
            return "its data is not the recorded result"
        case "error":
            return (
                None
                if envelope.get("message") == recorded
                else "its error message is not the recorded result"
            )
        case status:
            return f"its status is {json.dumps(status)[:40]}, and the recorded call came to a result"


def _parsed(text: str) -> object:
    """The JSON value a text stands for, or else the text."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _different(places: Sequence[Place]) -> set[str]:
    return {json.dumps(place.next_turn, sort_keys=True) for place in places}


def _beginnings(messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """A digest of the first 0, 1, 2, … messages: one more than there are messages."""
    digest = _START
    yield digest
    for message in messages:
        digest = hashlib.blake2b(digest + _essence(message), digest_size=16).digest()
        yield digest


def _essence(message: Mapping[str, Any]) -> bytes:
    """What a script is recognised by."""
    calls = [
        # as JSON, not as text: a client may write the same arguments with other spaces
        [call["id"], call["function"]["name"], _parsed(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    words = (
        message.get("tool_call_id") if message["role"] == "tool" else text_of(message.get("content")) or ""
    )
    essence = [message["role"], words, calls]
    try:
        return rfc8785.dumps(essence)  # one text for one value: 6.0 and 6 are one number
    except rfc8785.CanonicalizationError:  # an integer no double can hold
        return json.dumps(essence, sort_keys=True).encode()
