"""Reading a batch file: every line a request or a fault that names it, in bounded memory."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from toolfleet.adapters.store.memory import MemoryStore
from toolfleet.batching.lines import json_line
from toolfleet.batching.reading import BatchReader, ReadingRules
from toolfleet.client import Client
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.batches import BatchFault, NewItem
from toolfleet.workers.machine import MACHINE

AGENTS = {name: AgentSpec(name=name, model="m", instructions="") for name in ("desk", "triage")}
OPENAI = ReadingRules()
PLAIN = ReadingRules(format="jsonl", agent="desk")
CSV = ReadingRules(format="csv", agent="desk", template="{subject}: {text}", id_field="id")


def reader(source: bytes | Any, rules: ReadingRules) -> BatchReader:
    client = Client(MemoryStore(MACHINE, time_source=lambda: 0.0))
    return BatchReader(
        io.BytesIO(source) if isinstance(source, bytes) else source, rules, AGENTS, client.new_run
    )


def read(source: bytes, rules: ReadingRules = OPENAI) -> tuple[list[NewItem], list[BatchFault]]:
    found = list(reader(source, rules))
    items = [one for one in found if isinstance(one, NewItem)]
    return items, [one for one in found if isinstance(one, BatchFault)]


def line(custom_id: str = "a", *, url: str = "/v1/chat/completions", **over: Any) -> dict[str, Any]:
    body = {"model": "desk", "messages": [{"role": "user", "content": "hello"}]}
    if url == "/v1/responses":
        body = {"model": "desk", "input": "hello"}
    if url == "/v1/runs":
        body = {"agent": "desk", "input": "hello"}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **over}


def file(*lines: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def with_body(**fields: Any) -> bytes:
    one = line()
    one["body"] |= fields
    return file(one)


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/responses", "/v1/runs"])
def test_a_line_of_each_endpoint_is_a_request(url: str) -> None:
    items, faults = read(file(line("x", url=url)))

    assert faults == []
    assert [(one.line, one.custom_id, one.run.agent, one.run.input) for one in items] == [
        (1, "x", "desk", "hello")
    ]


def test_parts_of_text_are_one_text_and_limits_are_tightened() -> None:
    parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]

    (item,), _ = read(
        with_body(messages=[{"role": "user", "content": parts}], max_tokens=17, metadata={"k": "v"})
    )

    assert (item.run.input, item.run.limits.output_tokens_max) == ("two parts", 17)
    assert item.run.limits.turns_max == AGENTS["desk"].limits.turns_max
    assert item.run.metadata == {"k": "v"}


def test_what_only_tunes_the_model_is_left_out_and_counted() -> None:
    source = reader(
        file(*({**line(str(n)), "body": {**line()["body"], "temperature": 0}} for n in range(3))),
        ReadingRules(),
    )

    assert len([one for one in source if isinstance(one, NewItem)]) == 3
    assert source.ignored == {"temperature": 3}


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"[1]", "invalid_json", None),
        (b'{"custom_id": NaN}', "invalid_json", None),
        (b"[" * 100_000, "invalid_json", None),
        (b"", "blank_line", None),
        (b"  \t", "blank_line", None),
        (b"\xff\xfe", "wrong_encoding", None),
        (b'{"custom_id": "\xe4"}', "wrong_encoding", None),
        (file({**line(), "custom_id": None}).strip(), "missing_custom_id", "custom_id"),
        (file(line("")).strip(), "missing_custom_id", "custom_id"),
        (file({**line(), "custom_id": 7}).strip(), "invalid_custom_id", "custom_id"),
        (file(line("i" * 257)).strip(), "invalid_custom_id", "custom_id"),
        (file(line("nul\x00")).strip(), "invalid_custom_id", "custom_id"),
        (file(line("half\ud800")).strip(), "invalid_custom_id", "custom_id"),
        (file(line(method="GET")).strip(), "invalid_method", "method"),
        (file(line(url="/v1/embeddings")).strip(), "invalid_url", "url"),
        (file(line(url=None)).strip(), "invalid_url", "url"),
        (file(line(body="text")).strip(), "invalid_value", "body"),
        (file(line(priority=1)).strip(), "unknown_field", "priority"),
        (with_body(model="nobody").strip(), "unknown_agent", "body.model"),
        (with_body(model=3).strip(), "invalid_value", "body.model"),
        (with_body(tools=[{}]).strip(), "unsupported_parameter", "body.tools"),
        (with_body(stream=True).strip(), "unsupported_parameter", "body.stream"),
        (with_body(n=2).strip(), "unsupported_parameter", "body.n"),
        (with_body(max_tokens=0).strip(), "invalid_value", "body"),
        (with_body(metadata={"a": 1}).strip(), "invalid_input", "body"),
        (with_body(messages=[]).strip(), "unsupported_input", "body.messages"),
        (with_body(messages=[{"role": "system", "content": "obey"}]).strip(), "unsupported_input", "body.messages"),
        (with_body(messages=[{"role": "user", "content": " "}]).strip(), "invalid_input", "body"),
        (
            with_body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]).strip(),
            "unsupported_input",
            "body.messages[0].content",
        ),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_the_others_are_read(text: bytes, code: str, param: str | None) -> None:
    source = file(line("first")) + text + b"\n" + file(line("last"))

    items, faults = read(source)

    assert [one.custom_id for one in items] == ["first", "last"]
    assert [(one.code, one.line, one.param) for one in faults] == [(code, 2, param)]
    assert len(faults[0].message) < 400


def test_lines_with_one_id_are_both_named() -> None:
    # B079: two lines with one custom_id made a batch hang for ever; ids are compared exactly
    raw = (
        '{"custom_id": "a", "input": "1"}\n{"custom_id": "b", "input": "2"}\n{"custom_id": "A", "input": "3"}\n'
        '{"custom_id": "b", "input": "4"}\n{"input": "5"}\n{"custom_id": "a ", "input": "6"}\n'
    )

    items, faults = read(raw.encode(), PLAIN)

    assert [(one.code, one.lines) for one in faults] == [
        ("duplicate_custom_id", (2, 4)),
        ("missing_custom_id", (5,)),
    ]
    assert [one.custom_id for one in items] == ["a", "b", "A", "a "]


def test_lines_end_at_lf_and_nowhere_else() -> None:
    # B081: a reader that also splits at Unicode separators cuts valid lines in the middle
    raw = (
        '\ufeff{"custom_id": "1", "t": "a\u2028b"}\r\n{"custom_id": "2", "t": "a\u2029b"}\n'
        '{"custom_id": "3", "t": "a\u0085b"}\n{"custom_id": "4", "t": "a\\fb"}\n\n{"custom_id": "5", "t": "end"}'
    )
    rules = ReadingRules(format="jsonl", agent="desk", template="{t}")

    items, faults = read(raw.encode(), rules)

    assert faults == []
    texts = [one.run.input for one in items]
    assert texts == ["a\u2028b", "a\u2029b", "a\u0085b", "a\fb", "end"]
    assert [one.line for one in items] == [1, 2, 3, 4, 6]
    written = [json_line(json.dumps({"t": text}, ensure_ascii=False).encode()) for text in texts]
    assert all(len(one.decode().splitlines()) == 1 for one in written), "no reader splits what we write"
    assert [json.loads(one)["t"] for one in written] == texts


def test_all_lines_name_one_endpoint() -> None:
    lines = (line("a", url="/v1/responses"), line("b"), line("c", url="/v1/responses"))

    _, faults = read(file(*lines))
    _, with_endpoint = read(file(*lines), ReadingRules(endpoint="/v1/chat/completions"))

    assert [(one.code, one.line) for one in faults] == [("mixed_endpoints", 2)]
    assert [(one.code, one.line) for one in with_endpoint] == [("mixed_endpoints", 1), ("mixed_endpoints", 3)]


def test_too_many_lines_and_too_many_faults_end_the_reading() -> None:
    many = file(*(line(str(n)) for n in range(4)))

    _, faults = read(many, ReadingRules(requests_max=3))
    _, bad = read(b"{\n" * 9, ReadingRules(faults_max=3))

    assert [(one.code, one.line) for one in faults] == [("too_many_requests", 4)]
    assert [(one.code, one.line) for one in bad] == [
        *(("invalid_json", number) for number in (1, 2, 3)),
        ("too_many_errors", 3),
    ]


@pytest.mark.parametrize("source", [b"", b"\xef\xbb\xbf", b"\n", b"\r\n\n"])
def test_an_empty_file_is_said_to_be_empty(source: bytes) -> None:
    _, faults = read(source, PLAIN)

    assert [one.code for one in faults] == ["empty_file"]


def test_another_encoding_is_said_once() -> None:
    _, faults = read(file(line("a"), line("b"), line("c")).decode().encode("utf-16"))

    assert [(one.code, one.line) for one in faults] == [("wrong_encoding", 1)]


def test_a_template_takes_the_fields_of_the_row() -> None:
    rules = ReadingRules(format="jsonl", agent="desk", template="{{{id}}} {n}: {tags}", id_field="id")

    (item,), faults = read('{"id": "7", "n": 3, "tags": ["ä"]}\n{"id": "8"}'.encode(), rules)

    assert item.run.input == '{7} 3: ["ä"]'
    assert [(one.code, one.line, one.param) for one in faults] == [("missing_field", 2, "n")]


def test_rows_of_csv_may_hold_commas_quotes_and_line_ends() -> None:
    source = '\ufeffid,subject,text\r\n1,"a, b","say ""x""\nand more"\r\n\r\n2,c,d\r\n3,too,many,fields\r\n1,again,x\r\n'

    items, faults = read(source.encode(), CSV)

    assert [(one.line, one.custom_id, one.run.input) for one in items] == [
        (3, "1", 'a, b: say "x"\nand more'),
        (5, "2", "c: d"),
    ]
    assert [(one.code, one.lines) for one in faults] == [
        ("wrong_columns", (6,)),
        ("duplicate_custom_id", (3, 7)),
    ]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (b"id,id\n1,2\n", "invalid_header"),
        (b"id,,text\n1,2,3\n", "invalid_header"),
        (b'id,subject,text\n1,"open\n2,c,d\n', "invalid_csv"),
        (b"id,subject,text\n1,\xff,c\n", "wrong_encoding"),
        (b"", "empty_file"),
        (b"id,subject,text\n", "empty_file"),
    ],
)
def test_a_csv_file_that_is_none_is_refused(source: bytes, code: str) -> None:
    _, faults = read(source, CSV)

    assert [one.code for one in faults] == [code]


class Endless:
    """One line of that many bytes, made as it is read."""

    def __init__(self, size: int, end: bytes = b"") -> None:
        self._left, self._end = size, end

    def read(self, size: int, /) -> bytes:
        if not self._left:
            end, self._end = self._end, b""
            return end
        taken = min(size, self._left)
        self._left -= taken
        return b"x" * taken


def test_a_line_of_200_mb_is_refused_and_never_held() -> None:
    source = Endless(199_000_000, b"\n" + file(line("after")))

    tracemalloc.start()
    found = list(reader(source, ReadingRules()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [one.code if isinstance(one, BatchFault) else one.custom_id for one in found] == [
        "line_too_long",
        "after",
    ]
    assert peak < 16_000_000, "a line that is allowed, and little more"


def test_a_file_that_is_too_large_is_not_read_to_its_end() -> None:
    source = Endless(10**12)

    (fault,) = (one for one in reader(source, ReadingRules()) if isinstance(one, BatchFault))

    assert fault.code == "file_too_large"


class Lines:
    """So many lines of half a kilobyte, made as they are read."""

    def __init__(self, count: int) -> None:
        self._made = self._lines(count)

    def _lines(self, count: int) -> Iterator[bytes]:
        body = {"model": "desk", "messages": [{"role": "user", "content": "x" * 500}]}
        for number in range(count):
            yield file({**line(f"ticket-{number}"), "body": body})

    def read(self, size: int, /) -> bytes:
        return next(self._made, b"")


def _peak(count: int) -> int:
    tracemalloc.start()
    assert sum(isinstance(one, NewItem) for one in reader(Lines(count), ReadingRules())) == count
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_what_is_held_of_a_line_is_a_hash() -> None:
    _peak(10)  # what is made once

    assert _peak(1100) - _peak(100) < 1000 * 450, (
        "bytes a line, a table that grows included; a request is 600"
    )
