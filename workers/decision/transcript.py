"""What a conversation has shown so far: the words and values in it, and the calls that succeeded. Pure.

The two gates that need it stand here. They are decided by the reply and by items that cannot change while its decision
is outstanding (earlier items are append-only, and the lease fences the commit), so every process decides the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any, Final

import orjson

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.contract import Prerequisite
from toolfleet.schemas.conversation import AssistantItem, Item, MergeItem, UserItem
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode
from toolfleet.schemas.tools import ToolSpec

SHORT_CHARS: Final = 2  # a value this short occurs by chance, so that it occurs says nothing
_SAID_BY_TOOLS: Final = frozenset({CallOutcome.OK, CallOutcome.BUSINESS_ERROR})
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Done:
    """A call that succeeded: what it was given, and its data."""

    tool: str
    arguments: Mapping[str, Any]
    data: Any


@dataclass(frozen=True)
class Transcript:
    """The items before the outstanding decision, read when a gate asks for them."""

    items: Sequence[Item] = field(default=())

    @cached_property
    def done(self) -> tuple[Done, ...]:
        """The calls that succeeded, oldest first."""
        found = []
        names = {}
        for item in self.items:
            if isinstance(item, AssistantItem):
                names = {call.call_id: call for call in item.calls}
            elif isinstance(item, MergeItem):
                for result in item.results:
                    call = names.get(result.call_id)
                    if call is not None and result.outcome is CallOutcome.OK:
                        envelope = orjson.loads(result.content)
                        found.append(Done(call.name, orjson.loads(call.arguments), envelope.get("data")))
        return tuple(found)

    @cached_property
    def said(self) -> Said:
        """What the user said and what tools answered. Not what the model said: it would prove its own inventions."""
        texts: list[str] = []
        for item in self.items:
            if isinstance(item, UserItem):
                texts.append(item.text)
            elif isinstance(item, MergeItem):
                for result in item.results:
                    texts.append(result.call_id)  # what a result that is left out is referred to by
                    if result.outcome in _SAID_BY_TOOLS:  # other results are the runtime's words
                        texts.extend(_leaves(_told(orjson.loads(result.content))))
        return Said(texts)


def _told(envelope: Mapping[str, Any]) -> Any:
    return [envelope.get(name) for name in ("data", "message", "reference", "operation_id")]


def _leaves(value: Any) -> Iterator[str]:
    """All texts and numbers in it, keys too: a map from ids to things names its ids there."""
    match value:
        case None | bool():
            return
        case str():
            yield value
        case int() | float():
            yield repr(value)
        case Mapping():
            for key, inner in value.items():
                yield str(key)
                yield from _leaves(inner)
        case list() | tuple():
            for inner in value:
                yield from _leaves(inner)


# -- prerequisites and stages ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """Why a call may not be made yet. `first` are the tools to call before it, in the order of the declaration."""

    message: str
    first: tuple[str, ...]
    stage: bool = False


def out_of_order(
    spec: ToolSpec, arguments: Mapping[str, Any], transcript: Transcript, agent: AgentSpec
) -> OutOfOrder | None:
    """What must come first, or None where the call is in order."""
    unmet = [one for one in spec.requires if not _met(one, arguments, transcript.done)]
    if unmet:
        needed = "; ".join(str(one) for one in unmet)
        return OutOfOrder(
            f"{spec.name} cannot be called yet. What must have succeeded first, in an earlier turn: {needed}.",
            tuple(one.tool for one in unmet),
        )
    now = stage_of(transcript, agent)
    if spec.stages and now not in spec.stages:
        leading = tuple(tool.name for tool in agent.tools if tool.enters_stage in spec.stages)
        first = f" What leads there: {', '.join(leading)}." if leading else ""
        where = f"stage {now!r}" if now else "no stage yet"
        return OutOfOrder(
            f"{spec.name} can be called in stage {' or '.join(spec.stages)} only, and this conversation is in {where}."
            f"{first}",
            leading,
            stage=True,
        )
    return None


def stage_of(transcript: Transcript, agent: AgentSpec) -> str | None:
    """The stage the last successful call entered that enters one; None before the first."""
    enters = {tool.name: tool.enters_stage for tool in agent.tools if tool.enters_stage is not None}
    return next((enters[one.tool] for one in reversed(transcript.done) if one.tool in enters), None)


def callable_tools(agent: AgentSpec, transcript: Transcript) -> frozenset[str]:
    """The tools for which some arguments would be in order: what is worth showing. The gate decides by the arguments."""
    if not any(tool.requires or tool.stages for tool in agent.tools):
        return frozenset(tool.name for tool in agent.tools)
    done = {one.tool for one in transcript.done}
    stage = stage_of(transcript, agent)
    return frozenset(
        tool.name
        for tool in agent.tools
        if all(one.tool in done for one in tool.requires) and (not tool.stages or stage in tool.stages)
    )


def early_tools(agent: AgentSpec, transcript: Transcript) -> dict[str, str]:
    """The tools no arguments are in order for yet, each with the code of the reason."""
    ready = callable_tools(agent, transcript)
    if len(ready) == len(agent.tools):
        return {}
    done = {one.tool for one in transcript.done}
    return {
        tool.name: str(
            ReasonCode.STAGE if all(one.tool in done for one in tool.requires) else ReasonCode.PREREQUISITE
        )
        for tool in agent.tools
        if tool.name not in ready
    }


def _met(needed: Prerequisite, arguments: Mapping[str, Any], done: Sequence[Done]) -> bool:
    return any(one.tool == needed.tool and _fits(needed, arguments, one) for one in done)


def _fits(needed: Prerequisite, arguments: Mapping[str, Any], done: Done) -> bool:
    for mine, theirs in needed.same.items():
        path = theirs.removeprefix("result.")
        there = _at(done.data, path) if theirs.startswith("result.") else done.arguments.get(theirs, _MISSING)
        here = arguments.get(mine, _MISSING)
        if here is _MISSING or there is _MISSING or not _same(here, there):
            return False
    return all(_same(_at(done.data, path), value) for path, value in needed.result.items())


def _at(data: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(data, Mapping) or part not in data:
            return _MISSING
        data = data[part]
    return data


def _same(left: Any, right: Any) -> bool:
    """One JSON value: 1 and 1.0 are, 1 and true are not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


