"""Arguments as the strict form has them <-> arguments as the tool declared them.

Pure. `restore(encode(x)) == x` for everything the declared schema accepts, up to null for a property that is null by
default. What does not have the shape of the strict form is passed through unchanged: validation against the declared
schema comes afterwards and says what is wrong with it. Only where that could take it for something else, restoring
raises NamedTwice.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, Protocol

import jsonschema_rs
import orjson

KEY: Final = "key"
VALUE: Final = "value"
LEFT_OUT: Final = "left_out"
MARKER: Final[Mapping[str, Any]] = {LEFT_OUT: True}  # stands for absent where null already has a meaning


class NamedTwice(ValueError):
    """Arguments of an open object that give one name two values: there is no object like that. Carries the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is given more than once")
        self.name = name


class Codec(Protocol):
    """Both directions of one place in a schema."""

    def restore(self, value: Any) -> Any: ...
    def encode(self, value: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Same:
    """Nothing differs."""

    def restore(self, value: Any) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        return value


SAME: Final = Same()


@dataclass(slots=True)
class Definitions:
    """What references lead to; filled while a schema is converted, since definitions may lead to themselves."""

    codecs: dict[str, Codec] = field(default_factory=dict)
    strict: dict[str, Any] = field(default_factory=dict)  # the strict form's own $defs
    declared: Mapping[str, Any] = field(default_factory=dict)  # the whole declared schema


@dataclass(frozen=True, slots=True)
class Reference:
    """Whatever the definition does."""

    name: str
    definitions: Definitions

    def restore(self, value: Any) -> Any:
        return self.definitions.codecs[self.name].restore(value)

    def encode(self, value: Any) -> Any:
        return self.definitions.codecs[self.name].encode(value)


Absent = Literal["required", "null", "null_is_default", "marker", "left_out"]


@dataclass(frozen=True, slots=True)
class Property:
    """One property: its name in the tool, and how its absence is written in the strict form."""

    name: str
    codec: Codec
    absent: Absent


@dataclass(frozen=True, slots=True)
class Object:
    """Names on the wire -> properties; `others` is the wire's list of what was not declared, with the values' codec."""

    properties: Mapping[str, Property]
    others: tuple[str, Codec] | None = None

    def restore(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        restored: dict[str, Any] = {}
        for wire, inner in value.items():
            known = self.properties.get(wire)
            if known is None:
                if self.others is None or wire != self.others[0]:
                    restored[wire] = inner
            elif not (
                (inner is None and known.absent == "null") or (known.absent == "marker" and inner == MARKER)
            ):
                restored[known.name] = known.codec.restore(inner)
        if self.others is not None and self.others[0] in value:
            rest = Entries(self.others[1]).restore(value[self.others[0]])
            if not isinstance(rest, dict):
                raise NamedTwice(self.others[0])  # no list of entries with a name each
            if twice := rest.keys() & restored.keys():
                raise NamedTwice(min(twice))
            restored |= rest
        return restored

    def encode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        encoded: dict[str, Any] = {}
        declared = 0
        for wire, known in self.properties.items():
            if known.name in value:
                declared += 1
                encoded[wire] = known.codec.encode(value[known.name])
            elif known.absent in ("null", "null_is_default"):
                encoded[wire] = None
            elif known.absent == "marker":
                encoded[wire] = dict(MARKER)
        rest: dict[str, Any] = {}
        if declared < len(value):  # seldom: the names are not gathered for every call of a long history
            names = {known.name for known in self.properties.values()}
            rest = {name: inner for name, inner in value.items() if name not in names}
        if self.others is not None:
            encoded[self.others[0]] = Entries(self.others[1]).encode(rest)
        else:
            encoded |= rest
        return encoded


@dataclass(frozen=True, slots=True)
class Entries:
    """An object of any names, as a list of its entries. Names given twice make no object, and stay a list."""

    value: Codec

    def restore(self, value: Any) -> Any:
        if not isinstance(value, list) or not all(_is_entry(entry) for entry in value):
            return value
        restored = {entry[KEY]: self.value.restore(entry[VALUE]) for entry in value}
        return restored if len(restored) == len(value) else value

    def encode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return [{KEY: name, VALUE: self.value.encode(inner)} for name, inner in value.items()]


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() == {KEY, VALUE} and isinstance(entry[KEY], str)


@dataclass(frozen=True, slots=True)
class Array:
    item: Codec

    def restore(self, value: Any) -> Any:
        return [self.item.restore(inner) for inner in value] if isinstance(value, list) else value

    def encode(self, value: Any) -> Any:
        return [self.item.encode(inner) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class ByKind:
    """An object one way, an array another, everything else as it is."""

    object: Codec
    array: Codec

    def restore(self, value: Any) -> Any:
        return self._of(value).restore(value)

    def encode(self, value: Any) -> Any:
        return self._of(value).encode(value)

    def _of(self, value: Any) -> Codec:
        return self.object if isinstance(value, dict) else self.array if isinstance(value, list) else SAME


@dataclass(frozen=True, slots=True)
class JsonText:
    """A value written as JSON inside a text. A text that holds no JSON stays that text."""

    def restore(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return read_json(value)
        except ValueError:
            return value

    def encode(self, value: Any) -> Any:
        return write_json(value)


@dataclass(frozen=True, slots=True)
class AnyValue:
    """Any JSON value, its objects as boxed lists of entries (boxed, since a list is a value as well)."""

    def restore(self, value: Any) -> Any:
        match value:
            case list():
                return [self.restore(inner) for inner in value]
            case dict() if value.keys() == {"entries"}:
                return Boxed("entries", Entries(self)).restore(value)
            case _:
                return value

    def encode(self, value: Any) -> Any:
        match value:
            case list():
                return [self.encode(inner) for inner in value]
            case dict():
                return Boxed("entries", Entries(self)).encode(value)
            case _:
                return value


@dataclass(frozen=True, slots=True)
class Boxed:
    """A value inside an object of one property."""

    name: str
    codec: Codec

    def restore(self, value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != {self.name}:
            return value
        return self.codec.restore(value[self.name])

    def encode(self, value: Any) -> Any:
        return {self.name: self.codec.encode(value)}


@dataclass(frozen=True, slots=True)
class NullOr:
    """Null as null, everything else as the codec has it."""

    codec: Codec

    def restore(self, value: Any) -> Any:
        return None if value is None else self.codec.restore(value)

    def encode(self, value: Any) -> Any:
        return None if value is None else self.codec.encode(value)


class Branch:
    """One way a union can go: the codec, and which values are its own on either side."""

    def __init__(
        self, strict: Mapping[str, Any], declared: Mapping[str, Any], codec: Codec, definitions: Definitions
    ) -> None:
        self.codec = codec
        self._schemas = (strict, declared)
        self._definitions = definitions
        self._validators: tuple[jsonschema_rs.Validator, jsonschema_rs.Validator] | None = None

    def takes_strict(self, value: Any) -> bool:
        return self._compiled()[0].is_valid(value)

    def takes_declared(self, value: Any) -> bool:
        return self._compiled()[1].is_valid(value)

    def _compiled(self) -> tuple[jsonschema_rs.Validator, jsonschema_rs.Validator]:
        if self._validators is None:
            strict, declared = self._schemas
            whole = {**strict, "$defs": self._definitions.strict}
            registry = jsonschema_rs.Registry([(_DOCUMENT, dict(self._definitions.declared))])
            self._validators = (
                jsonschema_rs.Draft202012Validator(whole, offline=True),
                jsonschema_rs.Draft202012Validator(_outside(declared), registry=registry, offline=True),
            )
        return self._validators


_DOCUMENT: Final = "urn:toolfleet:declared"


def _outside(schema: Any) -> Any:
    """The schema with its references leading into the declared document, where it stood."""
    match schema:
        case dict():
            return {
                key: f"{_DOCUMENT}{value}"
                if key == "$ref" and isinstance(value, str) and value.startswith("#")
                else _outside(value)
                for key, value in schema.items()
            }
        case list():
            return [_outside(inner) for inner in schema]
        case _:
            return schema


@dataclass(frozen=True, slots=True)
class Union:
    """The first branch that fits, on both sides if there is one."""

    branches: Sequence[Branch]

    def restore(self, value: Any) -> Any:
        fallback = value
        for place, branch in enumerate(one for one in self.branches if one.takes_strict(value)):
            restored = branch.codec.restore(value)
            if branch.takes_declared(restored):
                return restored
            fallback = restored if place == 0 else fallback
        return fallback

    def encode(self, value: Any) -> Any:
        for branch in self.branches:
            if branch.takes_declared(value):
                encoded = branch.codec.encode(value)
                if branch.takes_strict(encoded):
                    return encoded
        return value


def read_json(text: str) -> Any:
    """The JSON value of the text, exact. Raises ValueError: no JSON, a key twice, a number that is none."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_json(value: Any) -> str:
    """Compact JSON of the value, its keys in their order."""
    return _ENCODER.encode(value)


def rewritten_json(text: str, step: Callable[[Any], Any]) -> str:
    """`write_json(step(read_json(text)))` for the text of an object that has no key twice, such as stored arguments;
    any other text, as it is.

    Every call of a conversation comes through here at every turn. Texts without fractions, exponents and long
    numbers, which two writers of JSON might write in two ways, take the fast one.
    """
    if _WRITTEN_OTHERWISE.search(text) is None:
        try:
            value = orjson.loads(text)
            return orjson.dumps(step(value)).decode() if isinstance(value, dict) else text
        except (ValueError, TypeError):
            pass  # half a pair of surrogates, a token that is none: read exactly below
    try:
        value = read_json(text)
    except ValueError:
        return text
    return write_json(step(value)) if isinstance(value, dict) else text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return value


def _finite(text: str) -> int | float:
    """Whole numbers that a float would round stay exact."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return int(Decimal(text)) if value.is_integer() and abs(value) >= _EXACT_MAX else value


def _no_json(token: str) -> Any:
    raise ValueError(f"{token} is not a JSON value")


_EXACT_MAX: Final = 2**53
_WRITTEN_OTHERWISE: Final = re.compile(r"\d{16}|\d[.eE]")
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_json)
