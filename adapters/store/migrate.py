"""Brings a database to the schema of this program, and says politely where that cannot be.

A database may be one release ahead of a program: it notes the oldest schema whose programs it still carries, so that
workers of the release before can go on, and be started again, while a new one is rolled out.

Alembic is imported when something is to be migrated; whether a database is up to date takes one small statement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from toolfleet.adapters.store import dialect
from toolfleet.adapters.store.engine import WRITING, open_engine, parse_url, sqlite_file, translated
from toolfleet.schemas.errors import NewerSchema, NotMigrated

# Oldest first; a test compares them with the scripts.
REVISIONS: Final = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
)
HEAD: Final = REVISIONS[-1]
# The programs of this schema and later ones can work with a database at HEAD. A migration that takes away or renames
# what they use moves it up to itself; one that only adds (with defaults) leaves it.
CARRIES: Final = "0005"
SCRIPTS: Final = Path(__file__).parent / "migrations"
UPGRADE_HINT: Final = "Bring it up to date: toolfleet db upgrade"
_MIGRATING: Final = 0x746F6F6C  # "tool"


def upgrade(url: str) -> str:
    """Create or migrate the schema; returns the revision it is at. Idempotent, safe beside another upgrade.

    A database that is ahead and carries this program is left as it is.

    Raises NewerSchema, StoreUnavailable; then nothing was changed.
    """
    from alembic import command
    from alembic.config import Config

    file = sqlite_file(parse_url(url))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    engine = open_engine(url)
    try:
        with translated(), engine.connect().execution_options(**WRITING) as connection, connection.begin():
            dialect.without_timeouts(connection)
            dialect.one_at_a_time(connection, _MIGRATING)
            dialect.impatient(connection)
            found = revision_of(connection)
            if _is_newer(connection, found):
                assert found is not None
                return found
            if found != HEAD:
                config = Config()
                config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                connection.execute(text("UPDATE schema_carries SET oldest = :oldest"), {"oldest": CARRIES})
    finally:
        engine.dispose()
    return HEAD


def check(url: str) -> str:
    """The revision, if this program can work with it. Raises NotMigrated, NewerSchema or StoreUnavailable."""
    file = sqlite_file(parse_url(url))
    found, newer = None, False
    if file is None or file.exists():
        engine = open_engine(url)
        try:
            with translated(), engine.connect() as connection:
                found = revision_of(connection)
                newer = _is_newer(connection, found)
        finally:
            engine.dispose()
    if found is None:
        raise NotMigrated("the database has no toolfleet schema", hint=UPGRADE_HINT)
    if found != HEAD and not newer:
        raise NotMigrated(
            f"the database is at schema {found}, and this program needs {HEAD}",
            hint=UPGRADE_HINT,
            found=found,
            needed=HEAD,
        )
    return found


def current(url: str) -> str | None:
    """The revision of the database; None where it has no schema of ours, or no file. Makes nothing."""
    file = sqlite_file(parse_url(url))
    if file is not None and not file.exists():
        return None
    engine = open_engine(url)
    try:
        with translated(), engine.connect() as connection:
            return revision_of(connection)
    finally:
        engine.dispose()


def revision_of(connection: Connection) -> str | None:
    """The revision that is noted in the database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return None if found is None else str(found)


def _is_newer(connection: Connection, found: str | None) -> bool:
    """Whether it is ahead of this program and carries it all the same. Raises NewerSchema where it does not."""
    if found is None or found in REVISIONS:
        return False
    oldest = None
    if inspect(connection).has_table("schema_carries"):
        oldest = connection.execute(text("SELECT oldest FROM schema_carries")).scalar_one_or_none()
    if oldest in REVISIONS:
        return True
    raise NewerSchema(
        f"the database is at schema {found}, and this program knows {HEAD} at most",
        hint="Use a newer toolfleet with it. A database is never taken back to an older schema.",
        found=found,
        known=HEAD,
    )
