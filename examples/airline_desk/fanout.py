"""Turns with many calls at once: 50 cases of the Berkeley Function-Calling Leaderboard, with tools made for them.

A case is one user message that two to eight calls answer. Its functions become read-only tools whose results follow
from the arguments alone; what the seed decides is when each call finishes, always in another order than the calls
were made in. Names are the case's own (two cases may know a function of one name with different parameters), schemas
are plain JSON Schema made from the leaderboard's dialect of it.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import rfc8785

from toolfleet import tool
from toolfleet.examples.airline_desk.initial import DATA
from toolfleet.examples.airline_desk.records import JsonValue

DELAY_MS_MAX: Final = 30
NAME_CHARS_MAX: Final = 64  # OpenAI: ^[a-zA-Z0-9_-]{1,64}$
_TYPES: Final = {  # the leaderboard's words (Python's and Java's) for those of JSON Schema; "any" is no restriction
    "dict": "object",
    "HashMap": "object",
    "float": "number",
    "double": "number",
    "long": "integer",
    "Long": "integer",
    "tuple": "array",
    "list": "array",
    "ArrayList": "array",
    "Array": "array",
    "String": "string",
    "char": "string",
    "Boolean": "boolean",
}
_ABSENT: Final = ""  # as an accepted value it says: the parameter may be left out


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call the model will make; `arguments` is the text it sends."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FanoutCase:
    """One user message, the tools offered with it, the calls it leads to, and their results in call order.

    `finishing_order` holds call indices in the order in which the calls finish when they start together.
    """

    id: str
    user_text: str
    tool_functions: tuple[Any, ...]
    planned_calls: tuple[PlannedCall, ...]
    results_expected: tuple[JsonValue, ...]
    finishing_order: tuple[int, ...]


def build_fanout_cases(seed: int) -> list[FanoutCase]:
    """The 50 cases, in the order of the file. Only the finishing orders depend on `seed`."""
    return [_case(number, line, seed) for number, line in enumerate(_lines())]


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same parameter in plain JSON Schema (2020-12); what has no meaning there is left out."""
    plain: dict[str, Any] = {}
    kind = schema.get("type")
    if kind is not None and kind != "any":
        plain["type"] = _TYPES.get(kind, kind)
    for key in ("description", "default", "enum"):
        if key in schema:
            plain[key] = schema[key]
    if isinstance(schema.get("items"), Mapping):
        plain["items"] = plain_schema(schema["items"])
    if isinstance(schema.get("properties"), Mapping):
        plain["properties"] = {name: plain_schema(child) for name, child in schema["properties"].items()}
        required = [name for name in schema.get("required", ()) if name in plain["properties"]]
        if required:
            plain["required"] = required
    return plain


def chosen_arguments(accepted: Mapping[str, Sequence[Any]], required: Sequence[str]) -> dict[str, JsonValue]:
    """One set of arguments out of the accepted ones: the first value of each; what may be left out, is.

    A required parameter takes its first real value, whatever else would be accepted.
    """
    chosen: dict[str, JsonValue] = {}
    for name, values in accepted.items():
        real = [value for value in values if value != _ABSENT]
        if real and (values[0] != _ABSENT or name in required):
            chosen[name] = _concrete(real[0])
    return chosen


def finishing_order(seed: int, case_id: str, count: int) -> tuple[int, ...]:
    """A shuffled order of `count` calls, never the order they were made in (for two or more)."""
    order = list(range(count))
    random.Random(f"{seed}/{case_id}").shuffle(order)
    if order == sorted(order):
        order.reverse()
    return tuple(order)


def result_of(function_name: str, arguments: Mapping[str, Any]) -> JsonValue:
    """What a generated tool answers: its arguments, and a number that follows from them."""
    text = rfc8785.dumps([function_name, dict(arguments)]).decode()  # 6.0 and 6 are one number
    value = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 100
    return {"function": function_name, "arguments": dict(arguments), "value": value}


@cache
def _lines() -> tuple[dict[str, Any], ...]:
    text = gzip.decompress((DATA / "bfcl_parallel.jsonl.gz").read_bytes()).decode()
    return tuple(json.loads(line) for line in text.splitlines())


def _case(number: int, line: Mapping[str, Any], seed: int) -> FanoutCase:
    functions = {function["name"]: function for function in line["functions"]}
    names = _tool_names(number, list(functions))
    calls = [
        (
            call["name"],
            chosen_arguments(
                call["arguments_any_of"], functions[call["name"]]["parameters"].get("required", ())
            ),
        )
        for call in line["expected_calls"]
    ]
    order = finishing_order(seed, line["id"], len(calls))
    delays_s = {
        _call_key(names[calls[index][0]], calls[index][1]): (rank + 1)
        * DELAY_MS_MAX
        / (len(calls) + 1)
        / 1000
        for rank, index in enumerate(order)
    }
    return FanoutCase(
        id=line["id"],
        user_text=line["messages"][0]["content"],
        tool_functions=tuple(_tool(names[name], function, delays_s) for name, function in functions.items()),
        planned_calls=tuple(PlannedCall(names[name], json.dumps(arguments)) for name, arguments in calls),
        results_expected=tuple(result_of(names[name], arguments) for name, arguments in calls),
        finishing_order=order,
    )


def _tool_names(number: int, names: Sequence[str]) -> dict[str, str]:
    """A name for the wire for each of the case's function names, all of them different."""
    aliases: dict[str, str] = {}
    for index, name in enumerate(names):
        alias = f"c{number:02}_{re.sub(r'[^a-zA-Z0-9_-]', '_', name)}"[:NAME_CHARS_MAX]
        if alias in aliases.values():
            mark = f"_{index}"
            alias = alias[: NAME_CHARS_MAX - len(mark)] + mark
        aliases[name] = alias
    return aliases


def _tool(name: str, function: Mapping[str, Any], delays_s: Mapping[str, float]) -> Any:
    async def answer(**arguments: Any) -> JsonValue:
        await asyncio.sleep(delays_s.get(_call_key(name, arguments), 0.0))
        return result_of(name, arguments)

    answer.__name__ = answer.__qualname__ = name
    parameters = plain_schema(function["parameters"])
    parameters.setdefault("properties", {})
    return tool(name=name, tier="low", description=function["description"], parameters=parameters)(answer)


def _call_key(name: str, arguments: Mapping[str, Any]) -> str:
    return rfc8785.dumps([name, dict(arguments)]).decode()


def _concrete(value: Any) -> JsonValue:
    """A value with the choices inside it made: the leaderboard lists accepted values within objects as well."""
    if isinstance(value, dict):
        return {
            key: _concrete(next(one for one in inner if one != _ABSENT)) if isinstance(inner, list) else inner
            for key, inner in value.items()
            if not (isinstance(inner, list) and all(one == _ABSENT for one in inner))
        }
    if isinstance(value, list):
        return [_concrete(inner) if isinstance(inner, dict) else inner for inner in value]
    choice: JsonValue = value
    return choice
