"""Where a command works: the settings in force, the fleet of `-A` if there is one, the database and its lock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from toolfleet.client import Client
    from toolfleet.fleet import Fleet
    from toolfleet.settings import Settings

Front = TypeVar("Front")
Answer = TypeVar("Answer")

SQLITE_MAGIC = b"SQLite format 3\0"  # https://sqlite.org/fileformat.html, section 1.3.1


@dataclass(frozen=True, slots=True)
class Place:
    """The settings in force, and the fleet they belong to where an app was given."""

    settings: Settings
    fleet: Fleet | None


def locate(
    app: str | None,
    database: str | None,
    *,
    broker: str | None = None,
    cache: str | None = None,
    approvals: str | None = None,
    needs_fleet: bool = False,
) -> Place:
    """Settings of the command line, else of the app, else of the environment.

    Without `needs_fleet` the app is loaded only where its database has to be asked for. Raises InputError for an app
    that cannot be loaded, UnsafeSettings for a setting that is wrong, StoreUnavailable for a file that is no database.
    """
    if app is not None and (needs_fleet or database is None):
        from toolfleet.loading import load_fleet

        fleet = load_fleet(app)
        fleet.configure(database=database, broker=broker, cache=cache, approvals=approvals)
        settings = fleet.settings
    else:
        from toolfleet.settings import load_settings

        fleet = None
        settings = load_settings(database=database, broker=broker, cache=cache, approvals=approvals)
    _refuse_other_files(settings)
    return Place(settings, fleet)


def _refuse_other_files(settings: Settings) -> None:
    """What is not empty and no SQLite file is somebody else's: say so before any library trips over it."""
    from toolfleet.schemas.errors import StoreUnavailable

    path = database_file(settings.database)
    if path is None or not path.exists():
        return
    with path.open("rb") as file:
        start = file.read(len(SQLITE_MAGIC))
    if start and start != SQLITE_MAGIC:
        raise StoreUnavailable(
            f"{path.resolve()} is no SQLite database",
            hint="Name another file with --database; nothing was changed.",
        )


def database_file(database: str) -> Path | None:
    """The file of an SQLite database; None for any other database. Raises UnsafeSettings."""
    from toolfleet.adapters.store.engine import parse_url

    url = parse_url(database)
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database)


def shown(database: str) -> str:
    """The URL without its password."""
    from toolfleet.adapters.store.engine import parse_url

    return parse_url(database).render_as_string(hide_password=True)


def holder(settings: Settings) -> str | None:
    """The process that runs the embedded fleet of this database, or None."""
    from toolfleet.adapters.folder_lock import FolderLock
    from toolfleet.app import lock_path

    return FolderLock(lock_path(settings.database)).holder()


@contextlib.asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Client]:
    """A client of a database that is there and migrated; no workers. Raises NotMigrated, NewerSchema."""
    from toolfleet.app import open_store
    from toolfleet.client import Client

    require_file(settings)
    store = open_store(settings)
    try:
        yield Client(store)
    finally:
        await store.aclose()


def ask(
    app: str | None,
    database: str | None,
    front: Callable[[Client], Front],
    question: Callable[[Front], Awaitable[Answer]],
) -> Answer:
    """What a front door over that database answers. `front` makes it of a client."""

    async def asked() -> Answer:
        async with opened(locate(app, database).settings) as client:
            return await question(front(client))

    return asyncio.run(asked())


def require_migrated(settings: Settings) -> None:
    """Refuses a database that is not there, not migrated, or newer. Raises NotMigrated, NewerSchema."""
    from toolfleet.adapters.store.migrate import check

    require_file(settings)
    check(settings.database)


def require_file(settings: Settings) -> None:
    """Refuses an SQLite file that is not there; SQLite itself would make an empty one. Raises NotMigrated."""
    from toolfleet.schemas.errors import NotMigrated

    path = database_file(settings.database)
    if path is not None and not path.exists():
        raise NotMigrated(
            f"there is no database at {path.resolve()}",
            hint="`toolfleet up` makes one, and `toolfleet db upgrade` too; or name another with --database or -A.",
        )
