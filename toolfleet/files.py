"""The front door of files that are handed in: taken in piece by piece, kept, looked at, deleted, swept up. Never held in memory.

Bytes are written first and their row after them, in one place that every replica sees; deleting goes the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import structlog

from toolfleet.schemas.batches import FILE_BYTES_MAX
from toolfleet.schemas.errors import InputError, QuotaExceeded, TooLarge, UnknownFile
from toolfleet.schemas.files import (
    FILE_KEEP_S,
    FILE_KEEP_S_MAX,
    FILE_KEEP_S_MIN,
    FILE_NAME_CHARS_MAX,
    ORPHAN_S,
    TENANT_BYTES_MAX,
    FileBytes,
    FilePart,
    FileStore,
    StoredFile,
)
from toolfleet.schemas.ids import new_file_id

log = structlog.get_logger("toolfleet.files")

WRITE_BYTES: Final = (
    1 << 18
)  # what is gathered before it is written: a thread for each small piece would cost more
READ_BYTES: Final = 1 << 18


@dataclass(slots=True)
class Incoming:
    """A file that is coming in. Its end is `keep` or `drop`; without either, a sweep finds it later."""

    file_id: str
    _part: FilePart
    _bytes_max: int
    size_bytes: int = 0
    added: bool = False  # its row is there, or may be: then its bytes stay
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)
    _held: bytearray = field(default_factory=bytearray)

    @property
    def sha256(self) -> str:
        """Of all of it, once it is `whole`."""
        return self._hash.hexdigest()

    async def take(self, data: bytes) -> None:
        """The next piece. Raises TooLarge before anything above the cap is written; FilesUnavailable."""
        self.size_bytes += len(data)
        if self.size_bytes > self._bytes_max:
            raise TooLarge(
                f"a file may have {self._bytes_max} bytes",
                hint="Split it: a batch has at most 50000 requests, and there may be many batches.",
            )
        self._held += data
        if len(self._held) >= WRITE_BYTES:
            await self._write()

    async def whole(self) -> None:
        """All of it is on the disk when this returns."""
        await self._write()
        await asyncio.to_thread(self._part.keep)

    async def _write(self) -> None:
        data, self._held = bytes(self._held), bytearray()

        def write() -> None:
            self._hash.update(data)
            self._part.write(data)

        await asyncio.to_thread(write)

    def drop(self) -> None:
        self._part.drop()


@dataclass(slots=True)
class Files:
    """Over any store and any place for bytes. Where a `tenant` is given, files of others are unknown ones."""

    store: FileStore
    bytes: FileBytes
    bytes_max: int = FILE_BYTES_MAX
    tenant_bytes_max: int = TENANT_BYTES_MAX

    @contextlib.asynccontextmanager
    async def incoming(self) -> AsyncIterator[Incoming]:
        """A file to be filled, then handed to `add`; where it is not, nothing of it is left behind."""
        file_id = new_file_id()
        coming = Incoming(file_id, await asyncio.to_thread(self.bytes.begin, file_id), self.bytes_max)
        try:
            yield coming
        finally:
            if not coming.added:  # not in a thread: what cancels this must not keep it from happening
                coming.drop()
                self.bytes.remove(file_id)

    async def add(
        self,
        coming: Incoming,
        *,
        name: str,
        tenant: str,
        created_by: str = "",
        purpose: str = "batch",
        keep_s: float = FILE_KEEP_S,
    ) -> StoredFile:
        """Its row, once its bytes are whole. Raises InputError, QuotaExceeded."""
        if not FILE_KEEP_S_MIN <= keep_s <= FILE_KEEP_S_MAX:
            raise InputError(
                f"a file is kept for {FILE_KEEP_S_MIN:.0f} to {FILE_KEEP_S_MAX:.0f} seconds, not {keep_s:g}",
                hint="2592000 are 30 days.",
            )
        file = StoredFile(
            coming.file_id,
            tenant,
            plain_name(name),
            purpose,
            coming.size_bytes,
            coming.sha256,
            created_by,
        )
        coming.added = True  # also where the answer of the database is lost: a sweep finds out
        try:
            return await self.store.add(file, keep_s=keep_s, tenant_bytes_max=self.tenant_bytes_max)
        except QuotaExceeded:
            coming.added = False
            raise

    async def get(self, file_id: str, *, tenant: str | None = None) -> StoredFile:
        """Raises UnknownFile."""
        found = await self.store.file(file_id, tenant=tenant)
        if found is None:
            raise UnknownFile(f"no file is called {file_id!r}", hint="List them: GET /api/v1/files")
        return found

    async def list(
        self, *, limit: int = 20, before: str | None = None, tenant: str | None = None
    ) -> Sequence[StoredFile]:
        """Newest first; `before` is the id of the last one of the page before. Raises UnknownFile."""
        if before is not None:
            await self.get(before, tenant=tenant)  # a cursor nobody knows would look like the end
        return await self.store.files(limit=limit, before=before, tenant=tenant)

    async def open(self, file: StoredFile) -> BinaryIO:
        """Its bytes. Raises FilesUnavailable."""
        return await asyncio.to_thread(self.bytes.open, file.file_id)

    async def delete(self, file_id: str, *, tenant: str | None = None) -> None:
        """For good. Batches that were made of it go on. Raises UnknownFile."""
        await self.get(file_id, tenant=tenant)
        await self.store.remove(file_id)
        await asyncio.to_thread(self.bytes.remove, file_id)

    async def sweep(self, *, still_s: float = ORPHAN_S) -> int:
        """Delete what has expired, and bytes that no row names and nobody has written to for that long; how many."""
        still = await asyncio.to_thread(self.bytes.still, for_s=still_s)
        known = await self.store.known(still)
        gone = [one for one in still if one not in known]
        for file_id in gone:
            await asyncio.to_thread(self.bytes.remove, file_id)
        if gone:
            log.info("files_swept", count=len(gone))
        return len(gone)


async def read_through(file: BinaryIO) -> AsyncIterator[bytes]:
    """Its bytes, a piece at a time; it is closed at the end, and when nobody reads on."""
    try:
        while piece := await asyncio.to_thread(file.read, READ_BYTES):
            yield piece
    finally:
        file.close()


def plain_name(name: str) -> str:
    """The last part of what the sender calls it, without anything a terminal or a header could trip over."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(one for one in last if one.isprintable())
    return kept[:FILE_NAME_CHARS_MAX]
