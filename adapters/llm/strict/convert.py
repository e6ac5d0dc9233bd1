"""A declared schema -> the strict form of one provider, with the way back, or a refusal that names path and rule.

Pure. What the strict form takes is never more than what is written down here as a note: a constraint it cannot express
stays for the validation against the declared schema, which every call goes through. Where arguments would be lost (an
object of any names, a value of any type), they are written in another form that is read back exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from toolfleet.adapters.llm.strict.codec import SAME, Boxed, Branch, Codec, Definitions, Reference, Union
from toolfleet.adapters.llm.strict.kinds import (
    Part,
    boxed,
    constraints_of,
    described,
    kept_keywords,
    nullable,
    with_description,
    without_unions,
)
from toolfleet.adapters.llm.strict.limits import check_limits, union_count
from toolfleet.adapters.llm.strict.merge import (
    ANNOTATIONS,
    Unsatisfiable,
    accepts_null,
    flattened,
    merged,
    same_text,
)
from toolfleet.adapters.llm.strict.overlap import may_overlap
from toolfleet.adapters.llm.strict.profiles import StrictProfile
from toolfleet.adapters.llm.strict.values import STRUCTURE, Values
from toolfleet.schemas.dialects import DEPTH_MAX, Note, Schema, SchemaRefused, joined, resolve

WRAPPED: Final = "arguments"
_NODES_MAX: Final = 20_000  # far above the largest real schema; what is larger was made to be
_IN_PLACE_MAX: Final = 16  # unions, parts and references about one value: real ones have three or four
_PASSES_MAX: Final = 4  # one settles nearly all; what does not settle keeps the careful first answer
_ANY_VALUE: Final = "any_value"
# What a branch may say without shaping the value: kept for local validation, and the union needs no branches.
_CONSTRAINTS_ONLY: Final = ANNOTATIONS | {
    "required",
    "not",
    "minProperties",
    "maxProperties",
    "dependentRequired",
}

_NOT_OF_BRANCHES: Final = ANNOTATIONS | {"$defs", "definitions", "components"}


@dataclass(frozen=True, slots=True)
class Converted:
    """The strict form, how arguments get there and back, and what a reader has to know of it."""

    schema: Schema
    codec: Codec
    notes: tuple[Note, ...]


def convert(root: Schema, profile: StrictProfile) -> Converted:
    """The strict form of a schema in the words of 2020-12 (see `dialects.plain`). Raises SchemaRefused."""
    nullable_max: int | None = None
    if profile.optional == "nullable_then_left_out" and profile.limits.unions is not None:
        unavoidable = union_count(_converted(root, profile, 0).schema)
        nullable_max = max(0, profile.limits.unions - unavoidable)
    converted = _converted(root, profile, nullable_max)
    check_limits(converted.schema, profile)
    return converted


def _converted(root: Schema, profile: StrictProfile, nullable_max: int | None) -> Converted:
    converter, part = first = _passed(root, profile, nullable_max, {})
    for _ in range(_PASSES_MAX):
        if not converter.guessed:
            break
        known = converter.definitions.strict
        converter, part = _passed(root, profile, nullable_max, known)
        if converter.definitions.strict == known:
            break  # what was taken for granted is what came out
    else:
        converter, part = first
    schema = dict(part.schema)
    definitions = converter.reachable(schema)
    if definitions:
        schema["$defs"] = definitions
    return Converted(schema, part.codec, tuple(dict.fromkeys(converter.notes)))


def _passed(
    root: Schema, profile: StrictProfile, nullable_max: int | None, known: Mapping[str, Schema]
) -> tuple[Converter, Part]:
    converter = Converter(root, profile, nullable_max, known)
    try:
        return converter, converter.root()
    except Unsatisfiable as exc:
        raise SchemaRefused(exc.path, "unsatisfiable", f"no value can fit: {exc}") from None
    except RecursionError:  # whatever else leads on and on
        raise SchemaRefused(
            "", "too_deep", "its parts lead to each other endlessly, or are too many"
        ) from None


class Converter(Values):
    """Converts one document for one profile. What is about a single kind of value is in `values` and `objects`."""

    def __init__(
        self, root: Schema, profile: StrictProfile, nullable_max: int | None, known: Mapping[str, Schema]
    ) -> None:
        """`known`: what the definitions came to in an earlier pass. Definitions that lead to themselves are asked about
        while they are made, and what is decided then must not depend on where one began."""
        super().__init__(root, profile, nullable_max)
        self.guessed = False
        self._known = known
        self.definitions = Definitions(declared=root)
        self._names: dict[str, str] = {}
        self._targets: dict[str, Schema | bool] = {}
        self._open: list[tuple[str, int]] = []  # references being converted, and how deep in a value
        self._level = 0
        self._in_place = 0  # parts being converted that are about one and the same value
        self._nodes = 0

    def root(self) -> Part:
        """The whole document: an object, or whatever it is inside one."""
        flat = flattened(self.document, self.document, "")
        if "$ref" in flat:
            flat = merged({}, flat, self.document, "")
        types = flat.get("type", "object" if constraints_of("object") & flat.keys() else None)
        if "object" in (types if isinstance(types, list) else [types]) and not self._shaping_union(flat, ""):
            flat = without_unions(flat)
            for key in kept_keywords(flat, ["object"], STRUCTURE):
                self.kept("", key)
            return self.object({**flat, "type": "object"}, "", root=True)
        self.note("", "root_wrapped", f"it is no plain object and stands inside one, under {WRAPPED!r}")
        inner = self.part(self.document, "")
        return Part(boxed(inner.schema, WRAPPED), Boxed(WRAPPED, inner.codec))

    def part(self, node: Schema | bool, path: str) -> Part:
        """The strict form of one place. Raises Unsatisfiable with the path."""
        self._nodes += 1
        if self._nodes > _NODES_MAX:
            raise SchemaRefused(path, "too_large", f"it unfolds to more than {_NODES_MAX} schemas")
        if node is False:
            raise Unsatisfiable("nothing is allowed here", path=path, forbidden=True)
        if node is True:
            return self.any_value({}, path)
        if self._in_place >= _IN_PLACE_MAX:
            raise SchemaRefused(path, "endless_ref", "its parts lead to each other and never into a value")
        self._in_place += 1
        try:
            flat = flattened(node, self.document, path)
            if "$ref" in flat:
                return self._reference(flat, path)
            if self._shaping_union(flat, path):
                return self._union(flat, path)
            return self.kinds(without_unions(flat), path)
        except Unsatisfiable as exc:
            exc.path = exc.path or path
            raise
        finally:
            self._in_place -= 1

    def inner(self, node: Schema | bool, path: str) -> Part:
        """The strict form of a place inside the value that is being converted."""
        self._level += 1
        around, self._in_place = self._in_place, 0
        if self._level > DEPTH_MAX:
            raise SchemaRefused(
                path, "too_deep", "it is nested too deeply, or its parts lead to each other endlessly"
            )
        try:
            return self.part(node, path)
        finally:
            self._level -= 1
            self._in_place = around

    def _shaping_union(self, flat: Schema, path: str) -> bool:
        """Whether it is a union whose branches differ in more than constraints."""
        found = False
        for key in ("anyOf", "oneOf"):
            branches = flat.get(key, ())
            if not branches:
                continue
            if all(isinstance(one, dict) and not one.keys() - _CONSTRAINTS_ONLY for one in branches):
                self.kept(path, key)
            else:
                found = True
        return found

    def _union(self, flat: Schema, path: str) -> Part:
        found: list[tuple[Schema | bool, Part]] = []
        for declared, here, bare in self._leaves(flat, path):
            try:
                part = self.part(declared, here)
            except Unsatisfiable as exc:
                if bare and not exc.forbidden:
                    raise
                self.note(here, "branch_dropped", f"no value can fit this branch: {exc}")
                continue
            if all(same_text(part.schema) != same_text(other.schema) for _, other in found):
                found.append((declared, part))
        if not found:
            raise Unsatisfiable("no branch of it can fit any value")
        return with_description(self.put_together(found), described(flat, ()))

    def _leaves(
        self, flat: Schema, path: str, seen: frozenset[str] = frozenset(), depth: int = 0
    ) -> Iterator[tuple[Schema | bool, str, bool]]:
        """The branches of a union, and those of unions that stand as a branch in it: the schema, its path, and
        whether it stands alone, without anything of the union itself brought into it. `seen`: where references led on
        the way here."""
        key = "anyOf" if "anyOf" in flat else "oneOf"
        if key == "oneOf" and len(flat[key]) > 1:
            self.note(path, "one_of", "oneOf is sent as anyOf; that only one branch fits is checked locally")
        base = {name: value for name, value in flat.items() if name != key and name not in _NOT_OF_BRANCHES}
        for place, given in enumerate(flat[key]):
            here = joined(path, key, place)
            try:
                declared = merged(base, given, self.document, path) if base else given
            except Unsatisfiable as exc:
                self.note(here, "branch_dropped", f"no value can fit this branch: {exc}")
                continue
            whole = flattened(declared, self.document, here) if isinstance(declared, dict) else {}
            nested = "$ref" not in whole and "description" not in whole and depth < DEPTH_MAX
            if nested and self._shaping_union(whole, here):
                led = _led(given)
                if led & seen:
                    raise SchemaRefused(here, "endless_ref", f"{min(led & seen)} is a branch of itself")
                yield from self._leaves(whole, here, seen | led, depth + 1)
            else:
                yield declared, here, not base

    def put_together(self, found: list[tuple[Schema | bool, Part]]) -> Part:
        """A union of branches, each with what was declared for it; null goes into the type where there is one."""
        others = [(declared, part) for declared, part in found if part.schema.get("type") != "null"]
        if not others:
            return found[0][1]
        null = len(others) < len(found)
        if len(others) == 1:
            part = others[0][1]
            return nullable(part) if null else part
        branches = []
        for declared, part in others:
            name = self.box_of(part.codec)
            if name is not None:  # a list or a text that stands for something else has to be told apart
                part = Part(boxed(part.schema, name), Boxed(name, part.codec))
            branches.append((declared, part))
        self._box_what_meets(branches)
        schemas = [part.schema for _, part in branches]
        if null and {"type": "null"} not in schemas:
            schemas.append({"type": "null"})
        codec: Codec = SAME
        if any(part.codec is not SAME for _, part in branches):
            codec = Union([self._branch(declared, part) for declared, part in branches])
        return Part({"anyOf": schemas}, codec)

    def _box_what_meets(self, branches: list[tuple[Schema | bool, Part]]) -> None:
        """Boxes branches whose values may be taken for another branch's and would come back as something else."""
        for place, (declared, part) in enumerate(branches):
            others = [other for at, (_, other) in enumerate(branches) if at != place]
            if part.codec is SAME or not any(
                may_overlap(part.schema, other.schema, self._strict_of) for other in others
            ):
                continue
            name = f"option_{place + 1}"
            branches[place] = (declared, Part(boxed(part.schema, name), Boxed(name, part.codec)))

    def _strict_of(self, reference: str) -> Schema:
        """What a reference of the strict form leads to; while that is being made, what it came to in the pass before, and
        in the first one its type alone."""
        name = reference.removeprefix("#/$defs/")
        found = self.definitions.strict.get(name)
        if found:
            return dict(found)
        self.guessed = True
        if name in self._known:
            return dict(self._known[name])
        target = self._targets.get(name)
        types = target.get("type") if isinstance(target, dict) else None
        return {"type": types} if types is not None else {}

    def _branch(self, declared: Schema | bool, part: Part) -> Branch:
        whole = {} if declared is True else declared
        assert isinstance(whole, dict), "a branch that takes nothing was dropped"
        return Branch(part.schema, whole, part.codec, self.definitions)

    def _reference(self, flat: Schema, path: str) -> Part:
        reference: str = flat["$ref"]
        description = flat.get("description")
        recursive = any(reference == one for one, _ in self._open)
        if (reference, self._level) in self._open:
            raise SchemaRefused(path, "endless_ref", f"{reference} leads to itself and never into a value")
        if recursive and not self.profile.recursion:
            return self.json_text(flat, path, "recursion_as_text", "a schema inside itself")
        target = self._target(reference, path)
        if description is not None and not recursive and not self.profile.recursion:
            # Beside a reference nothing else may stand, and a union is dear there: the definition is repeated.
            self._open.append((reference, self._level))
            try:
                return self.part(merged(target, {"description": description}, self.document, path), path)
            finally:
                self._open.pop()
        name = self._define(reference, target)
        codec = self.definitions.codecs.get(name)
        part = Part({"$ref": f"#/$defs/{name}"}, SAME if codec is SAME else Reference(name, self.definitions))
        return with_description(part, description)

    def _target(self, reference: str, path: str) -> Schema | bool:
        try:
            return resolve(self.document, reference)
        except SchemaRefused as refusal:
            raise SchemaRefused(path, refusal.rule, refusal.reason) from None

    def _define(self, reference: str, target: Schema | bool) -> str:
        """The name its strict form has among the definitions; made when it is first needed."""
        known = self._names.get(reference)
        if known is not None:
            return known
        name = self._names[reference] = self._free_name(reference.rpartition("/")[2].removeprefix("#"))
        self.definitions.strict[name] = {}
        self._targets[name] = target
        self._open.append((reference, self._level))
        try:
            part = self.part(target, reference.removeprefix("#").strip("/").replace("/", "."))
        except Unsatisfiable:
            del self._names[reference], self.definitions.strict[name]
            raise
        finally:
            self._open.pop()
        self.definitions.strict[name] = part.schema
        self.definitions.codecs[name] = part.codec
        return name

    def _free_name(self, wanted: str) -> str:
        kept = (
            "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in wanted)[:48] or "root"
        )
        name, number = kept, 2
        while name in self.definitions.strict:
            name, number = f"{kept}_{number}", number + 1
        return name

    def any_definition(self, schema: Mapping[str, Any], codec: Codec) -> Schema:
        """The reference to the definition of any value."""
        name = self._names.get("")
        if name is None:
            name = self._names[""] = self._free_name(_ANY_VALUE)
            text = f"#/$defs/{name}"
            self.definitions.strict[name] = _leading_to(schema, text)
            self.definitions.codecs[name] = codec
        return {"$ref": f"#/$defs/{name}"}

    def has_null(self, schema: Schema) -> bool:
        """Whether a strict form takes null."""
        if "anyOf" in schema:
            return any(self.has_null(one) for one in schema["anyOf"])
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            found = self.definitions.strict[name]
            # While it is being made, what was declared tells it.
            return self.has_null(found) if found else accepts_null(self._targets[name], self.document)
        types = schema["type"]
        return types == "null" or (isinstance(types, list) and "null" in types)

    def codec_of(self, codec: Codec) -> Codec:
        while isinstance(codec, Reference) and codec.name in self.definitions.codecs:
            codec = self.definitions.codecs[codec.name]
        return codec

    def reachable(self, schema: Schema) -> Schema:
        """The definitions in use, in the order in which the strict form leads to them: the same, however it was made."""
        used: dict[str, Schema] = {}
        waiting = deque([schema])
        while waiting:
            for reference in _references(waiting.popleft()):
                name = reference.removeprefix("#/$defs/")
                if name not in used:
                    used[name] = self.definitions.strict[name]
                    waiting.append(used[name])
        return used


def _led(branch: Schema | bool) -> frozenset[str]:
    """The references a branch consists of."""
    parts = [branch, *branch.get("allOf", ())] if isinstance(branch, dict) else []
    return frozenset(
        one["$ref"] for one in parts if isinstance(one, dict) and isinstance(one.get("$ref"), str)
    )


def _leading_to(schema: Any, reference: str) -> Any:
    """The schema with its own reference put in where it says `$ref: #`."""
    match schema:
        case Mapping():
            if schema.get("$ref") == "#":
                return {"$ref": reference}
            return {key: _leading_to(value, reference) for key, value in schema.items()}
        case list():
            return [_leading_to(value, reference) for value in schema]
        case _:
            return schema


def _references(schema: Any) -> list[str]:
    match schema:
        case dict():
            own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
            # A property may be called $ref or enum: names of properties are no keywords.
            inner = [
                reference
                for key, value in schema.items()
                if key not in ("enum", "const", "required", "description")
                for reference in (
                    [r for one in value.values() for r in _references(one)]
                    if key in ("properties", "$defs")
                    else _references(value)
                )
            ]
            return own + inner
        case list():
            return [reference for one in schema for reference in _references(one)]
        case _:
            return []
