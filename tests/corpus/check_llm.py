"""cases/llm: recorded answers, streams and errors of model servers, through the adapters.

What an answer says is read a second time by `wire_oracle`. Nothing here asks which case it is: every rule follows from
the answer itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.corpus import wire_oracle
from tests.corpus.cases import Case
from tests.corpus.registry import PASSED, Verdict, checker, refused
from tests.corpus.wire_oracle import Told
from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.chat_stream import ChatStream
from toolfleet.adapters.llm.faults import fault_of_status
from toolfleet.adapters.llm.messages_stream import MessageStream
from toolfleet.adapters.llm.responses_stream import ResponseStream
from toolfleet.adapters.llm.wires import WIRES
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.model import ModelFault, ModelReply
from toolfleet.schemas.tools import ToolSpec
from toolfleet.workers.decision.reply import item_calls, propose

STREAMS: Mapping[str, Any] = {
    "chat_completions": ChatStream,
    "responses": ResponseStream,
    "messages": MessageStream,
}
SSE = {"content-type": "text/event-stream"}
HOST = "models.example"
PERMANENT = frozenset({400, 401, 402, 403, 404, 405, 413, 422})
LENGTH = frozenset({"length", "max_tokens", "model_context_window_exceeded", "incomplete"})
RUN = RunId("run_corpus")


@checker("llm/responses.jsonl")
def check_answer(case: Case) -> Verdict:
    body = case["response"]
    if wire_oracle.wire_of(body) != case["api"]:
        assert isinstance(_parsed(case["api"], _bytes(body)), ModelFault), (
            "no reply of this wire, and read as one"
        )
        return refused("no-answer-of-this-wire")
    if body.get("status") in ("queued", "in_progress"):
        assert isinstance(_parsed(case["api"], _bytes(body)), ModelFault), "not finished, and read as a reply"
        return refused("not-finished")
    _holds(_reply(case["api"], _bytes(body)), wire_oracle.READ[case["api"]](body))
    return PASSED


@checker("llm/streams_sse.jsonl")
def check_stream(case: Case) -> Verdict:
    chunks = list(wire_oracle.events(case["response"]))
    _stream_holds(case["api"], case["response"].encode(), wire_oracle.READ_EVENTS[case["api"]](chunks))
    return PASSED


@checker("llm/errors.jsonl")
def check_error(case: Case) -> Verdict:
    body, status = case["response"], case["status"]
    if status != 200:
        fault = fault_of_status(status, case["headers"], body, HOST)
        assert fault.retryable == (status not in PERMANENT), fault
        _kind_fits(status, fault)
    elif isinstance(body, str):
        found = _parsed(case["api"], body.encode(), SSE)
        assert isinstance(found, ModelFault) and found.retryable, f"an error inside a stream passes: {found}"
    else:
        found = _parsed(case["api"], _bytes(body))
        assert isinstance(found, ModelFault), "an error inside an answer, and read as a reply"
        told = body["error"].get("status") or body["error"].get("code")
        assert found.retryable == (told not in PERMANENT), found
    return PASSED


@checker("llm/provider_fixtures.jsonl")
def check_fixture(case: Case) -> Verdict:
    if case["kind"] == "body":
        body = case["body"]
        wire = wire_oracle.wire_of(body)
        if wire is None and set(body) == {"error"}:
            fault = _parsed("chat_completions", _bytes(body))
            assert isinstance(fault, ModelFault) and fault.kind != "bad_reply", fault
            return PASSED
        if wire is None:
            return _foreign(_bytes(body))
        _holds(_reply(wire, _bytes(body)), wire_oracle.READ[wire](body))
        return PASSED
    chunks = [json.loads(line) if isinstance(line, str) else line for line in case["lines"]]
    wire = wire_oracle.wire_of(chunks)
    if wire is None:
        return _foreign(_sse(chunks))
    verdicts = [_recorded_stream(wire, part) for part in _parts(chunks)]
    return next((verdict for verdict in verdicts if verdict != PASSED), PASSED)


def _recorded_stream(wire: str, chunks: list[dict[str, Any]]) -> Verdict:
    stream = _sse(chunks) + (b"data: [DONE]\n\n" if wire == "chat_completions" else b"")
    if any(chunk.get("type") in ("error", "response.failed") for chunk in chunks):
        assert isinstance(_parsed(wire, stream, SSE), ModelFault), "a stream that failed, and read as a reply"
        return PASSED
    if not _ended(wire, chunks):
        fault = _parsed(wire, stream, SSE)
        assert isinstance(fault, ModelFault) and fault.retryable, (
            "a stream without an end, and read as a reply"
        )
        return refused("stream-without-end")
    _stream_holds(wire, stream, wire_oracle.READ_EVENTS[wire](chunks))
    return PASSED


def _parts(chunks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """One list for each stream: some records hold all the streams of a conversation."""
    parts: list[list[dict[str, Any]]] = [[]]
    for chunk in chunks:
        if parts[-1] and parts[-1][-1].get("type") == "message_stop":
            parts.append([])
        parts[-1].append(chunk)
    return parts


def _sse(chunks: list[dict[str, Any]]) -> bytes:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode()


@checker("llm/issue_payloads.jsonl")
def check_oddity(case: Case) -> Verdict:
    wire = case["wire"]
    match case["transport"]:
        case "http":
            fault = fault_of_status(wire["status"], wire.get("headers") or {}, wire.get("response"), HOST)
            assert fault.retryable == (wire["status"] not in PERMANENT), fault
        case "sse":
            _odd_stream(wire)
        case "json":
            api = wire_oracle.wire_of(wire) or "chat_completions"
            found = _parsed(api, _bytes(wire))
            if isinstance(found, ModelFault):
                assert not wire.get("choices"), f"there is a choice, and it is not read: {found}"
            else:
                _holds(found, wire_oracle.READ[api](wire), reason=False)
                _nothing_odd_runs(found, _written(wire))
        case _:
            return refused("no-wire-of-ours")
    return PASSED


@checker("llm/local_gemma.jsonl")
def check_local(case: Case) -> Verdict:
    if "sse" in case:
        chunks = list(wire_oracle.events(case["sse"]))
        _stream_holds("chat_completions", case["sse"].encode(), wire_oracle.chat_events(chunks))
        return PASSED
    choice = {"index": 0, "message": case["message"], "finish_reason": case["finish_reason"]}
    body = {"choices": [choice], "usage": case.get("usage")}
    reply = _reply("chat_completions", _bytes(body))
    _holds(reply, wire_oracle.chat(body))
    _nothing_odd_runs(reply, None)
    return PASSED


def _odd_stream(sse: str) -> None:
    found = _parsed(
        "messages" if "event: " in sse and "choices" not in sse else "chat_completions", sse.encode(), SSE
    )
    chunks = list(wire_oracle.events(sse))
    if any("error" in chunk for chunk in chunks):
        assert isinstance(found, ModelFault) and found.retryable, f"an error inside a stream passes: {found}"
    elif wire_oracle.wire_of(chunks) and _ended("chat_completions", chunks) and "[DONE]" in sse:
        assert isinstance(found, ModelReply), found
        assert found.text == (wire_oracle.chat_events(chunks).text or None)
        _nothing_odd_runs(found, None)
    else:
        assert isinstance(found, ModelFault), "a stream without an end, and read as a reply"


def _nothing_odd_runs(reply: ModelReply, output_tokens_max: int | None) -> None:
    """Each call is kept under an id of its own, runs with exactly what was written, and not at all after a cut."""
    names = sorted({call.name for call in reply.calls if call.name.replace("_", "").isalnum()})
    anything = {"type": "object", "additionalProperties": True}
    tools = tuple(ToolSpec(name=name, description="d", parameters=anything) for name in names)
    agent = AgentSpec(name="corpus", model="m", tools=tools)
    proposed = propose(reply, agent, RUN, 1, None)
    items = item_calls(proposed, RUN, 1)
    assert len({call.wire_id for call in items}) == len(items) == len(reply.calls)
    assert items == item_calls(propose(reply, agent, RUN, 1, None), RUN, 1), (
        "not the same when delivered again"
    )
    for call, raw in zip(proposed, reply.calls, strict=True):
        assert isinstance(json.loads(call.arguments), dict), "not fit to be sent back"
        if reply.finish == "length" or _cut(raw.arguments, reply, output_tokens_max):
            assert call.answer is not None, "cut off, and carried out"
        elif call.answer is None:
            assert json.loads(call.arguments) == _meant(raw.arguments)


def _cut(arguments: str | None, reply: ModelReply, output_tokens_max: int | None) -> bool:
    try:
        _meant(arguments)
    except ValueError:
        return True
    return False


def _meant(arguments: str | None) -> Any:
    value = json.loads(arguments, strict=False) if arguments and arguments.strip() else {}
    return json.loads(value) if isinstance(value, str) else value or {}


def _written(body: Mapping[str, Any]) -> int | None:
    return (body.get("usage") or {}).get("completion_tokens")


def _ended(wire: str, chunks: list[dict[str, Any]]) -> bool:
    match wire:
        case "messages":
            return any(chunk.get("type") == "message_stop" for chunk in chunks)
        case "responses":
            return chunks[-1].get("type") in ("response.completed", "response.incomplete")
        case _:
            return any(c.get("finish_reason") for chunk in chunks for c in chunk.get("choices") or [])


def _foreign(body: bytes) -> Verdict:
    """A body of another API: no adapter takes it for a reply."""
    for wire in WIRES:
        assert isinstance(_parsed(wire, body), ModelFault), f"of another API, and read as a reply of {wire}"
    return refused("no-wire-of-ours")


def _stream_holds(wire: str, sse: bytes, told: Told) -> None:
    """The reply of the stream, the same in single bytes, and not whole before its last event was."""
    reply = _reply(wire, sse, SSE)
    _holds(reply, told)
    stream = STREAMS[wire](HOST)
    at_once = STREAMS[wire](HOST)
    at_once.feed(sse)
    end = _end(sse)
    for place in range(len(sse)):
        stream.feed(sse[place : place + 1])
        assert stream.whole == (place + 1 >= end), f"cut off behind byte {place + 1} of {len(sse)}"
    assert stream.body() == at_once.body(), "not the same in single bytes"
    for cut in {end - 1, end - 2, end // 2, end // 3, 1, 0}:
        broken = _parsed(wire, sse[:cut], SSE)
        assert isinstance(broken, ModelFault) and broken.retryable, (
            f"a reply out of {cut} of {len(sse)} bytes"
        )


def _end(sse: bytes) -> int:
    """Where the last event that counts ends, its blank line included."""
    marks = (
        b"data: [DONE]",
        b'"type":"message_stop"',
        b'"type": "message_stop"',
        b'"type":"response.completed"',
    )
    marks += (
        b'"type": "response.completed"',
        b'"type":"response.incomplete"',
        b'"type": "response.incomplete"',
    )
    start = min(found for found in (sse.find(mark) for mark in marks) if found >= 0)
    ends = [
        sse.find(blank, start) + len(blank) for blank in (b"\n\n", b"\r\n\r\n") if sse.find(blank, start) >= 0
    ]
    return min(ends)


def _holds(reply: ModelReply, told: Told, *, reason: bool = True) -> None:
    got = [(call.provider_id, call.name, call.arguments) for call in reply.calls]
    assert [call[:2] for call in got] == [call[:2] for call in told.calls]
    for (_, _, ours), (_, _, theirs) in zip(got, told.calls, strict=True):
        assert ours == theirs or json.loads(ours or "null") == json.loads(theirs or "null")
    assert (reply.text or "") == told.text
    if told.read or told.written:
        assert reply.usage.known
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (told.read, told.written)
    else:
        assert not reply.usage.known
    if reason:
        assert reply.finish == _finish(told), (reply.finish, told.reason)


def _finish(told: Told) -> str:
    if told.reason == "content_filter":
        return "content_filter"
    if told.refusal or told.reason == "refusal":
        return "refusal"
    if told.reason in LENGTH:
        return "length"
    return "tool_calls" if told.calls else "stop"


def _kind_fits(status: int, fault: ModelFault) -> None:
    if status in (401, 404, 429):
        assert fault.kind in ("auth", "not_found", "rate_limited", "quota"), fault
    if status >= 500:
        assert fault.kind in ("unavailable", "timeout"), fault


def _parsed(wire: str, body: bytes, headers: Mapping[str, str] | None = None) -> ModelReply | ModelFault:
    try:
        return _reply(wire, body, headers)
    except ModelError as error:
        return error.fault


def _reply(wire: str, body: bytes, headers: Mapping[str, str] | None = None) -> ModelReply:
    return WIRES[wire].parse(Answer(body, HOST, "asked-for", headers or {}))  # type: ignore[index]  # of the case


def _bytes(body: Any) -> bytes:
    return json.dumps(body).encode()
