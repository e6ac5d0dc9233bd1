"""What the type of a result says of its places: which may be shown, which are text from outside, which are secret.

Whatever a type is made of is walked: models, dataclasses, typed dictionaries, named tuples, lists, maps, tuples,
alternatives, generic ones and ones that hold themselves. What nobody can look into (`Any`, a plain dict) is what the mark
around it says, and shown as it is where there is none. Marks only ever get stricter on the way in.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typing_extensions
from pydantic import BaseModel, RootModel, SecretBytes, SecretStr, TypeAdapter
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.json_schema import GenerateJsonSchema

from toolfleet.schemas.contract import AGAIN, STRICTNESS, ResultField
from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.signatures import Secret, Untrusted

Mark = Untrusted | Secret
Inside = tuple[
    tuple[Any, Mark | None, str], ...
]  # types around the place: with which mark, and where they begin

_UNIONS: Final = (typing.Union, types.UnionType)
_WRAPPERS: Final = (
    typing.Required,
    typing.NotRequired,
    typing.Final,
    typing.ClassVar,
    typing_extensions.ReadOnly,
)


def result_model_of(hints: Mapping[str, Any]) -> Any:
    """What a function is annotated to return, if there is a pydantic model or a mark anywhere in it; else None."""
    found = hints.get("return")
    if found is None or found is type(None):
        return None
    marked = any(one.mark != "data" for one in result_fields_of(found))
    return found if marked or _has_model(found, ()) else None


def _has_model(annotation: Any, inside: tuple[Any, ...]) -> bool:
    annotation, _ = _bare(annotation, None)
    if annotation in inside:
        return False
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(_has_model(one, (*inside, annotation)) for one in typing.get_args(annotation))


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
    """The places of a result of this type that may be shown, each once, in the order of their declaration. Raises
    InvalidDefinition where annotations in it cannot be resolved."""
    found: dict[str, ResultField] = {}
    for one in _fields(annotation, "", None, ()):
        known = found.get(one.path)
        if known is None:
            found[one.path] = one
        else:  # alternatives of a union meet at one path: the stricter mark, the wider shape
            stricter = max(known, one, key=lambda field: STRICTNESS[field.mark])
            found[one.path] = stricter.model_copy(update={"deep": known.deep or one.deep})
    return tuple(found.values())


def _fields(annotation: Any, path: str, mark: Mark | None, inside: Inside) -> Iterator[ResultField]:
    annotation, mark = _bare(annotation, mark)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    known = next((at for one, as_, at in inside if (one, as_) == (annotation, mark)), None)
    if isinstance(mark, Secret):
        yield _leaf(path, mark, deep=True)
    elif origin in _UNIONS:
        for one in arguments:
            if one is not type(None):
                yield from _fields(one, path, mark, inside)
    elif known is not None:  # a type inside itself has no end to list: it goes on as it did there
        yield ResultField(path=f"{path}{AGAIN}{known}")
    elif _is_alias(origin or annotation):
        named = (*inside, (annotation, mark, path))
        yield from _fields(_aliased(origin or annotation, arguments), path, mark, named)
    elif (parts := _parts(annotation)) is not None:
        named = (*inside, (annotation, mark, path))
        for name, hint in parts.items():
            place = name if not path else path if not name else f"{path}.{name}"
            yield from _fields(hint, place, mark, named)
    elif (positions := _positions(annotation)) is not None:
        yield from _several(positions, path, mark, inside)
    elif _is(origin, collections.abc.Mapping):
        yield from _map(arguments, path, mark, inside)
    elif _is(origin, collections.abc.Iterable) and arguments:
        yield from _fields(arguments[0], f"{path}[]", mark, inside)
    elif origin is typing.Literal:
        yield _leaf(path, mark, deep=False)
    else:
        yield _of_plain_type(annotation, path, mark)


def _bare(annotation: Any, mark: Mark | None) -> tuple[Any, Mark | None]:
    """The type itself, and the mark it has by all that is written around it."""
    while True:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is Annotated:
            mark = _stricter(_mark_of(arguments[1:]), mark)
            annotation = arguments[0]
        elif origin in _WRAPPERS:
            annotation = arguments[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, typing.TypeVar):
            bound = annotation.__constraints__ or (annotation.__bound__ or Any,)
            annotation = typing.Union[bound]  # noqa: UP007  # of as many as there are
        else:
            return annotation, mark


def _mark_of(metadata: typing.Iterable[Any]) -> Mark | None:
    mark: Mark | None = None
    for one in metadata:
        if isinstance(one, (Untrusted, Secret)):
            mark = _stricter(one, mark)
    return mark


def _stricter(own: Mark | None, around: Mark | None) -> Mark | None:
    """What is secret stays so, whatever is written inside; else what is written closest counts."""
    return around if own is None or isinstance(around, Secret) else own


def _parts(annotation: Any) -> dict[str, Any] | None:
    """Types by name of what it is made of; "" names the root itself; None: it is not made of named parts."""
    kind = typing.get_origin(annotation) or annotation
    if not isinstance(kind, type):
        return None
    if issubclass(kind, BaseModel):
        _complete(kind)
        root = issubclass(kind, RootModel)
        parts = {
            "" if root else name: _remarked(field.annotation, field.metadata)
            for name, field in kind.model_fields.items()
        }
        return {**parts, **{name: one.return_type for name, one in kind.model_computed_fields.items()}}
    if dataclasses.is_dataclass(kind) or typing_extensions.is_typeddict(kind):
        return {name: _bound(hint, annotation) for name, hint in _hints(kind).items()}
    return None


def _remarked(annotation: Any, metadata: typing.Iterable[Any]) -> Any:
    """pydantic keeps the marks of a field beside its type."""
    mark = _mark_of(metadata)
    return annotation if mark is None else Annotated[annotation, mark]


def _positions(annotation: Any) -> tuple[Any, ...] | None:
    """The types of a tuple of a fixed length, named or not; it becomes a list, in which places have no names."""
    kind, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if not (isinstance(kind, type) and issubclass(kind, tuple)):
        return None
    if hasattr(kind, "_fields") and getattr(kind, "__annotations__", None):
        return tuple(_bound(hint, annotation) for hint in _hints(kind).values())
    return arguments if arguments and arguments[-1] is not ... else None


def _several(types_: tuple[Any, ...], path: str, mark: Mark | None, inside: Inside) -> Iterator[ResultField]:
    below = [one for type_ in types_ for one in _fields(type_, f"{path}[]", mark, inside)]
    yield from [_leaf(path, mark, deep=True)] if _is_plain(below, path, mark) else below


def _map(arguments: tuple[Any, ...], path: str, mark: Mark | None, inside: Inside) -> Iterator[ResultField]:
    """Each value at the same place, whatever its key; a mark of the keys holds for the map."""
    of_keys = _bare(arguments[0], mark)[1] if arguments else mark
    if isinstance(of_keys, Secret):
        yield _leaf(path, of_keys, deep=True)
        return
    values = arguments[1] if len(arguments) > 1 else Any
    below = list(_fields(values, f"{path}{{}}", mark, inside))
    if _is_plain(below, path, of_keys):
        yield _leaf(path, of_keys, deep=True)
        return
    if of_keys is not None:
        yield _leaf(path, of_keys, deep=False)
    yield from below


def _is_plain(fields: list[ResultField], path: str, mark: Mark | None) -> bool:
    """Nothing in it has a name or a mark of its own, so there is nothing to tell apart."""
    as_around = _leaf(path, mark, deep=False).mark
    return all(not one.path[len(path) :].strip("[]{}") and one.mark == as_around for one in fields)


def _is(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind) and not issubclass(origin, (str, bytes))


def _is_alias(annotation: Any) -> bool:
    aliases = tuple({typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", types.NoneType)})
    return isinstance(annotation, aliases)


def _aliased(alias: Any, arguments: tuple[Any, ...]) -> Any:
    value = alias.__value__
    return _filled(value, dict(zip(alias.__type_params__, arguments, strict=False)))


def _complete(model: type[BaseModel]) -> None:
    """Models that name later ones are finished here."""
    try:
        model.model_rebuild()
    except PydanticUndefinedAnnotation as exc:
        raise _unresolved(model, exc) from exc


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(kind, include_extras=True)
    except Exception as exc:
        raise _unresolved(kind, exc) from exc


def _unresolved(kind: type, exc: Exception) -> InvalidDefinition:
    return InvalidDefinition(
        f"the annotations of {kind.__qualname__}, a part of a tool's result, cannot be resolved ({exc})",
        hint="Import the names it uses at the top level of its module; what is secret in it has to be known.",
    )


def _bound(hint: Any, annotation: Any) -> Any:
    """A part's type with the arguments its generic type was given."""
    kind, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if kind is None:
        return hint
    return _filled(hint, dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False)))


def _filled(hint: Any, known: Mapping[Any, Any]) -> Any:
    if isinstance(hint, typing.TypeVar):
        return known.get(hint, hint)
    open_ = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not open_:
        return hint
    return hint[tuple(known.get(one, one) for one in open_)]


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
