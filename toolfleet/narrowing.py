"""Several narrow tools over one broad function: what the model is offered is an action, not an API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from toolfleet.contracts import ContractOptions, contract_fields, schema_without
from toolfleet.definitions import EXECUTION_OPTIONS, Tool, hints_of, spec_of, summariser_of
from toolfleet.schemas.contract import AGAIN, ResultField
from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.tools import ToolSpec
from toolfleet.tool_parts import INHERITED, PARTS


def narrow(
    broad: Tool[..., Any],
    /,
    *,
    name: str,
    description: str,
    fixed: Mapping[str, Any] = MappingProxyType({}),
    arguments: Sequence[str] | None = None,
    **options: Any,
) -> Tool[..., Any]:
    """A tool that does one thing a broad one can do: some arguments fixed, some offered, some of its result shown.

    fixed: arguments the model neither sees nor chooses. arguments: those it is offered (default: all others; the rest
    keep their defaults). options: those of `tool`, where they differ from the broad tool's; `result` is the whitelist
    of what is shown. The broad tool need not be given to any agent. Raises InvalidDefinition.
    """
    spec, label = broad.spec, f"{name} of {broad.spec.name}"
    properties = spec.parameters.get("properties", {})
    offered = _offered(spec, fixed, arguments, label)
    left_out = [one for one in properties if one not in offered]
    known = {*EXECUTION_OPTIONS, *ContractOptions.__annotations__} - {
        "parameters",
        "runner",
        "name",
        "description",
        *PARTS,  # the broad tool's functions belong to its function
    }
    if strange := set(options) - known:
        raise InvalidDefinition(
            f"tool {label!r}: unknown option {min(strange)!r}", hint=f"Options: {', '.join(sorted(known))}."
        )
    hints = hints_of(broad.function, label)
    inherited = {
        one: value
        for one, value in spec
        if one in {*EXECUTION_OPTIONS, *INHERITED, "runner", "context_parameter"}
    }
    contract = {"injected": spec.injected, "sources": _kept(spec.sources, offered), **options}
    if spec.result_fields:
        contract["result"] = _shown(spec.result_fields, options.get("result"), label)
    fields = {
        **inherited,
        **{one: options[one] for one in (*EXECUTION_OPTIONS, *INHERITED) if one in options},
        **contract_fields(contract, {"return": hints.get("return")}, label),
        "name": name,
        "description": description,
        "parameters": schema_without(spec.parameters, left_out),
    }
    if options.get("result") is None or isinstance(options["result"], (list, tuple)):
        fields["result_schema"] = spec.result_schema  # of the same function
    summarise = options.get("summarise")
    summariser = broad.summariser if summarise is None else summariser_of(summarise, label, spec.runner)
    return Tool(
        broad.function,
        spec_of(fields, label),
        broad.arguments_model,
        fixed={**broad.fixed, **fixed},
        summariser=summariser,
        parts=broad.parts,
    )


def _offered(
    spec: ToolSpec, fixed: Mapping[str, Any], arguments: Sequence[str] | None, label: str
) -> list[str]:
    """The arguments the model is to fill in. Raises InvalidDefinition where a call could not be made of them."""
    properties = spec.parameters.get("properties", {})
    offered = [one for one in properties if one not in fixed] if arguments is None else list(arguments)
    if unknown := sorted({*fixed, *offered} - set(properties)):
        raise InvalidDefinition(
            f"tool {label!r}: {spec.name} has no argument {unknown[0]!r}",
            hint=f"It has {', '.join(properties)}.",
        )
    if both := sorted(set(fixed) & set(offered)):
        raise InvalidDefinition(f"tool {label!r}: {both[0]!r} is fixed, and offered to the model as well")
    if missing := sorted(set(spec.parameters.get("required", ())) - set(fixed) - set(offered)):
        raise InvalidDefinition(
            f"tool {label!r}: {spec.name} needs {missing[0]!r}, which is neither fixed nor offered",
            hint="Add it to fixed= or arguments=.",
        )
    return offered


def _kept(by_argument: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in by_argument.items() if name in names}


def _shown(fields: tuple[ResultField, ...], wanted: Any, label: str) -> tuple[ResultField, ...] | Any:
    """Of the broad tool's result fields those that are wanted, with their marks; a type of its own stands for itself."""
    if wanted is None:
        return fields
    if not isinstance(wanted, (list, tuple)):
        return wanted
    chosen: list[ResultField] = []
    for one in wanted:
        if isinstance(one, ResultField):
            chosen.append(one)
            continue
        below = [f for f in fields if f.path == one or f.path.startswith(_below(one))]
        if not below:
            raise InvalidDefinition(
                f"tool {label!r}: the result of the broad tool has no field {one!r}",
                hint=f"It has {', '.join(f.path or '(the whole)' for f in fields)}.",
            )
        chosen += [whole for f in below for whole in _unrolled(f, one, fields)]
    return tuple(chosen)


def _below(path: str) -> tuple[str, ...]:
    return tuple(f"{path}{mark}" for mark in (".", "[", "{", AGAIN))


def _within(path: str, place: str) -> bool:
    return not place or path == place or path.startswith(_below(place))


def _joined(place: str, rest: str) -> str:
    rest = rest.removeprefix(".")
    return f"{place}{'.' if place and rest and rest[0] not in '[{' else ''}{rest}"


def _unrolled(field: ResultField, kept: str, fields: tuple[ResultField, ...]) -> list[ResultField]:
    """The field itself; or, where it goes on as a place that is not kept, that place's fields once more below it."""
    place, again, as_at = field.path.partition(AGAIN)
    if not again or (as_at and _within(as_at, kept)):
        return [field]
    found = []
    for one in fields:
        path, inner, target = one.path.partition(AGAIN)
        if not _within(path, as_at) or (inner and not _within(target, as_at)):
            continue
        moved = _joined(place, path[len(as_at) :])
        if inner:
            moved += f"{AGAIN}{_joined(place, target[len(as_at) :])}"
        found.append(one.model_copy(update={"path": moved}))
    return found
