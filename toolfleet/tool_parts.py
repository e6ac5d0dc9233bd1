"""What a tool may bring beside its function: business key, precheck, reconcile, tier by arguments, summary.

Each is a plain function that takes what it names of the call's arguments, a parameter annotated `ToolContext`, and
`key` (the idempotency key). Nothing here runs anything by itself.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, get_type_hints

import orjson

from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.tools import CallFacts, ToolContext, ToolSpec

PARTS: Final = ("reconcile", "precheck", "business_key", "raise_tier", "approval_summary")
TIERS: Final = tuple(Tier)
SUMMARY_CHARS_MAX: Final = 500


_FIELDS: Final = (
    "reconcile_is_final",
    "two_person",
    "double_confirm",
    "approval_expires_s",
    "grantable",
)
INHERITED: Final = (*_FIELDS, "permissions", "business_key", "parts")


class EffectOptions(TypedDict, total=False):
    """The options of `tool` about effects and approvals.

    permissions: what the run's principal must have; grantable: where one is missing, somebody entitled is asked to grant
    it for this call, in place of denying it. precheck: raises BusinessError where the call cannot be right now.
    business_key: text ("refund:{order_id}") or function; calls of one key are one effect. reconcile: tells what became
    of an effect: Happened(result), DidNotHappen() or NoAnswer(); reconcile_is_final: the second of them stays true.
    raise_tier: the tier of a call by its arguments, where that is higher. two_person, double_confirm, approval_summary,
    approval_expires_s: how an approval is asked for (docs/approvals.md).
    """

    permissions: Sequence[str]
    grantable: bool
    precheck: Callable[..., Any] | None
    business_key: str | Callable[..., str] | None
    reconcile: Callable[..., Any] | None
    reconcile_is_final: bool
    raise_tier: Callable[..., Any] | None
    two_person: bool
    double_confirm: bool
    approval_summary: Callable[..., str] | None
    approval_expires_s: float


@dataclass(frozen=True, slots=True)
class Part:
    """One function beside a tool, with what it takes. `names` None: all arguments."""

    function: Callable[..., Any]
    names: frozenset[str] | None
    context_parameter: str | None
    takes_key: bool

    def call(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """What it returns (a coroutine if it is async). `arguments` are the model's, as JSON values."""
        given = {k: v for k, v in arguments.items() if self.names is None or k in self.names}
        if self.context_parameter is not None:
            given[self.context_parameter] = context
        if self.takes_key:
            given["key"] = context.idempotency_key
        return self.function(**given)


def part_of(function: Any, what: str, label: str, properties: Mapping[str, Any]) -> Part:
    """The part, checked against the tool's parameters. Raises InvalidDefinition."""
    if not callable(function):
        raise InvalidDefinition(f"tool {label!r}: {what} must be a function, not {type(function).__name__}")
    try:
        hints = get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations that cannot be resolved name no ToolContext of ours
        hints = {}
    context = next((name for name, hint in hints.items() if hint is ToolContext and name != "return"), None)
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return Part(function, None, context, "key" in parameters and "key" not in properties)
    names = frozenset(parameters) - {context}
    takes_key = "key" in names and "key" not in properties
    unknown = sorted(names - set(properties) - {"key"})
    required = [name for name in unknown if parameters[name].default is inspect.Parameter.empty]
    if required:
        raise InvalidDefinition(
            f"tool {label!r}: {what} asks for {', '.join(required)}, which the tool does not take",
            hint=f"It may take: {', '.join([*sorted(properties), 'key', 'a ToolContext'])}.",
        )
    return Part(function, names - {"key"} if takes_key else names, context, takes_key)


def effect_fields(
    chosen: Mapping[str, Any], parameters: Mapping[str, Any], label: str
) -> tuple[dict[str, Any], dict[str, Part]]:
    """The fields of ToolSpec that these options make, and the functions beside the tool. Raises InvalidDefinition."""
    fields: dict[str, Any] = {name: chosen[name] for name in _FIELDS if name in chosen}
    permissions = chosen.get("permissions", ())
    if isinstance(permissions, str):
        raise InvalidDefinition(
            f"tool {label!r}: permissions must be a list of texts",
            hint='Write permissions=["refunds:write"].',
        )
    fields["permissions"] = tuple(permissions)
    given = {name: chosen.get(name) for name in PARTS}
    if isinstance(given["business_key"], str):
        check_template(given["business_key"], label, parameters)
        fields["business_key"] = given.pop("business_key")
    properties = parameters.get("properties", {})
    parts = {name: part_of(one, name, label, properties) for name, one in given.items() if one is not None}
    fields["parts"] = tuple(sorted(parts))
    return fields, parts


def check_template(template: str, label: str, schema: Mapping[str, Any]) -> None:
    """A business key as text may name required arguments only. Raises InvalidDefinition."""
    required = set(schema.get("required", ()))
    try:
        named = [name for _, name, spec, turned in string.Formatter().parse(template) if name is not None]
    except ValueError as exc:
        raise InvalidDefinition(f"tool {label!r}: business_key {template!r}: {exc}") from None
    wrong = [name for name in named if name not in required]
    if wrong or not named:
        raise InvalidDefinition(
            f"tool {label!r}: business_key {template!r} names "
            + (f"{', '.join(wrong)}, which is no required parameter" if wrong else "no parameter"),
            hint='Write business_key="refund:{order_id}", with required parameters.',
        )


def filled(template: str, arguments: Mapping[str, Any]) -> str:
    """The template with the values of these arguments: texts as they are, everything else as JSON."""
    made = []
    for text, name, _, _ in string.Formatter().parse(template):
        made.append(text)
        if name is not None:
            value = arguments[name]
            made.append(value if isinstance(value, str) else orjson.dumps(value).decode())
    return "".join(made)


def facts_of(
    spec: ToolSpec, parts: Mapping[str, Part], arguments: Mapping[str, Any], context: ToolContext
) -> CallFacts:
    """Key, tier and summary of one call. Raises what the tool's functions raise, and TypeError for a wrong answer."""
    key: Any = filled(spec.business_key, arguments) if spec.business_key is not None else None
    if "business_key" in parts:
        key = parts["business_key"].call(arguments, context)
    if key is not None and (not isinstance(key, str) or not key):
        raise TypeError(f"business_key returned {type(key).__name__}, not a text")
    tier = spec.tier
    if "raise_tier" in parts:
        said = parts["raise_tier"].call(arguments, context)
        tier = spec.tier if said is None else max(spec.tier, Tier(said), key=TIERS.index)
    summary: Any = ""
    if "approval_summary" in parts:
        summary = parts["approval_summary"].call(arguments, context)
        if not isinstance(summary, str):
            raise TypeError(f"approval_summary returned {type(summary).__name__}, not a text")
    return CallFacts(business_key=key, tier=tier, summary=summary[:SUMMARY_CHARS_MAX])
