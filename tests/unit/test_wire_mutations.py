"""Recorded calls and answers, written as odd servers write them: what comes out is what was meant, or a refusal.

Two kinds. What a server may do to the form (indexes, ids, pieces, line ends, types) changes nothing: exactly the meant
calls are run. Whatever else is done to an answer (parts missing, of another type, cut off), there is a reply or a fault:
never another exception, never a call nobody meant, never a reply out of a stream that was cut off.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.corpus import cases, wire_oracle
from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.wires import WIRES
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.model import ModelFault, ModelReply
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.reply import propose

SSE = {"content-type": "text/event-stream"}
RUN = RunId("run_1")
Meant = list[tuple[str, dict[str, Any]]]
ROUNDS = 3  # of each recorded answer
VALUES: tuple[Any, ...] = (None, "", " ", 0, -1, 1.5, True, [], {}, "x", [None], {"x": None}, ["x"], 10**30)


def recorded() -> list[tuple[str, dict[str, Any]]]:
    """(wire, body) of the recorded answers that hold calls."""
    found = []
    for case in cases.read("llm/responses.jsonl", cases.OWN_FOLDER):
        body = case["response"]
        if wire_oracle.wire_of(body) == case["api"] and wire_oracle.READ[case["api"]](body).calls:
            found.append((case["api"], body))
    return found


RECORDED = recorded()


def meant(wire: str, body: dict[str, Any]) -> Meant:
    return [
        (name, json.loads(text or "{}"))
        for _, name, text in wire_oracle.READ[wire](copy.deepcopy(body)).calls
    ]


def parsed(wire: Any, body: bytes, headers: dict[str, str] | None = None) -> ModelReply | ModelFault:
    try:
        return WIRES[wire].parse(Answer(body, "h", "m", headers or {}))
    except ModelError as error:
        return error.fault


def run_of(reply: ModelReply, names: set[str]) -> Meant:
    """The calls that would be carried out, for tools that take anything."""
    anything = {"type": "object", "additionalProperties": True}
    tools = tuple(ToolSpec(name=name, description="d", parameters=anything) for name in sorted(names))
    proposed = propose(reply, AgentSpec(name="a", model="m", tools=tools), RUN, 1, None)
    assert len({call.wire_id for call in proposed}) == len(proposed)
    return [(call.tool, json.loads(call.arguments)) for call in proposed if call.answer is None]


# -- what servers do to the form -----------------------------------------------------------------------------------


def sse(chunks: list[Any], source: random.Random, *, named: bool) -> bytes:
    """The chunks as a stream: any line end, comments, a byte order mark, fields nobody asked for, data in lines."""
    end = source.choice(("\n", "\r\n", "\r"))
    text = source.choice(("", "\ufeff")) + source.choice(("", f": hello{end}{end}", f"retry: 5{end}{end}"))
    for chunk in chunks:
        if source.random() < 0.2:
            text += f": keepalive{end}{end}"
        if named and isinstance(chunk, dict):
            text += f"event: {chunk.get('type', '')}{end}"
        if source.random() < 0.2:
            text += f"id: 7{end}"
        lines = (
            chunk
            if isinstance(chunk, str)
            else json.dumps(chunk, indent=1 if source.random() < 0.2 else None)
        )
        text += "".join(f"data:{source.choice(('', ' '))}{line}{end}" for line in lines.split("\n")) + end
    return text.encode()


def cut_up(text: str, source: random.Random) -> list[str]:
    places = sorted(source.randrange(len(text) + 1) for _ in range(source.randrange(4)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def braided(pieces: list[list[Any]], source: random.Random) -> Iterator[Any]:
    """The pieces of all calls, each call's in its order, the calls begun in theirs."""
    waiting = [list(one) for one in pieces]
    for one in waiting:
        yield one.pop(0)
    while any(waiting):
        yield source.choice([one for one in waiting if one]).pop(0)


