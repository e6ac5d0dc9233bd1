"""The airline desk's tools and database against the recordings, under repetition, in many processes, and killed."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from toolfleet import BusinessError, ToolContext
from toolfleet.examples.airline_desk import desk
from toolfleet.examples.airline_desk.arithmetic import calculated
from toolfleet.examples.airline_desk.database import DeskDatabaseError, effects, state_diff
from toolfleet.examples.airline_desk.difference import difference, same_json
from toolfleet.examples.airline_desk.fanout import (
    FanoutCase,
    build_fanout_cases,
    chosen_arguments,
    finishing_order,
    plain_schema,
)
from toolfleet.examples.airline_desk.initial import DATA, initial_records, tool_definitions
from toolfleet.examples.airline_desk.recordings import Recording, RecordingsUnreadable, load_recordings
from toolfleet.examples.airline_desk.records import Refused

TOOLS = {one.spec.name: one for one in desk.TOOLS}
RECORDINGS = load_recordings()
MIA, MIA_CARD = "mia_li_3668", "credit_card_4421486"
MIA_CERTIFICATE_USD_100, MIA_CERTIFICATE_USD_250 = "certificate_4856383", "certificate_7504069"

# A process that makes the effects of some recorded conversations, in order, and writes one line for each.
WORKER = """
import json, sys
from toolfleet import BusinessError, ToolContext
from toolfleet.examples.airline_desk import desk
tools = {one.spec.name: one for one in desk.TOOLS}
for line in open(sys.argv[2], encoding="utf-8"):
    conversation, key, name, arguments = json.loads(line)
    context = {"desk_db": sys.argv[1], "conversation": conversation}
    ctx = ToolContext("run", 1, "call", 1, key, "t", "desk", "c", 0.0, context)
    try:
        came_to = tools[name].invoke(arguments, ctx)
    except BusinessError as error:
        came_to = error.message
    print(json.dumps([conversation, key, came_to]), flush=True)
"""


def context_of(desk_db: Path, conversation: str, key: str) -> ToolContext:
    return ToolContext(
        run_id="run_1",
        turn=1,
        call_id="call_1",
        attempt=1,
        idempotency_key=key,
        tenant="default",
        agent="airline_desk",
        correlation_id="c",
        deadline_at=0.0,
        context={"desk_db": str(desk_db), "conversation": conversation},
    )


def recorded_calls(recording: Recording) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Key, tool, arguments and recorded text of each call."""
    messages = recording.messages
    for index, message in enumerate(messages):
        for offset, call in enumerate(message.get("tool_calls") or (), start=1):
            function = call["function"]
            yield (
                f"{index}.{offset}",
                function["name"],
                json.loads(function["arguments"]),
                messages[index + offset]["content"],
            )


def came_to(desk_db: Path, conversation: str, key: str, name: str, arguments: dict[str, Any]) -> Any:
    """What the call gives, or the message of its business error."""
    try:
        return TOOLS[name].invoke(arguments, context_of(desk_db, conversation, key))
    except BusinessError as error:
        return error.message


def recorded_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.fixture
def desk_db(tmp_path: Path) -> Path:
    return tmp_path / "desk.db"


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[str]]:
    """All 100 recordings made again, every effect twice: the database, the calls, and what differed."""
    desk_db = tmp_path_factory.mktemp("replay") / "desk.db"
    call_count, wrong = 0, []
    for recording in RECORDINGS:
        for key, name, arguments, text in recorded_calls(recording):
            times = 2 if TOOLS[name].spec.effect else 1
            got = [came_to(desk_db, recording.id, key, name, arguments) for _ in range(times)]
            call_count += 1
            if not all(same_json(one, recorded_value(text)) for one in got):
                wrong.append(f"{recording.id} {key} {name}: {got} instead of {text}"[:500])
    return desk_db, call_count, wrong


def test_every_recorded_call_gives_its_recorded_result_and_so_does_every_effect_made_again(
    replayed: tuple[Path, int, list[str]],
) -> None:
    _, call_count, wrong = replayed

    assert wrong == []
    assert call_count == 599


