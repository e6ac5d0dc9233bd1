"""Columns and indexes as the tables of this package write them. Conventions: see `tables.py`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    Text,
    text,
)


def text_(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def whole(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def count(name: str) -> Column[int]:
    """As many as a provider says: its numbers are not ours to trust, and PostgreSQL refuses what is too large."""
    return Column(name, BigInteger().with_variant(Integer, "sqlite"), nullable=False)


def real(name: str) -> Column[float]:
    return Column(name, Double, nullable=False)


def flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


def empty(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, server_default="")


def partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    """An index of the rows for which `where` holds, on both databases."""
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))
