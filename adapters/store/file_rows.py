"""Rows of files that were handed in: the table as the newest migration leaves it, statements, and the port over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from sqlalchemy import Column, Connection, Index, Table, Text, bindparam, delete, func, insert, select

from toolfleet.adapters.store.codec import Row
from toolfleet.adapters.store.columns import count, real, text_
from toolfleet.adapters.store.dialect import members
from toolfleet.adapters.store.sql_batches import Runs
from toolfleet.adapters.store.tables import metadata
from toolfleet.schemas.errors import QuotaExceeded
from toolfleet.schemas.files import StoredFile

T = TypeVar("T")
RETRY_S: Final = 3600.0  # somebody has to delete something

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    text_("tenant"),
    text_("name"),
    text_("purpose"),
    count("size_bytes"),
    text_("sha256"),
    text_("created_by"),
    real("created_at"),
    real("expires_at"),
    Index("ix_files_tenant", "tenant", "id"),
)

_THERE: Final = files.c.expires_at > bindparam("now")
OF_ID: Final = select(files).where(files.c.id == bindparam("file_id"), _THERE)
KEPT: Final = select(func.coalesce(func.sum(files.c.size_bytes), 0)).where(
    files.c.tenant == bindparam("tenant"), _THERE
)
REMOVE: Final = delete(files).where(files.c.id == bindparam("file_id"))
FORGET: Final = delete(files).where(files.c.expires_at <= bindparam("now"))
KNOWN: Final = select(files.c.id).where(members(files.c.id, "file_ids"))


def add(
    connection: Connection, now: float, file: StoredFile, keep_s: float, tenant_bytes_max: int
) -> StoredFile:
    kept = kept_bytes(connection, now, file.tenant)
    if kept + file.size_bytes > tenant_bytes_max:
        raise QuotaExceeded(
            f"files of tenant {file.tenant!r} may have {tenant_bytes_max} bytes together; they have {kept}",
            hint="Delete what is not needed any more: a batch that was created does not need its file.",
            quota="files_bytes",
            retry_after_s=RETRY_S,
        )
    stored = replace(file, created_at=now, expires_at=now + keep_s)
    values = {name: getattr(stored, name) for name in files.c.keys() if name != "id"}  # noqa: SIM118 - no dict
    connection.execute(insert(files), {"id": stored.file_id, **values})
    return stored


def found(connection: Connection, now: float, file_id: str, tenant: str | None) -> StoredFile | None:
    row = connection.execute(OF_ID, {"file_id": file_id, "now": now}).mappings().one_or_none()
    if row is None or (tenant is not None and row["tenant"] != tenant):
        return None
    return _file(row)


def newest(
    connection: Connection, now: float, limit: int, before: str | None, tenant: str | None
) -> list[StoredFile]:
    statement = select(files).where(_THERE).order_by(files.c.id.desc()).limit(limit)
    if tenant is not None:
        statement = statement.where(files.c.tenant == tenant)
    if before is not None:
        statement = statement.where(files.c.id < before)
    return [_file(row) for row in connection.execute(statement, {"now": now}).mappings()]


def kept_bytes(connection: Connection, now: float, tenant: str) -> int:
    return int(connection.execute(KEPT, {"tenant": tenant, "now": now}).scalar_one())


def known(connection: Connection, now: float, file_ids: Sequence[str]) -> set[str]:
    connection.execute(FORGET, {"now": now})
    return {id_ for (id_,) in connection.execute(KNOWN, {"file_ids": list(file_ids)})}


def _file(row: Row) -> StoredFile:
    values = {name: row[name] for name in row if name != "id"}
    return StoredFile(file_id=row["id"], **values)


class SqlFiles:
    """FileStore: each method one transaction or one reading of the store it belongs to."""

    def __init__(self, time: Callable[[Connection], float], *, write: Runs, read: Runs) -> None:
        self._time = time
        self._write = write
        self._read = read

    async def add(self, file: StoredFile, *, keep_s: float, tenant_bytes_max: int) -> StoredFile:
        return await self._write(lambda c: add(c, self._time(c), file, keep_s, tenant_bytes_max))

    async def file(self, file_id: str, *, tenant: str | None = None) -> StoredFile | None:
        return await self._read(lambda c: found(c, self._time(c), file_id, tenant))

    async def files(
        self, *, limit: int, before: str | None = None, tenant: str | None = None
    ) -> list[StoredFile]:
        return await self._read(lambda c: newest(c, self._time(c), limit, before, tenant))

    async def kept_bytes(self, tenant: str) -> int:
        return await self._read(lambda c: kept_bytes(c, self._time(c), tenant))

    async def remove(self, file_id: str) -> bool:
        return await self._write(lambda c: c.execute(REMOVE, {"file_id": file_id}).rowcount == 1)

    async def known(self, file_ids: Sequence[str]) -> set[str]:
        return await self._write(lambda c: known(c, self._time(c), file_ids))