def test_every_recorded_conversation_leaves_its_recorded_difference_in_the_database(
    replayed: tuple[Path, int, list[str]],
) -> None:
    desk_db, _, _ = replayed

    wrong = [one.id for one in RECORDINGS if not same_json(state_diff(desk_db, one.id), one.expected_diff)]

    assert wrong == []
    assert sum(bool(one.expected_diff) for one in RECORDINGS) == 66


def test_an_effect_made_twice_under_one_key_stands_once_in_the_ledger(
    replayed: tuple[Path, int, list[str]],
) -> None:
    desk_db, _, _ = replayed
    happened = [
        (recording.id, key, name, arguments)
        for recording in RECORDINGS
        for key, name, arguments, text in recorded_calls(recording)
        if TOOLS[name].spec.effect and not text.startswith("Error: ")
    ]

    ledger = [(one.conversation, one.idempotency_key, one.tool, one.arguments) for one in effects(desk_db)]

    assert ledger == happened


def test_one_call_repeated_under_another_key_is_another_effect(desk_db: Path) -> None:
    gift = {"user_id": MIA, "amount": 50}

    first = came_to(desk_db, "a", "key 1", "send_certificate", gift)
    second = came_to(desk_db, "a", "key 2", "send_certificate", gift)

    assert (first, second) == (
        f"Certificate certificate_3221322 added to user {MIA} with amount 50.",
        f"Certificate certificate_3221323 added to user {MIA} with amount 50.",
    )
    assert len(effects(desk_db, "a")) == 2


def test_a_refusal_is_repeated_even_when_the_call_would_succeed_by_now(desk_db: Path) -> None:
    cancel = {"reservation_id": "HATHAT"}

    before = came_to(desk_db, "a", "early", "cancel_reservation", cancel)
    booked = came_to(desk_db, "a", "booking", "book_reservation", booking())
    again = came_to(desk_db, "a", "early", "cancel_reservation", cancel)
    later = came_to(desk_db, "a", "late", "cancel_reservation", cancel)

    assert before == again == "Error: reservation not found"
    assert booked["reservation_id"] == "HATHAT"
    assert later["status"] == "cancelled"
    assert [one.tool for one in effects(desk_db)] == ["book_reservation", "cancel_reservation"]


def test_a_key_that_belongs_to_another_call_is_refused_and_changes_nothing(desk_db: Path) -> None:
    came_to(desk_db, "a", "key", "send_certificate", {"user_id": MIA, "amount": 50})

    with pytest.raises(DeskDatabaseError, match="'key' was used for another call"):
        came_to(desk_db, "a", "key", "send_certificate", {"user_id": MIA, "amount": 100})

    assert len(effects(desk_db)) == 1


def test_conversations_do_not_see_each_other(desk_db: Path) -> None:
    came_to(desk_db, "a", "key", "cancel_reservation", {"reservation_id": "4WQ150"})

    there = came_to(desk_db, "b", "key", "get_reservation_details", {"reservation_id": "4WQ150"})

    assert "status" not in there
    assert state_diff(desk_db, "b") == []


def test_the_shared_initial_records_stay_as_they_are_when_a_result_is_changed(desk_db: Path) -> None:
    got = came_to(desk_db, "a", "key", "get_user_details", {"user_id": MIA})

    got["payment_methods"].clear()

    assert len(initial_records().users[MIA]["payment_methods"]) == 4


def effect_lines(recordings: tuple[Recording, ...]) -> list[list[Any]]:
    return [
        [recording.id, key, name, arguments]
        for recording in recordings
        for key, name, arguments, _ in recorded_calls(recording)
        if TOOLS[name].spec.effect
    ]


def recorded_effects(recordings: tuple[Recording, ...]) -> dict[tuple[str, str], Any]:
    return {
        (recording.id, key): recorded_value(text)
        for recording in recordings
        for key, name, _, text in recorded_calls(recording)
        if TOOLS[name].spec.effect
    }


def wrong_lines(output: str, recordings: tuple[Recording, ...]) -> list[str]:
    expected = recorded_effects(recordings)
    return [
        line
        for line in output.splitlines()
        for conversation, key, value in [json.loads(line)]
        if not same_json(value, expected[conversation, key])
    ]


