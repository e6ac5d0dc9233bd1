"""Files that were handed in over HTTP, as data and as ports: a row in the database, and bytes in one place for all replicas.

Rows are the truth. Bytes come before their row and go after it, so a row always has its bytes, and bytes without a row are
of somebody who is at work, or died: they are swept up when they have been still for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

FILE_KEEP_S: Final = 30 * 86_400.0
FILE_KEEP_S_MIN: Final = 3600.0
FILE_KEEP_S_MAX: Final = 30 * 86_400.0
FILE_NAME_CHARS_MAX: Final = 255
TENANT_BYTES_MAX: Final = 5_000_000_000  # of all files of a tenant that are kept
ORPHAN_S: Final = 3600.0  # bytes that nobody has written to for so long, and no row names, are nobody's


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is there whole. `name` is what its sender calls it, and never a path of ours."""

    file_id: str
    tenant: str
    name: str
    purpose: str
    size_bytes: int
    sha256: str
    created_by: str
    created_at: float = 0.0
    expires_at: float = 0.0


class FileStore(Protocol):
    """Rows of files. Times are the database's. One that has expired is there no more; an id of another tenant is an
    unknown one where a tenant is given."""

    async def add(self, file: StoredFile, *, keep_s: float, tenant_bytes_max: int) -> StoredFile:
        """With its times. Raises QuotaExceeded (files_bytes) where its tenant keeps too much with it."""
        ...

    async def file(self, file_id: str, *, tenant: str | None = None) -> StoredFile | None: ...

    async def files(
        self, *, limit: int, before: str | None = None, tenant: str | None = None
    ) -> list[StoredFile]:
        """Newest first; `before` is the cursor."""
        ...

    async def kept_bytes(self, tenant: str) -> int:
        """Of all files of the tenant."""
        ...

    async def remove(self, file_id: str) -> bool:
        """Whether there was a row."""
        ...

    async def known(self, file_ids: Sequence[str]) -> set[str]:
        """Those that have a row, which has not expired. Rows that have are deleted."""
        ...


class FilePart(Protocol):
    """Bytes that are coming in. All methods block: not for an event loop."""

    def write(self, data: bytes) -> None: ...

    def keep(self) -> None:
        """They are whole, and on the disk when this returns."""
        ...

    def drop(self) -> None:
        """Nothing of them is left. Harmless when repeated, and after `keep`."""
        ...


class FileBytes(Protocol):
    """Where bytes are: one place for every replica. All methods block, and raise FilesUnavailable."""

    def begin(self, file_id: str) -> FilePart: ...

    def open(self, file_id: str) -> BinaryIO: ...

    def remove(self, file_id: str) -> None:
        """Harmless when repeated."""
        ...

    def still(self, *, for_s: float) -> list[str]:
        """Ids of bytes, whole ones and parts, that nobody has written to for so long."""
        ...

    def check(self) -> None:
        """Whether they can be written."""
        ...
