"""The scripted model server over HTTP: it plays whole conversations, and refuses whatever a test must catch."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from toolfleet.examples.airline_desk.fanout import build_fanout_cases
from toolfleet.examples.airline_desk.model_server import ScriptedModelServer, main, served_in_thread
from toolfleet.examples.airline_desk.recordings import STOP, load_recordings
from toolfleet.examples.airline_desk.scripts import (
    END_TEXT,
    Script,
    ScriptBook,
    fanout_script,
    recorded_script,
    result_problem,
)

RECORDINGS = load_recordings()
SYSTEM = {"role": "system", "content": "Any instructions; the server does not look at them."}


def envelope(recorded: str) -> str:
    """The recorded result as the fleet sends it to a model."""
    if recorded.startswith("Error: "):
        return json.dumps({"status": "error", "error_type": "business_error", "message": recorded})
    try:
        data = json.loads(recorded)
    except ValueError:
        data = recorded
    return json.dumps({"status": "success", "data": data})


def as_sent(messages: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as a fleet sends them: its instructions first, results in envelopes, contents of calls null."""
    sent: list[dict[str, Any]] = [SYSTEM]
    for message in messages:
        if message["role"] == "tool":
            content = envelope(message["content"])
            sent.append({"role": "tool", "tool_call_id": message["tool_call_id"], "content": content})
        else:
            sent.append(dict(message))
    return sent


def requests_of(script: Script) -> Iterator[tuple[list[dict[str, Any]], Mapping[str, Any] | None]]:
    """Each request of a conversation, and the turn that is to answer it (None at the end of a recording)."""
    messages = list(script.messages)
    for index, message in enumerate(messages):
        following = messages[index + 1] if index + 1 < len(messages) else None
        asks = message["role"] in ("user", "tool") and STOP not in message["content"]
        if asks and (following is None or following["role"] == "assistant"):
            yield as_sent(messages[: index + 1]), following


