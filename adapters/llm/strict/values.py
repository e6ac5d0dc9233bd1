"""Converting a node that is no reference and no union: by its kinds, its listed values, its limits. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from toolfleet.adapters.llm.strict.codec import (
    KEY,
    SAME,
    VALUE,
    AnyValue,
    Array,
    ByKind,
    Codec,
    Entries,
    JsonText,
    write_json,
)
from toolfleet.adapters.llm.strict.kinds import (
    Part,
    boxed,
    described,
    fits_kind,
    is_union,
    kept_keywords,
    kind_of,
    kinds_by_constraints,
    nullable,
    with_description,
)
from toolfleet.adapters.llm.strict.merge import Unsatisfiable, same_text
from toolfleet.adapters.llm.strict.objects import Objects
from toolfleet.schemas.dialects import Schema, SchemaRefused, joined

_NUMBERS: Final = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# Patterns both providers take for certain: no look-around, back-reference, word boundary, class of characters by
# property, named or other special group; and anchored, so that matching a part or all of the text is the same.
_NOT_SIMPLE: Final = re.compile(r"\(\?(?!:)|\\[1-9bBpPkKGAzZuxc]|\{\d{3,}|\[:")
_GROUPS: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]")


class Values(Objects):
    """The part of the converter that is about single values and lists."""

    def kinds(self, flat: Schema, path: str) -> Part:
        """A node by its type; without one by its keywords, or any value."""
        if "enum" in flat or "const" in flat:
            return self._listed(flat, path)
        types = flat.get("type")
        if types is None:
            found = kinds_by_constraints(flat)
            if not found:
                return self.any_value(flat, path)
            self.note(path, "type_inferred", f"without a type it is taken for {' or '.join(found)}")
            types = found
        kinds = list(types) if isinstance(types, list) else [types]
        if "number" in kinds and "integer" in kinds:
            kinds.remove("integer")
        others = [kind for kind in kinds if kind != "null"]
        if not others:
            return with_description(Part({"type": "null"}), described(flat, ()))
        parts = [self._kind(flat, kind, path) for kind in others]
        if any(self.box_of(part.codec) is not None for part in parts) and len(parts) > 1:
            found_parts = [({**flat, "type": kind}, part) for kind, part in zip(others, parts, strict=True)]
            whole = self.put_together([*found_parts, *([(True, Part({"type": "null"}))] * ("null" in kinds))])
        elif len(parts) == 1:
            whole = nullable(parts[0]) if "null" in kinds else parts[0]
        else:
            whole = _together(others, parts, "null" in kinds)
        kept = kept_keywords(flat, others, STRUCTURE | _written(flat, parts))
        for key in kept:
            self.kept(path, key)
        return with_description(whole, described(flat, kept))

    def _kind(self, flat: Schema, kind: str, path: str) -> Part:
        match kind:
            case "object":
                return self.object(flat, path)
            case "array":
                return self._array(flat, path)
            case "string":
                return Part({"type": kind, **self._text_limits(flat)})
            case "integer" | "number":
                return Part({"type": kind, **{key: flat[key] for key in _NUMBERS if self._writes(key, flat)}})
            case _:
                return Part({"type": kind})

    def _writes(self, key: str, flat: Schema) -> bool:
        return key in flat and key in self.profile.keywords

    def _text_limits(self, flat: Schema) -> Schema:
        limits: Schema = {}
        if self._writes("pattern", flat) and _simple(flat["pattern"]):
            limits["pattern"] = flat["pattern"]
        if self._writes("format", flat) and flat["format"] in self.profile.formats:
            limits["format"] = flat["format"]
        return limits

    def _listed(self, flat: Schema, path: str) -> Part:
        """A node that lists its values: those that its own type allows."""
        values = [flat["const"]] if "const" in flat else list(flat["enum"])
        types = flat.get("type")
        if types is not None:
            kinds = types if isinstance(types, list) else [types]
            values = [value for value in values if fits_kind(value, kinds)]
            if not values:
                raise Unsatisfiable(f"none of its listed values is of its type {types}")
        by_text = {same_text(value): value for value in values}
        values = list(by_text.values())
        for key in kept_keywords(flat, {kind_of(value) for value in values}, ()):
            self.kept(path, key)
        if any(isinstance(value, (dict, list)) for value in values):
            self.note(path, "enum_as_text", "its values are made of parts and are listed as JSON texts")
            texts = [write_json(value) for value in values]
            part = Part({"type": "string", "enum": texts}, JsonText())
            return with_description(part, described(flat, ()))
        declared = types if isinstance(types, list) else [types] if types is not None else []
        found = list(dict.fromkeys(_declared_kind(value, declared) for value in values))
        kind = found[0] if len(found) == 1 else found
        schema: Schema = {"type": kind}
        if "const" in flat and flat["const"] is not None:
            schema["const"] = values[0]
        elif found != ["null"]:
            schema["enum"] = values
        return with_description(Part(schema), described(flat, ()))

    def _array(self, flat: Schema, path: str) -> Part:
        items, most = self._items(flat, path)
        item = self._item(items, joined(path, "items"), empty=flat.get("minItems", 0) == 0)
        if item is None:
            self.kept(path, "items")
            item, most = Part({"type": "null"}), 0
        schema: Schema = {"type": "array", "items": item.schema}
        if self._writes("minItems", flat):
            least = flat["minItems"]
            allowed = self.profile.min_items
            if allowed is None or least in allowed:
                schema["minItems"] = least
            else:
                schema["minItems"] = max(number for number in allowed if number <= least)
                self.kept(path, "minItems")
        if most is not None and "maxItems" in self.profile.keywords:
            schema["maxItems"] = most
        elif most is not None and "maxItems" not in flat:
            self.kept(path, "prefixItems")
        return Part(schema, SAME if item.codec is SAME else Array(item.codec))

    def _item(self, items: Schema | bool, path: str, *, empty: bool) -> Part | None:
        """The strict form of every item; None where the list can only be empty."""
        try:
            return self.inner(items, path)
        except Unsatisfiable as exc:
            if exc.forbidden and empty:
                return None
            raise

    def _items(self, flat: Schema, path: str) -> tuple[Schema | bool, int | None]:
        """The schema of every item, and how many there may be at most. Refuses lists whose places differ."""
        first = flat.get("prefixItems", [])
        rest = flat.get("items", True)
        most = flat.get("maxItems")
        if not first:
            return rest, 0 if rest is False else most
        if rest is False:
            most = min(len(first), len(first) if most is None else most)
        same = all(same_text(one) == same_text(first[0]) for one in first)
        if not same or not (
            (most is not None and most <= len(first)) or same_text(rest) == same_text(first[0])
        ):
            raise SchemaRefused(
                path,
                "tuple",
                "the places of this list differ, which no strict form can say; use an object with a named field for "
                "each place, or a list of one type",
            )
        self.note(path, "tuple_as_list", "its places are all alike: it is written as a list of that length")
        return first[0], most

    def any_value(self, flat: Schema, path: str) -> Part:
        """Whatever JSON there is: by a definition that leads to itself, or as a JSON text."""
        if not self.profile.recursion:
            return self.json_text(flat, path, "json_text", "a value of any type")
        self.note(path, "free_form", "a value of any type; its objects are written as lists of entries")
        codec = AnyValue()
        return with_description(Part(self.any_definition(_ANY, codec), codec), described(flat, ()))

    def json_text(self, flat: Schema, path: str, rule: str, what: str) -> Part:
        """A text that holds the value as JSON; what it holds is checked locally."""
        self.note(path, rule, f"{what} is written as a JSON text and checked locally")
        told = described(flat, ())
        text = f"{told} {_JSON_TEXT}" if told else _JSON_TEXT
        return Part({"type": "string", "description": text}, JsonText())

    def box_of(self, codec: Codec) -> str | None:
        """The name of the box a value has to be put into beside others, where its strict form is of another kind."""
        match self.codec_of(codec):
            case Entries():
                return "entries"
            case JsonText():
                return "json"
            case _:
                return None

    def may_be_null(self, part: Part) -> bool:
        """Whether null may be added: always, or as long as there is room for a further union."""
        if self.nullable_max is None or is_union(part.schema):
            return True
        if self.nullable_max <= 0:
            return False
        self.nullable_max -= 1
        return True


STRUCTURE: Final = frozenset(
    {
        *("properties", "required", "additionalProperties", "patternProperties", "unevaluatedProperties"),
        *("items", "prefixItems"),
    }
)
_JSON_TEXT: Final = "(as JSON text)"
_ENTRY: Final[Schema] = {
    "type": "object",
    "properties": {KEY: {"type": "string"}, VALUE: {"$ref": "#"}},
    "required": [KEY, VALUE],
    "additionalProperties": False,
}
_ANY: Final[Schema] = {
    "anyOf": [
        {"type": "string"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "array", "items": {"$ref": "#"}},
        boxed({"type": "array", "items": _ENTRY}, "entries"),
        {"type": "null"},
    ]
}


def _simple(pattern: Any) -> bool:
    """Whether both providers take the pattern for certain, and for the same."""
    if not isinstance(pattern, str) or not pattern.startswith("^") or not pattern.endswith("$"):
        return False
    if pattern.endswith("\\$") or _NOT_SIMPLE.search(pattern):
        return False
    depth = 0
    for character in _GROUPS.sub("", pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            return False  # an alternative that is not anchored on both sides
    return True


def _together(kinds: list[str], parts: list[Part], null: bool) -> Part:
    """One schema of several types, each with its own keywords."""
    schema: Schema = {"type": [*kinds, "null"] if null else kinds}
    codecs = {"object": SAME, "array": SAME} | {
        kind: part.codec for kind, part in zip(kinds, parts, strict=True)
    }
    for part in parts:
        schema |= {key: value for key, value in part.schema.items() if key != "type"}
    if codecs["object"] is SAME and codecs["array"] is SAME:
        return Part(schema)
    return Part(schema, ByKind(codecs["object"], codecs["array"]))


def _written(flat: Schema, parts: list[Part]) -> set[str]:
    """The constraints that are in the strict form as they were declared."""
    return {key for part in parts for key in part.schema if key in flat and part.schema[key] == flat[key]}


def _declared_kind(value: Any, declared: list[str]) -> str:
    kind = kind_of(value)
    return "number" if kind == "integer" and kind not in declared and "number" in declared else kind
