"""Schema versions: upgrade, check, and a polite refusal of a database that is newer than this program."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from toolfleet.adapters.sqlstore.engine import parse_url, writing_engine
from toolfleet.adapters.sqlstore.writer import unavailable
from toolfleet.schemas.errors import NewerSchema, NotMigrated


def head() -> str:
    """The revision this program knows."""
    found = ScriptDirectory(str(_folder())).get_current_head()
    assert found is not None, "the migrations are part of the package"
    return found


def verify(connection: Connection) -> None:
    """Raises NotMigrated or NewerSchema where the database is not at the revision this program knows."""
    at = MigrationContext.configure(connection).get_current_revision()
    if at is None:
        raise NotMigrated(
            "the database has no tables of toolfleet", hint="Make them with: toolfleet db upgrade"
        )
    if at == head():
        return
    if at in {script.revision for script in ScriptDirectory(str(_folder())).walk_revisions()}:
        raise NotMigrated(
            f"the database is at revision {at}, and this program needs {head()}",
            hint="Run: toolfleet db upgrade",
        )
    raise NewerSchema(
        f"the database is at revision {at}, which this program (revision {head()}) does not know",
        hint="A newer toolfleet wrote it: use that version. Nothing was changed.",
    )


def current(database: str) -> str | None:
    """The revision of the database, or None where it has none."""
    engine = writing_engine(database)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except OperationalError as exc:
        raise unavailable(exc) from exc
    finally:
        engine.dispose()


def check(database: str) -> str:
    """The revision, if it is the one this program needs. Raises NotMigrated, NewerSchema, StoreUnavailable."""
    engine = writing_engine(database)
    try:
        with engine.connect() as connection:
            verify(connection)
    except OperationalError as exc:
        raise unavailable(exc) from exc
    finally:
        engine.dispose()
    return head()


def upgrade(database: str) -> str:
    """Bring the database to the revision of this program, in one transaction; idempotent. Returns the revision.

    Raises NewerSchema where the database is ahead of this program: nothing is changed then.
    """
    url = parse_url(database)
    if url.get_backend_name() == "sqlite" and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = writing_engine(database)
    try:
        with engine.begin() as connection:
            try:
                verify(connection)
            except NotMigrated:
                config = Config()
                config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
    except OperationalError as exc:
        raise unavailable(exc) from exc
    finally:
        engine.dispose()
    return head()


def _folder() -> Path:
    return Path(__file__).parent / "migrations"
