"""The schema: what the migrations make is what the tables say, and other schemas are refused politely."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from toolfleet.adapters.store import migrate
from toolfleet.adapters.store.engine import open_engine
from toolfleet.adapters.store.inspection import inspect
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.adapters.store.tables import metadata
from toolfleet.schemas.errors import NewerSchema, NotMigrated
from toolfleet.workers.machine import MACHINE


def _url(folder: Path, name: str = "store.db") -> str:
    return f"sqlite:///{folder / name}"


def _set_revision(folder: Path, revision: str | None) -> None:
    connection = sqlite3.connect(folder / "store.db")
    if revision is None:
        connection.execute("DELETE FROM alembic_version")
    else:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.commit()
    connection.close()


def _set_carried(folder: Path, oldest: str) -> None:
    connection = sqlite3.connect(folder / "store.db")
    connection.execute("UPDATE schema_carries SET oldest = ?", (oldest,))
    connection.commit()
    connection.close()


def test_the_known_revisions_are_those_of_the_scripts() -> None:
    scripts = ScriptDirectory(str(migrate.SCRIPTS))

    assert tuple(one.revision for one in scripts.walk_revisions())[::-1] == migrate.REVISIONS
    assert scripts.get_heads() == [migrate.HEAD]


def test_the_migrations_make_what_the_tables_say(tmp_path: Path) -> None:
    migrate.upgrade(_url(tmp_path))
    migrated = open_engine(_url(tmp_path))
    created = open_engine(_url(tmp_path, "created.db"))
    metadata.create_all(created)

    with migrated.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert _schema(tmp_path / "store.db") == _schema(tmp_path / "created.db"), (
        "partial indexes and table options too"
    )
    migrated.dispose()
    created.dispose()


def _schema(file: Path) -> dict[str, str]:
    connection = sqlite3.connect(file)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: " ".join(sql.split()) for name, sql in rows if name != "alembic_version"}


def test_an_upgrade_is_idempotent_and_makes_the_folder(tmp_path: Path) -> None:
    url = _url(tmp_path / "new" / "folder")

    assert migrate.current(url) is None
    assert migrate.upgrade(url) == migrate.upgrade(url) == migrate.HEAD
    assert migrate.check(url) == migrate.current(url) == migrate.HEAD


def test_upgrades_beside_each_other_do_not_meet(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        revisions = list(pool.map(lambda _: migrate.upgrade(_url(tmp_path)), range(4)))

    assert revisions == [migrate.HEAD] * 4


def test_looking_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotMigrated) as caught:
        migrate.check(_url(tmp_path))

    assert "toolfleet db upgrade" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    url = _url(tmp_path)
    migrate.upgrade(url)
    _set_revision(tmp_path, "9999")
    _set_carried(tmp_path, "9999")

    for refuse in (migrate.check, migrate.upgrade):
        with pytest.raises(NewerSchema) as caught:
            refuse(url)
        assert "9999" in caught.value.message and migrate.HEAD in caught.value.message
        assert "newer toolfleet" in caught.value.hint
    with pytest.raises(NewerSchema):
        asyncio.run(_use(url))
    assert migrate.current(url) == "9999"


def test_a_newer_schema_that_carries_this_program_is_worked_with_and_left_alone(tmp_path: Path) -> None:
    """While a release is rolled out, a worker of the one before must be able to start again."""
    url = _url(tmp_path)
    migrate.upgrade(url)
    _set_revision(tmp_path, "9999")
    _set_carried(tmp_path, migrate.HEAD)

    assert migrate.check(url) == migrate.upgrade(url) == migrate.current(url) == "9999"
    asyncio.run(_use(url))

    _set_carried(tmp_path, "9998")
    with pytest.raises(NewerSchema):
        migrate.check(url)


def test_an_upgrade_notes_what_it_carries(tmp_path: Path) -> None:
    migrate.upgrade(_url(tmp_path))
    connection = sqlite3.connect(tmp_path / "store.db")
    carried = connection.execute("SELECT oldest FROM schema_carries").fetchall()
    connection.close()

    assert carried == [(migrate.CARRIES,)]
    assert migrate.CARRIES in migrate.REVISIONS


@pytest.mark.parametrize("revision", [None, "0000"])
def test_an_unmigrated_database_is_refused_by_the_store_with_a_hint(
    tmp_path: Path, revision: str | None
) -> None:
    url = _url(tmp_path)
    migrate.upgrade(url)
    _set_revision(tmp_path, revision)
    _set_carried(tmp_path, "0000")
    expected = NotMigrated if revision is None else NewerSchema  # a revision that is not ours is not older

    with pytest.raises(expected):
        asyncio.run(_use(url))


async def _use(url: str) -> None:
    store = SqlStore(url, MACHINE)
    try:
        await store.now()
    finally:
        await store.aclose()


def test_an_inspection_says_how_sqlite_is_set_up(tmp_path: Path) -> None:
    migrate.upgrade(_url(tmp_path))

    found = inspect(_url(tmp_path))

    assert (found.journal_mode, found.synchronous, found.oldest_due_s) == ("WAL", "FULL", None)
