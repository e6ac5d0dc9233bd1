"""The options of a tool that make up its contract, as the fields of ToolSpec. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from toolfleet.result_types import result_fields_of, result_model_of, result_schema_of
from toolfleet.schemas.contract import Prerequisite, ResultField, Source, ToolExample
from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.signatures import injected_of, sources_of
from toolfleet.tool_parts import EffectOptions
from toolfleet.workers.executor.result_check import broken

_AS_GIVEN: Final = (
    "returns",
    "returns_not",
    "cache_ttl_s",
    "rate_limit",
    "concurrent_max",
    "serial_key",
    "retry_share",
)
_TEXTS: Final = ("use_when", "not_when", "edge_cases", "stages")  # one text, or several


class ContractOptions(EffectOptions, total=False):
    """The options of `tool` beside those of its execution: what the model is told, and what the runtime holds.
    Those of effects and approvals: `EffectOptions`.

    use_when, not_when, edge_cases, stages: one text or several. examples: arguments, or ToolExample. sources, injected:
    by argument, in place of From and Injected in the signature. requires: names of tools, or Prerequisite. result: a
    pydantic model (default: what the function is annotated to return, where that is made of models), any other type with
    named parts, or fields; results are checked against a type, and cut down to its fields.
    untrusted: the whole result is text from outside. summarise: a function of the projected data, run where the tool
    runs, whose result the model gets in place of one that is too long for it.

    Of the whole fleet (docs/pace.md): rate_limit ("10/s", "100/min"): starts of the tool. concurrent_max: attempts at a
    time. serial_key ("order:{order_id}", from its arguments): calls with an equal one run one at a time, whatever tool
    they are of. retry_share: of its attempts may be retries; None: all.
    """

    use_when: str | Sequence[str]
    not_when: str | Sequence[str]
    edge_cases: str | Sequence[str]
    returns: str
    returns_not: str
    examples: Sequence[ToolExample | Mapping[str, Any]]
    sources: Mapping[str, Source | Sequence[Source]]
    injected: Mapping[str, str]
    requires: str | Prerequisite | Sequence[str | Prerequisite]
    stages: str | Sequence[str]
    enters_stage: str | None
    result: Any
    untrusted: bool
    cache_ttl_s: float
    summarise: Callable[[Any], Any] | None
    rate_limit: str | None
    concurrent_max: int | None
    serial_key: str | None
    retry_share: float | None


def contract_fields(chosen: dict[str, Any], hints: dict[str, Any], label: str) -> dict[str, Any]:
    """The fields of the contract, from options and annotations; what is left out keeps the default of ToolSpec."""
    fields: dict[str, Any] = {name: chosen[name] for name in _AS_GIVEN if name in chosen}
    fields |= {name: _several(chosen[name]) for name in _TEXTS if name in chosen}
    fields["enters_stage"] = chosen.get("enters_stage")
    fields["examples"] = tuple(
        one if isinstance(one, ToolExample) else ToolExample(arguments=dict(one))
        for one in chosen.get("examples", ())
    )
    fields["sources"] = {
        **sources_of(hints),
        **{name: _several(sources) for name, sources in chosen.get("sources", {}).items()},
    }
    fields["injected"] = {**injected_of(hints), **chosen.get("injected", {})}
    fields["requires"] = tuple(
        Prerequisite(tool=one) if isinstance(one, str) else one
        for one in _several(chosen.get("requires", ()))
    )
    fields["result_fields"] = _result_fields(chosen, hints, label)
    fields["result_schema"] = _result_schema(chosen, hints, label)
    return fields


def _several(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, (str, Prerequisite)) else tuple(given)


def _result_fields(chosen: dict[str, Any], hints: dict[str, Any], label: str) -> tuple[ResultField, ...]:
    result = chosen.get("result", result_model_of(hints))
    if chosen.get("untrusted"):
        if chosen.get("result") is not None:
            raise InvalidDefinition(
                f"tool {label!r}: untrusted=True is for a result without a model",
                hint="Mark the fields that are outside text with Untrusted() in the model.",
            )
        return (ResultField(path="", mark="untrusted", deep=True),)
    if result is None:
        return ()
    if isinstance(result, (list, tuple)):
        return tuple(
            one if isinstance(one, ResultField) else ResultField(path=str(one), deep=True) for one in result
        )
    return result_fields_of(result)


def _result_schema(chosen: dict[str, Any], hints: dict[str, Any], label: str) -> dict[str, Any] | None:
    """What every result is checked against: the declared type, or the model the function is annotated to return."""
    declared = chosen.get("result", result_model_of(hints))
    if isinstance(declared, (list, tuple)):
        declared = result_model_of(hints)
    if declared is None:
        return None
    try:
        schema = result_schema_of(declared)
    except (PydanticSchemaGenerationError, PydanticUserError) as exc:
        raise InvalidDefinition(
            f"tool {label!r}: its result cannot be described ({exc})",
            hint="Use a pydantic model, a dataclass, a TypedDict or JSON types; or name the fields: result=[…].",
        ) from exc
    if why := broken(schema):
        raise InvalidDefinition(
            f"tool {label!r}: results cannot be checked against its result model ({why})",
            hint="Simplify what the model asks of that field.",
        )
    return schema


def schema_without(schema: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The schema of an object without these properties, and without the definitions only they used."""
    left_out = set(names)
    if not left_out:
        return schema
    kept = {one: value for one, value in schema.get("properties", {}).items() if one not in left_out}
    changed = {**schema, "properties": kept}
    if "required" in schema:
        changed["required"] = [one for one in schema["required"] if one not in left_out]
        if not changed["required"]:
            del changed["required"]
    used = repr(kept)
    definitions = schema.get("$defs", {})
    needed = {one for one in definitions if f"#/$defs/{one}" in used}
    if definitions and len(needed) < len(definitions):
        reached = needed  # definitions may use one another
        while reached:
            text = repr([definitions[one] for one in reached])
            reached = {one for one in definitions if f"#/$defs/{one}'" in text} - needed
            needed |= reached
        changed["$defs"] = {one: value for one, value in definitions.items() if one in needed}
        if not needed:
            del changed["$defs"]
    return changed
