"""How a user declares the shape of an agent's answer, and how code consumes a typed decision.

`output_spec` turns a pydantic model, a type or a JSON Schema into an OutputSpec. `decision_output` makes the schema of
a router: one branch for each tool with that tool's own arguments, and one for none of them; `Decision` is what a
finished run of it says. The router has no tools itself: the model decides, and code acts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from toolfleet.definitions import Tool, without_titles
from toolfleet.schemas.errors import InputError, InvalidDefinition
from toolfleet.schemas.output import WRAPPED, OutputSpec

if TYPE_CHECKING:
    from toolfleet.client import RunResult

NO_TOOL: Final = "none"
SUMMARY_CHARS_MAX: Final = 500
_SUMMARY: Final = "One short sentence for a log: what was decided. A summary, not the reasoning."
_NONE: Final = "None of these fits, or what was asked is not clear."


def output_spec(declared: Any) -> OutputSpec:
    """The OutputSpec of a pydantic model, of any type pydantic knows, or of a JSON Schema.

    A root that is no single object (a union, a list, a text) is wrapped, and taken out again when the answer is read.
    Raises InvalidDefinition.
    """
    if isinstance(declared, OutputSpec):
        return declared
    if isinstance(declared, Mapping):
        return _spec(dict(declared), name="answer", description=str(declared.get("description", "")))
    label = getattr(declared, "__name__", None) or "answer"
    try:
        schema = TypeAdapter(declared).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as exc:
        raise InvalidDefinition(
            f"output {label!r} has no JSON Schema ({exc})",
            hint="Use a pydantic model, JSON types, or give a JSON Schema.",
        ) from exc
    plain = without_titles(schema)
    assert isinstance(plain, dict)
    return _spec(plain, name=label, description=str(plain.pop("description", "")))


def decision_output(*tools: Tool[..., Any], name: str = "decision") -> OutputSpec:
    """The output of a router over these tools: `{decision_summary, decision: {tool, arguments}}`, where `arguments` are
    those of the chosen tool and `tool` is "none" where no tool fits. Raises InvalidDefinition."""
    if not tools:
        raise InvalidDefinition("a decision needs at least one tool to decide for")
    names = [tool.spec.name for tool in tools]
    if len(set(names)) != len(names) or NO_TOOL in names:
        raise InvalidDefinition(
            f"a decision offers {', '.join(names)}: a name stands twice, or is {NO_TOOL!r}",
            hint=f"{NO_TOOL!r} is the branch for no tool. Give the tool another name.",
        )
    definitions: dict[str, Any] = {}
    branches = []
    for tool in tools:
        parameters, own = _moved(tool.spec.parameters, f"{tool.spec.name}__")
        definitions.update(own)
        branches.append(_branch(tool.spec.name, parameters, tool.spec.description))
    branches.append(
        _branch(
            NO_TOOL,
            {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
            _NONE,
        )
    )
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "decision_summary": {
                "type": "string",
                "maxLength": SUMMARY_CHARS_MAX,
                "description": _SUMMARY,
            },
            "decision": {"anyOf": branches},
        },
        "required": ["decision_summary", "decision"],
        "additionalProperties": False,
    }
    if definitions:
        schema["$defs"] = definitions
    return _spec(schema, name=name, description="")


@dataclass(frozen=True, slots=True)
class Decision:
    """What a router decided. `tool` None: no tool fits, or it is not clear what was asked; ask the user back."""

    tool: str | None
    arguments: Mapping[str, Any]
    summary: str

    @classmethod
    def of(cls, result: RunResult) -> Decision:
        """The decision of a finished run. Raises InputError where the run did not complete, or decides nothing."""
        if not result.ok:
            raise InputError(
                f"run {result.run_id} is {result.status.value} ({result.reason}) and decided nothing",
                hint=f"Look why: toolfleet runs show {result.run_id}",
            )
        match result.output:
            case {
                "decision_summary": str(summary),
                "decision": {"tool": str(tool), "arguments": dict(given)},
            }:
                return cls(None if tool == NO_TOOL else tool, given, summary)
            case _:
                raise InputError(
                    f"the output of run {result.run_id} is no decision",
                    hint="Declare its agent with output=decision_output(...).",
                )


def parsed_as(result: RunResult, model: type[Any]) -> Any:
    """The output of a run as an instance of that pydantic model or type. Raises InputError."""
    try:
        return TypeAdapter(model).validate_python(result.output)
    except ValidationError as exc:
        raise InputError(
            f"the output of run {result.run_id} is no {getattr(model, '__name__', model)}: {exc}",
            hint="Declare the agent with output= that model.",
        ) from exc


def _branch(name: str, parameters: dict[str, Any], description: str) -> dict[str, Any]:
    branch: dict[str, Any] = {
        "type": "object",
        "properties": {"tool": {"type": "string", "const": name}, "arguments": parameters},
        "required": ["tool", "arguments"],
        "additionalProperties": False,
    }
    return {**branch, "description": description} if description else branch


def _spec(schema: dict[str, Any], *, name: str, description: str) -> OutputSpec:
    root = _dereferenced(schema)
    wrapped = root.get("type") != "object" or bool({"anyOf", "oneOf", "allOf"} & root.keys())
    if wrapped:
        definitions = {"$defs": root.pop("$defs")} if "$defs" in root else {}
        root = {
            "type": "object",
            "properties": {WRAPPED: root},
            "required": [WRAPPED],
            "additionalProperties": False,
            **definitions,
        }
    legal = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "answer"
    try:
        return OutputSpec(name=legal, description=description, schema_=root, wrapped=wrapped)
    except ValidationError as exc:
        raise InvalidDefinition(f"output {name!r}: {exc.errors()[0]['msg']}") from exc


def _dereferenced(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema whose root is no reference: pydantic writes one for a model that holds itself."""
    reference = schema.get("$ref")
    prefix = "#/$defs/"
    if not isinstance(reference, str) or not reference.startswith(prefix):
        return dict(schema)
    definitions = schema.get("$defs", {})
    target = definitions.get(reference.removeprefix(prefix))
    if not isinstance(target, dict):
        raise InvalidDefinition(f"the output schema refers to {reference}, which it does not hold")
    return {**target, "$defs": definitions}


def _moved(schema: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema with its $defs taken out under prefixed names, for it becomes a part of another one."""

    def walked(value: Any) -> Any:
        if isinstance(value, list):
            return [walked(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            key: inner.replace("#/$defs/", f"#/$defs/{prefix}")
            if key == "$ref" and isinstance(inner, str)
            else walked(inner)
            for key, inner in value.items()
        }

    moved = walked(dict(schema))
    own = {f"{prefix}{name}": inner for name, inner in moved.pop("$defs", {}).items()}
    moved.setdefault("properties", {})
    moved.setdefault("required", [])
    moved.setdefault("additionalProperties", False)
    return moved, own
