"""Batches through an embedded fleet: Python and the command line, from a file to its answer files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolfleet import BatchLimits, BatchRefused, Fleet, ScriptedModel, call, calls, say
from toolfleet.cli import run_command
from toolfleet.commands import exits
from toolfleet.schemas.errors import IdempotencyConflict, InputError, ModelError, UnknownBatch
from toolfleet.schemas.model import ModelFault
from toolfleet.settings import Settings

WAIT_S = 100.0


class Script:
    """Answers with what was said; refuses for the account while `empty`, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.empty: set[str] = set()

    def __call__(self, messages: list[dict[str, Any]], tools: list[Any]) -> Any:
        said = messages[0]["content"] if len(messages) == 1 else messages[-1]["content"]
        if messages[-1]["role"] == "tool":
            return say(f"booked {messages[-1]['content']}")
        self.asked.append(said)
        if said in self.empty:
            raise ModelError(ModelFault("quota", "no money left", retryable=False, status=402))
        return calls(call("book", text=said)) if said.startswith("book") else say(f"heard {said}")


BOOKED: list[str] = []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def fleet(tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.chdir(tmp_path)
    BOOKED.clear()
    settings = Settings(
        database=f"sqlite:///{tmp_path / 'fleet.db'}",
        keeper_period_s=0.05,
        batch_in_flight_max=8,
        unpriced="ok",
    )
    fleet = Fleet(settings=settings, model=ScriptedModel(script))

    @fleet.tool(tier="medium", effect=True)
    async def book(text: str) -> str:
        """Book it."""
        BOOKED.append(text)
        return text

    fleet.agent("desk", model="scripted", tools=[book])
    with fleet:
        yield fleet


def file_of(path: Path, count: int, said: str = "line") -> Path:
    lines = [
        {
            "custom_id": f"id-{number}",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"model": "desk", "input": f"{said} {number}"},
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers(fleet: Fleet, batch_id: str, kind: Any = "output") -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in fleet.batches.lines(batch_id, kind)]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "one line for each custom_id"
    return found


def test_a_file_becomes_one_answer_for_each_line(fleet: Fleet, script: Script, tmp_path: Path) -> None:
    submitted = fleet.batches.submit(file_of(tmp_path / "in.jsonl", 25, "book"))
    report = fleet.batches.wait(submitted.batch_id, timeout_s=WAIT_S)
    count = fleet.batches.download(submitted.batch_id, tmp_path / "out.jsonl")

    assert (submitted.counts.total, submitted.file_name) == (25, "in.jsonl")
    assert (report.view.status, report.view.counts.completed, count) == ("completed", 25, 25)
    assert report.use.tool_calls == 25 and report.use.model_calls == 50
    assert sorted(BOOKED) == sorted(f"book {number}" for number in range(25))
    found = answers(fleet, submitted.batch_id)
    assert (tmp_path / "out.jsonl").read_bytes() == b"".join(fleet.batches.lines(submitted.batch_id))
    assert set(found) == {f"id-{number}" for number in range(25)}
    texts = [one["response"]["body"]["output"][0]["content"][0]["text"] for one in found.values()]
    assert all(text.startswith("booked") for text in texts)
    assert answers(fleet, submitted.batch_id, "errors") == {}
    assert not list(tmp_path.glob(".out*")), "nothing is left beside the file"


def test_a_bad_file_is_refused_whole_and_asks_no_model(fleet: Fleet, script: Script, tmp_path: Path) -> None:
    # B079: nothing runs of a file in which two lines share an id
    rows = [{"custom_id": one, "input": "x"} for one in ("a", "b", "A", "b")] + [{"input": "y"}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    with pytest.raises(BatchRefused) as refused:
        fleet.batches.submit(path, format="jsonl", agent="desk")

    found = [(fault.code, fault.lines) for fault in refused.value.faults]
    assert found == [("duplicate_custom_id", (2, 4)), ("missing_custom_id", (5,))]
    assert [fault.code for fault in fleet.batches.check(path, format="jsonl", agent="desk")] == [
        one for one, _ in found
    ]
    view = fleet.batches.get(refused.value.fields["batch_id"])
    assert (view.status, view.counts.total) == ("failed", 0) and view.faults == refused.value.faults
    assert script.asked == []


def test_a_key_is_one_batch(fleet: Fleet, tmp_path: Path) -> None:
    path = file_of(tmp_path / "in.jsonl", 3)

    first = fleet.batches.submit(path, idempotency_key="night")
    again = fleet.batches.submit(path, idempotency_key="night")

    assert again.batch_id == first.batch_id and again.counts.total == 3
    with pytest.raises(IdempotencyConflict):
        fleet.batches.submit(file_of(tmp_path / "other.jsonl", 4), idempotency_key="night")
    fleet.batches.wait(first.batch_id, timeout_s=WAIT_S)


def test_an_account_without_money_pauses_a_batch_and_resume_runs_the_rest(
    fleet: Fleet, script: Script, tmp_path: Path
) -> None:
    # B083: first resume runs exactly what is not done, the second nothing, and what was done stays as it was
    script.empty = {f"line {number}" for number in range(6, 30)}
    batch_id = fleet.batches.submit(file_of(tmp_path / "in.jsonl", 30)).batch_id

    async def paused() -> None:
        async for progress in fleet.batching().watch(batch_id, every_s=0.05):
            assert not progress.view.ended
            if progress.view.paused and not progress.view.counts.running:
                return

    asyncio.run(asyncio.wait_for(_on(fleet, paused()), WAIT_S))
    before = answers(fleet, batch_id)
    script.empty, script.asked = set(), []
    _, again = fleet.batches.resume(batch_id)
    report = fleet.batches.wait(batch_id, timeout_s=WAIT_S)
    _, second = fleet.batches.resume(batch_id)

    assert len(before) == 6 and again < 24, "it paused before all had failed"
    assert sorted(script.asked) == sorted(f"line {number}" for number in range(6, 30))
    assert report.view.counts.completed == 30 and second == 0
    after = answers(fleet, batch_id)
    assert len(after) == 30 and {name: after[name] for name in before} == before


async def _on(fleet: Fleet, coroutine: Any) -> Any:
    """On the loop of the fleet."""
    assert fleet._loop is not None
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, fleet._loop))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "jsonl"}, "needs an agent"),
        ({"agent": "desk"}, "every line names its agent"),
        ({"endpoint": "/v1/embeddings"}, "no endpoint"),
        ({"window_s": 1.0}, "completion window"),
        ({"limits": BatchLimits(cost_usd_max=0.0)}, "above 0"),
        ({"limits": BatchLimits(concurrency_max=0)}, "at least 1"),
        ({"metadata": {"a": 1}}, "texts"),
        ({"idempotency_key": ""}, "1 to 256"),
    ],
)
def test_a_wrong_option_is_said(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    fleet = Fleet(f"sqlite:///{tmp_path / 'none.db'}", model=ScriptedModel([say("x")]))

    with pytest.raises(InputError, match=said):
        fleet.batches.submit(tmp_path / "none.jsonl", **options)
    fleet.stop()


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = exits.OK) -> Any:
    capsys.readouterr()
    assert run_command(["batch", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_command_line_carries_a_batch_from_a_csv_to_its_files(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tickets.csv"
    path.write_text('id,text\n7,"wet, cold"\n8,dry\n')
    database = ("--database", fleet.settings.database)
    template = ("--agent", "desk", "--template", "Ticket {id}: {text}", "--id-field", "id")

    assert run_command(["batch", "submit", str(path), *template, "--dry-run", *database]) == exits.OK
    submitted = _json(capsys, "submit", str(path), *template, *database)
    batch_id = submitted["batch_id"]
    watched = _json(capsys, "watch", batch_id, *database)
    assert run_command(["batch", "download", batch_id, "-o", "out.jsonl", *database]) == exits.OK
    listed = _json(capsys, "ls", *database)
    assert run_command(["batch", "status", batch_id, *database]) == exits.OK
    text = capsys.readouterr().out
    resumed = _json(capsys, "resume", batch_id, *database)

    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {line["custom_id"]: line["response"]["body"]["output"] for line in lines} == {
        "7": "heard Ticket 7: wet, cold",
        "8": "heard Ticket 8: dry",
    }
    assert watched["outcomes"] == [{"status": "completed", "code": None, "count": 2}]
    assert watched["batch"]["counts"]["completed"] == 2 and watched["used"]["model_calls"] == 2
    assert [one["batch_id"] for one in listed["batches"]] == [batch_id]
    assert "2 completed" in text and "on the clock" in text
    assert resumed["resumed"] == 0


def test_the_command_line_names_every_bad_line(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"custom_id": "a"}\n\n{\n')
    database = ("--database", fleet.settings.database)

    checked = _json(capsys, "submit", str(path), "--dry-run", *database, code=exits.USAGE)
    assert run_command(["batch", "submit", str(path), *database]) == exits.USAGE
    told = capsys.readouterr().err
    assert run_command(["batch", "submit", "not-there.jsonl", *database]) == exits.USAGE
    assert run_command(["batch", "status", "batch_none", *database]) == exits.USAGE

    assert [(one["code"], one["line"]) for one in checked["errors"]] == [
        ("invalid_method", 1),
        ("blank_line", 2),
        ("invalid_json", 3),
    ]
    assert "line 1: invalid_method" in told and "line 3: invalid_json" in told
    assert "cannot be read" in capsys.readouterr().err


def test_a_cancelled_batch_keeps_what_is_done(fleet: Fleet, tmp_path: Path, capsys: Any) -> None:
    limits = BatchLimits(concurrency_max=1)
    batch_id = fleet.batches.submit(file_of(tmp_path / "in.jsonl", 40), limits=limits).batch_id

    async def begun() -> None:
        async for progress in fleet.batching().watch(batch_id, every_s=0.02):
            if progress.view.counts.completed:
                return

    asyncio.run(asyncio.wait_for(_on(fleet, begun()), WAIT_S))
    assert run_command(["batch", "cancel", batch_id, "--database", fleet.settings.database]) == exits.OK
    report = fleet.batches.wait(batch_id, timeout_s=WAIT_S)

    counts = report.view.counts
    assert report.view.status == "cancelled" and counts.completed and counts.cancelled
    done, other = answers(fleet, batch_id), answers(fleet, batch_id, "errors")
    assert len(done) + len(other) == 40 and not set(done) & set(other)
    assert {line["error"]["code"] for line in other.values()} == {"batch_cancelled"}


def test_a_batch_of_another_tenant_is_an_unknown_one(fleet: Fleet, tmp_path: Path) -> None:
    batch_id = fleet.batches.submit(file_of(tmp_path / "in.jsonl", 1), tenant="acme").batch_id

    async def asked() -> None:
        for ask in ("get", "cancel", "resume", "report"):
            with pytest.raises(UnknownBatch):
                await getattr(fleet.batching(), ask)(batch_id, tenant="other")
        with pytest.raises(UnknownBatch):
            await anext(fleet.batching().lines(batch_id, tenant="other"))

    asyncio.run(_on(fleet, asked()))
    assert fleet.batches.list(tenant="other") == []
