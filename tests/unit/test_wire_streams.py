"""Streams of the three wires, put together by us: odd ones, broken ones, and events in any pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.sse import Event, EventReader
from toolfleet.adapters.llm.wires import WIRES
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault, ModelReply

SSE = {"content-type": "text/event-stream; charset=utf-8"}


def read(wire: Any, *chunks: Any, done: bool = True, name: str = "") -> ModelReply | ModelFault:
    head = f"event: {name}\n" if name else ""
    text = "".join(f"{head}data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    if done and wire == "chat_completions":
        text += "data: [DONE]\n\n"
    try:
        return WIRES[wire].parse(Answer(text.encode(), "h", "m", SSE))
    except ModelError as error:
        return error.fault


def calls(
    *pieces: dict[str, Any], finish: str | None = "tool_calls"
) -> list[tuple[str | None, str, str | None]]:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    found = read("chat_completions", *chunks)
    assert isinstance(found, ModelReply)
    return [(call.provider_id, call.name, call.arguments) for call in found.calls]


def piece(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    made: dict[str, Any] = {"function": {key: value for key, value in function.items() if value is not None}}
    return (
        made
        | ({"index": index} if index is not None else {})
        | ({"id": call_id} if call_id is not None else {})
    )


def test_a_new_id_under_an_old_index_is_another_call() -> None:  # B109
    found = calls(
        piece(0, "call_a", "read", '{"path": "a.rs"}'), piece(0, "call_b", "read", '{"path": "b.rs"}')
    )

    assert found == [("call_a", "read", '{"path": "a.rs"}'), ("call_b", "read", '{"path": "b.rs"}')]


@pytest.mark.parametrize(
    ("pieces", "right"),
    [
        pytest.param(
            [piece(0, "a", "f", ""), piece(0, None, None, '{"x'), piece(0, None, None, '":1}')],
            [("a", "f", '{"x":1}')],
            id="pieces",
        ),
        pytest.param(
            [piece(3, "b", "g", "{}"), piece(7, "a", "f", "{}")],
            [("b", "g", "{}"), ("a", "f", "{}")],
            id="gaps between indexes",
        ),
        pytest.param(
            [piece(0, "", "f", "{}"), piece(0, "", "f", "{}")],
            [(None, "f", "{}"), (None, "f", "{}")],
            id="no ids, one index, whole calls",
        ),
        pytest.param(
            [piece(None, "a", "f", "{}"), piece(None, "b", "f", "{}")],
            [("a", "f", "{}"), ("b", "f", "{}")],
            id="no index",
        ),
        pytest.param(
            [piece(0, "a", "f", '{"x":'), piece(0, "a", "f", "1}"), piece(0, "a", "f", "")],
            [("a", "f", '{"x":1}')],
            id="id and name in every piece",
        ),
        pytest.param(
            [piece(0, "r1", "f", '{"x":'), piece(0, "r2", None, "1}")],
            [("r1", "f", '{"x":1}')],
            id="another id for every piece",
        ),
        pytest.param(
            [piece(0, "f", "f", '{"x":1}'), piece(1, "f", "f", '{"x":2}')],
            [("f", "f", '{"x":1}'), ("f", "f", '{"x":2}')],
            id="the name as id, twice",
        ),
        pytest.param(
            [
                piece(0, "a", "f", '{"x":'),
                piece(1, "b", "g", '{"y":'),
                piece(0, None, None, "1}"),
                piece(1, None, None, "2}"),
            ],
            [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')],
            id="interleaved",
        ),
        pytest.param([piece(0, "a", "f", {"x": 1})], [("a", "f", '{"x":1}')], id="arguments as an object"),
    ],
)
def test_calls_are_told_apart_by_what_they_are_and_not_by_their_index(pieces: Any, right: Any) -> None:
    assert calls(*pieces) == right


def test_a_chunk_without_choices_is_no_error_and_the_last_usage_counts() -> None:  # B111
    found = read(
        "chat_completions",
        {"choices": [], "prompt_filter_results": []},
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}},
    )

    assert isinstance(found, ModelReply)
    assert (found.text, found.usage.input_tokens + found.usage.output_tokens) == ("hi", 6)


def test_a_second_finish_does_not_undo_the_calls_and_a_late_limit_counts() -> None:
    call = piece(0, "a", "f", "{}")
    chunks = [{"choices": [{"delta": {"tool_calls": [call]}}]}]
    ends = [
        {"choices": [{"delta": {}, "finish_reason": reason}]} for reason in ("tool_calls", "stop", "length")
    ]

    stopped, cut = read("chat_completions", *chunks, *ends[:2]), read("chat_completions", *chunks, *ends)

    assert isinstance(stopped, ModelReply) and (stopped.finish, len(stopped.calls)) == ("tool_calls", 1)
    assert isinstance(cut, ModelReply) and cut.finish == "length"


@pytest.mark.parametrize(
    ("wire", "chunk", "kind", "retryable"),
    [
        ("messages", {"type": "error", "error": {"type": "overloaded_error"}}, "unavailable", True),  # B117
        ("messages", {"type": "error", "error": {"type": "rate_limit_error"}}, "rate_limited", True),
        ("messages", {"type": "error", "error": {"type": "authentication_error"}}, "auth", False),
        ("chat_completions", {"error": {"code": 502, "message": "upstream"}}, "bad_reply", True),
        ("chat_completions", {"error": {"code": "insufficient_quota"}}, "quota", False),
        ("responses", {"type": "error", "code": "server_error", "message": "x"}, "unavailable", True),
        (
            "responses",
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "rate_limit_exceeded"}},
            },
            "rate_limited",
            True,
        ),
        (
            "responses",
            {"type": "response.failed", "response": {"status": "failed", "error": None}},
            "bad_reply",
            True,
        ),
    ],
)
def test_an_error_inside_a_stream_is_classed_by_its_type(
    wire: Any, chunk: Any, kind: str, retryable: bool
) -> None:
    found = read(wire, chunk, name="error" if chunk.get("type") == "error" else "")

    assert isinstance(found, ModelFault)
    assert (found.kind, found.retryable, found.status) == (kind, retryable, None)


def block(
    index: int, kind: dict[str, Any], *deltas: dict[str, Any], stop: bool = True
) -> list[dict[str, Any]]:
    started = {"type": "content_block_start", "index": index, "content_block": kind}
    ended = [{"type": "content_block_stop", "index": index}] if stop else []
    return [
        started,
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        *ended,
    ]


START = {
    "type": "message_start",
    "message": {"type": "message", "role": "assistant", "content": [], "usage": {}},
}
STOP = {"type": "message_stop"}


def ending(reason: str) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason},
        "usage": {"output_tokens": 2, "input_tokens": 1},
    }


def json_delta(text: str) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": text}


def test_a_tool_use_whose_stream_ends_in_its_middle_is_no_call() -> None:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    begun = block(0, use, json_delta('{"a": 1'), stop=False)

    cut = read("messages", START, *begun)
    limited = read("messages", START, *begun, ending("max_tokens"), STOP)

    assert isinstance(cut, ModelFault) and cut.retryable
    assert isinstance(limited, ModelReply) and (limited.finish, limited.calls[0].arguments) == (
        "length",
        '{"a": 1',
    )


def test_blocks_are_put_together_with_signatures_and_citations() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    cited = {"type": "citations_delta", "citation": {"url": "u"}}
    found = read(
        "messages",
        START,
        {"type": "ping"},
        *block(
            0,
            thinking,
            {"type": "thinking_delta", "thinking": "h"},
            {"type": "thinking_delta", "thinking": "m"},
            {"type": "signature_delta", "signature": "s1"},
        ),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi"}, cited),
        *block(
            3,
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            json_delta(""),
            json_delta('{"a":1}'),
        ),
        *block(4, {"type": "tool_use", "id": "u", "name": "g", "input": {}}),
        ending("tool_use"),
        STOP,
    )

    assert isinstance(found, ModelReply)
    assert found.provider["content"][:2] == [
        {"type": "thinking", "thinking": "hm", "signature": "s1"},
        {"type": "text", "text": "Hi", "citations": [{"url": "u"}]},
    ]
    assert [(call.provider_id, call.arguments) for call in found.calls] == [("t", '{"a":1}'), ("u", "{}")]


def test_the_output_of_a_response_is_that_of_its_last_event_or_of_its_items() -> None:
    item = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    last = {"type": "response.completed", "response": {"status": "completed", "output": []}}

    found = read("responses", done, last)
    cut = read("responses", done)

    assert isinstance(found, ModelReply) and found.calls[0].provider_id == "c"
    assert isinstance(cut, ModelFault) and cut.retryable


@pytest.mark.parametrize("wire", WIRES)
def test_an_event_that_is_no_json_ends_the_stream(wire: Any) -> None:
    with pytest.raises(ModelError) as caught:
        WIRES[wire].parse(Answer(b"data: {nonsense\n\n", "h", "m", SSE))

    assert (caught.value.fault.kind, caught.value.fault.retryable) == ("bad_reply", True)


@pytest.mark.parametrize("cut", range(1, 12))
def test_events_are_the_same_in_any_pieces_and_with_any_line_end(cut: int) -> None:
    for end in ("\n", "\r\n", "\r"):
        lines = [
            "\ufeffevent: a",
            "data: 1",
            "data:2",
            ": comment",
            "id: 7",
            "",
            "data: \u00e9",
            "",
            "data: rest",
        ]
        raw = end.join(lines).encode()
        reader = EventReader()

        found = [event for at in range(0, len(raw), cut) for event in reader.feed(raw[at : at + cut])]

        assert found == [Event("a", "1\n2"), Event("", "\u00e9")]
        assert list(reader.end()) == []
