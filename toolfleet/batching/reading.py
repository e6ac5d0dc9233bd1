"""Reads a batch file line by line: each line becomes a request or a fault that names it. Never holds the file.

Three formats: that of the OpenAI Batch API (`custom_id, method, url, body`; `model` names an agent), and plain JSONL or
CSV, whose rows are put into a template for one agent.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal

from toolfleet.batching.bodies import ENDPOINTS, RUNS, BodyRefused, asked
from toolfleet.batching.lines import UTF16_BOMS, LineSource, RawLine, Readable
from toolfleet.client import RunRequest
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.batches import (
    CUSTOM_ID_CHARS_MAX,
    FAULTS_MAX,
    FILE_BYTES_MAX,
    LINE_BYTES_MAX,
    REQUESTS_MAX,
    BatchFault,
    NewItem,
)
from toolfleet.schemas.errors import InputError
from toolfleet.schemas.run import NewRun

Format = Literal["openai", "jsonl", "csv"]
NAMES_TOLD: Final = 8
_PLACE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How a file is read. `endpoint`: the url every line has to name (None: that of the first line). Plain formats:
    `agent` and `template` (`"Ticket {id}: {text}"`), and the field of the row that is its id."""

    format: Format = "openai"
    endpoint: str | None = None
    agent: str | None = None
    template: str = "{input}"
    id_field: str = "custom_id"
    requests_max: int = REQUESTS_MAX
    line_bytes_max: int = LINE_BYTES_MAX
    file_bytes_max: int = FILE_BYTES_MAX
    faults_max: int = FAULTS_MAX