def test_processes_that_race_with_the_same_calls_all_get_the_result_and_make_each_effect_once(
    tmp_path: Path, desk_db: Path
) -> None:
    chosen = tuple(one for one in RECORDINGS if one.expected_diff)[:25]
    todo = tmp_path / "todo.jsonl"
    todo.write_text("".join(json.dumps(line) + "\n" for line in effect_lines(chosen)), encoding="utf-8")
    command = [sys.executable, "-c", WORKER, str(desk_db), str(todo)]

    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    outputs = [process.communicate(timeout=100) for process in processes]

    assert [process.returncode for process in processes] == [0] * 4, [errors for _, errors in outputs]
    assert [wrong_lines(output, chosen) for output, _ in outputs] == [[]] * 4
    assert all(len(output.splitlines()) == len(effect_lines(chosen)) for output, _ in outputs)
    keys = Counter((one.conversation, one.idempotency_key) for one in effects(desk_db))
    assert set(keys.values()) == {1}
    assert all(same_json(state_diff(desk_db, one.id), one.expected_diff) for one in chosen)


def test_a_process_killed_at_any_moment_and_started_again_makes_each_effect_once(
    tmp_path: Path, desk_db: Path
) -> None:
    chosen = tuple(one for one in RECORDINGS if one.expected_diff)[:20]
    todo = tmp_path / "todo.jsonl"
    todo.write_text("".join(json.dumps(line) + "\n" for line in effect_lines(chosen)), encoding="utf-8")
    command = [sys.executable, "-c", WORKER, str(desk_db), str(todo)]
    moments = random.Random(11)

    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            for _ in range(moments.randint(1, 25)):
                victim.stdout.readline()
            victim.send_signal(signal.SIGKILL)
        assert victim.returncode == -signal.SIGKILL
    survivor = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)

    assert survivor.returncode == 0, survivor.stderr
    assert wrong_lines(survivor.stdout, chosen) == []
    keys = Counter((one.conversation, one.idempotency_key) for one in effects(desk_db))
    assert set(keys.values()) == {1}
    assert all(same_json(state_diff(desk_db, one.id), one.expected_diff) for one in chosen)


# A process that dies within the transaction of an effect: everything is written, nothing is committed.
DYING = """
import os, signal, sys
from toolfleet import ToolContext
from toolfleet.examples.airline_desk import database, desk
store = database.DeskView.store
def store_and_die(view):
    store(view)
    os.kill(os.getpid(), signal.SIGKILL)
database.DeskView.store = store_and_die
context = {"desk_db": sys.argv[1], "conversation": "a"}
ctx = ToolContext("run", 1, "call", 1, "key", "t", "desk", "c", 0.0, context)
desk.cancel_reservation(ctx, reservation_id="4WQ150")
"""


def test_a_process_killed_before_its_commit_leaves_nothing_and_the_next_attempt_makes_the_effect(
    desk_db: Path,
) -> None:
    victim = subprocess.run([sys.executable, "-c", DYING, str(desk_db)], check=False, timeout=60)
    left_behind = (state_diff(desk_db, "a"), effects(desk_db))
    again = came_to(desk_db, "a", "key", "cancel_reservation", {"reservation_id": "4WQ150"})

    assert victim.returncode == -signal.SIGKILL
    assert left_behind == ([], [])
    assert again["status"] == "cancelled"
    assert len(effects(desk_db)) == 1


def test_a_database_of_another_version_is_refused_with_what_to_do(desk_db: Path) -> None:
    state_diff(desk_db, "a")
    connection = sqlite3.connect(desk_db)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(DeskDatabaseError, match=r"it says 99.*delete it, or choose another place"):
        state_diff(desk_db, "a")


def test_a_missing_folder_for_the_database_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeskDatabaseError, match=r"no folder .*nowhere"):
        state_diff(tmp_path / "nowhere" / "desk.db", "a")


def test_a_run_without_the_desks_context_is_told_what_to_submit(desk_db: Path) -> None:
    bare = ToolContext("run", 1, "call", 1, "key", "t", "desk", "c", 0.0, {"conversation": "a"})

    with pytest.raises(DeskDatabaseError, match="has no 'desk_db'; submit runs"):
        desk.get_user_details(bare, user_id=MIA)