def chat_stream(calls: Meant, source: random.Random) -> bytes:
    numbers = source.choice((list(range(20)), [3 * n + 2 for n in range(20)], [str(n) for n in range(20)]))
    ids = source.choice(("own", "none", "empty", "int", "repeated", "same", "begins"))
    together = source.random() < 0.5 and ids not in ("same",)
    pieces: list[list[Any]] = []
    for place, (name, arguments) in enumerate(calls):
        call_id: Any = {"none": None, "empty": "", "int": place + 1, "same": "call_x"}.get(
            ids, f"call_{place}"
        )
        first = {"index": numbers[place], "id": call_id, "function": {"name": name, "arguments": ""}}
        rest = [
            {
                "index": numbers[place],
                "id": call_id if ids in ("repeated", "same") else None,
                "function": {"name": None, "arguments": text},
            }
            for text in cut_up(json.dumps(arguments), source)
        ]
        if source.random() < 0.2:
            rest = [{"index": numbers[place], "function": {"arguments": arguments}}]
        pieces.append([first, *rest])
    order = list(braided(pieces, source)) if together else [piece for one in pieces for piece in one]
    chunks = [chunk_of({"tool_calls": [piece]}, source) for piece in order]
    chunks.append(
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {},
                    "finish_reason": source.choice(("tool_calls", "stop", "function_call")),
                }
            ]
        }
    )
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    chunks.insert(source.randrange(len(chunks) + 1), {"choices": [], "usage": usage})
    return sse([*chunks, "[DONE]"], source, named=False)


def chunk_of(delta: dict[str, Any], source: random.Random) -> dict[str, Any]:
    odd = source.choice(({}, {"content": None}, {"content": ""}, {"role": "assistant", "refusal": None}))
    return {
        "choices": [{"index": 0, "delta": {**odd, **delta}, "finish_reason": None}],
        "obfuscation": "x",
        "usage": None,
    }


def message_stream(calls: Meant, source: random.Random) -> bytes:
    numbers = source.choice((list(range(20)), [2 * n + 1 for n in range(20)], [0] * 20))
    chunks: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"type": "message", "content": [], "usage": {"input_tokens": 5}}}
    ]
    for place, (name, arguments) in enumerate(calls):
        start = {"type": "tool_use", "id": f"toolu_{place}", "name": name, "input": {}}
        where = {"index": numbers[place]}
        if source.random() < 0.2:
            chunks.append(
                {"type": "content_block_start", **where, "content_block": {**start, "input": arguments}}
            )
        else:
            chunks.append({"type": "content_block_start", **where, "content_block": start})
            chunks += [
                {
                    "type": "content_block_delta",
                    **where,
                    "delta": {"type": "input_json_delta", "partial_json": text},
                }
                for text in cut_up(json.dumps(arguments), source)
            ]
        if source.random() < 0.8:
            chunks.append({"type": "content_block_stop", **where})
        if source.random() < 0.3:
            chunks.append({"type": source.choice(("ping", "something_new")), "usage": None})
    reason = source.choice(("tool_use", "end_turn"))
    chunks.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}})
    return sse([*chunks, {"type": "message_stop"}], source, named=source.random() < 0.8)


def response_stream(calls: Meant, source: random.Random) -> bytes:
    items = [
        {
            "type": "function_call",
            "id": f"fc_{place}",
            "call_id": f"call_{place}",
            "name": name,
            "arguments": arguments if source.random() < 0.2 else json.dumps(arguments),
        }
        for place, (name, arguments) in enumerate(calls)
    ]
    numbers = source.choice((list(range(20)), [2 * n + 1 for n in range(20)], [0] * 20, [None] * 20))
    chunks: list[dict[str, Any]] = [{"type": "response.created", "response": {"status": "in_progress"}}]
    for place, item in enumerate(items):
        chunks.append(
            {"type": "response.function_call_arguments.delta", "output_index": numbers[place], "delta": "{"}
        )
        chunks.append({"type": "response.output_item.done", "output_index": numbers[place], "item": item})
        if source.random() < 0.3:
            chunks.append({"type": "response.something.new", "item": None})
    output = source.choice((items, [], None, items[:-1]))
    chunks.append({"type": "response.completed", "response": {"status": "completed", "output": output}})
    return sse([*chunks, *source.choice(([], ["[DONE]"]))], source, named=source.random() < 0.8)


