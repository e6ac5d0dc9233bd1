"""One embedded fleet per database file: a lock the operating system frees when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from toolfleet.schemas.errors import FleetBusy

TRIES = 3  # whoever only looks (`holder`) has the lock for a moment
TRY_AGAIN_S = 0.02


class FolderLock:
    """Held from `acquire` to `release` or the end of the process. Raises FleetBusy naming the holder's process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(fd):
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise FleetBusy(
                f"a fleet is running already on this database (process {holder}, lock {self.path.name})",
                hint="Submit to it with `toolfleet run`, stop it, or give this one another --database.",
                holder=holder,
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    @property
    def held(self) -> bool:
        return self._fd is not None

    def holder(self) -> str | None:
        """The process that holds the lock (its id as text), or None. Does not take it."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # A shared lock for a moment: two that ask at once do not see each other.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        finally:
            os.close(fd)
        return None

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _locked(fd: int) -> bool:
    for tries_left in reversed(range(TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tries_left:
                time.sleep(TRY_AGAIN_S)
        else:
            return True
    return False
