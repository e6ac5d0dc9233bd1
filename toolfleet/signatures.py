"""What a function's annotations say of a tool's contract: where arguments come from, and what its result may show.

def get_order(
    order_id: Annotated[str, From("user", "upstream")],
    tenant: Annotated[str, Injected("tenant")],
) -> Order: ...

class Order(BaseModel):
    order_id: str
    note: Annotated[str, Untrusted(chars_max=500)]
    courier_token: Annotated[str, Secret()]
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, RootModel, SecretBytes, SecretStr, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from toolfleet.schemas.contract import UNTRUSTED_CHARS_MAX, ResultField, Source


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class From:
    """Marks an argument: its value is taken from one of these, and is refused as invented where it is in none."""

    sources: tuple[Source, ...]

    def __init__(self, *sources: Source) -> None:
        object.__setattr__(self, "sources", sources)


@dataclasses.dataclass(frozen=True, slots=True)
class Injected:
    """Marks an argument the runtime fills in: tenant, principal, run_id, call_id, agent, correlation_id,
    idempotency_key, context.KEY or credential:NAME. It is in no schema, transcript or log."""

    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Untrusted:
    """Marks text from outside in a result model: fenced as data, and cut for the model at `chars_max` characters."""

    chars_max: int = UNTRUSTED_CHARS_MAX


@dataclasses.dataclass(frozen=True, slots=True)
class Secret:
    """Marks a field of a result model that must not leave the executor."""


Mark = Untrusted | Secret


def sources_of(hints: Mapping[str, Any]) -> dict[str, tuple[Source, ...]]:
    """The arguments that are marked with From, and where each comes from."""
    return {name: mark.sources for name, mark in _marked(hints, From)}


def injected_of(hints: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that are marked with Injected, and what is filled in."""
    return {name: mark.source for name, mark in _marked(hints, Injected)}


def _marked(hints: Mapping[str, Any], kind: type) -> Iterator[tuple[str, Any]]:
    for name, hint in hints.items():
        if typing.get_origin(hint) is Annotated and name != "return":
            yield from ((name, mark) for mark in hint.__metadata__ if isinstance(mark, kind))


def result_model_of(hints: Mapping[str, Any]) -> Any:
    """What a function is annotated to return, if that is a pydantic model, a list of them, or one of several; else
    None."""
    found = hints.get("return")
    return found if _has_model(found) else None


def _has_model(annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _has_model(arguments[0])
    if origin in (typing.Union, types.UnionType, tuple, *_LISTS):
        return any(map(_has_model, arguments))
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


class _Lenient(GenerateJsonSchema):
    """The form of a result: what has no schema may be anything, and a decimal a number, as a dict has it."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        return {"type": ["number", "string"]}


def result_schema_of(annotation: Any) -> dict[str, Any]:
    """The JSON Schema of results of this type, by the names of its fields. Raises what pydantic raises where it has
    none."""
    return TypeAdapter(annotation).json_schema(
        by_alias=False, mode="serialization", schema_generator=_Lenient
    )


def result_fields_of(annotation: Any) -> tuple[ResultField, ...]:
    """The places of a result of this type that may be shown, each once, in the order of their declaration."""
    found: dict[str, ResultField] = {}
    for one in _fields(annotation, "", None, ()):
        known = found.get(one.path)
        if known is None:
            found[one.path] = one
        else:  # alternatives of a union meet at one path: the stricter mark, the wider shape
            stricter = max(known, one, key=lambda field: _STRICTNESS[field.mark])
            found[one.path] = stricter.model_copy(update={"deep": known.deep or one.deep})
    return tuple(found.values())


_STRICTNESS = {"data": 0, "untrusted": 1, "secret": 2}
_LISTS = (list, set, frozenset, Sequence, Iterable)


def _fields(annotation: Any, path: str, mark: Mark | None, inside: tuple[type, ...]) -> Iterator[ResultField]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        inner = next((one for one in arguments[1:] if isinstance(one, (Untrusted, Secret))), mark)
        yield from _fields(arguments[0], path, inner, inside)
    elif origin in (typing.Union, types.UnionType):
        for one in arguments:
            if one is not type(None):
                yield from _fields(one, path, mark, inside)
    elif origin in _LISTS or (origin is tuple and len(arguments) == 2 and arguments[1] is ...):
        yield from _fields(arguments[0], f"{path}[]", mark, inside)
    elif origin is typing.Literal:
        yield _leaf(path, mark, deep=False)
    elif annotation in inside:  # a model inside itself has no end to list
        yield _leaf(path, mark, deep=True)
    elif isinstance(annotation, type) and (parts := _parts(annotation)) is not None:
        for name, (hint, own) in parts.items():
            place = name if not path else path if not name else f"{path}.{name}"
            yield from _fields(hint, place, own or mark, (*inside, annotation))
    else:
        yield _of_plain_type(annotation, path, mark)


def _parts(annotation: type) -> dict[str, tuple[Any, Mark | None]] | None:
    """By name, type and mark of what it is made of; "" names the root itself; None: it is not made of named parts."""
    if issubclass(annotation, BaseModel):
        parts = {
            "" if issubclass(annotation, RootModel) else name: (
                field.annotation,
                next((one for one in field.metadata if isinstance(one, (Untrusted, Secret))), None),
            )
            for name, field in annotation.model_fields.items()
        }
        computed = annotation.model_computed_fields.items()
        return {**parts, **{name: (field.return_type, None) for name, field in computed}}
    if dataclasses.is_dataclass(annotation) or typing.is_typeddict(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return {name: (_required(hint), None) for name, hint in hints.items()}
    return None


def _required(hint: Any) -> Any:
    """Without the Required and NotRequired of a TypedDict."""
    if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        return typing.get_args(hint)[0]
    return hint


def _of_plain_type(annotation: Any, path: str, mark: Mark | None) -> ResultField:
    if isinstance(annotation, type) and issubclass(annotation, (SecretStr, SecretBytes)):
        return _leaf(path, Secret(), deep=True)
    known = isinstance(annotation, type) and not issubclass(annotation, (dict, list, tuple, set, frozenset))
    return _leaf(path, mark, deep=not known or annotation is object)


def _leaf(path: str, mark: Mark | None, *, deep: bool) -> ResultField:
    match mark:
        case Secret():
            return ResultField(path=path, mark="secret", deep=True)
        case Untrusted(chars_max):
            return ResultField(path=path, mark="untrusted", deep=deep, chars_max=chars_max)
        case None:
            return ResultField(path=path, deep=deep)
