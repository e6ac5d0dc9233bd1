"""Tools in the strict form of one provider. This is what adapters call.

    tools = strict_tools(specs, strict_profile("openai"))     # one a spec, in their order
    for spec, tool in zip(specs, tools, strict=True):
        if isinstance(tool, StrictRefusal):                   # sent as it was declared, without strict; the others go on
            ...
        else:                                                 # sent with tool.name, tool.parameters and strict: true
            ...

On the way back, `tool.restore_text(arguments)` turns the text of a call into the text the tool's own schema is about,
before anything else reads it; in a history, `tool.encode_text(arguments)` writes stored arguments as the model wrote
them. Both leave alone what they cannot read: the strict reading of arguments comes afterwards and says what is wrong.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jsonschema_rs

from toolfleet.adapters.llm.strict.codec import SAME, Codec, NamedTwice, read_json, rewritten_json, write_json
from toolfleet.adapters.llm.strict.convert import convert
from toolfleet.adapters.llm.strict.limits import size_of
from toolfleet.adapters.llm.strict.names import wire_name
from toolfleet.adapters.llm.strict.profiles import StrictProfile
from toolfleet.schemas.dialects import Note, Schema, SchemaRefused, plain
from toolfleet.schemas.tool_text import model_parameters
from toolfleet.schemas.tools import ToolSpec
from toolfleet.schemas.unfolding import UNFOLDED_MAX, unfolded_size

_SCHEMAS_MAX: Final = 1024  # in use at a time; more cost a new conversion, nothing else


@dataclass(frozen=True, slots=True)
class StrictSchema:
    """A schema in the strict form. `notes`: what it says differently, and what is checked locally only."""

    schema: Schema
    notes: tuple[Note, ...]
    codec: Codec = field(repr=False)

    def restore(self, value: Any) -> Any:
        """A value of the strict form, as the declared schema has it. Raises NamedTwice (a ValueError)."""
        return self.codec.restore(value)

    def encode(self, value: Any) -> Any:
        """A value of the declared schema, as the strict form has it."""
        return self.codec.encode(value)


@dataclass(frozen=True, slots=True)
class StrictTool:
    """A tool as a provider's strict mode takes it. `tool` is its own name, `name` the one on the wire."""

    tool: str
    name: str
    parameters: Schema
    notes: tuple[Note, ...]
    codec: Codec = field(repr=False)

    def restore(self, arguments: Any) -> Any:
        """Arguments as the model wrote them -> as the tool declared them. Raises NamedTwice (a ValueError)."""
        return self.codec.restore(arguments)

    def encode(self, arguments: Any) -> Any:
        """Arguments as the tool declared them -> as the model writes them."""
        return self.codec.encode(arguments)

    def restore_text(self, text: str) -> str:
        """The same for the text of a call. What is no JSON object, and what is the same anyway, stays as it is."""
        if self.codec is SAME:
            return text
        try:
            value = read_json(text)
        except ValueError:
            return text
        if not isinstance(value, dict):
            return text
        try:
            return write_json(self.codec.restore(value))
        except NamedTwice as exc:
            name = write_json(exc.name)
            return (
                f"{{{name}:null,{name}:null}}"  # what it says; the strict reading of arguments refuses it so
            )

    def encode_text(self, text: str) -> str:
        """The way back of restore_text, for arguments that are stored: no key stands in them twice."""
        return text if self.codec is SAME else rewritten_json(text, self.codec.encode)


@dataclass(frozen=True, slots=True)
class StrictRefusal:
    """Why a tool has no strict form: where (the root is empty), by which rule, and the reason with what to do."""

    tool: str
    path: str
    rule: str
    reason: str


def strict_schema(schema: Schema, profile: StrictProfile) -> StrictSchema:
    """The strict form of a schema of any dialect. Equal schemas have equal bytes. Raises SchemaRefused.

    Converting the strict form again changes nothing. The input is not changed.
    """
    try:
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return _converted(plain(schema).schema, profile)  # says which value is no JSON
    return _cached(text, profile)


def strict_tool(spec: ToolSpec, profile: StrictProfile) -> StrictTool | StrictRefusal:
    """The tool in the strict form of that provider, or why it has none."""
    try:
        found = strict_schema(model_parameters(spec), profile)
    except SchemaRefused as refusal:
        return StrictRefusal(spec.name, refusal.path, refusal.rule, refusal.reason)
    return StrictTool(spec.name, wire_name(spec.name, profile), found.schema, found.notes, found.codec)


def strict_tools(specs: Sequence[ToolSpec], profile: StrictProfile) -> tuple[StrictTool | StrictRefusal, ...]:
    """One result a tool, in their order; no tool costs another its strict form.

    Limits a provider sets for all tools of a request go to the tools in their order; whoever is beyond them is
    refused with `request_limit`, and so is the second of two tools with one name on the wire.
    """
    return tuple(_within_request([strict_tool(spec, profile) for spec in specs], profile))


def _within_request(
    tools: Sequence[StrictTool | StrictRefusal], profile: StrictProfile
) -> Iterator[StrictTool | StrictRefusal]:
    names: set[str] = set()
    room = {
        "strict tools": profile.strict_tools_max,
        "properties that may be left out": profile.limits.optional,
        "unions of types": profile.limits.unions,
    }
    for tool in tools:
        if isinstance(tool, StrictRefusal):
            yield tool
            continue
        size = size_of(tool.parameters)
        needed = {
            "strict tools": 1,
            "properties that may be left out": size.optional,
            "unions of types": size.unions,
        }
        short = [what for what, left in room.items() if left is not None and needed[what] > left]
        if tool.name in names:
            yield StrictRefusal(
                tool.tool, "", "alias_collision", f"another tool is {tool.name!r} on the wire"
            )
        elif short:
            reason = f"the tools before it leave no room for its {short[0]} in one request to {profile.id}"
            yield StrictRefusal(tool.tool, "", "request_limit", reason)
        else:
            names.add(tool.name)
            room = {what: None if left is None else left - needed[what] for what, left in room.items()}
            yield tool


@functools.lru_cache(maxsize=_SCHEMAS_MAX)
def _cached(text: str, profile: StrictProfile) -> StrictSchema:
    return _converted(json.loads(text), profile)


def _converted(schema: Schema, profile: StrictProfile) -> StrictSchema:
    read = plain(schema)
    if unfolded_size(read.schema) > UNFOLDED_MAX:
        raise SchemaRefused("", "too_large", f"written out it is more than {UNFOLDED_MAX} schemas")
    unresolved = None
    try:
        # What strict mode cannot say is checked here: a schema that cannot be compiled would check nothing.
        jsonschema_rs.validator_for(read.schema, offline=True)
    except jsonschema_rs.ValidationError as exc:
        if not isinstance(exc.kind, jsonschema_rs.ValidationErrorKind.Referencing):
            path = ".".join(map(str, exc.instance_path))
            raise SchemaRefused(path, "broken_schema", exc.message) from None
        unresolved = exc.message
    except (ValueError, jsonschema_rs.ReferencingError) as exc:
        unresolved = str(exc).partition("\n")[0]
    converted = convert(read.schema, profile)  # knows where a reference stands that leads nowhere
    if unresolved is not None:
        raise SchemaRefused("", "broken_schema", unresolved)
    return StrictSchema(converted.schema, (*read.notes, *converted.notes), converted.codec)
