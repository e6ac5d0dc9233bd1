"""Brings a database to the schema of this program, and says politely where that cannot be.

Alembic is imported when something is to be migrated; whether a database is up to date takes one small statement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from toolfleet.adapters.store import dialect
from toolfleet.adapters.store.engine import WRITING, open_engine, parse_url, sqlite_file, translated
from toolfleet.schemas.errors import NewerSchema, NotMigrated

REVISIONS: Final = ("0001", "0002", "0003", "0004")  # oldest first; a test compares them with the scripts
HEAD: Final = REVISIONS[-1]
SCRIPTS: Final = Path(__file__).parent / "migrations"
UPGRADE_HINT: Final = "Bring it up to date: toolfleet db upgrade"
_MIGRATING: Final = 0x746F6F6C  # "tool"


def upgrade(url: str) -> str:
    """Create or migrate the schema; returns the revision it is at. Idempotent, safe beside another upgrade.

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
            _refuse_newer(found)
            if found != HEAD:
                config = Config()
                config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
    finally:
        engine.dispose()
    return HEAD


def check(url: str) -> str:
    """The revision, if this program can work with it. Raises NotMigrated, NewerSchema or StoreUnavailable."""
    found = current(url)
    _refuse_newer(found)
    if found is None:
        raise NotMigrated("the database has no toolfleet schema", hint=UPGRADE_HINT)
    if found != HEAD:
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


def _refuse_newer(found: str | None) -> None:
    if found is not None and found not in REVISIONS:
        raise NewerSchema(
            f"the database is at schema {found}, and this program knows {HEAD} at most",
            hint="Use a newer toolfleet with it. A database is never taken back to an older schema.",
            found=found,
            known=HEAD,
        )