STREAMS: dict[str, Callable[[Meant, random.Random], bytes]] = {
    "chat_completions": chat_stream,
    "messages": message_stream,
    "responses": response_stream,
}


@pytest.mark.parametrize("wire", STREAMS)
def test_a_stream_gives_exactly_the_meant_calls_however_it_is_written(wire: str) -> None:
    source = random.Random(f"form {wire}")
    for api, body in RECORDED:
        calls = meant(api, body)
        names = {name for name, _ in calls}
        for _ in range(ROUNDS):
            stream = STREAMS[wire](calls, source)

            found = parsed(wire, stream, SSE if source.random() < 0.5 else {})

            assert isinstance(found, ModelReply), (found, stream)
            assert run_of(found, names) == calls, stream


@pytest.mark.parametrize("wire", STREAMS)
def test_a_stream_that_is_cut_off_is_no_reply(wire: str) -> None:
    source = random.Random(f"cut {wire}")
    for api, body in RECORDED[::3]:
        stream = STREAMS[wire](meant(api, body), source)
        mark = {
            "chat_completions": b"[DONE]",
            "messages": b"message_stop",
            "responses": b"response.completed",
        }
        end = stream.rindex(mark[wire])
        for cut in {source.randrange(end) for _ in range(8)}:
            found = parsed(wire, stream[:cut], SSE)

            assert isinstance(found, ModelFault) and found.retryable, stream[:cut]


def test_an_end_mark_without_a_finish_reason_is_a_stream_that_broke_off() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "The balance is 1"}, "finish_reason": None}]}
    found = parsed("chat_completions", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), SSE)

    assert isinstance(found, ModelFault) and (found.kind, found.retryable) == ("connection", True)


# -- whatever else is done to an answer ----------------------------------------------------------------------------

MEANING = {"name", "arguments", "input", "partial_json"}  # another value there is another call


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in the value that does not make a call another one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        if key not in MEANING:
            yield (*path, key)
            yield from places(one, (*path, key))


def mutated(body: dict[str, Any], source: random.Random) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    for _ in range(source.choice((1, 1, 2, 4))):
        found = list(places(changed))
        if not found:
            break
        *way, last = source.choice(found)
        at: Any = changed
        for key in way:
            at = at[key]
        if isinstance(at, dict) and source.random() < 0.3:
            del at[last]
        else:
            at[last] = copy.deepcopy(source.choice(VALUES))
    return changed


def test_an_answer_with_odd_parts_gives_a_reply_or_a_fault_and_no_other_call() -> None:
    source = random.Random("parts")
    replies = 0
    for wire, body in RECORDED:
        calls = meant(wire, body)
        for _ in range(10 * ROUNDS):
            changed = mutated(body, source)
            found = parsed(
                source.choice(list(WIRES)) if source.random() < 0.1 else wire, json.dumps(changed).encode()
            )
            if isinstance(found, ModelReply):
                replies += 1
                ran = run_of(found, {name for name, _ in calls})
                left = list(calls)
                for call in ran:
                    assert call in left or call[1] == {}, (call, changed)
    assert replies > 1000


