"""A tool's contract as the model reads it: the same contract gives the same bytes, in every process. Pure.

Nothing is added to a tool that declares nothing beside its description and parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from toolfleet.schemas.contract import Source
from toolfleet.schemas.tools import ToolSpec

_FROM: Final[dict[Source, str]] = {
    "user": "what the user said",
    "context": "the instructions or the context of this request",
    "upstream": "the result of an earlier call",
}


def model_description(spec: ToolSpec) -> str:
    """The description with every part of the contract the model should know, one to a line."""
    return "\n".join((*([spec.description] if spec.description else []), *_lines(spec)))


def model_parameters(spec: ToolSpec) -> dict[str, Any]:
    """The JSON Schema of the arguments, with a sentence in each description that says where the value comes from."""
    if not spec.sources:
        return spec.parameters
    properties = {
        name: {**schema, "description": _sourced(schema.get("description", ""), spec.sources[name])}
        if name in spec.sources and isinstance(schema, dict)
        else schema
        for name, schema in spec.parameters["properties"].items()
    }
    return {**spec.parameters, "properties": properties}


def _lines(spec: ToolSpec) -> Iterator[str]:
    yield from _listed("Use it when", spec.use_when)
    yield from _listed("Do not use it", spec.not_when)
    if spec.returns:
        yield f"Returns: {spec.returns}"
    if spec.returns_not:
        yield f"Does not return: {spec.returns_not}"
    yield from _listed("Edge cases", spec.edge_cases)
    yield from _listed("Must have succeeded before", [str(one) for one in spec.requires])
    for example in spec.examples:
        when = f" ({example.when})" if example.when else ""
        arguments = json.dumps(example.arguments, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        yield f"Example{when}: {arguments}"


def _listed(title: str, entries: Sequence[str]) -> Iterator[str]:
    if entries:
        yield f"{title}: {'; '.join(entries)}"


def _sourced(description: str, sources: Sequence[Source]) -> str:
    where = " or ".join(_FROM[one] for one in sources)
    said = f"Take it from {where}; never make it up."
    return f"{description.rstrip()} {said}" if description.strip() else said