def booking(**changes: Any) -> dict[str, Any]:
    """A booking that succeeds: 152 + 103 dollars for one passenger, paid by card."""
    return {
        "user_id": MIA,
        "origin": "JFK",
        "destination": "SEA",
        "flight_type": "one_way",
        "cabin": "economy",
        "flights": [
            {"flight_number": "HAT136", "date": "2024-05-20"},
            {"flight_number": "HAT039", "date": "2024-05-20"},
        ],
        "passengers": [{"first_name": "Mia", "last_name": "Li", "dob": "1990-04-05"}],
        "payment_methods": [{"payment_id": MIA_CARD, "amount": 255}],
        "total_baggages": 0,
        "nonfree_baggages": 0,
        "insurance": "no",
    } | changes


FLIGHT = {"flight_number": "HAT136", "date": "2024-05-20"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_id": "nobody_1"}, "Error: user not found"),
        ({"flights": [FLIGHT | {"flight_number": "HAT999"}]}, "Error: flight HAT999 not found"),
        ({"flights": [FLIGHT | {"date": "2025-01-01"}]}, "Error: flight HAT136 not found on date 2025-01-01"),
        (
            {"flights": [FLIGHT | {"date": "2024-05-10"}]},
            "Error: flight HAT136 not available on date 2024-05-10",
        ),
        (
            {"cabin": "business", "passengers": [{"first_name": "A", "last_name": "B", "dob": "C"}] * 3},
            "Error: not enough seats on flight HAT136",
        ),
        (
            {"payment_methods": [{"payment_id": "gift_card_1", "amount": 255}]},
            "Error: payment method gift_card_1 not found",
        ),
        (
            {"payment_methods": [{"payment_id": MIA_CERTIFICATE_USD_100, "amount": 255}]},
            f"Error: not enough balance in payment method {MIA_CERTIFICATE_USD_100}",
        ),
        ({"insurance": "yes"}, "Error: payment amount does not add up, total price is 285, but paid 255"),
        ({"nonfree_baggages": 1}, "Error: payment amount does not add up, total price is 305, but paid 255"),
        (
            {
                "payment_methods": [
                    {"payment_id": MIA_CERTIFICATE_USD_250, "amount": 200},
                    {"payment_id": MIA_CERTIFICATE_USD_250, "amount": 55},
                ]
            },
            f"Error: payment method {MIA_CERTIFICATE_USD_250} not found",
        ),
    ],
)
def test_a_booking_against_the_rules_is_refused_with_its_reason_and_changes_nothing(
    desk_db: Path, changes: dict[str, Any], message: str
) -> None:
    assert came_to(desk_db, "a", "key", "book_reservation", booking(**changes)) == message
    assert state_diff(desk_db, "a") == []
    assert effects(desk_db) == []


def test_a_booking_uses_a_certificate_up_and_takes_a_gift_card_down(desk_db: Path) -> None:
    payments = [
        {"payment_id": MIA_CERTIFICATE_USD_250, "amount": 250},
        {"payment_id": MIA_CARD, "amount": 5},
    ]

    came_to(desk_db, "a", "key", "book_reservation", booking(payment_methods=payments))

    changed = {(one["op"], one["path"]) for one in state_diff(desk_db, "a")}
    assert changed == {
        ("add", "/reservations/HATHAT"),
        ("remove", f"/users/{MIA}/payment_methods/{MIA_CERTIFICATE_USD_250}"),
        ("replace", f"/users/{MIA}/reservations"),
    }


def test_bookings_without_end_get_different_reservation_ids(desk_db: Path) -> None:
    ids = [came_to(desk_db, "a", f"{n}", "book_reservation", booking())["reservation_id"] for n in range(9)]

    assert ids[:3] == ["HATHAT", "HATHAU", "HATHAV"]
    assert len(set(ids)) == 9