# -- invented arguments ----------------------------------------------------------------------------------------------


def invented(spec: ToolSpec, arguments: Mapping[str, Any], transcript: Transcript) -> tuple[str, ...]:
    """The places of values that should have come from the user or a result, and occur in neither; in order.

    Not judged: arguments that may come from the context, values the schema lists or gives itself (enum, const,
    default), flags, nulls, and values of at most SHORT_CHARS characters.
    """
    found: list[str] = []
    for name, sources in spec.sources.items():
        if "context" in sources or name not in arguments:
            continue
        schema = spec.parameters.get("properties", {}).get(name, {})
        for path, value in _judged(arguments[name], schema, spec.parameters, name):
            if not transcript.said.has(value):
                found.append(path)
    return tuple(found)


def _judged(value: Any, schema: Any, root: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """The texts and numbers in the value that have to be found somewhere, each with its place."""
    branches = list(_branches(schema, root, 0))
    if any(_given_by_schema(value, one) for one in branches):
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            parts = [one["properties"][key] for one in branches if key in one.get("properties", {})]
            yield from _judged(inner, {"anyOf": parts}, root, f"{path}.{key}")
    elif isinstance(value, list):
        parts = [one["items"] for one in branches if isinstance(one.get("items"), Mapping)]
        for index, inner in enumerate(value):
            yield from _judged(inner, {"anyOf": parts}, root, f"{path}[{index}]")
    elif not isinstance(value, bool) and value is not None:
        text = value if isinstance(value, str) else repr(value)
        if len(text.strip()) > SHORT_CHARS:
            yield path, text


def _branches(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """The schema and its alternatives, local references followed."""
    if not isinstance(schema, Mapping) or depth > 32:  # references may go round
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        yield from _branches(root.get("$defs", {}).get(reference[8:]), root, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(keyword, ()):
            yield from _branches(one, root, depth + 1)


def _given_by_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    listed = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    listed += [schema["default"]] if "default" in schema else []
    return any(_same(value, one) for one in listed)


class Said:
    """Words and values of a transcript, looked up in one normal form: NFKC, case folded, spaces as one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._text = "\n".join(map(_normal, texts))
        self._words = frozenset(_WORD.findall(self._text))

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(filter(None, map(_number, _NUMBER.findall(self._text))))

    @cached_property
    def _dates(self) -> frozenset[str]:
        return frozenset(_dates(self._text))

    def has(self, value: str) -> bool:
        """Whether the value occurs: as it is, as the same number or date in another form, or word for word in parts."""
        wanted = _normal(value)
        bare = _EDGES.sub("", wanted)
        if not bare or self._occurs(bare):
            return True
        if (number := _number(bare)) is not None and number in self._numbers:
            return True
        dates = set(_dates(bare))
        if dates:
            return any(map(self._dated, dates))
        words = _WORD.findall(bare)
        return len(words) > 1 and all(word in self._words for word in words)

    def _dated(self, one: str) -> bool:
        """Said on that day; without its year, where either side has none."""
        if one.startswith("-"):
            return any(said.endswith(one) for said in self._dates)
        return one in self._dates or one[4:] in self._dates

    def _occurs(self, bare: str) -> bool:
        """As a whole: not as a part of a longer Latin word or number."""
        start = self._text.find(bare)
        while start >= 0:
            before = self._text[start - 1 : start]
            after = self._text[start + len(bare) : start + len(bare) + 1]
            if not (_joined(before, bare[0]) or _joined(bare[-1], after)):
                return True
            start = self._text.find(bare, start + 1)
        return False


_EDGES: Final = re.compile(r"^\W+|\W+$")  # quotes, brackets, signs around a value
_WORD: Final = re.compile(r"\w+")
_NUMBER: Final = re.compile(r"[-+]?\d(?:[\d,' ]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?")
_ISO: Final = re.compile(r"(\d{4})[-/.年](\d{1,2})[-/.月](\d{1,2})日?")
_MONTH_FIRST: Final = re.compile(r"\b([a-z]{3,9})\.? (\d{1,2})(?:st|nd|rd|th)?(?:,? (\d{4}))?\b")
_DAY_FIRST: Final = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)?(?: of)? ([a-z]{3,9})\.?(?:,? (\d{4}))?\b")
_MONTH_DAY: Final = re.compile(r"(?<!\d年)(?<!\d)(\d{1,2})月(\d{1,2})日")
_SLASHED: Final = re.compile(r"(?<![\d/])(\d{1,2})[/.](\d{1,2})[/.](\d{4})")
_MONTHS: Final = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _joined(left: str, right: str) -> bool:
    return left.isascii() and left.isalnum() and right.isascii() and right.isalnum()


def _number(text: str) -> str | None:
    """One text for one number: 1,200.50 and 1200.5; None where it is none."""
    plain = re.sub(r"(?<=\d)[,' ](?=\d{3})", "", text.lstrip("$€£¥").strip())
    try:
        value = float(plain)
    except ValueError:
        return None
    if plain.lstrip("+-").isdigit():
        return str(int(plain))  # exact, however long
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _dates(text: str) -> Iterator[str]:
    """The dates in it: `2024-05-20`, and `-05-20` where no year was said; both orders where 5/6/2024 leaves it open."""
    for year, month, day in _ISO.findall(text):
        yield from _date(year, month, day)
    for month_name, day, year in _MONTH_FIRST.findall(text):
        yield from _date(year, _month(month_name), day)
    for day, month_name, year in _DAY_FIRST.findall(text):
        yield from _date(year, _month(month_name), day)
    for month, day in _MONTH_DAY.findall(text):
        yield from _date("", month, day)
    for first, second, year in _SLASHED.findall(text):
        yield from _date(year, first, second)
        yield from _date(year, second, first)


def _month(name: str) -> str:
    found = [i for i, month in enumerate(_MONTHS, 1) if month.startswith(name[:9]) and len(name) >= 3]
    return str(found[0]) if found else "0"


def _date(year: str, month: str, day: str) -> Iterator[str]:
    try:
        found = date(int(year or 2024), int(month), int(day))  # 2024 has a 29 February
    except ValueError:
        return
    yield found.isoformat() if year else found.isoformat()[4:]
