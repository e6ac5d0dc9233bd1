"""Batches in both databases: uploads, admission, what items come to, cancel, expiry, resume, money, fairness."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.store_bench import Bench, OpenBench, each_store, lease, new_run, play, proposed, replied
from toolfleet.commands import batch_shapes
from toolfleet.schemas.batch_port import BatchStore
from toolfleet.schemas.batches import (
    PAUSED_ACCOUNT,
    VALIDATING_SILENT_S,
    Advanced,
    BatchFault,
    BatchLimits,
    BatchStatus,
    BatchView,
    ItemStatus,
    NewBatch,
    NewItem,
)
from toolfleet.schemas.effects import Terms, arguments_hash
from toolfleet.schemas.errors import BatchBusy, IdempotencyConflict, UnknownBatch
from toolfleet.schemas.events import (
    ApprovalRequested,
    CancelRequested,
    DeadlineReached,
    ModelFailed,
    StepFacts,
)
from toolfleet.schemas.ids import CommandId, RunId, decide_command_id, new_token
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.model import ModelFault
from toolfleet.schemas.outcomes import Lane

pytestmark = pytest.mark.parametrize("open_bench", ["sqlite", "postgresql"], indirect=True)
open_bench = each_store


def of(bench: Bench) -> BatchStore:
    found = bench.store.batches
    assert found is not None
    return found


def item(line: int, **fields: Any) -> NewItem:
    return NewItem(line, f"id-{line}", new_run(trace={}, **fields))


async def uploaded(
    bench: Bench, count: int, batch_id: str = "batch_1", *, tenant: str = "default", **fields: Any
) -> BatchView:
    limits = fields.pop("limits", BatchLimits())
    new = NewBatch(batch_id, tenant, "/v1/runs", 3600.0, limits)
    await of(bench).open(new, "t")
    await of(bench).add(batch_id, "t", [item(line + 1, **fields) for line in range(count)])
    return await of(bench).release(batch_id, "t", endpoint="/v1/runs", ignored={})


async def advanced(bench: Bench, *, in_flight_max: int = 100, feed_max: int = 100) -> Advanced:
    return await of(bench).advance(in_flight_max=in_flight_max, feed_max=feed_max)


async def seen(bench: Bench, batch_id: str = "batch_1") -> BatchView:
    found = await of(bench).batch(batch_id)
    assert found is not None
    return found


async def ended(bench: Bench, run_id: RunId, *, cost_usd: float = 0.002) -> None:
    """The run ends with its first model call."""
    token = new_token()
    assert (await bench.apply(run_id, lease(run_id, 1, token))).missed is None
    reply = replied(run_id, 1, token, text="done")
    await bench.apply(run_id, replace(reply, facts=replace(reply.facts, cost_usd=cost_usd)))


async def refused_by_account(bench: Bench, run_id: RunId, kind: Any = "quota") -> None:
    token = new_token()
    await bench.apply(run_id, lease(run_id, 1, token))
    fault = ModelFault(kind, "no money left", retryable=False, status=402)
    await bench.apply(run_id, ModelFailed(decide_command_id(run_id, 1), token, fault, 0.0, StepFacts()))


def test_nothing_of_an_upload_runs_before_it_is_whole(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        store = of(bench)
        await store.open(NewBatch("batch_1", "acme", "/v1/runs", 3600.0), "t")
        await store.add("batch_1", "t", [item(1), item(2)])

        before = await advanced(bench)
        released = await store.release("batch_1", "t", endpoint="/v1/runs", ignored={"seed": 2})
        after = await advanced(bench)

        assert before.runs == () and released.status is BatchStatus.IN_PROGRESS
        assert (released.counts.pending, released.counts.total, released.ignored) == (2, 2, {"seed": 2})
        assert [run.input for run in after.runs] == ["Where is my bag?"] * 2
        views = [await bench.store.run(run.run_id) for run in after.runs]
        assert [view and view.state.lane for view in views] == [Lane.BATCH] * 2
        assert [view and view.info.effect_scope for view in views] == ["batch_1/id-1", "batch_1/id-2"]
        assert [row.row.queue for row in after.publish] == ["decide.batch"] * 2
        assert {view.info.tenant for view in views if view} == {"acme"}
        assert await store.batch("batch_1", tenant="other") is None

    play(story, open_bench, tmp_path)


def test_an_upload_under_a_key_is_one_batch_and_can_be_taken_over(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        store = of(bench)
        new = NewBatch("batch_1", "default", "/v1/runs", 3600.0, idempotency_key="k", content_hash="h")
        await store.open(new, "first")
        await store.add("batch_1", "first", [item(1)])

        view, mine = await store.open(replace(new, batch_id="batch_2"), "second")
        with pytest.raises(BatchBusy):
            await store.add("batch_1", "first", [item(2)])
        await store.drop("batch_1", "second")
        await store.add("batch_1", "second", [item(1), item(2)])
        await store.release("batch_1", "second", endpoint="/v1/runs", ignored={})
        again, again_mine = await store.open(replace(new, batch_id="batch_3"), "third")

        assert (view.batch_id, mine, again.batch_id, again_mine) == ("batch_1", True, "batch_1", False)
        assert again.counts.total == 2
        with pytest.raises(IdempotencyConflict):
            await store.open(replace(new, batch_id="batch_4", content_hash="other"), "fourth")
        _, elsewhere = await store.open(replace(new, batch_id="batch_5", tenant="acme"), "fifth")
        assert elsewhere, "keys are of a tenant"

    play(story, open_bench, tmp_path)


def test_a_refused_file_leaves_its_faults_and_nothing_else(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        store = of(bench)
        new = NewBatch("batch_1", "default", "/v1/runs", 3600.0, idempotency_key="k", content_hash="h")
        await store.open(new, "t")
        await store.add("batch_1", "t", [item(line) for line in range(1, 30)])
        fault = BatchFault("duplicate_custom_id", "twice", 4, "custom_id", (2, 4))

        view = await store.refuse("batch_1", "t", [fault])

        assert (view.status, view.faults, view.counts.total) == (BatchStatus.FAILED, (fault,), 0)
        assert (await advanced(bench)).runs == ()
        _, mine = await store.open(replace(new, batch_id="batch_2", content_hash="mended"), "u")
        assert mine, "its key is free for the mended file"

    play(story, open_bench, tmp_path)


def test_an_upload_whose_process_died_is_given_up(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await of(bench).open(NewBatch("batch_1", "default", "/v1/runs", 3600.0), "t")
        await of(bench).add("batch_1", "t", [item(line) for line in range(1, 30)])

        bench.clock.advance(VALIDATING_SILENT_S - 1)
        await advanced(bench)
        early = (await seen(bench)).status
        bench.clock.advance(2)
        while (await advanced(bench)).more:
            pass

        assert early is BatchStatus.VALIDATING
        view = await seen(bench)
        assert (view.status, view.counts.total) == (BatchStatus.FAILED, 0)
        assert [one.code for one in view.faults] == ["upload_interrupted"]
        with pytest.raises(BatchBusy):
            await of(bench).add("batch_1", "t", [item(40)])

    play(story, open_bench, tmp_path)


def test_items_are_admitted_a_window_at_a_time_and_counted_as_they_end(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    # B077: a group of 30,000 tasks was queued whole, and the submitter waited for it
    async def story(bench: Bench) -> None:
        await uploaded(bench, 7)
        completed, begun = [], []
        while not (await seen(bench)).ended:
            fed = await advanced(bench, in_flight_max=3)
            begun.extend(fed.runs)
            view = await seen(bench)
            assert view.counts.running <= 3 and view.counts.total == 7
            completed.append(view.counts.completed)
            assert (await bench.store.counts())["commands"] <= 3
            for run in fed.runs:
                await ended(bench, run.run_id)

        view = await seen(bench)
        assert (view.status, view.counts.completed) == (BatchStatus.COMPLETED, 7)
        assert completed == sorted(completed), "what has been counted stays counted"
        assert [run.metadata["custom_id"] for run in begun] == [f"id-{line}" for line in range(1, 8)]
        page = await of(bench).items("batch_1", limit=5, completed=True)
        rest = await of(bench).items("batch_1", limit=5, completed=True, after_line=page[-1].line)
        assert [(one.line, one.output) for one in (*page, *rest)] == [(line, "done") for line in range(1, 8)]
        report = await of(bench).report("batch_1")
        assert report is not None
        assert report.outcomes == [(ItemStatus.COMPLETED, "", 7)] and report.use.model_calls == 7
        told = batch_shapes.report(report)
        assert json.loads(json.dumps(told)) == told, "numbers are numbers of JSON on either database"

    play(story, open_bench, tmp_path)


def test_a_run_that_was_made_and_never_published_is_found_by_the_relay(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        await uploaded(bench, 2)
        fed = await advanced(bench)

        again = await advanced(bench)  # the keeper that made them is dead; another one goes on
        bench.clock.advance(2.5)
        due = await bench.store.due_rows(limit=9, broker="memory")

        assert again.runs == ()
        assert {row.run_id for row in due} == {run.run_id for run in fed.runs}

    play(story, open_bench, tmp_path)


def test_places_are_shared_between_tenants_and_then_between_their_batches(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        await uploaded(bench, 40, "batch_1", tenant="acme")
        await uploaded(bench, 40, "batch_2", tenant="acme")
        (await advanced(bench, in_flight_max=12))
        await uploaded(bench, 40, "batch_3", tenant="other")

        none = await advanced(bench, in_flight_max=12)
        running = {
            name: (await seen(bench, name)).counts.running for name in ("batch_1", "batch_2", "batch_3")
        }
        for run_id in await _running(bench, 6):
            await ended(bench, run_id)
        fed = await advanced(bench, in_flight_max=12)

        assert none.runs == () and running == {"batch_1": 6, "batch_2": 6, "batch_3": 0}
        assert {run.tenant for run in fed.runs} == {"other"} and len(fed.runs) == 6

    play(story, open_bench, tmp_path)


async def _running(bench: Bench, count: int) -> list[RunId]:
    views = [one for one in await bench.store.runs(limit=100) if not one.state.terminal]
    return [one.info.run_id for one in views][:count]


def test_a_batch_has_no_more_at_work_than_it_may(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await uploaded(bench, 9, limits=BatchLimits(concurrency_max=2))

        first = await advanced(bench)
        second = await advanced(bench)

        assert (len(first.runs), len(second.runs)) == (2, 0)

    play(story, open_bench, tmp_path)


def test_the_cost_of_a_batch_is_reserved_before_each_run(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        batch_limits, run_limits = BatchLimits(cost_usd_max=2.5), Limits(cost_usd_max=1.0)
        new = NewBatch("batch_1", "default", "/v1/runs", 3600.0, batch_limits)
        await of(bench).open(new, "t")
        lines = [item(line, limits=run_limits, reserve_usd=0.4) for line in range(1, 7)]
        await of(bench).add("batch_1", "t", lines)
        await of(bench).release("batch_1", "t", endpoint="/v1/runs", ignored={})

        begun = []
        while not (await seen(bench)).ended:
            fed = await advanced(bench)
            begun.extend(run.limits.cost_usd_max for run in fed.runs)
            for run in fed.runs:
                await ended(bench, run.run_id, cost_usd=0.9)
            assert fed.more or (await seen(bench)).ended

        report = await of(bench).report("batch_1")
        assert report is not None
        assert begun == pytest.approx([1.0, 1.0, 0.5]), "the last one may cost what is left, and no more"
        assert (ItemStatus.FAILED, "batch_cost_limit", 3) in report.outcomes
        assert report.view.status is BatchStatus.COMPLETED

        _, again = await of(bench).resume("batch_1", limits=BatchLimits(cost_usd_max=10.0))
        assert again == 3 and len((await advanced(bench)).runs) == 3

    play(story, open_bench, tmp_path)


def test_cancel_keeps_what_finished_and_stops_the_rest(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await uploaded(bench, 6)
        fed = await advanced(bench, in_flight_max=3)
        await ended(bench, fed.runs[0].run_id)

        view = await of(bench).cancel("batch_1")
        again = await of(bench).cancel("batch_1")
        first = await advanced(bench)
        for run_id in first.cancel:
            await bench.apply(run_id, CancelRequested("batch"))
        await advanced(bench)

        assert view.status is again.status is BatchStatus.CANCELLING
        assert set(first.cancel) == {run.run_id for run in fed.runs[1:]} and first.runs == ()
        view = await seen(bench)
        assert (view.status, view.counts.completed, view.counts.cancelled) == (BatchStatus.CANCELLED, 1, 5)
        items = await of(bench).items("batch_1", limit=9)
        assert [(one.line, one.code) for one in items] == [
            (1, None),
            *((line, "batch_cancelled") for line in range(2, 7)),
        ]
        with pytest.raises(UnknownBatch):
            await of(bench).cancel("batch_9")

    play(story, open_bench, tmp_path)


def test_items_that_wait_for_people_hold_no_place_and_expire_with_the_window(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        await uploaded(bench, 3)
        (run,) = (await advanced(bench, in_flight_max=1)).runs
        token = new_token()
        await bench.apply(run.run_id, lease(run.run_id, 1, token))
        asked = tuple(replace(one, terms=Terms(asks=True)) for one in proposed(1, effect=True))
        await bench.apply(run.run_id, replied(run.run_id, 1, token, asked))
        held = await advanced(bench, in_flight_max=1)
        await _ask(bench, run.run_id)

        fed = await advanced(bench, in_flight_max=1)
        bench.clock.advance(3600.0)
        for run_id in await bench.store.overdue_runs(limit=9):
            await bench.apply(run_id, DeadlineReached())
        while not (await seen(bench)).ended:
            await advanced(bench)

        assert held.runs == () and len(fed.runs) == 1
        view = await seen(bench)
        assert (view.status, view.counts.expired) == (BatchStatus.EXPIRED, 3)
        assert {one.code for one in await of(bench).items("batch_1", limit=9)} == {"batch_expired"}
        assert await bench.store.approvals(limit=9, status="pending") == []

    play(story, open_bench, tmp_path)


async def _ask(bench: Bench, run_id: RunId) -> None:
    """The executor finds that somebody has to be asked."""
    view = await bench.store.run(run_id)
    assert view is not None
    (call,) = view.state.calls
    question = ApprovalRequested(CommandId(call.call_id), None, arguments_hash(call.arguments), 1e6)
    applied = await bench.apply(run_id, question)
    assert applied.missed is None, applied.missed


def test_resume_runs_what_is_not_done_and_nothing_twice(open_bench: OpenBench, tmp_path: Path) -> None:
    # B083: an account problem failed thousands of items; a resume repeated the good ones or skipped the bad ones
    async def story(bench: Bench) -> None:
        await uploaded(bench, 100)
        done: set[str] = set()
        while not (await seen(bench)).paused:
            fed = (await advanced(bench, in_flight_max=5)).runs
            good, bad = fed[: 60 - len(done)], fed[60 - len(done) :]
            await asyncio.gather(*(ended(bench, run.run_id) for run in good))
            await asyncio.gather(*(refused_by_account(bench, run.run_id) for run in bad))
            done |= {run.metadata["custom_id"] for run in good}
        paused = await seen(bench)
        before = await of(bench).items("batch_1", limit=200, completed=True)
        still = await advanced(bench)

        view, again = await of(bench).resume("batch_1")
        tried: Counter[str] = Counter()
        while not (await seen(bench)).ended:
            fed = (await advanced(bench)).runs
            await asyncio.gather(*(ended(bench, run.run_id) for run in fed))
            tried.update(run.metadata["custom_id"] for run in fed)
            assert all(run.effect_scope == f"batch_1/{run.metadata['custom_id']}" for run in fed)
        _, second = await of(bench).resume("batch_1")

        assert (paused.paused, paused.status) == (PAUSED_ACCOUNT, BatchStatus.IN_PROGRESS)
        assert paused.counts.failed <= 5 + 4, "it paused early, instead of failing 40 items one by one"
        assert still.runs == () and view.paused == "" and again == paused.counts.failed
        assert len(tried) == 40 and set(tried.values()) == {1} and not done & set(tried)
        assert second == 0 and (await seen(bench)).status is BatchStatus.COMPLETED
        after = await of(bench).items("batch_1", limit=200, completed=True)
        assert len(after) == 100
        assert [one for one in after if one.custom_id in done] == before, (
            "the results there were stay as they were"
        )

    play(story, open_bench, tmp_path)


def test_a_batch_at_work_is_not_resumed(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await uploaded(bench, 2)

        with pytest.raises(BatchBusy):
            await of(bench).resume("batch_1")
        with pytest.raises(UnknownBatch):
            await of(bench).resume("batch_2")

    play(story, open_bench, tmp_path)


def test_an_item_whose_run_was_erased_ends(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        from toolfleet.adapters.store.sql_store import SqlStore

        await uploaded(bench, 1)
        await advanced(bench)
        assert isinstance(bench.store, SqlStore)
        await bench.store._write(
            lambda c: c.exec_driver_sql("UPDATE batch_items SET run_id = 'run_none'") and None
        )

        await advanced(bench)

        (found,) = await of(bench).items("batch_1", limit=2)
        assert (found.status, found.code) == (ItemStatus.FAILED, "run_erased")
        assert (await seen(bench)).status is BatchStatus.COMPLETED

    play(story, open_bench, tmp_path)


def test_the_newest_batch_is_listed_first_and_pages_go_on(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        for number in range(1, 4):
            await uploaded(bench, 1, f"batch_{number}", tenant="acme" if number == 2 else "default")

        page = await of(bench).batches(limit=2)
        rest = await of(bench).batches(limit=2, before=page[-1].batch_id)
        ours = await of(bench).batches(limit=9, tenant="acme", status="in_progress")

        assert [one.batch_id for one in (*page, *rest)] == ["batch_3", "batch_2", "batch_1"]
        assert [one.batch_id for one in ours] == ["batch_2"]

    play(story, open_bench, tmp_path)