@pytest.mark.parametrize("wire", list(WIRES))
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\n\n", id="blank lines"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="array"),
        pytest.param(b"{}", id="empty object"),
        pytest.param(b"<!DOCTYPE html><html>502 Bad Gateway</html>", id="page"),
        pytest.param(b"\xef\xbb\xbf<html></html>", id="page behind a mark"),
        pytest.param(b"\xff\xfe{\x00}\x00", id="UTF-16"),
        pytest.param(b"data: [DONE]\n\n", id="only the end"),
        pytest.param(b": keepalive\n\n", id="only comments"),
        pytest.param(b"event: error\ndata: overloaded\n\n", id="error in words"),
        pytest.param(b'data: {"error": ["overloaded"]}\n\ndata: [DONE]\n\n', id="error in a list"),
        pytest.param(b'{"choices": "x", "content": "x", "output": "x"}', id="text for lists"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"a":1234567890123456789012,"b":' + b"[" * 100_000, id="deep, with a long number"),
    ],
)
def test_what_holds_no_reply_is_a_fault(wire: str, body: bytes) -> None:
    for headers in ({}, SSE, {"content-type": "application/json"}):
        found = parsed(wire, body, headers)

        assert isinstance(found, ModelFault), found
        assert found.retryable


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"order": "O1"}', {"order": "O1"}),
        ('"{\\"order\\": \\"O1\\"}"', {"order": "O1"}),
        ({"order": "O1"}, {"order": "O1"}),
        ({"order": 123456789012345678901234567890}, {"order": 123456789012345678901234567890}),
        ("", {}),
        (None, {}),
        ('{"order": "O1",}', None),
        ("{'order': 'O1'}", None),
        ('{"paid": True}', None),
        ('{"paid": NaN}', None),
        ({"paid": float("nan")}, None),
        ('```json\n{"order": "O1"}\n```', None),
        ('{"order": "O1"}{"order": "O2"}', None),
        ('{"order": "O1", "order": "O2"}', None),
        ('{"order": "O1"', None),
        ('["O1"]', None),
        ('"\\"{}\\""', None),
        (7, None),
    ],
)
@pytest.mark.parametrize("wire", list(WIRES))
def test_arguments_are_read_exactly_or_refused(wire: str, text: Any, right: dict[str, Any] | None) -> None:
    call = {"id": "c", "function": {"name": "refund", "arguments": text}}
    bodies = {
        "chat_completions": {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]},
        "messages": {
            "type": "message",
            "content": [{"type": "tool_use", "id": "c", "name": "refund", "input": text}],
            "stop_reason": "tool_use",
        },
        "responses": {
            "status": "completed",
            "output": [{"type": "function_call", "call_id": "c", "name": "refund", "arguments": text}],
        },
    }
    found = parsed(wire, json.dumps(bodies[wire]).encode())

    assert isinstance(found, ModelReply)
    assert run_of(found, {"refund"}) == ([] if right is None else [("refund", right)])


@pytest.mark.parametrize(
    "name", ["", " ", "functions.refund", "refund ", "Refund", "refund\u200b", 7, None, ["refund"]]
)
def test_a_name_that_is_not_exactly_a_tool_s_runs_nothing(name: Any) -> None:
    call = {"id": "c", "function": {"name": name, "arguments": "{}"}}
    body = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    found = parsed("chat_completions", json.dumps(body).encode())

    assert isinstance(found, ModelReply) and len(found.calls) == 1
    assert run_of(found, {"refund"}) == []


@pytest.mark.parametrize(
    ("calls", "count"), [({"id": "c", "function": {"name": "f", "arguments": "{}"}}, 1), ("x", None)]
)
def test_calls_that_are_no_list_are_not_lost(calls: Any, count: int | None) -> None:
    said = {"content": "Done.", "tool_calls": calls}
    body = {"choices": [{"message": said, "finish_reason": "stop"}]}
    chunk = {"choices": [{"index": 0, "delta": said, "finish_reason": "stop"}]}
    for found in (
        parsed("chat_completions", json.dumps(body).encode()),
        parsed("chat_completions", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()),
    ):
        assert (len(found.calls) if isinstance(found, ModelReply) else None) == count


def test_a_key_written_twice_in_a_streamed_input_is_seen_and_refused() -> None:
    start = {"type": "tool_use", "id": "t", "name": "refund", "input": {}}
    twice = {"type": "input_json_delta", "partial_json": '{"order": "O1", "order": "O2"}'}
    chunks = [
        {"type": "message_start", "message": {"type": "message", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        {"type": "content_block_delta", "index": 0, "delta": twice},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    found = parsed("messages", sse(chunks, random.Random(1), named=True), SSE)

    assert isinstance(found, ModelReply)
    assert run_of(found, {"refund"}) == []
