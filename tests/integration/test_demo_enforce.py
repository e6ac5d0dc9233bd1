"""The demo under a rule of order: what is refused is what the recordings alone say, and it does not happen."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from toolfleet.examples.airline_desk.database import effects
from toolfleet.examples.airline_desk.demo import run_demo
from toolfleet.examples.airline_desk.enforcement import Refusal, enforced_tools, expected_refusals
from toolfleet.examples.airline_desk.initial import DATA
from toolfleet.examples.airline_desk.recordings import Recording, load_recordings

EVERY = 12  # of the recordings nothing is refused in, so that the test ends soon


def _turn(name: str, reservation_id: str, id_: str, answer: str) -> list[dict[str, Any]]:
    arguments = json.dumps({"reservation_id": reservation_id})
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": id_, "content": answer},
    ]


def _recording(*turns: list[dict[str, Any]]) -> Recording:
    messages = [{"role": "user", "content": "hello"}, *(one for turn in turns for one in turn)]
    return Recording("made", tuple(messages), ())


def test_the_expected_refusals_follow_from_the_order_of_recorded_calls() -> None:
    recording = _recording(
        _turn("cancel_reservation", "AAA", "c1", "{}"),  # 0: nothing was read
        _turn("get_reservation_details", "AAA", "c2", "Error: reservation not found"),  # 1
        _turn("cancel_reservation", "AAA", "c3", "{}"),  # 2: the reading failed
        _turn("get_reservation_details", "AAA", "c4", "{}"),  # 3
        _turn("cancel_reservation", "AAA", "c5", "{}"),  # 4: in order
        _turn("update_reservation_passengers", "BBB", "c6", "{}"),  # 5: another one was read
    )

    assert expected_refusals(recording) == [
        Refusal("made", 0, "cancel_reservation", "AAA"),
        Refusal("made", 2, "cancel_reservation", "AAA"),
        Refusal("made", 5, "update_reservation_passengers", "BBB"),
    ]


def test_the_rule_is_for_the_tools_that_change_a_reservation_that_exists() -> None:
    assert sorted(one.spec.name for one in enforced_tools() if one.spec.requires) == [
        "cancel_reservation",
        "update_reservation_baggages",
        "update_reservation_flights",
        "update_reservation_passengers",
    ]


@pytest.mark.timeout(300)
def test_what_is_refused_is_what_the_recordings_say_and_nothing_else_changes(tmp_path: Path) -> None:
    recordings = load_recordings()
    wanted = [one.id for one in recordings if expected_refusals(one)]
    assert wanted, "no recording has a call out of order, so this test shows nothing"
    chosen = {*wanted, *(one.id for one in recordings[::EVERY])}
    lines = gzip.decompress((DATA / "airline_conversations.jsonl.gz").read_bytes()).splitlines()
    file = tmp_path / "some.jsonl"
    file.write_bytes(b"\n".join(line for line in lines if json.loads(line)["id"] in chosen))

    code = run_demo(out=tmp_path / "out", conversations=file, enforce=True)

    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert code == 0 and summary["completed"] == len(chosen)
    assert (summary["result_mismatches"], summary["state_mismatches"]) == (0, 0)
    told = summary["enforce"]
    assert told["as_expected"] and told["refused"] == told["expected"] >= len(wanted)
    assert told["refused_and_done"] == 0
    refused = {(one["conversation"], one["tool"], one["reservation_id"]) for one in told["calls"]}
    out_of_order = {
        (one.conversation, one.tool, one.arguments["reservation_id"])
        for one in effects(tmp_path / "out" / "desk.db")
        if "reservation_id" in one.arguments
    } & refused
    assert not out_of_order
