"""Stored agent definitions: immutable under (name, version); which version of a name came last is what changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, func, select, update

from toolfleet.adapters.store.dialect import insert_new, one_at_a_time
from toolfleet.adapters.store.tables import agents
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.views import AgentVersion

_REGISTERING: Final = 0x6167656E  # "agen"
_RANKS: Final = select(agents.c.name, func.max(agents.c.rank)).group_by(agents.c.name)
_NEW: Final = insert_new(agents)
_LAST: Final = (
    update(agents)
    .where(agents.c.name == bindparam("key_name"), agents.c.version == bindparam("key_version"))
    .values(rank=bindparam("rank"), registered_at=bindparam("registered_at"))
)
_ONE: Final = select(agents.c.spec).where(
    agents.c.name == bindparam("name"), agents.c.version == bindparam("version")
)
_LATEST: Final = (
    select(agents.c.spec)
    .where(agents.c.name == bindparam("name"))
    .order_by(agents.c.rank.desc(), agents.c.version)
    .limit(1)
)
_newest = _RANKS.subquery("newest")
_ALL: Final = (
    select(agents.c.spec)
    .join(_newest, and_(_newest.c[0] == agents.c.name, _newest.c[1] == agents.c.rank))
    .order_by(agents.c.name)
)


_VERSIONS: Final = select(agents.c.version, agents.c.registered_at, agents.c.spec).order_by(
    agents.c.name, agents.c.rank.desc(), agents.c.version
)


def register(connection: Connection, specs: Sequence[AgentSpec], now: float) -> None:
    """Each spec is the last one of its name from now on."""
    one_at_a_time(connection, _REGISTERING)  # else two processes give out the same rank
    ranks: dict[str, int] = {name: rank for name, rank in connection.execute(_RANKS)}
    for spec in specs:
        rank = ranks[spec.name] = ranks.get(spec.name, 0) + 1
        connection.execute(
            _NEW,
            {
                "name": spec.name,
                "version": spec.version,
                "rank": rank,
                "registered_at": now,
                "spec": spec.model_dump_json(),
            },
        )
        connection.execute(
            _LAST,
            {"key_name": spec.name, "key_version": spec.version, "rank": rank, "registered_at": now},
        )


def agent(connection: Connection, name: str, version: str | None) -> AgentSpec | None:
    statement, asked = (_LATEST, {"name": name})
    if version is not None:
        statement, asked = (_ONE, {"name": name, "version": version})
    row = connection.execute(statement, asked).one_or_none()
    return None if row is None else _spec(row)


def latest(connection: Connection) -> list[AgentSpec]:
    """For each name the spec registered last, by name."""
    return [_spec(row) for row in connection.execute(_ALL)]


def versions(connection: Connection, name: str | None) -> list[AgentVersion]:
    """Every version of one agent, or of all: by name, the one registered last first."""
    asked = _VERSIONS if name is None else _VERSIONS.where(agents.c.name == name)
    return [
        AgentVersion(row.version, row.registered_at, AgentSpec.model_validate_json(row.spec))
        for row in connection.execute(asked)
    ]


def _spec(row: Row[Any]) -> AgentSpec:
    return AgentSpec.model_validate_json(row[0])
