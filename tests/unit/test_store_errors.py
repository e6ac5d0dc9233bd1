"""What an error of PostgreSQL means to the callers of a store: unavailable, to be tried again, or theirs."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from toolfleet.adapters.store.engine import is_infrastructure, is_passing, unavailable
from toolfleet.schemas.errors import NotMigrated, StoreUnavailable


def error_of(sqlstate: str) -> DBAPIError:
    """As SQLAlchemy raises it: its class is that of the driver's class."""
    cause = psycopg.errors.lookup(sqlstate)(f"said {sqlstate}")
    raised = DBAPIError.instance("SELECT 1", {}, cause, psycopg.Error)
    assert isinstance(raised, DBAPIError)
    return raised


@pytest.mark.parametrize(
    "sqlstate",
    [
        "08000",
        "08006",
        "25006",
        "25P03",
        "42501",
        "42P01",
        "53100",
        "53200",
        "53300",
        "55P03",
        "57014",
        "57P01",
        "57P02",
        "57P03",
        "57P05",
        "58030",
        "40001",
        "40P01",
        "XX001",
    ],
)
def test_the_database_cannot_be_used_for_now(sqlstate: str) -> None:
    assert is_infrastructure(error_of(sqlstate))
    assert isinstance(unavailable(error_of(sqlstate)), StoreUnavailable | NotMigrated)


@pytest.mark.parametrize(
    "sqlstate",
    [
        "22001",
        "22003",
        "22021",
        "22P05",
        "23502",
        "23503",
        "23505",
        "25P02",
        "42601",
        "42703",
        "54000",
        "XX000",
    ],
)
def test_a_statement_or_a_value_is_at_fault(sqlstate: str) -> None:
    assert not is_infrastructure(error_of(sqlstate))
    assert not is_passing(error_of(sqlstate))


@pytest.mark.parametrize(("sqlstate", "passing"), [("40001", True), ("40P01", True), ("55P03", False)])
def test_what_may_succeed_at_once_is_tried_again(sqlstate: str, passing: bool) -> None:
    assert is_passing(error_of(sqlstate)) is passing


def test_a_connection_that_cannot_be_made_has_no_sqlstate_and_is_unavailable() -> None:
    raised = OperationalError("", {}, psycopg.OperationalError("connection failed"))

    assert is_infrastructure(raised) and is_infrastructure(PoolTimeout("no connection came free"))


def test_a_missing_table_says_how_to_make_it() -> None:
    told = unavailable(error_of("42P01"))

    assert isinstance(told, NotMigrated) and "db upgrade" in told.hint