CHANGE = {"reservation_id": "4WQ150", "payment_id": "credit_card_1"}
SAME_FLIGHTS = [
    {"flight_number": "HAT170", "date": "2024-05-22"},
    {"flight_number": "HAT022", "date": "2024-05-26"},
]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("get_user_details", {"user_id": "x"}, "Error: user not found"),
        ("get_reservation_details", {"reservation_id": "x"}, "Error: reservation not found"),
        ("cancel_reservation", {"reservation_id": "x"}, "Error: reservation not found"),
        ("send_certificate", {"user_id": "x", "amount": 5}, "Error: user not found"),
        (
            "update_reservation_passengers",
            {"reservation_id": "4WQ150", "passengers": []},
            "Error: number of passengers does not match",
        ),
        (
            "update_reservation_flights",
            CHANGE | {"cabin": "business", "flights": SAME_FLIGHTS},
            "Error: payment method not found",
        ),
        (
            "update_reservation_baggages",
            CHANGE | {"total_baggages": 6, "nonfree_baggages": 1},
            "Error: payment method not found",
        ),
    ],
)
def test_a_call_for_something_that_is_not_there_is_refused_with_its_reason(
    desk_db: Path, name: str, arguments: dict[str, Any], message: str
) -> None:
    assert came_to(desk_db, "a", "key", name, arguments) == message


def test_flights_that_are_kept_cost_nothing_even_when_their_price_has_changed(desk_db: Path) -> None:
    change = {
        "reservation_id": "4WQ150",
        "cabin": "business",
        "flights": SAME_FLIGHTS,
        "payment_id": "gift_card_3576581",
    }

    came_to(desk_db, "a", "key", "update_reservation_flights", change)

    assert state_diff(desk_db, "a") == []
    assert len(effects(desk_db)) == 1


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("152 + 103", 255.0),
        ("(136 - (94 + 80)) * 3", -114.0),
        ("10 / 4", 2.5),
        ("1 / 3", 0.33),
        ("-(2.5 - 4)", 1.5),
        (" 7 ", 7.0),
        ("7 // 2", 3.0),
        ("2 ** 10", 1024.0),
    ],
)
def test_arithmetic_gives_a_float_rounded_to_cents(expression: str, value: float) -> None:
    result = calculated(expression)

    assert (result, type(result)) == (value, float)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("__import__('os')", "Error: invalid characters in expression"),
        ("1 / 0", "Error: division by zero"),
        ("9 ** 9 ** 9 ** 9", "Error: the result is too large"),
        ("(0 - 8) ** 0.5", "Error: the result is not a number"),
        ("1" * 1001, "Error: expression is too long"),
        ("(" * 400 + "1" + ")" * 400, "Error: "),
        ("+".join(["1"] * 300), "Error: expression is nested too deeply"),
        ("1 +", "Error: invalid syntax"),
        ("", "Error: "),
        ("(1)(2)", "Error: only numbers"),
    ],
)
def test_what_is_no_arithmetic_is_refused_and_never_run(expression: str, message: str) -> None:
    with pytest.raises(Refused) as caught:
        calculated(expression)

    assert caught.value.message.startswith(message)


def test_the_tools_are_the_recorded_ones_with_their_definitions_and_tiers() -> None:
    assert [one.spec.name for one in desk.TOOLS] == list(tool_definitions())
    for one in desk.TOOLS:
        assert one.spec.parameters == tool_definitions()[one.spec.name]["parameters"]
        assert one.spec.description == tool_definitions()[one.spec.name]["description"]
        assert one.spec.effect is one.spec.idempotent is (one.spec.tier.value != "low")
    assert Counter(one.spec.tier.value for one in desk.TOOLS) == {"low": 8, "high": 5, "irreversible": 1}


def test_the_longest_answer_of_the_timetable_reaches_the_model_whole() -> None:
    found = desk.search_onestop_flight(origin="ATL", destination="PHX", date="2024-05-20")

    assert 16_000 < len(json.dumps(found)) < desk.search_onestop_flight.spec.result_bytes_to_model


def test_the_difference_lists_what_was_added_removed_and_replaced_by_path() -> None:
    before = {"b": {"x": 1, "list": [1]}, "gone": 1, "same": {"n": 1}}
    after = {"b": {"x": True, "list": [1, 2]}, "a/b~c": None, "same": {"n": 1.0}}

    assert difference(before, after) == [
        {"op": "add", "path": "/a~1b~0c", "value": None},
        {"op": "replace", "path": "/b/list", "value": [1, 2]},
        {"op": "replace", "path": "/b/x", "value": True},
        {"op": "remove", "path": "/gone"},
    ]


