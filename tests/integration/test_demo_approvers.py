"""The airline desk with its real tiers: two people with policies, every change approved by the right one, nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from toolfleet.examples.airline_desk.approvers import PEOPLE
from toolfleet.examples.airline_desk.demo import run_demo
from toolfleet.examples.airline_desk.desk import TOOLS
from toolfleet.examples.airline_desk.initial import DATA
from toolfleet.examples.airline_desk.recordings import load_recordings
from toolfleet.schemas.outcomes import Tier

TIERS = {one.spec.name: one.spec.tier for one in TOOLS}
CHOSEN_MAX = 8  # recordings that change something, so that the test ends soon


def _run(out: Path, conversations: Path | None) -> dict[str, Any]:
    assert run_demo(out=out, conversations=conversations, approvers=True) == 0
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert (summary["result_mismatches"], summary["state_mismatches"]) == (0, 0)
    assert summary["completed"] == summary["conversations"]
    assert summary["approvals"]["unapproved_effects"] == 0
    return summary


def _gated_calls(ids: set[str]) -> dict[str, int]:
    """How many recorded calls of these conversations each of the two has to be asked about."""
    found = dict.fromkeys(PEOPLE.values(), 0)
    for recording in load_recordings():
        for message in recording.messages if recording.id in ids else ():
            for call in message.get("tool_calls") or ():
                tier = TIERS[call["function"]["name"]]
                if tier in PEOPLE:
                    found[PEOPLE[tier]] += 1
    return found


@pytest.mark.timeout(300)
def test_two_people_approve_what_was_recorded_and_every_result_is_as_recorded(tmp_path: Path) -> None:
    names = {name for name, tier in TIERS.items() if tier is Tier.IRREVERSIBLE}
    changing = [
        one.id
        for one in load_recordings()
        if any(
            call["function"]["name"] in names
            for message in one.messages
            for call in message.get("tool_calls") or ()
        )
    ]
    chosen = set(changing[:CHOSEN_MAX])
    lines = gzip.decompress((DATA / "airline_conversations.jsonl.gz").read_bytes()).splitlines()
    file = tmp_path / "some.jsonl"
    file.write_bytes(b"\n".join(line for line in lines if json.loads(line)["id"] in chosen))

    summary = _run(tmp_path / "out", file)

    assert summary["approvals"]["approved"]["duty manager"] >= 1
    assert summary["approvals"]["rejected"] == 0
    assert summary["approvals"]["asked"] <= sum(_gated_calls(chosen).values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_with_two_approvers_is_as_recorded(tmp_path: Path) -> None:
    summary = _run(tmp_path / "out", None)

    assert summary["conversations"] == 100 and summary["approvals"]["rejected"] == 0
    assert set(summary["approvals"]["approved"]) == set(PEOPLE.values())
