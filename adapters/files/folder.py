"""The bytes of files in a folder: one that every replica sees, be it a disk, a network file system or a mounted object store.

What is coming in is written beside (`….part`) and renamed when it is whole and on the disk: nobody reads half a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from toolfleet.schemas.errors import FilesUnavailable

ID: Final = re.compile(r"file_[0-9a-f]{32}")
PART: Final = ".part"


class FolderFiles:
    """FileBytes in a folder; it is made when it is not there. Files are of this user only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, file_id: str) -> FolderPart:
        with _told(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return FolderPart(self._path(file_id))

    def open(self, file_id: str) -> BinaryIO:
        with _told(self._folder):
            return self._path(file_id).open("rb")

    def remove(self, file_id: str) -> None:
        path = self._path(file_id)
        with _told(self._folder):
            path.unlink(missing_ok=True)
            _part(path).unlink(missing_ok=True)

    def still(self, *, for_s: float) -> list[str]:
        before = time.time() - for_s  # the file system's own clock may differ by less than this is long
        found = set()
        with _told(self._folder), os.scandir(self._folder) as entries:
            for entry in entries:
                name = entry.name.removesuffix(PART)
                if ID.fullmatch(name) is None:
                    continue  # somebody else's
                with contextlib.suppress(FileNotFoundError):  # another replica was faster
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        found.add(name)
        return sorted(found)

    def check(self) -> None:
        probe = self._folder / f".probe-{os.getpid()}"
        with _told(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe.touch()
            probe.unlink(missing_ok=True)

    def _path(self, file_id: str) -> Path:
        assert ID.fullmatch(file_id) is not None, "ids are ours, and no path of anybody's"
        return self._folder / file_id


class FolderPart:
    """FilePart beside `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = _part(path)
        self._file = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", 0)

    def write(self, data: bytes) -> None:
        with _told(self._path.parent):
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]

    def keep(self) -> None:
        with _told(self._path.parent):
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._path)

    def drop(self) -> None:
        with _told(self._path.parent):
            self._file.close()
            self._part.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    return path.with_name(path.name + PART)


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise FilesUnavailable(
            f"files cannot be kept or read: {exc.strerror or type(exc).__name__}",
            hint="The folder of TOOLFLEET_FILES has to be there, with room, and the same for every replica.",
            folder=str(folder),
        ) from exc