def post(url: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/chat/completions", data=raw, headers=dict(headers or {}))
    opener = urllib.request.build_opener(_Lenient())
    with opener.open(request, timeout=30) as response:
        return response.status, json.loads(response.read())


class _Lenient(urllib.request.HTTPErrorProcessor):
    """Hands out refusals like any other response."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response


def stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/stats", timeout=30) as response:
        counted: dict[str, Any] = json.loads(response.read())
    return counted


def asked(url: str, messages: list[dict[str, Any]], **fields: Any) -> tuple[int, dict[str, Any]]:
    return post(url, {"model": "gpt-4o", "messages": messages, **fields})


async def walk(url: str, script: Script, session: aiohttp.ClientSession) -> list[str]:
    """What was wrong with the answers to all requests of a script."""
    wrong = []
    for messages, turn in requests_of(script):
        async with session.post(
            f"{url}/chat/completions", json={"model": "gpt-4o", "messages": messages}
        ) as reply:
            answer = await reply.json()
        if reply.status != 200:
            wrong.append(f"{script.id}: {answer}")
            continue
        (choice,) = answer["choices"]
        expected = turn or {"content": END_TEXT}
        calls = choice["message"].get("tool_calls")
        if (choice["message"]["content"], calls) != (expected["content"], expected.get("tool_calls")):
            wrong.append(f"{script.id}: {choice}")
        if choice["finish_reason"] != ("tool_calls" if calls else "stop"):
            wrong.append(f"{script.id}: finish_reason {choice['finish_reason']}")
    return wrong


async def walk_all(url: str, scripts: list[Script]) -> list[str]:
    async with aiohttp.ClientSession() as session:
        return [problem for script in scripts for problem in await walk(url, script, session)]


@pytest.fixture
def url() -> Iterator[str]:
    with served_in_thread(ScriptedModelServer()) as url:
        yield url


def test_all_recorded_conversations_are_played_to_their_ends(url: str) -> None:
    wrong = asyncio.run(walk_all(url, [recorded_script(one) for one in RECORDINGS]))

    counted = stats(url)
    assert wrong == []
    assert (counted["requests"], counted["recorded_turns"], counted["ends"]) == (1270, 1253, 17)
    assert (counted["refused"], counted["result_mismatches"], counted["mismatches"]) == (0, 0, [])


def test_all_fanout_cases_are_played_in_two_turns_each(url: str) -> None:
    scripts = [fanout_script(case) for case in build_fanout_cases(5)]

    wrong = asyncio.run(walk_all(url, scripts))

    assert wrong == []
    assert stats(url)["fanout_turns"] == 100


def test_a_fanout_turn_asks_for_all_its_calls_at_once_under_different_ids(url: str) -> None:
    case = max(build_fanout_cases(0), key=lambda one: len(one.planned_calls))

    _, answer = asked(url, [SYSTEM, {"role": "user", "content": case.user_text}])

    calls = answer["choices"][0]["message"]["tool_calls"]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        (planned.name, planned.arguments) for planned in case.planned_calls
    ]
    assert len({call["id"] for call in calls}) == 8


def test_the_carried_recordings_have_no_beginning_that_goes_on_in_two_ways(url: str) -> None:
    assert stats(url)["ambiguous_beginnings"] == 0


def test_another_server_goes_on_in_the_middle_of_a_conversation() -> None:
    requests = list(requests_of(recorded_script(RECORDINGS[0])))
    answers = []

    for messages, _ in requests[:6]:
        with served_in_thread(ScriptedModelServer()) as url:
            answers.append(asked(url, messages)[1]["choices"][0]["message"]["content"])

    assert answers == [turn["content"] for _, turn in requests[:6] if turn is not None]


def test_the_same_request_is_answered_with_the_same_bytes_after_a_restart() -> None:
    messages, _ = next(requests_of(recorded_script(RECORDINGS[0])))

    answers = []
    for _ in range(2):
        with served_in_thread(ScriptedModelServer()) as url:
            answers.append(asked(url, messages))

    assert answers[0] == answers[1]


def test_a_conversation_of_which_one_run_had_no_answer_can_be_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "gap.jsonl"
    recorded = [
        {"role": "user", "content": "Hello?"},
        {"role": "user", "content": "Anybody there?"},
        {"role": "assistant", "content": "Yes."},
    ]
    line = {"id": "gap", "messages": recorded, "db_diff_after_recorded_calls": []}
    file.write_text(json.dumps(line), encoding="utf-8")

    with served_in_thread(ScriptedModelServer(conversations=file)) as url:
        _, first = asked(url, recorded[:1])
        _, second = asked(url, [recorded[0], {"role": "assistant", "content": END_TEXT}, recorded[1]])

    assert first["choices"][0]["message"]["content"] == END_TEXT
    assert second["choices"][0]["message"]["content"] == "Yes."


def test_the_openai_client_reads_the_answers_and_the_refusals(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0)
    case = build_fanout_cases(0)[0]

    with client:
        models = [model.id for model in client.models.list()]
        completion = client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": case.user_text}]
        )
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "?"}])

    assert models == ["gpt-4o-recorded"]
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.usage is not None
    assert (
        completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    )
    assert (caught.value.code, caught.value.param) == ("unknown_conversation", "messages")


@pytest.fixture(scope="module")
def running() -> Iterator[str]:
    """One server for the many requests that are refused and leave nothing behind."""
    with served_in_thread(ScriptedModelServer()) as url:
        yield url


def fanout_request() -> list[dict[str, Any]]:
    """Instructions, a user message, three calls, and their right results: messages 0, 1, 2, 3 to 5."""
    case = next(one for one in build_fanout_cases(0) if len(one.planned_calls) == 3)
    *_, (messages, _) = requests_of(fanout_script(case))
    return messages


def test_the_request_that_is_spoilt_below_is_right(running: str) -> None:
    status, _ = asked(running, fanout_request())

    assert status == 200


Spoil = Callable[[list[dict[str, Any]]], object]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda m: m.pop(), "did not have response messages: call_"),
        (lambda m: m.pop(3), "did not have response messages: call_"),
        (lambda m: m.insert(4, {"role": "user", "content": "x"}), "did not have response messages: call_"),
        (lambda m: m.insert(3, {"role": "system", "content": "x"}), "did not have response messages: call_"),
        (lambda m: m.append(m[3]), "answered already"),
        (lambda m: m.append(m[3] | {"tool_call_id": "call_unknown"}), "'call_unknown' not found"),
        (lambda m: m[3].update(tool_call_id="call_unknown"), "did not have response messages: call_"),
        (lambda m: m.append(m.pop(3)), "another order than the calls"),
        (lambda m: m.pop(2), "must be a response to a preceeding message with 'tool_calls'"),
        (lambda m: m[3].pop("tool_call_id"), "Missing required parameter: 'messages[3].tool_call_id'"),
        (lambda m: m[3].update(content=None), "Invalid value for 'content' of 'messages[3]'"),
        (lambda m: m[3].update(content=[{"type": "image"}]), "Invalid value for 'content' of 'messages[3]'"),
        (lambda m: m[1].update(content=7), "Invalid value for 'content' of 'messages[1]'"),
        (lambda m: m[1].update(role="robot"), "Invalid 'messages[1].role'"),
        (lambda m: m[2].update(tool_calls=[]), "Invalid 'messages[2].tool_calls'"),
        (lambda m: m[2]["tool_calls"][1].pop("id"), "Invalid 'messages[2].tool_calls[1]'"),
        (lambda m: m[2]["tool_calls"][1]["function"].update(arguments={}), "'messages[2].tool_calls[1]'"),
        (lambda m: m[2]["tool_calls"][1]["function"].update(name="x"), "its first 1 messages are known"),
        (lambda m: m[2]["tool_calls"][1]["function"].update(arguments="{}"), "first 1 messages are known"),
        (lambda m: m[1].update(content="Something else"), "its first 0 messages are known"),
        (lambda m: m.append({"role": "assistant", "content": "I go on"}), "has to end with a user message"),
        (lambda m: m.append({"role": "user", "content": "More"}), "messages are known, and then it differs"),
        (lambda m: m.clear(), "expected an array with at least one message"),
    ],
)
def test_a_wrong_pairing_or_order_is_refused_with_400_and_what_is_wrong(
    running: str, spoil: Spoil, message: str
) -> None:
    messages = deepcopy(fanout_request())
    spoil(messages)
    before = stats(running)

    status, answer = asked(running, messages)

    after = stats(running)
    assert status == 400
    assert message in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert after["refused"] == before["refused"] + 1
    assert after["result_mismatches"] == before["result_mismatches"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "could not parse the JSON body"),
        (b"\xff", "could not parse the JSON body"),
        ([], "it is not an object"),
        ({"messages": []}, "you must provide a model parameter"),
        ({"model": "m"}, "Invalid 'messages'"),
        ({"model": "m", "messages": [SYSTEM], "stream": True}, "does not stream"),
        ({"model": "m", "messages": [SYSTEM]}, "has to end with a user message"),
        ({"model": "m", "messages": ["x"]}, "Invalid 'messages[0].role'"),
    ],
)
def test_a_body_that_is_no_request_is_refused_with_400(running: str, body: Any, message: str) -> None:
    status, answer = post(running, body)

    assert status == 400
    assert message in answer["error"]["message"]


def test_a_user_message_that_says_stop_is_never_answered(running: str) -> None:
    recording = next(one for one in RECORDINGS if STOP in one.messages[-1]["content"])

    status, answer = asked(running, as_sent(list(recording.messages)))

    assert status == 400
    assert STOP in answer["error"]["message"]


def test_a_wrong_result_is_refused_and_noted_once_with_its_conversation_and_place(url: str) -> None:
    messages = fanout_request()
    messages[4]["content"] = json.dumps({"status": "success", "data": {"value": 1}})

    answers = [asked(url, messages) for _ in range(2)]

    counted = stats(url)
    assert [status for status, _ in answers] == [400, 400]
    assert answers[0][1]["error"]["code"] == "wrong_result"
    assert (counted["result_mismatches"], counted["refused"], counted["fanout_turns"]) == (1, 2, 0)
    (mismatch,) = counted["mismatches"]
    assert mismatch["conversation"].startswith("bfcl-")
    assert mismatch["index"] == 3  # of the script, which has no instructions
    assert mismatch["reason"] == "its data is not the recorded result"


def test_a_wrong_result_is_still_wrong_in_every_later_turn(url: str) -> None:
    requests = [messages for messages, _ in requests_of(recorded_script(RECORDINGS[0]))]
    messages = deepcopy(requests[-1])
    first = next(message for message in messages if message["role"] == "tool")
    first["content"] = json.dumps({"status": "success", "data": None})

    status, answer = asked(url, messages)

    assert status == 400
    assert RECORDINGS[0].id in answer["error"]["message"]


ERROR = "Error: user not found"


@pytest.mark.parametrize(
    ("content", "recorded", "problem"),
    [
        ({"status": "success", "data": {"b": 1.0, "a": []}}, '{"a": [], "b": 1}', None),
        ({"status": "success", "data": 255}, "255.0", None),
        ({"status": "success", "data": "Transfer successful"}, "Transfer successful", None),
        ({"status": "success", "data": ""}, "", None),
        ({"status": "error", "message": ERROR}, ERROR, None),
        ({"status": "success", "data": "255.0"}, "255.0", "its data is not the recorded result"),
        ({"status": "success", "data": True}, "1", "its data is not the recorded result"),
        ({"status": "success", "data": [1, 2]}, "[2, 1]", "its data is not the recorded result"),
        ({"status": "success"}, "null", "its data is not the recorded result"),
        ({"status": "error", "message": ERROR + "."}, ERROR, "its error message is not the recorded result"),
        ({"status": "error"}, ERROR, "its error message is not the recorded result"),
        ({"status": "pending", "message": ERROR}, ERROR, 'its status is "pending", and the recorded call'),
        ({"data": 1}, "1", "its status is null, and the recorded call"),
        ([1], "[1]", "its content is no result envelope"),
        (ERROR, ERROR, "its content is no result envelope"),
    ],
)
def test_a_result_is_right_when_its_envelope_holds_the_recorded_one(
    content: Any, recorded: str, problem: str | None
) -> None:
    message = {"role": "tool", "content": content if isinstance(content, str) else json.dumps(content)}

    found = result_problem(message, recorded)

    assert (found is None) is (problem is None)
    assert (found or "").startswith(problem or "")


def test_contents_given_as_parts_and_arguments_with_other_spaces_are_the_same_conversation(url: str) -> None:
    messages = fanout_request()
    messages[1]["content"] = [{"type": "text", "text": messages[1]["content"]}]
    for message in messages[3:]:
        message["content"] = [{"type": "text", "text": message["content"]}]
    for call in messages[2]["tool_calls"]:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)

    assert asked(url, messages)[0] == 200


def twins(tmp_path: Path) -> Path:
    """Two conversations that begin with the same words."""
    file = tmp_path / "twins.jsonl"
    lines = [
        {
            "id": name,
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": f"I am {name}"}],
            "db_diff_after_recorded_calls": [],
        }
        for name in ("castor", "pollux")
    ]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({"user": "pollux"}, {}),
        ({"safety_identifier": "pollux"}, {}),
        ({"metadata": {"conversation": "pollux"}}, {}),
        ({}, {"x-conversation": "pollux"}),
    ],
)
def test_where_two_recordings_begin_alike_a_hint_decides(
    tmp_path: Path, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}

    with served_in_thread(ScriptedModelServer(conversations=twins(tmp_path))) as url:
        _, hinted = post(url, body | fields, headers)
        _, plain = post(url, body)
        counted = stats(url)

    assert hinted["choices"][0]["message"]["content"] == "I am pollux"
    assert plain["choices"][0]["message"]["content"] == "I am castor"
    assert counted["ambiguous_beginnings"] == 1


def test_where_two_recordings_call_alike_their_results_decide() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    scripts = [
        Script(
            name,
            "recorded",
            (
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": name},
                {"role": "assistant", "content": f"I am {name}"},
            ),
        )
        for name in ("castor", "pollux")
    ]
    messages = [
        *scripts[0].messages[:2],
        {"role": "tool", "tool_call_id": "c", "content": envelope("pollux")},
    ]

    place = ScriptBook(scripts).find(messages)

    assert place is not None
    assert place.script.id == "pollux"


def test_the_command_prints_its_url_serves_and_ends_with_its_process() -> None:
    command = [
        sys.executable,
        "-m",
        "toolfleet.examples.airline_desk.model_server",
        "--port",
        "0",
        "--seed",
        "3",
    ]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            counted = stats(url)
            status, _ = asked(url, fanout_request())
        finally:
            process.terminate()

    assert url.startswith("http://127.0.0.1:")
    assert (counted["requests"], status) == (0, 200)


def test_the_command_says_what_is_wrong_with_a_conversations_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("{}", encoding="utf-8")

    code = main(["--conversations", str(file)])

    assert code == 2
    assert f"{file}, line 1: has no 'id'" in capsys.readouterr().err


def test_the_command_says_that_its_port_is_taken(running: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = running.rsplit(":", 1)[1].removesuffix("/v1")

    code = main(["--port", port])

    assert code == 2
    assert "address already in use" in capsys.readouterr().err
