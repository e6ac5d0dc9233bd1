"""What real servers have answered, parsed: exactly the calls of the body, and the right fault for every error.

The records (tests/data/chat_answers.jsonl.gz) are answers of OpenAI, Azure, Groq, Mistral, DeepSeek, xAI, Gemini,
OpenRouter, Ollama, vLLM, Snowflake and others, and oddities reported in public issues.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.chat_parse import parse_reply
from toolfleet.adapters.llm.chat_render import rendered_items
from toolfleet.adapters.llm.faults import fault_of_status, retry_after_s
from toolfleet.schemas.conversation import AssistantItem, ItemCall
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault, ModelReply, RawCall, Usage

DATA = Path(__file__).parents[1] / "data" / "chat_answers.jsonl.gz"
HOST = "models.example"


def _records() -> list[dict[str, Any]]:
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


RECORDS = _records()
BY_ID = {record["id"]: record for record in RECORDS}
REPLIES = [
    r for r in RECORDS if r["status"] == 200 and isinstance(r["body"], dict) and "choices" in r["body"]
]
ERRORS = [r for r in RECORDS if r["status"] != 200]
ERRORS_IN_200 = [
    r
    for r in RECORDS
    if r["status"] == 200
    and isinstance(r["body"], dict)
    and "error" in r["body"]
    and "choices" not in r["body"]
]
STREAMS = [r for r in RECORDS if r["status"] == 200 and isinstance(r["body"], str)]


def _named(records: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("record", [pytest.param(record, id=record["id"]) for record in records])


def _answer(body: Any, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(raw, HOST, "asked-for", headers or {}, **more)


def _fault(body: Any, **more: Any) -> ModelFault:
    with pytest.raises(ModelError) as caught:
        parse_reply(_answer(body, **more))
    return caught.value.fault


def _choice(message: Any, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}


def _calls_by_hand(body: dict[str, Any]) -> list[tuple[str | None, str, str | None]]:
    message = body["choices"][0].get("message") or {}
    calls = [
        (call["id"] or None, call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    legacy = message.get("function_call")
    if not calls and legacy and legacy["name"]:
        calls = [(None, legacy["name"], legacy["arguments"])]
    return calls


def test_every_record_is_looked_at_by_one_of_the_tests_here() -> None:
    looked_at = len(REPLIES) + len(ERRORS) + len(ERRORS_IN_200) + len(STREAMS)

    assert len(RECORDS) == looked_at == 125
    assert sum(record["from"] == "responses" for record in REPLIES) == 74


@_named(REPLIES)
def test_the_parser_gives_exactly_the_calls_of_the_body(record: dict[str, Any]) -> None:
    body = record["body"]

    reply = parse_reply(_answer(body, record["headers"], output_tokens_max=10**6))

    assert [(call.provider_id, call.name, call.arguments) for call in reply.calls] == _calls_by_hand(body)
    choice = body["choices"][0]
    if choice["finish_reason"] in ("length", "content_filter"):
        assert reply.finish == choice["finish_reason"]
    elif choice["message"].get("refusal"):
        assert (reply.finish, reply.refusal) == ("refusal", choice["message"]["refusal"])
    else:
        assert reply.finish == ("tool_calls" if reply.calls else "stop")
    assert reply.model == (body["model"] or "asked-for")
    orjson.dumps(reply.provider)  # can be stored as it is


@_named(REPLIES)
def test_tokens_are_those_of_the_provider_or_marked_as_an_estimate(record: dict[str, Any]) -> None:
    given = record["body"].get("usage")

    usage = parse_reply(_answer(record["body"], request_bytes=400)).usage

    if not given or not given["prompt_tokens"]:
        assert not usage.known and usage.input_tokens == 101
        return
    assert usage.known and usage.input_tokens == given["prompt_tokens"]
    # reasoning of xAI and Gemini stands in the total only, and is charged as output
    assert usage.output_tokens == max(
        given["completion_tokens"], given["total_tokens"] - given["prompt_tokens"]
    )
    assert usage.cached_tokens == ((given.get("prompt_tokens_details") or {}).get("cached_tokens") or 0) or (
        usage.cached_tokens == given["cached_tokens"]
    )


@_named([record for record in REPLIES if _calls_by_hand(record["body"])])
def test_a_recorded_turn_is_replayed_with_its_calls_and_nothing_a_provider_refuses(
    record: dict[str, Any],
) -> None:
    reply = parse_reply(_answer(record["body"]))
    calls = tuple(ItemCall("c", f"w{index}", call.name, "{}") for index, call in enumerate(reply.calls))

    (message,) = rendered_items([AssistantItem(reply.text, calls, wire=reply.wire, provider=reply.provider)])

    assert [call["id"] for call in message["tool_calls"]] == [call.wire_id for call in calls]
    assert all(json.loads(call["function"]["arguments"]) == {} for call in message["tool_calls"])
    assert "function_call" not in message and None not in [v for k, v in message.items() if k != "content"]


RIGHT_FAULTS = {400: ("bad_request", False), 401: ("auth", False), 404: ("not_found", False)}
TOO_LONG = ("x-ruby_llm-f18802c5b9-0", "x-ruby_llm-444df28826-0", "x-ruby_llm-9c52e55c40-0")
RIGHT_FAULTS |= {429: ("rate_limited", True), 529: ("unavailable", True)}


@_named(ERRORS)
def test_a_recorded_error_is_classed_by_its_status(record: dict[str, Any]) -> None:
    fault = fault_of_status(record["status"], record["headers"], record["body"], HOST)

    too_long = record["id"] in TOO_LONG
    assert (fault.kind, fault.retryable) == (
        ("context_length", False) if too_long else RIGHT_FAULTS[record["status"]]
    )
    assert fault.status == record["status"] and fault.message.startswith(
        f"{HOST} answered {record['status']}"
    )
    error = record["body"].get("error")
    words = error["message"] if isinstance(error, dict) else record["body"].get("detail", "?")
    assert words not in fault.message, "the provider's words quote the request"


@_named(ERRORS_IN_200)
def test_an_error_inside_an_answer_of_status_200_is_an_error(record: dict[str, Any]) -> None:
    fault = _fault(record["body"])

    code = record["body"]["error"].get("code")
    right = {"insufficient_quota": "quota", "content_filter": "content_filter"}.get(code, "bad_request")
    assert (fault.kind, fault.retryable) == (right, False)


@_named(STREAMS)
def test_a_stream_nobody_asked_for_is_read_and_never_half_of_it(record: dict[str, Any]) -> None:
    whole = record["body"].encode()

    broken = _fault(whole[:-1])

    assert broken.retryable and broken.status is None
    if '"error"' in record["body"]:
        assert _fault(whole).retryable
    else:
        reply = parse_reply(_answer(whole))
        assert reply.calls and reply.finish == "tool_calls"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        pytest.param({"choices": []}, "without choices", id="no choices"),
        pytest.param({"object": "chat.completion"}, "without choices", id="choices missing"),
        pytest.param({"choices": None}, "without choices", id="choices null"),
        pytest.param({"choices": ["x"]}, "without choices", id="choices of texts"),
        pytest.param(_choice(None), "without a message", id="message null"),
        pytest.param({"choices": [{}]}, "without a message", id="message missing"),
        pytest.param([], "no JSON object", id="array"),
        pytest.param(b"", "empty answer", id="empty"),
        pytest.param(b'{"choices": [{"mess', "cut off", id="cut off"),
        pytest.param(b"<!DOCTYPE html><html></html>", "web page", id="web page"),
        pytest.param(b"\xff\xfe\x00", "no JSON", id="no text"),
        pytest.param(b"[" * 100_000, "no JSON", id="endless nesting"),
    ],
)
def test_what_is_no_reply_is_a_bad_reply_that_may_be_asked_again(body: Any, what: str) -> None:
    fault = _fault(body)

    assert (fault.kind, fault.retryable, fault.status) == ("bad_reply", True, None)
    assert what in fault.message


def test_no_calls_is_an_empty_list_or_none_at_all() -> None:  # B034
    for message in (
        {"content": "done", "tool_calls": []},
        {"content": "done"},
        {"content": "done", "tool_calls": None},
    ):
        reply = parse_reply(_answer(_choice({"role": "assistant", **message})))

        assert (reply.calls, reply.finish, reply.text) == ((), "stop", "done")


def test_calls_decide_over_the_finish_reason_but_not_over_a_final_state() -> None:
    message = {"content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}

    finishes = {
        given: parse_reply(_answer(_choice(message, given))).finish
        for given in ("stop", None, "eos", "length")
    }
    filtered = parse_reply(_answer(_choice(message, "content_filter")))
    refused = parse_reply(_answer(_choice({**message, "refusal": "I will not."}, "stop")))

    assert finishes == {"stop": "tool_calls", None: "tool_calls", "eos": "tool_calls", "length": "length"}
    assert (filtered.finish, refused.finish, refused.refusal) == ("content_filter", "refusal", "I will not.")


def test_arguments_that_end_in_the_middle_at_the_limit_were_cut_off_whatever_the_server_says() -> None:
    body = BY_ID["issue-22-truncated_args_finish_tool_calls"]["body"]  # 32 tokens written

    assert parse_reply(_answer(body, output_tokens_max=32)).finish == "length"
    assert parse_reply(_answer(body, output_tokens_max=4096)).finish == "tool_calls"


def test_odd_calls_are_kept_in_place() -> None:
    calls: list[Any] = [
        None,
        {"id": "", "function": {"name": "f", "arguments": {"a": 1}}},
        {"type": "custom", "id": "c", "custom": {"name": "g", "input": "text"}},
        {"id": 7, "function": {"arguments": None}},
    ]

    reply = parse_reply(_answer(_choice({"content": [{"type": "text", "text": "Hi"}], "tool_calls": calls})))

    assert reply.calls == (
        RawCall(None, "", None),
        RawCall(None, "f", '{"a":1}'),
        RawCall("c", "g", "text"),
        RawCall(None, "", None),
    )
    assert reply.text == "Hi"


def test_thinking_parts_are_no_text_and_refusal_parts_are_a_refusal() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [thinking, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    said = parse_reply(_answer(_choice({"content": parts})))
    refused = parse_reply(_answer(_choice({"content": [{"type": "refusal", "refusal": "no"}]})))

    assert (said.text, said.finish) == ("ab", "stop")
    assert (refused.text, refused.refusal, refused.finish) == (None, "no", "refusal")


def test_what_no_database_stores_is_replaced_but_argument_texts_stay_as_they_came() -> None:
    body = (
        b'{"choices":[{"message":{"content":"a\\u0000b\\ud83d","score":NaN,"n":123456789012345678901234567890,'
        b'"tool_calls":[{"id":"x","function":{"name":"f","arguments":"\\ud83d"}}]}}]}'
    )

    reply = parse_reply(_answer(body))

    assert reply.text == "a\ufffdb\ufffd"
    assert (reply.provider["score"], reply.provider["n"]) == (None, "123456789012345678901234567890")
    assert reply.calls[0].arguments == "\ud83d"
    orjson.dumps(reply.provider)


@pytest.mark.parametrize("reason", ["insufficient_system_resource", "error", "abort"])
def test_a_reply_its_server_broke_off_is_none(reason: str) -> None:
    fault = _fault(_choice({"content": "half an ans"}, reason))

    assert (fault.kind, fault.retryable) == ("unavailable", True)


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        ({"code": 502, "message": "Provider returned error"}, "unavailable", True),
        ({"code": "429"}, "rate_limited", True),
        ({"type": "overloaded_error", "message": "Overloaded"}, "unavailable", True),
        ({"code": "invalid_api_key"}, "auth", False),
        ({"code": "never_heard_of"}, "bad_reply", True),
        ("out of memory", "bad_reply", True),
    ],
)
def test_an_error_in_a_200_is_read_by_code_and_type(error: Any, kind: str, retryable: bool) -> None:
    fault = _fault({"error": error})

    assert (fault.kind, fault.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (301, "bad_request", False),
        (400, "bad_request", False),
        (401, "auth", False),
        (402, "quota", False),
        (403, "auth", False),
        (404, "not_found", False),
        (408, "timeout", True),
        (409, "unavailable", True),
        (413, "context_length", False),
        (422, "bad_request", False),
        (429, "rate_limited", True),
        (500, "unavailable", True),
        (503, "unavailable", True),
        (504, "timeout", True),
        (529, "unavailable", True),
    ],
)
def test_a_status_says_what_it_is_and_whether_to_try_again(status: int, kind: str, retryable: bool) -> None:
    fault = fault_of_status(status, {}, None, HOST)

    assert (fault.kind, fault.retryable, fault.status) == (kind, retryable, status)


def test_a_server_that_says_whether_to_try_again_is_obeyed() -> None:
    assert not fault_of_status(500, {"x-should-retry": "false"}, None, HOST).retryable
    assert fault_of_status(400, {"x-should-retry": "true"}, None, HOST).retryable


def test_a_used_up_quota_is_not_waited_for() -> None:
    body = {
        "error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded..."}
    }

    fault = fault_of_status(429, {"retry-after": "5"}, body, HOST)

    assert (fault.kind, fault.retryable, fault.retry_after_s) == ("quota", False, None)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1e300"}, 86_400.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:20 GMT"}, 10.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT"}, None),
    ],
)
def test_the_wait_a_server_asks_for_is_read_in_all_its_forms(
    headers: dict[str, str], seconds: float | None
) -> None:
    now_s = 1_445_412_480.0  # Wed, 21 Oct 2015 07:28:00 GMT

    assert retry_after_s(headers, now_s=now_s) == seconds


def test_a_message_names_the_code_but_nothing_the_provider_wrote_in_sentences() -> None:
    body = {
        "error": {
            "code": "string too long: my secret",
            "type": "invalid_request_error",
            "param": "tools[1].name",
        }
    }

    message = fault_of_status(400, {}, body, HOST).message

    assert "invalid_request_error" in message and "tools[1].name" in message and "secret" not in message


def test_the_ids_of_the_exchange_are_kept() -> None:
    body = _choice({"content": "x"}, id="chatcmpl-1", usage={"prompt_tokens": 3, "completion_tokens": 1})

    assert parse_reply(_answer(body)).request_id == "chatcmpl-1"
    reply: ModelReply = parse_reply(_answer(body, {"x-request-id": "req_1"}))
    assert (reply.request_id, reply.usage) == ("req_1", Usage(3, 1))
