"""Every statement of the store compiles for PostgreSQL too, with the locks of PROTOCOL R2; and values survive a row."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Executable
from sqlalchemy.engine import make_url
from sqlalchemy.sql.base import Executable as AnyExecutable
from sqlalchemy.sql.elements import ClauseElement

from toolfleet.adapters.store import (
    access_rows,
    agents,
    apply,
    batch,
    codec,
    dead,
    fleet_rows,
    load,
    reads,
    relay,
)
from toolfleet.schemas.conversation import (
    AssistantItem,
    Item,
    ItemCall,
    ItemResult,
    MergeItem,
    NoticeItem,
    UserItem,
)
from toolfleet.schemas.outcomes import CallOutcome

POSTGRESQL = make_url("postgresql+psycopg://").get_dialect()()
SQLITE = make_url("sqlite://").get_dialect()()
MODULES = (access_rows, agents, apply, batch, dead, fleet_rows, load, reads, relay)


def _statements(module: ModuleType) -> dict[str, Executable]:
    found: dict[str, Executable] = {}
    for name, value in vars(module).items():
        if isinstance(value, AnyExecutable):
            found[name] = value
        elif isinstance(value, dict) and all(isinstance(one, AnyExecutable) for one in value.values()):
            found |= {f"{name}.{key}": one for key, one in value.items()}
    return found


STATEMENTS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": statement
    for module in MODULES
    for name, statement in _statements(module).items()
}


def _postgres(name: str) -> str:
    statement = STATEMENTS[name]
    assert isinstance(statement, ClauseElement)
    return " ".join(str(statement.compile(dialect=POSTGRESQL)).split())


def test_the_statements_are_found() -> None:
    assert len(STATEMENTS) > 40


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_compiles_for_both_databases(name: str) -> None:
    statement = STATEMENTS[name]
    assert isinstance(statement, ClauseElement)

    assert "json_each" not in _postgres(name) and "julianday" not in _postgres(name)
    assert "FOR UPDATE" not in str(statement.compile(dialect=SQLITE))


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("load.LOCKED_RUNS", "ORDER BY runs.id FOR NO KEY UPDATE OF runs"),
        ("load.LOCKED_COMMANDS", "ORDER BY commands.run_id, commands.id FOR UPDATE"),
        ("relay.HOLDERS", "ORDER BY commands.run_id, commands.id FOR UPDATE"),
        ("relay.MARKED", "ORDER BY commands.id FOR UPDATE SKIP LOCKED"),
    ],
)
def test_locks_are_taken_in_order(name: str, ending: str) -> None:
    assert _postgres(name).endswith(ending)


@pytest.mark.parametrize("name", ["load.RUNS", "load.COMMANDS", "load.CALLS", "reads.PEEK", "relay.DUE"])
def test_what_only_reads_takes_no_lock(name: str) -> None:
    assert "FOR" not in _postgres(name).split()


def test_lists_are_one_parameter_and_time_is_that_of_the_statement() -> None:
    assert "runs.id = ANY(%(run_ids)s" in _postgres("load.RUNS")
    assert "clock_timestamp()" in _postgres("load.NOW")


@pytest.mark.parametrize("name", ["apply.INSERT_RESULTS", "apply.INSERT_DEAD", "relay.NEW_BROKER"])
def test_a_key_that_is_there_wins(name: str) -> None:
    assert _postgres(name).endswith("ON CONFLICT DO NOTHING")


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(_TEXT, children, max_size=3),
    max_leaves=8,
)
_ITEMS: st.SearchStrategy[Item] = st.one_of(
    st.builds(UserItem, text=_TEXT),
    st.builds(NoticeItem, text=_TEXT),
    st.builds(
        AssistantItem,
        text=st.none() | _TEXT,
        calls=st.lists(st.builds(ItemCall, _TEXT, _TEXT, _TEXT, _TEXT), max_size=3).map(tuple),
        by_runtime=st.booleans(),
        wire=st.none() | _TEXT,
        provider=st.none() | st.dictionaries(_TEXT, _JSON, max_size=3),
    ),
    st.builds(
        MergeItem,
        st.lists(st.builds(ItemResult, _TEXT, _TEXT, st.sampled_from(CallOutcome), _TEXT), max_size=3).map(
            tuple
        ),
    ),
)


@given(_ITEMS)
def test_an_item_is_read_back_as_it_was(item: Item) -> None:
    assert codec.item_of(codec.dump(item)) == item


def test_an_item_of_a_later_version_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="hologram"):
        codec.item_of('{"kind":"hologram"}')
