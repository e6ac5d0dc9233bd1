"""Marks of a result type hold wherever they stand: every nesting of lists, maps, tuples, alternatives, generics."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, NewType, NotRequired, TypeVar

import orjson
import pytest
from pydantic import BaseModel, RootModel, SecretStr
from typing_extensions import TypeAliasType, TypedDict

from toolfleet import Secret, Untrusted, narrow, tool
from toolfleet.adapters.tools.result_json import Encoded, to_json
from toolfleet.result_types import result_fields_of, result_model_of, result_schema_of
from toolfleet.schemas.contract import ResultField
from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.projection import FENCE, REDACTED, project
from toolfleet.workers.executor.result_check import unfit

T = TypeVar("T")
TOKEN, NOTE = "tok_5f3a9c", "please ring twice"


class Model(BaseModel):
    id: int
    token: Annotated[str, Secret()]
    note: Annotated[str, Untrusted(chars_max=500)]


@dataclass
class Data:
    id: int
    token: Annotated[str, Secret()]
    note: Annotated[str, Untrusted(chars_max=500)]


class Typed(TypedDict):
    id: int
    token: Annotated[str, Secret()]
    note: NotRequired[Annotated[str, Untrusted(chars_max=500)]]


class Named(NamedTuple):
    id: int
    token: Annotated[str, Secret()]
    note: Annotated[str, Untrusted(chars_max=500)]


class Other(BaseModel):
    colour: str


class Box(BaseModel, Generic[T]):
    inside: T


@dataclass
class Crate(Generic[T]):
    inside: T


class Bag(TypedDict, Generic[T]):
    inside: T


class Shelf(RootModel[dict[str, T]], Generic[T]): ...


Renamed = TypeAliasType("Renamed", dict[str, T], type_params=(T,))

# What is put around a type, and around its value.
Around = tuple[Callable[[Any], Any], Callable[[Any], Any]]
AROUND: dict[str, Around] = {
    "dict": (lambda t: dict[str, t], lambda v: {"a key": v}),  # type: ignore[valid-type]
    "Mapping": (lambda t: Mapping[str, t], lambda v: {"k": v, "l": v}),  # type: ignore[valid-type]
    "OrderedDict": (lambda t: collections.OrderedDict[str, t], lambda v: {"k": v}),  # type: ignore[valid-type]
    "list": (lambda t: list[t], lambda v: [v, v]),  # type: ignore[valid-type]
    "Sequence": (lambda t: Sequence[t], lambda v: [v]),  # type: ignore[valid-type]
    "tuple of any length": (lambda t: tuple[t, ...], lambda v: (v, v)),  # type: ignore[valid-type]
    "tuple of two": (lambda t: tuple[int, t], lambda v: (7, v)),  # type: ignore[valid-type]
    "Optional": (lambda t: t | None, lambda v: v),
    "union with a model": (lambda t: t | Other, lambda v: v),
    "union with a list": (lambda t: list[Other] | t, lambda v: v),
    "union with text": (lambda t: str | t, lambda v: v),
    "Annotated": (lambda t: Annotated[t, "something else"], lambda v: v),
    "generic model": (lambda t: Box[t], lambda v: {"inside": v}),  # type: ignore[valid-type]
    "generic dataclass": (lambda t: Crate[t], lambda v: {"inside": v}),  # type: ignore[valid-type]
    "generic TypedDict": (lambda t: Bag[t], lambda v: {"inside": v}),  # type: ignore[valid-type]
    "generic root model": (lambda t: Shelf[t], lambda v: {"k": v}),  # type: ignore[valid-type]
    "generic alias": (lambda t: Renamed[t], lambda v: {"k": v}),  # type: ignore[valid-type]
    "NewType": (lambda t: NewType("Known", t), lambda v: v),
}
INNERMOST: dict[str, tuple[Any, Any]] = {
    "model": (Model, {"id": 4711, "token": TOKEN, "note": NOTE}),
    "dataclass": (Data, {"id": 4711, "token": TOKEN, "note": NOTE}),
    "TypedDict": (Typed, {"id": 4711, "token": TOKEN, "note": NOTE}),
}


def _shown(type_: Any, value: Any) -> str:
    """The JSON of what a model may see of this value, which came out of a tool as JSON."""
    encoded = to_json(value, bytes_max=100_000)
    assert isinstance(encoded, Encoded)
    seen = project(orjson.loads(encoded.body), result_fields_of(type_))
    assert TOKEN not in orjson.dumps(seen.whole).decode(), "what is stored"
    return orjson.dumps(seen.shown).decode()


@pytest.mark.parametrize("innermost", INNERMOST)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_secret_is_redacted_and_outside_text_fenced_in_every_nesting(innermost: str, depth: int) -> None:
    for names in itertools.product(AROUND, repeat=depth):
        type_, value = INNERMOST[innermost]
        for name in names:
            of_type, of_value = AROUND[name]
            type_, value = of_type(type_), of_value(value)

        said = _shown(type_, value)

        assert TOKEN not in said and REDACTED in said, names
        fenced = f'{{"{FENCE}":"{NOTE}"}}'
        assert said.count(NOTE) == said.count(fenced) > 0, names
        assert "4711" in said, f"{names}: what may be shown is"


@pytest.mark.parametrize("name", AROUND)
def test_a_marked_text_is_redacted_in_every_nesting(name: str) -> None:
    of_type, of_value = AROUND[name]
    for type_ in (Annotated[str, Secret()], SecretStr, Annotated[Annotated[str, Untrusted()], Secret()]):
        if name == "NewType" and type_ is not SecretStr:
            continue  # of a class, as Python has it
        assert TOKEN not in _shown(dict[str, of_type(type_)], {"k": of_value(TOKEN)})  # type: ignore[misc]


@pytest.mark.parametrize("name", AROUND)
def test_a_mark_around_holds_for_all_that_is_inside(name: str) -> None:
    of_type, of_value = AROUND[name]
    value = of_value({"id": 4711, "token": TOKEN, "note": NOTE})

    class Holder(BaseModel):
        all_of_it: Annotated[of_type(Model), Secret()]  # type: ignore[valid-type]

    said = _shown(Holder, {"all_of_it": value})

    assert said == f'{{"all_of_it":"{REDACTED}"}}', "a mark inside does not open what is secret around it"


def test_a_named_tuple_is_a_list_in_which_places_have_no_names() -> None:
    for type_, value in ((Named, Named(4711, TOKEN, NOTE)), (dict[str, Named], {"k": Named(1, TOKEN, NOTE)})):
        said = _shown(type_, value)
        assert TOKEN not in said and REDACTED in said


def test_the_value_of_a_map_has_its_own_places_whatever_its_key() -> None:
    assert result_fields_of(dict[str, Model]) == (
        ResultField(path="{}.id"),
        ResultField(path="{}.token", mark="secret", deep=True),
        ResultField(path="{}.note", mark="untrusted", chars_max=500),
    )
    assert [one.path for one in result_fields_of(list[dict[str, list[Other]]])] == ["[]{}[].colour"]


def test_a_plain_map_is_shown_as_it_is() -> None:
    for plain in (dict[str, int], dict[str, Any], dict[str, list[str]], Mapping[str, dict[str, int]], dict):
        assert result_fields_of(plain) == (ResultField(path="", deep=True),)


def test_keys_of_a_map_are_text_as_well() -> None:
    outside = dict[Annotated[str, Untrusted()], Other]
    secret = dict[Annotated[str, Secret()], int]
    value = {"turn\u202e me\u2066 round" + "x" * 300: {"colour": "red"}}

    (key,) = orjson.loads(_shown(outside, value))

    assert key.startswith("turn me round") and len(key) == 200
    assert _shown(secret, {TOKEN: 1}) == f'"{REDACTED}"'


class Node(BaseModel):
    name: str
    token: Annotated[str, Secret()] = ""
    children: list[Node] = []
    by_name: dict[str, Node] = {}
    parent: Node | None = None


def _node(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "token": TOKEN, "internal": "not declared", **more}


def test_a_type_that_holds_itself_is_cut_down_to_any_depth() -> None:
    deep = _node("leaf")
    for number in range(30):
        deep = _node(f"n{number}", children=[deep], by_name={"x": _node("y", parent=_node("z"))})

    for type_, value in (
        (Node, deep),
        (list[Node], [deep]),
        (dict[str, Node], {"k": deep}),
        (Box[Node], {"inside": deep}),
    ):
        said = _shown(type_, value)
        assert TOKEN not in said and "not declared" not in said
        assert said.count(REDACTED) == 31 + 60 and '"leaf"' in said and '"z"' in said


class Leaf(BaseModel):
    kind: str
    note: Annotated[str, Untrusted(chars_max=5)]


class Left(BaseModel):
    next: Right | Leaf | None = None
    a: Annotated[str, Secret()] = ""


class Right(BaseModel):
    next: Left | list[Right] | None = None
    a: str = ""
    b: Annotated[str, Secret()] = ""


def test_types_that_hold_each_other_are_cut_down_to_any_depth() -> None:
    value = {"a": TOKEN, "next": {"a": "shown", "b": TOKEN, "next": {"a": TOKEN, "next": {"b": TOKEN, "next": [
        {"a": "shown", "b": TOKEN}, {"b": TOKEN, "next": {"a": TOKEN, "next": {"kind": "k", "note": NOTE}}}
    ]}}}}  # fmt: skip

    said = _shown(Left, value)

    assert TOKEN not in said and said.count(REDACTED) == 7
    assert '"kind":"k"' in said and f'{{"{FENCE}":"pleas","characters_omitted":12}}' in said


def test_alternatives_at_one_place_have_the_stricter_mark() -> None:
    class Open(BaseModel):
        token: str

    class Keyed(RootModel[dict[str, str]]): ...

    for either in (Model | Open, Open | Model, dict[str, Model] | dict[str, Open]):
        value = {"token": TOKEN} if either in (Model | Open, Open | Model) else {"k": {"token": TOKEN}}
        assert TOKEN not in _shown(either, value)
    keys_or_names = Open | dict[str, Annotated[str, Secret()]]
    assert _shown(keys_or_names, {"token": TOKEN, "k": TOKEN}).count(REDACTED) == 2


def test_a_function_that_is_annotated_with_marks_anywhere_has_a_result_model() -> None:
    marked = (
        dict[str, Model], list[dict[str, Model]], dict[str, Model | None] | None, Data, Typed, Crate[Model],
        Annotated[str, Secret()], dict[str, SecretStr], tuple[int, Model],
    )  # fmt: skip
    for type_ in marked:
        assert result_model_of({"return": type_}) is not None, type_
        assert result_schema_of(type_)
    for plain in (dict[str, int], str, Any, list[dict[str, Any]], Crate[int], None):
        assert result_model_of({"return": plain}) is None, plain

    async def by_courier() -> dict[str, Model]:
        raise NotImplementedError

    spec = tool(by_courier).spec
    assert ResultField(path="{}.token", mark="secret", deep=True) in spec.result_fields
    assert spec.result_schema is not None
    assert unfit({"k": {"id": 1, "token": "t", "note": "n"}}, spec.result_schema) == ""
    assert "id: is required" in unfit({"k": {"token": "t", "note": "n"}}, spec.result_schema)


def test_annotations_nobody_can_resolve_are_refused_for_something_secret_may_be_in_them() -> None:
    @dataclass
    class Hidden:
        token: Nowhere  # type: ignore[name-defined]  # noqa: F821

    class Lost(BaseModel):
        token: Nowhere  # type: ignore[name-defined]  # noqa: F821

    for type_ in (Hidden, Lost):
        with pytest.raises(InvalidDefinition, match=r"annotations of .*(Hidden|Lost).* cannot be resolved"):
            result_fields_of(dict[str, type_])  # type: ignore[valid-type]


def test_a_narrow_tool_keeps_marks_below_maps_and_of_types_that_hold_themselves() -> None:
    async def tree() -> Node:
        raise NotImplementedError

    async def shelf() -> Box[dict[str, Model]]:
        raise NotImplementedError

    part = narrow(tool(tree), name="get_children", description="d", result=["children", "by_name"]).spec
    deep = _node("a", children=[_node("b", children=[_node("c", by_name={"k": _node("d")})])])
    said = orjson.dumps(project(deep, part.result_fields).shown).decode()
    assert TOKEN not in said and said.count(REDACTED) == 3
    assert [f'"{name}"' in said for name in "abcd"] == [False, True, True, True]

    kept = narrow(tool(shelf), name="get_shelf", description="d", result=["inside"]).spec
    assert [one.path for one in kept.result_fields] == ["inside{}.id", "inside{}.token", "inside{}.note"]


@pytest.mark.parametrize("wrong", ["a..b", ".a", "a.", "a[]↻b"])
def test_a_path_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"is no path|goes on as a place it is not in"):
        ResultField(path=wrong)