def test_the_carried_recordings_make_671_runs_and_599_calls() -> None:
    assert len(RECORDINGS) == 100
    assert sum(len(one.runs) for one in RECORDINGS) == 671
    assert sum(one.call_count for one in RECORDINGS) == 599


@pytest.mark.parametrize("name", ["some.jsonl", "some.jsonl.gz"])
def test_recordings_are_read_from_a_plain_or_a_packed_file_in_its_order(tmp_path: Path, name: str) -> None:
    lines = gzip.decompress((DATA / "airline_conversations.jsonl.gz").read_bytes()).splitlines()[4:1:-1]
    content = b"\n\n".join(lines)
    file = tmp_path / name
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    assert load_recordings(file) == RECORDINGS[4:1:-1]


def test_a_user_message_that_says_stop_starts_no_run(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    texts = ["Hello", "Bye ###STOP###"]
    messages = [{"role": "user", "content": text} for text in texts]
    messages.insert(1, {"role": "assistant", "content": "Hello yourself"})
    file.write_text(json.dumps(line_of(messages=messages)), encoding="utf-8")

    (recording,) = load_recordings(file)

    assert [(run.index, run.user_text) for run in recording.runs] == [(0, "Hello")]


USER = {"role": "user", "content": "Hello"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "think", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": ""}


def line_of(**changes: Any) -> dict[str, Any]:
    return {"id": "one", "messages": [USER], "db_diff_after_recorded_calls": []} | changes


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: is not JSON"),
        ("[1]", "line 2: is a list, not an object"),
        ({}, "line 2: has no 'id'"),
        (line_of(id=7), "line 2: 'id' is a number, not a text"),
        (line_of(id=""), "line 2: has an empty id"),
        (line_of(id="first"), "line 2: the id 'first' stands in line 1 already"),
        (line_of(messages="x"), "line 2: 'messages' is a text, not a list"),
        (line_of(messages=[]), "line 2: messages hold nothing a user said"),
        (line_of(messages=[3]), r"line 2: messages\[0\] is a number, not an object"),
        (line_of(messages=[{"role": "system", "content": "x"}]), r"messages\[0\] has the role 'system'"),
        (line_of(messages=[{"role": "user", "content": None}]), r"messages\[0\].content is null, not text"),
        (line_of(messages=[CALLING]), r"messages\[0\]: an assistant turn answers nothing"),
        (line_of(messages=[USER, CALLING]), "the last call 'call_1' has no tool message"),
        (line_of(messages=[USER, CALLING, USER]), r"messages\[2\]: the call 'call_1' before it has no tool"),
        (line_of(messages=[USER, RESULT]), r"messages\[1\]: its tool_call_id 'call_1' is no open call"),
        (
            line_of(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]),
            r"messages\[1\].tool_calls\[0\] lacks id",
        ),
        (
            line_of(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}]),
            "uses the call id 'call_1' twice",
        ),
        (line_of(db_diff_after_recorded_calls=[{"op": "move", "path": "/x"}]), r"calls\[0\] is no add"),
        (line_of(db_diff_after_recorded_calls=[{"op": "add", "path": "/x"}]), r"calls\[0\] has no value"),
    ],
)
def test_a_bad_line_is_named_with_its_file_its_number_and_what_to_do(
    tmp_path: Path, line: Any, problem: str
) -> None:
    file = tmp_path / "bad.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    file.write_text(json.dumps(line_of(id="first")) + "\n" + text + "\n", encoding="utf-8")

    with pytest.raises(RecordingsUnreadable, match=problem) as caught:
        load_recordings(file)

    assert caught.value.message.startswith(f"{file}, line 2: ")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        (b"", "holds no conversation"),
        (b"\n \n", "holds no conversation"),
        (gzip.compress(json.dumps(line_of()).encode() * 50)[:-9], "is cut or damaged"),
        (b"\xff\xfe{}", "line 1: is not UTF-8"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong_and_what_to_do(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "bad.jsonl.gz"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(RecordingsUnreadable, match=problem) as caught:
        load_recordings(file)

    assert str(file) in caught.value.message
    assert caught.value.hint


def test_the_fanout_cases_are_50_with_152_calls_and_two_to_eight_in_a_turn() -> None:
    cases = build_fanout_cases(0)

    assert Counter(len(case.planned_calls) for case in cases) == {2: 18, 3: 16, 4: 15, 8: 1}
    assert len({case.user_text for case in cases}) == 50


def test_the_fanout_tools_have_names_of_their_own_and_schemas_that_accept_the_planned_calls() -> None:
    tools = [one.spec for case in build_fanout_cases(0) for one in case.tool_functions]

    assert len({spec.name for spec in tools}) == len(tools) == 90
    for spec in tools:
        jsonschema_rs.meta.validate(spec.parameters)
        assert (spec.tier.value, spec.effect, spec.runner) == ("low", False, "loop")
    schemas = {spec.name: jsonschema_rs.validator_for(spec.parameters) for spec in tools}
    for case in build_fanout_cases(0):
        for call in case.planned_calls:
            schemas[call.name].validate(json.loads(call.arguments))


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still until nothing is left to do, and then jumps to the next timer."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()


def test_the_calls_of_every_case_finish_in_the_order_of_the_seed_and_not_as_they_were_made() -> None:
    async def run(case: FanoutCase) -> tuple[list[Any], list[int]]:
        tools = {one.spec.name: one for one in case.tool_functions}
        finished: list[int] = []

        async def call(index: int) -> Any:
            planned = case.planned_calls[index]
            result = await tools[planned.name].function(**json.loads(planned.arguments))
            finished.append(index)
            return result

        results = await asyncio.gather(*(call(index) for index in range(len(case.planned_calls))))
        return list(results), finished

    async def run_all(cases: list[FanoutCase]) -> list[tuple[list[Any], list[int]]]:
        return [await run(case) for case in cases]

    cases = build_fanout_cases(3)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        outcomes = runner.run(run_all(cases))

    for case, (results, finished) in zip(cases, outcomes, strict=True):
        assert results == list(case.results_expected)
        assert finished == list(case.finishing_order) != sorted(finished)


def test_the_seed_changes_finishing_orders_and_nothing_else() -> None:
    one, same, other = build_fanout_cases(1), build_fanout_cases(1), build_fanout_cases(2)

    assert [case.finishing_order for case in one] == [case.finishing_order for case in same]
    assert [case.finishing_order for case in one] != [case.finishing_order for case in other]
    assert [case.planned_calls for case in one] == [case.planned_calls for case in other]
    assert all(finishing_order(seed, "x", 2) == (1, 0) for seed in range(20))


def test_the_leaderboards_types_become_plain_json_schema() -> None:
    schema = {
        "type": "dict",
        "properties": {
            "size": {"type": "float", "optional": True},
            "pair": {"type": "tuple", "items": {"type": "String"}},
            "free": {"type": "any", "description": "Whatever", "default": 1},
            "map": {"type": "HashMap", "properties": {"n": {"type": "long"}}, "required": ["n", "lost"]},
        },
        "required": ["size"],
    }

    assert plain_schema(schema) == {
        "type": "object",
        "properties": {
            "size": {"type": "number"},
            "pair": {"type": "array", "items": {"type": "string"}},
            "free": {"description": "Whatever", "default": 1},
            "map": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        },
        "required": ["size"],
    }


def test_the_first_accepted_value_is_sent_and_what_may_be_absent_is() -> None:
    accepted = {
        "plain": ["a", "b"],
        "absent": ["", "x"],
        "needed": ["", "y"],
        "zero": [0],
        "whole": [{"low": [1, 2], "gone": ["", 3]}],
        "list": [[{"name": ["n"]}, "as it is"]],
    }

    assert chosen_arguments(accepted, ["needed"]) == {
        "plain": "a",
        "needed": "y",
        "zero": 0,
        "whole": {"low": 1, "gone": 3},
        "list": [{"name": "n"}, "as it is"],
    }