class _Wrong(Exception):
    def __init__(self, code: str, message: str, param: str | None = None, also: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.also = code, message, param, also


class BatchReader:
    """One reading of one file. Iterate once; then `endpoint`, `requests`, `ignored` and `sha256` are of the whole.

    `new_run` makes the run of a request, or raises InputError; `permitted`: whether the caller may use that agent. What is held of each line is a hash of its id.
    """

    def __init__(
        self,
        source: Readable,
        rules: ReadingRules,
        agents: Mapping[str, AgentSpec],
        new_run: Callable[[RunRequest, AgentSpec], NewRun],
        permitted: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._rules = rules
        self._agents = agents
        self._new_run = new_run
        self._permitted = permitted
        self._lines = LineSource(
            source, line_bytes_max=rules.line_bytes_max, file_bytes_max=rules.file_bytes_max
        )
        self._seen: dict[bytes, int] = {}  # hash of an id -> its line
        self.endpoint = rules.endpoint if rules.format == "openai" else RUNS
        self.requests = 0
        self.blank = 0
        self.ignored: dict[str, int] = {}

    @property
    def sha256(self) -> str:
        return self._lines.sha256

    @property
    def bytes_read(self) -> int:
        return self._lines.bytes_read

    def __iter__(self) -> Iterator[NewItem | BatchFault]:
        """Items and faults in the order of the file; it ends early after `faults_max` faults, and says so."""
        faults = 0
        for found in self._found():
            yield found
            if isinstance(found, BatchFault):
                faults += 1
                if faults >= self._rules.faults_max:
                    yield BatchFault(
                        "too_many_errors",
                        f"the file was not read further than line {found.line}: it has {faults} errors so far",
                        found.line,
                    )
                    return

    def _found(self) -> Iterator[NewItem | BatchFault]:
        number = 0
        rows = self._csv_rows() if self._rules.format == "csv" else self._json_rows()
        for number, row in rows:
            if isinstance(row, BatchFault):
                yield row
                if row.code == "wrong_encoding" and self._is_utf16():
                    return  # every further line would say the same
                continue
            if self.requests >= self._rules.requests_max:
                most = self._rules.requests_max
                yield BatchFault(
                    "too_many_requests",
                    f"a file holds at most {most} requests; split it at line {number}",
                    number,
                )
                return
            self.requests += 1
            yield self._item(number, row)
        if self._lines.too_large:
            most = self._rules.file_bytes_max
            yield BatchFault("file_too_large", f"a file has at most {most} bytes; split it", number or None)
        elif not self.requests and not number:
            yield BatchFault("empty_file", "the file holds no request", None)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _json_rows(self) -> Iterator[tuple[int, dict[str, Any] | BatchFault]]:
        for line in self._lines:
            try:
                if line.data is not None and not line.data.strip():
                    self._blank(line.number)
                    continue
                yield line.number, _object(self._text(line))
            except _Wrong as wrong:
                yield line.number, _fault(line.number, wrong)

    def _blank(self, number: int) -> None:
        """Plain files are written by hand, and a blank line of theirs means nothing; the format of OpenAI has none."""
        if self._rules.format == "openai":
            raise _Wrong("blank_line", "the line is blank; each line is one request")
        self.blank += 1

    def _text(self, line: RawLine) -> str:
        if line.data is None:
            raise _Wrong("line_too_long", f"a line has at most {self._rules.line_bytes_max} bytes")
        if self._is_utf16():
            raise _Wrong("wrong_encoding", "the file is UTF-16 or UTF-32; save it as UTF-8")
        try:
            return line.data.decode()
        except UnicodeDecodeError as exc:
            message = f"byte {exc.start + 1} of the line is not UTF-8; save the file as UTF-8"
            raise _Wrong("wrong_encoding", message) from None

    def _is_utf16(self) -> bool:
        return self._lines.start.startswith(UTF16_BOMS)

    def _csv_rows(self) -> Iterator[tuple[int, dict[str, Any] | BatchFault]]:
        """A quoted field may hold line ends, so a row is named by the line it ends on."""
        at = 0

        def texts() -> Iterator[str]:
            nonlocal at
            for line in self._lines:
                at = line.number
                yield self._text(line) + "\n"

        reader = csv.reader(texts(), strict=True)
        header: list[str] | None = None
        while True:
            try:
                row = next(reader)
                if header is None:
                    header = _header(row)
                elif not row:
                    self.blank += 1
                elif len(row) != len(header):
                    raise _Wrong(
                        "wrong_columns", f"the row has {len(row)} fields, and the header {len(header)}"
                    )
                else:
                    yield at, dict(zip(header, row, strict=True))
            except StopIteration:
                return
            except _Wrong as wrong:
                yield at, _fault(at, wrong)
                if header is None or wrong.code in ("line_too_long", "wrong_encoding"):
                    return  # `texts` ended with it
            except csv.Error as exc:
                yield at, BatchFault("invalid_csv", f"not CSV: {exc}", at, lines=(at,))
                return  # where the next row begins cannot be known

    # -- one row -----------------------------------------------------------------------------------------------------

    def _item(self, number: int, row: dict[str, Any]) -> NewItem | BatchFault:
        try:
            custom_id = self._custom_id(number, row)
            request = self._of_openai(row) if self._rules.format == "openai" else self._of_template(row)
            return NewItem(number, custom_id, self._new_run(request, self._agent(request.agent)))
        except (_Wrong, BodyRefused) as wrong:
            return _fault(number, wrong)
        except InputError as exc:
            return BatchFault(exc.code, f"{exc.message}. {exc.hint}".strip(), number, "body", (number,))

    def _custom_id(self, number: int, row: dict[str, Any]) -> str:
        name = self._rules.id_field if self._rules.format != "openai" else "custom_id"
        given = row.get(name)
        if given is None or given == "":
            raise _Wrong("missing_custom_id", f"the line has no {name}", name)
        if not isinstance(given, str) or len(given) > CUSTOM_ID_CHARS_MAX or not _is_text(given):
            raise _Wrong(
                "invalid_custom_id", f"{name} has to be a text of 1 to {CUSTOM_ID_CHARS_MAX} characters", name
            )
        key = blake2b(given.encode(), digest_size=16).digest()
        first = self._seen.setdefault(key, number)
        if first != number:
            message = f"{name} {_short(given)} is that of line {first} too; each has to be its own"
            raise _Wrong("duplicate_custom_id", message, name, first)
        return given

    def _of_openai(self, row: dict[str, Any]) -> RunRequest:
        unknown = sorted(row.keys() - {"custom_id", "method", "url", "body"})
        if unknown:
            known = "custom_id, method, url and body"
            raise _Wrong(
                "unknown_field", f"the line has {unknown[:NAMES_TOLD]}; it holds {known}", unknown[0]
            )
        if row.get("method") != "POST":
            raise _Wrong(
                "invalid_method", f"method has to be POST, not {_short(row.get('method'))}", "method"
            )
        url = row.get("url")
        if not isinstance(url, str) or url not in ENDPOINTS:
            raise _Wrong("invalid_url", f"url {_short(url)} is none of: {', '.join(ENDPOINTS)}", "url")
        if self.endpoint is None:
            self.endpoint = url
        if url != self.endpoint:
            raise _Wrong("mixed_endpoints", f"url is {url}, and that of the batch {self.endpoint}", "url")
        body = row.get("body")
        if not isinstance(body, dict):
            raise _Wrong("invalid_value", "body has to be an object", "body")
        found = asked(url, body)
        for name in found.ignored:
            if name in self.ignored or len(self.ignored) < 100:  # names are the file's: not without measure
                self.ignored[name] = self.ignored.get(name, 0) + 1
        return found.request

    def _of_template(self, row: dict[str, Any]) -> RunRequest:
        assert self._rules.agent is not None, "plain formats name their agent"

        def value(place: re.Match[str]) -> str:
            if place.group() in ("{{", "}}"):
                return place.group()[0]
            name = place.group(1).strip()
            if name not in row:
                known = ", ".join(sorted(row)[:NAMES_TOLD])
                raise _Wrong("missing_field", f"the template asks for {name!r}; the line has {known}", name)
            given = row[name]
            return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)

        return RunRequest(self._rules.agent, _PLACE.sub(value, self._rules.template))

    def _agent(self, name: str) -> AgentSpec:
        found = self._agents.get(name)
        if found is None:
            known = ", ".join(list(filter(self._permitted, sorted(self._agents)))[:NAMES_TOLD]) or "none"
            raise _Wrong("unknown_agent", f"no agent is called {_short(name)}; known: {known}", "body.model")
        if not self._permitted(name):
            raise _Wrong("agent_not_permitted", f"you may not use agent {_short(name)}", "body.model")
        return found


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _Wrong("invalid_json", "the JSON is nested too deeply") from None
    except ValueError as exc:
        raise _Wrong("invalid_json", f"not JSON: {str(exc)[:200]}") from None
    if not isinstance(value, dict):
        raise _Wrong("invalid_json", f"the line has to be an object, not {type(value).__name__}")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _header(row: list[str]) -> list[str]:
    if not row or any(not name.strip() for name in row) or len(set(row)) != len(row):
        raise _Wrong("invalid_header", "the first line has to name the columns, each once")
    return [name.strip() for name in row]


def _is_text(value: str) -> bool:
    return "\x00" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return ascii(text if len(text) <= 80 else f"{text[:79]}…")


def _fault(number: int, wrong: _Wrong | BodyRefused) -> BatchFault:
    also = wrong.also if isinstance(wrong, _Wrong) else None
    lines = (number,) if also is None else (also, number)
    return BatchFault(wrong.code, wrong.message, number, wrong.param, lines)
