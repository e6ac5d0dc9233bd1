"""Converting objects: every property required, none that was not declared, and nothing lost by it. Pure."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

from toolfleet.adapters.llm.strict.codec import (
    KEY,
    LEFT_OUT,
    SAME,
    VALUE,
    Absent,
    Codec,
    Entries,
    Object,
    Property,
)
from toolfleet.adapters.llm.strict.kinds import PRESENCE, Part, boxed, with_description, with_null
from toolfleet.adapters.llm.strict.merge import Unsatisfiable
from toolfleet.adapters.llm.strict.names import property_aliases
from toolfleet.adapters.llm.strict.profiles import StrictProfile
from toolfleet.schemas.dialects import Note, Schema, SchemaRefused, joined

OTHERS: Final = "other_properties"
_NULL: Final[Schema] = {"type": "null"}
_MARKER: Final[Schema] = with_description(
    Part(boxed({"type": "boolean", "enum": [True]}, LEFT_OUT)),
    "Leave this parameter out; null is a value of its own here.",
).schema


class Objects:
    """The part of the converter that is about objects."""

    def __init__(self, document: Schema, profile: StrictProfile, nullable_max: int | None) -> None:
        self.document = document
        self.profile = profile
        self.nullable_max = nullable_max
        self.notes: list[Note] = []

    def note(self, path: str, rule: str, text: str) -> None:
        self.notes.append(Note(path, rule, text))

    def kept(self, path: str, keyword: str) -> None:
        """That a constraint is not in the strict form, and checked locally."""
        self.note(
            path, f"kept_local.{keyword}", f"{keyword} is not in the strict form; it is checked locally"
        )

    @abstractmethod
    def inner(self, node: Schema | bool, path: str) -> Part: ...

    @abstractmethod
    def may_be_null(self, part: Part) -> bool: ...

    @abstractmethod
    def has_null(self, schema: Schema) -> bool: ...

    @abstractmethod
    def codec_of(self, codec: Codec) -> Codec: ...

    @abstractmethod
    def any_definition(self, schema: Schema, codec: Codec) -> Schema: ...

    @abstractmethod
    def put_together(self, found: list[tuple[Schema | bool, Part]]) -> Part: ...

    def object(self, flat: Schema, path: str, *, root: bool = False) -> Part:
        """A closed object. At the root, what was not declared is refused anyway: a tool is a function."""
        declared: dict[str, Schema | bool] = dict(flat.get("properties", {}))
        rest = self._rest(flat, path, root=root)
        required = list(flat.get("required", ()))
        for name in required:
            if name not in declared:
                if rest is None and ("additionalProperties" in flat or root):
                    raise Unsatisfiable(f"{name!r} is required and not allowed")
                declared[name] = True if rest is None else rest
                self.note(
                    joined(path, "required"), "required_undeclared", f"{name!r} is required and not declared"
                )
        entries = None if rest is None else self._allowed(rest, path, bare=not declared and not root)
        if entries is not None and not declared and not root:
            return entries
        properties: dict[str, Property] = {}
        schemas: dict[str, Schema] = {}
        for name, wire in property_aliases(declared, self.profile, path).items():
            here = joined(path, "properties", name)
            try:
                part, absent = self._property(
                    declared[name], here, required=name in required, presence=PRESENCE in flat
                )
            except Unsatisfiable as exc:
                if exc.forbidden and name not in required:
                    self.note(here, "property_forbidden", "it may never be there, and is left out")
                    continue
                raise
            if wire != name:
                self.note(here, "property_alias", f"it is called {wire!r} on the wire")
            schemas[wire], properties[wire] = part.schema, Property(name, part.codec, absent)
        others = None
        if entries is not None:
            wire = _free(OTHERS, schemas)
            assert isinstance(entries.codec, Entries)
            schemas[wire], others = entries.schema, (wire, entries.codec.value)
        schema: Schema = {
            "type": "object",
            "properties": schemas,
            "required": [
                wire for wire in schemas if wire not in properties or properties[wire].absent != "left_out"
            ],
            "additionalProperties": False,
        }
        if root and isinstance(flat.get("description"), str):
            schema["description"] = flat["description"]
        return Part(schema, _codec(properties, others))

    def _rest(self, flat: Schema, path: str, *, root: bool) -> Schema | bool | None:
        """The schema of properties that are not declared, or None where there can be none."""
        rest = flat.get("additionalProperties", flat.get("unevaluatedProperties"))
        patterns: dict[str, Schema | bool] = flat.get("patternProperties", {})
        if patterns:
            self.kept(path, "patternProperties")
            # Names that match no pattern are as open or closed as without patterns; said nothing, they are open.
            found = [*patterns.values(), *([] if rest is False else [True if rest is None else rest])]
            return found[0] if len(found) == 1 else True if True in found or {} in found else {"anyOf": found}
        if rest is False or (rest is None and root):
            return None
        if rest is None and flat.get("properties"):
            self.note(path, "closed_object", "the model may send no property that is not declared")
            return None
        return True if rest is None else rest

    def _property(
        self, node: Schema | bool, path: str, *, required: bool, presence: bool
    ) -> tuple[Part, Absent]:
        """The strict form of one property, and how its absence is written."""
        part = self.inner(node, path)
        if required:
            return part, "required"
        if not self.has_null(part.schema):
            if self.may_be_null(part):
                self.note(path, "optional", "it may be absent: null stands for that")
                return Part(with_null(part.schema), part.codec), "null"
            self.note(path, "optional_left_out", "it may be absent, and is not among the required ones")
            return part, "left_out"
        if not presence and isinstance(node, dict) and "default" in node and node["default"] is None:
            self.note(path, "optional", "it may be absent: null stands for that, as it does by default")
            return part, "null_is_default"
        if self.profile.optional == "nullable_then_left_out":
            self.note(
                path, "optional_left_out", "null is a value of its own, so it is not among the required ones"
            )
            return part, "left_out"
        self.note(path, "null_and_absent", f"null is a value of its own; {LEFT_OUT!r} stands for absent")
        if LEFT_OUT in str(part.schema):
            raise SchemaRefused(path, "marker_collision", f"it has a property {LEFT_OUT!r} of its own")
        return Part(_with_marker(part.schema), part.codec), "marker"

    def _allowed(self, rest: Schema | bool, path: str, *, bare: bool) -> Part | None:
        """What was not declared, or None where no value of it can fit: then there is nothing of it, and no more."""
        try:
            return self._entries(rest, path, rule="map_as_list" if bare else "others_as_list")
        except Unsatisfiable:
            here = joined(path, "additionalProperties")
            self.note(here, "property_forbidden", "it may never be there, and is left out")
            return None

    def _entries(self, value: Schema | bool, path: str, rule: str) -> Part:
        """An object of any names, as a list of its entries."""
        inner = self.inner(value, joined(path, "additionalProperties"))
        self.note(path, rule, f"names that are not declared are written as a list of {KEY} and {VALUE}")
        entry: Schema = {
            "type": "object",
            "properties": {KEY: {"type": "string"}, VALUE: inner.schema},
            "required": [KEY, VALUE],
            "additionalProperties": False,
        }
        return Part({"type": "array", "items": entry}, Entries(inner.codec))


def _codec(properties: dict[str, Property], others: tuple[str, Codec] | None) -> Codec:
    same = others is None and all(
        one.name == wire and one.codec is SAME and one.absent in ("required", "left_out")
        for wire, one in properties.items()
    )
    return SAME if same else Object(properties, others)


def _with_marker(schema: Schema) -> Schema:
    """The schema that takes the marker as well; null stays the last of its branches."""
    if schema.get("type") == "null":
        return with_null(_MARKER)
    whole = schema if "anyOf" in schema else {"anyOf": [schema]}
    others = [one for one in whole["anyOf"] if one != _NULL]
    return {**whole, "anyOf": [*others, _MARKER, *([_NULL] * (_NULL in whole["anyOf"]))]}


def _free(wanted: str, taken: dict[str, Any]) -> str:
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
