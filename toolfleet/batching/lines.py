"""Lines of a file, split on LF and on nothing else, in bounded memory.

Text may hold U+2028, U+2029 or U+0085 inside a JSON string; a reader that splits there cuts valid lines in the middle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

CHUNK_BYTES: Final = 65_536
UTF8_BOM: Final = b"\xef\xbb\xbf"
UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")  # also the beginning of UTF-32 in little endian
# Written as they are they are valid JSON, and yet other readers of the file may split there.
_SEPARATORS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


class Readable(Protocol):
    """A file opened for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line without its end; `data` None: it is longer than allowed and was skipped."""

    number: int
    data: bytes | None


class LineSource:
    """Reads the lines of `source` once. `bytes_read` and `sha256` are of what was read so far; reading stops where
    `file_bytes_max` is passed, and `too_large` says so."""

    def __init__(self, source: Readable, *, line_bytes_max: int, file_bytes_max: int) -> None:
        self._source = source
        self._line_bytes_max = line_bytes_max
        self._file_bytes_max = file_bytes_max
        self._hash = hashlib.sha256()
        self.bytes_read = 0
        self.too_large = False
        self.start = b""  # the first bytes, where a mark of the encoding may be

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[RawLine]:
        """At most one line and one chunk are held, whatever the file is like."""
        number, held, skipping = 1, bytearray(), False
        for chunk in self._chunks():
            begin = 0
            while (end := chunk.find(b"\n", begin)) >= 0:
                held += chunk[begin:end]
                yield self._line(number, None if skipping or len(held) > self._line_bytes_max else held)
                number, begin, skipping = number + 1, end + 1, False
                held.clear()
            if not skipping:
                held += chunk[begin:]
            if len(held) > self._line_bytes_max + len(UTF8_BOM):
                skipping = True
                held.clear()
        if (held or skipping) and not self.too_large:
            yield self._line(number, None if skipping else held)

    def _chunks(self) -> Iterator[bytes]:
        while chunk := self._source.read(CHUNK_BYTES):
            if not self.bytes_read:
                self.start = chunk[:4]
            self.bytes_read += len(chunk)
            if self.bytes_read > self._file_bytes_max:
                self.too_large = True
                return
            self._hash.update(chunk)
            yield chunk

    @staticmethod
    def _line(number: int, data: bytearray | None) -> RawLine:
        if data is None:
            return RawLine(number, None)
        line = bytes(data)
        if number == 1:
            line = line.removeprefix(UTF8_BOM)
        return RawLine(number, line.removesuffix(b"\r"))


def json_line(body: bytes) -> bytes:
    """JSON text as one line of a file, with every character escaped that some reader takes for a line's end."""
    for found, escaped in _SEPARATORS:
        body = body.replace(found, escaped)
    return body + b"\n"
