"""What of a tool's result reaches model, store and logs, through the whole embedded fleet with real children."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration import result_tools as tools
from toolfleet import CallOutcome, Fleet, RunStatus, ScriptedModel, call, calls, say
from toolfleet.client import RunResult
from toolfleet.schemas.limits import MESSAGE_BYTES_MAX, RESULT_BYTES_TO_MODEL

WAIT_S = 60.0
KEY = 'sk-"quoted"-77aa88bb99'
Model = Callable[[list[dict[str, Any]], list[dict[str, Any]]], Any]


class Vault:
    """A provider of credentials."""

    def __init__(self, key: str | None = KEY) -> None:
        self.asked: list[tuple[str, str]] = []
        self.key = key

    async def credential(self, tenant: str, name: str) -> str:
        self.asked.append((tenant, name))
        if self.key is None:
            raise KeyError(f"{name} of {tenant}")
        return self.key


def _fleet(tmp_path: Path, script: Model | list[Any], offered: list[Any], **options: Any) -> Fleet:
    fleet = Fleet(f"sqlite:///{tmp_path / 'fleet.db'}", model=ScriptedModel(script), **options)
    fleet.agent("desk", model="scripted", tools=offered)
    return fleet


def _ask(
    tmp_path: Path, script: Model | list[Any], *offered: Any, context: Any = None, **options: Any
) -> RunResult:
    with _fleet(tmp_path, script, list(offered), **options) as fleet:
        return fleet.submit("desk", "go", context=context or {}).wait(timeout_s=WAIT_S)


def _told(result: RunResult, index: int = 0) -> dict[str, Any]:
    return dict(json.loads(result.results[index].content))


def _everything_stored(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "fleet.db") as database:
        return "\n".join(database.iterdump())


def test_the_model_gets_declared_fields_and_the_store_nothing_else(tmp_path: Path) -> None:
    result = _ask(tmp_path, [call("read_ticket", ticket_id="T-1"), "done"], tools.read_ticket)

    told = _told(result)
    assert told["data"]["ticket_id"] == "T-1" and told["data"]["session"] == "[redacted]"
    assert len(told["data"]["body"]["untrusted_text"]) == 100 and told["untrusted_text_omitted"]
    stored = _everything_stored(tmp_path)
    assert "sess-b5a0c1" not in stored and "undeclared words" not in stored
    assert "z" * 500 in stored  # the whole outside text, behind the reference


def test_what_is_injected_reaches_the_tool_and_no_schema_and_no_transcript(tmp_path: Path) -> None:
    seen: list[Any] = []

    def model(messages: list[dict[str, Any]], definitions: list[dict[str, Any]]) -> Any:
        seen.append(definitions)
        return say("done") if messages[-1]["role"] == "tool" else call("who_asks")

    result = _ask(tmp_path, model, tools.who_asks, context={"shop": "shop-5", "principal": "u1"})

    data = _told(result)["data"]
    assert (data["tenant"], data["principal"], data["shop"]) == ("default", "u1", "shop-5")
    assert data["run_id"] == result.run_id
    assert seen[0][0]["function"]["parameters"] == {
        "additionalProperties": False,
        "properties": {},
        "type": "object",
    }


def test_without_what_it_needs_a_tool_does_not_run(tmp_path: Path) -> None:
    result = _ask(tmp_path, [call("who_asks"), "done"], tools.who_asks)

    assert result.results[0].outcome is CallOutcome.FAILED
    assert "'shop' in its context" in _told(result)["message"]


@pytest.mark.parametrize("how", ["result", "business_error", "exception"])
def test_a_credential_is_nowhere_but_in_the_tool(
    tmp_path: Path, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    vault = Vault()

    result = _ask(tmp_path, [call("leaks", how=how), "done"], tools.leaks, credentials=vault)

    assert result.ok and vault.asked == [("default", "shop")]
    logged = "".join(capfd.readouterr())
    for text in (_everything_stored(tmp_path), logged, result.results[0].content):
        assert "77aa88bb99" not in text
    if how != "exception":
        assert "[redacted]" in result.results[0].content


@pytest.mark.parametrize("vault", [None, Vault(key=None)], ids=["no provider", "not there"])
def test_a_credential_that_cannot_be_had_fails_the_call_by_its_name(
    tmp_path: Path, vault: Vault | None
) -> None:
    result = _ask(tmp_path, [call("leaks", how="result"), "done"], tools.leaks, credentials=vault)

    assert result.results[0].outcome is CallOutcome.FAILED
    assert "'shop'" in _told(result)["message"] and "KeyError" not in _told(result)["message"]


def test_a_summary_takes_the_place_of_what_is_too_long(tmp_path: Path) -> None:
    script = [call("many_rows"), call("read_result", reference="", length=20), "done"]

    def model(messages: list[dict[str, Any]], definitions: list[dict[str, Any]]) -> Any:
        results = [json.loads(m["content"]) for m in messages if m["role"] == "tool"]
        if len(results) == 1:
            return call("read_result", reference=results[0]["reference"], length=20)
        return script[0] if not results else say("done")

    result = _ask(tmp_path, model, tools.many_rows, "read_result")

    assert _told(result)["data"] == {"first": {"row": 0}, "rows": 1000} and _told(result)["reference"]
    page = _told(result, 1)["data"]
    assert page["text"] == {"untrusted_text": '[{"row":0},{"row":1}'} and page["next_offset"] == 20


def test_without_a_summary_an_excerpt_is_given(tmp_path: Path) -> None:
    told = _told(_ask(tmp_path, [call("not_summarised"), "done"], tools.not_summarised))

    assert told["data"].startswith("[0,1,2") and told["data_truncated"]
    assert any("could not be summarised" in note for note in told["notes"])


def test_a_narrow_tool_runs_the_broad_one_with_its_fixed_arguments(tmp_path: Path) -> None:
    script = [call("move_order", order_id="W-1", place={"street": "Rue 5"}), "done"]

    assert _told(_ask(tmp_path, script, tools.move_order))["data"] == {"street": "Rue 5", "action": "address"}


def test_a_huge_result_leaves_room_for_the_conversation_and_can_be_read_on(tmp_path: Path) -> None:  # B075
    whole = json.dumps(tools.big_text.function())
    requests: list[list[dict[str, Any]]] = []

    def model(messages: list[dict[str, Any]], definitions: list[dict[str, Any]]) -> Any:
        requests.append(messages)
        if messages[-1]["role"] == "user":
            return call("big_text") if messages[-1]["content"] == "read the book" else say("yes")
        told = json.loads(messages[-1]["content"])
        if told["provenance"] == "big_text":
            return call("read_result", reference=told["reference"], offset=1_900_000, length=12_000)
        return say("done")

    with _fleet(tmp_path, model, [tools.big_text, "read_result"]) as fleet:
        previous = None
        for number in range(20):
            run = fleet.submit("desk", f"question {number}", previous_run_id=previous)
            assert run.wait(timeout_s=WAIT_S).ok
            previous = run.id
        result = fleet.submit("desk", "read the book", previous_run_id=previous).wait(timeout_s=WAIT_S)

    assert result.status is RunStatus.COMPLETED
    told = _told(result)
    assert len(result.results[0].content.encode()) <= RESULT_BYTES_TO_MODEL * 1.05 + 500
    assert told["data_truncated"] and f"{len(whole)} bytes" in told["notes"][0]
    page = _told(result, 1)["data"]
    assert page["text"]["untrusted_text"] == whole[1_900_000:1_912_000] and page["total_chars"] == len(whole)
    # The other 40 messages are still sent, and nothing near the whole text is.
    assert len(requests[-1]) == 45 and sum(m["content"] == "yes" for m in requests[-1]) == 20
    assert len(json.dumps(requests[-1])) < 4 * MESSAGE_BYTES_MAX
    stored = _everything_stored(tmp_path)
    assert stored.count("line 0149000") == 1  # the whole text stands in one place


def test_a_reference_of_another_request_is_unknown(tmp_path: Path) -> None:
    def model(messages: list[dict[str, Any]], definitions: list[dict[str, Any]]) -> Any:
        asked = [m["content"] for m in messages if m["role"] == "user"][-1]
        if messages[-1]["role"] == "tool":
            return say("done")
        return call("many_rows") if asked == "go" else call("read_result", reference=asked)

    with _fleet(tmp_path, model, [tools.many_rows, "read_result"]) as fleet:
        first = fleet.submit("desk", "go").wait(timeout_s=WAIT_S)
        reference = json.loads(first.results[0].content)["reference"]
        stolen = fleet.submit("desk", reference).wait(timeout_s=WAIT_S)

    assert stolen.results[0].outcome is CallOutcome.BUSINESS_ERROR
    assert stolen.results[0].reason == "unknown_reference"


def test_a_result_with_a_time_to_live_serves_other_runs_of_the_same_principal(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    def model(messages: list[dict[str, Any]], definitions: list[dict[str, Any]]) -> Any:
        return (
            say("done") if messages[-1]["role"] == "tool" else call("price_of", sku=messages[-1]["content"])
        )

    def ask(fleet: Fleet, sku: str, principal: str) -> dict[str, Any]:
        context = {"ledger": str(ledger), "principal": principal}
        return _told(fleet.submit("desk", sku, context=context).wait(timeout_s=WAIT_S))

    with _fleet(tmp_path, model, [tools.price_of], credentials=Vault()) as fleet:
        first = ask(fleet, "A", "u1")
        asked = [ask(fleet, sku, who) for sku, who in (("A", "u1"), ("A", "u2"), ("B", "u1"), ("none", "u1"))]
        again = ask(fleet, "none", "u1")

    assert asked[0]["data"] == first["data"] and "kept from a call" in asked[0]["notes"][-1]
    assert first["data"]["seen_with"] == {"untrusted_text": "[redacted]"}
    assert again["status"] == "error"  # only successes are kept
    assert ledger.read_text().split("\n")[:-1] == ["A u1", "A u2", "B u1", "none u1", "none u1"]
    assert "77aa88bb99" not in _everything_stored(tmp_path)


@pytest.mark.parametrize("declared", [tools.long_refusal, tools.long_refusal_in_a_child])
def test_a_refusal_as_long_as_a_book_is_cut_at_its_source(tmp_path: Path, declared: Any) -> None:
    result = _ask(tmp_path, [call(declared.spec.name), "done"], declared)

    assert result.results[0].outcome is CallOutcome.BUSINESS_ERROR
    assert 1_000 < len(result.results[0].content) < 3_000


def _ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ledger = tmp_path / "ledger"
    monkeypatch.setenv("TOOLFLEET_TEST_LEDGER", str(ledger))
    return ledger


def test_a_result_that_does_not_fit_its_model_fails_by_its_field_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = _ledger(tmp_path, monkeypatch)
    kinds = ["good", "no_number", "short", "wrong", "text"]
    script = [calls(*(call("read_parcel", kind=one) for one in kinds)), "done"]

    result = _ask(tmp_path, script, tools.read_parcel)

    told = [_told(result, index) for index in range(5)]
    assert [one.outcome for one in result.results] == [CallOutcome.OK] * 2 + [CallOutcome.FAILED] * 3
    assert told[0]["data"] == {"parcel_id": "P-1", "weight_kg": 2.5}
    assert told[1]["data"]["weight_kg"] is None and "not a finite number" in told[1]["notes"][0]
    assert [one.reason for one in result.results[2:]] == ["result_invalid"] * 3
    assert "(weight_kg: is required)" in told[2]["message"]
    assert "parcel_id: is not of type" in told[3]["message"]
    assert "weight_kg: is not of type" in told[3]["message"]
    assert not any(one["retryable"] or one["retryable_by_model"] for one in told[2:])
    assert "IGNORE ALL RULES" not in _everything_stored(tmp_path)
    assert sorted(ledger.read_text().split()) == sorted(kinds)  # each ran once


def test_every_one_of_a_list_of_models_is_checked_and_cut_down(tmp_path: Path) -> None:
    script = [calls(*(call("list_parcels", kind=one) for one in ("good", "none", "short"))), "done"]

    result = _ask(tmp_path, script, tools.list_parcels)

    assert _told(result)["data"] == [{"parcel_id": "P-1", "weight_kg": 2.5}] * 2
    assert (_told(result, 1)["status"], _told(result, 1)["data"]) == ("success", None)
    assert (_told(result, 2)["reason_code"], _told(result, 2)["error_type"]) == ("result_invalid", "failed")
    assert "[1].weight_kg: is required" in _told(result, 2)["message"]


def test_an_effect_with_a_wrong_result_has_happened_and_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = _ledger(tmp_path, monkeypatch)
    script = [call("send_parcel", kind="short"), call("send_parcel", kind="short"), "done"]

    with _fleet(tmp_path, script, [tools.send_parcel]) as fleet:
        result = fleet.submit("desk", "go").wait(timeout_s=WAIT_S)
        effects = fleet.effects()

    assert ledger.read_text().split() == ["short"]
    assert [one.entry.state for one in effects] == ["happened"]
    first = _told(result)
    assert (first["status"], first["data"], first["reason_code"]) == ("success", None, "result_invalid")
    assert "do not do it again" in first["notes"][0] and "weight_kg: is required" in first["notes"][0]
    assert result.results[0].outcome is CallOutcome.OK
