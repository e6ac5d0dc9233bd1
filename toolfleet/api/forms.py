"""A multipart form with one file in it, read as it comes: the file goes where files are kept, and nothing of it is held.

The parser is that of python-multipart; a form parser that collects files would put them into temporary ones first, which
in a container may be memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from toolfleet.api.problems import Problem, ProblemRaised
from toolfleet.files import Incoming
from toolfleet.schemas.errors import InputError

FIELD_BYTES_MAX: Final = 1000
PARTS_MAX: Final = 8
FILE: Final = "file"


@dataclass(frozen=True, slots=True)
class Form:
    """`file_name`: what the sender calls its file; `fields`: the rest, as texts."""

    file_name: str
    fields: Mapping[str, str]


@dataclass(slots=True)
class _Part:
    """What is known of one part: its headers, then its name and whether it is the file."""

    disposition: bytearray = field(default_factory=bytearray)
    name: str = ""
    file_name: str | None = None


@dataclass(slots=True)
class _Reading:
    """The parser's callbacks, which may not wait: what is of the file is put aside until it is written."""

    parts: int = 0
    part: _Part = field(default_factory=_Part)
    header: bytearray = field(default_factory=bytearray)
    of_file: list[bytes] = field(default_factory=list)
    file_name: str | None = None
    fields: dict[str, bytearray] = field(default_factory=dict)
    ended: bool = False

    def on_part_begin(self) -> None:
        self.parts += 1
        self.part = _Part()
        if self.parts > PARTS_MAX:
            raise _bad(f"it has more than {PARTS_MAX} parts")

    def on_header_begin(self) -> None:
        self.header.clear()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        if self.header.lower() == b"content-disposition":
            self.part.disposition += data[start:end]

    def on_headers_finished(self) -> None:
        kind, options = parse_options_header(bytes(self.part.disposition))
        if kind != b"form-data" or not options.get(b"name"):
            raise _bad("a part has no name")
        part = self.part
        part.name = options[b"name"].decode(errors="backslashreplace")[:100]
        if part.name in self.fields or (part.name == FILE and self.file_name is not None):
            raise _bad(f"the field {part.name!r} is there twice")
        if b"filename" in options:
            part.file_name = options[b"filename"].decode(errors="backslashreplace")
            if part.name != FILE:
                raise _bad(f"the file is in the field {part.name!r}; it has to be in {FILE!r}")
            self.file_name = part.file_name
        elif part.name == FILE:
            raise _bad(f"the field {FILE!r} is no file: it has no filename")
        else:
            self.fields[part.name] = bytearray()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self.part.file_name is not None:
            self.of_file.append(data[start:end])
            return
        value = self.fields[self.part.name]
        value += data[start:end]
        if len(value) > FIELD_BYTES_MAX:
            raise _bad(f"the field {self.part.name!r} has more than {FIELD_BYTES_MAX} bytes")

    def on_end(self) -> None:
        self.ended = True


async def read_form(request: Request, coming: Incoming) -> Form:
    """The form; its file is in `coming`, and on the disk. Raises ProblemRaised, TooLarge, FilesUnavailable."""
    _, options = parse_options_header(request.headers.get("content-type"))
    reading = _Reading()
    callbacks = {name: getattr(reading, name) for name in dir(reading) if name.startswith("on_")}
    try:
        parser = MultipartParser(options.get(b"boundary", b""), callbacks)  # type: ignore[arg-type]  # a TypedDict
        if b"boundary" not in options:
            raise _bad("its Content-Type names no boundary")
        async for chunk in request.stream():
            parser.write(chunk)
            for piece in reading.of_file:
                await coming.take(piece)
            reading.of_file.clear()
    except FormParserError as exc:
        raise _bad(str(exc)[:200]) from None
    if not reading.ended:
        raise _bad("it ends before its closing boundary")
    if reading.file_name is None:
        raise InputError(
            f"the form has no file in the field {FILE!r}", hint=f"curl -F purpose=batch -F {FILE}=@in.jsonl"
        )
    await coming.whole()
    return Form(
        reading.file_name, {name: value.decode(errors="replace") for name, value in reading.fields.items()}
    )


def _bad(why: str) -> ProblemRaised:
    return ProblemRaised(
        Problem(400, "bad_form", f"the form cannot be read: {why}", "Send multipart/form-data (RFC 7578).")
    )
