"""What a purge forgets, and what stays, in both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.store_bench import (
    Bench,
    OpenBench,
    each_store,
    new_run,
    play,
    result_of,
    state_of,
)
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.batches import NewBatch, NewItem
from toolfleet.schemas.effects import EffectState, arguments_hash
from toolfleet.schemas.events import CallsSettled, CancelRequested, EffectClaimed, EffectEnded
from toolfleet.schemas.files import StoredFile
from toolfleet.schemas.ids import CommandId, RunId, new_token
from toolfleet.schemas.retention import Purged, PurgeScope

pytestmark = pytest.mark.parametrize("open_bench", ["sqlite", "postgresql"], indirect=True)
open_bench = each_store
DAY_S = 86_400.0


async def purged(bench: Bench, scope: PurgeScope) -> Purged:
    assert isinstance(bench.store, SqlStore)
    would = await bench.store.retention.purgeable(scope)
    total = Purged()
    while (some := await bench.store.retention.purge_some(scope)).any:
        total = total.plus(some)
    assert would.runs + would.emptied <= total.runs + total.emptied, "a dry run says no more than it is"
    return total


async def with_effect(bench: Bench, state: EffectState) -> RunId:
    """A run that ended, and whose only call had an effect under the key `refund:7`, or nobody can tell."""
    new, applied = await bench.waiting(1, effect=True)
    (call,) = state_of(applied).calls
    claim = EffectClaimed(
        CommandId(call.call_id), new_token(), "w", 30.0, "refund:7", arguments_hash(call.arguments)
    )
    await bench.apply(new.run_id, claim)
    await bench.apply(new.run_id, EffectEnded(CommandId(call.call_id), 1, state, result_of(call)))
    await bench.apply(new.run_id, CallsSettled((result_of(call),)))
    await bench.apply(new.run_id, CancelRequested("test"))
    view = await bench.store.run(new.run_id)
    assert view is not None and view.state.terminal
    return new.run_id


def test_old_runs_of_a_tenant_are_forgotten_and_nothing_else(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        old = await bench.completed()
        other = await bench.completed(tenant="acme")
        chain = await bench.completed()
        bench.clock.advance(10 * DAY_S)
        later = await bench.completed(previous_run_id=chain.run_id)
        unfinished = await bench.accepted()

        total = await purged(bench, PurgeScope(bench.clock.now - DAY_S, tenant="default"))

        assert total == Purged(runs=1)
        assert await bench.store.run(old.run_id) is None
        for kept in (other, chain, later, unfinished):
            assert await bench.store.run(kept.run_id) is not None
        assert await bench.store.conversation(later.run_id) is not None

        bench.clock.advance(10 * DAY_S)
        rest = await purged(bench, PurgeScope(bench.clock.now - DAY_S))
        assert rest == Purged(runs=3), "a conversation goes from its end to its beginning"

    play(story, open_bench, tmp_path)


def test_an_effect_that_happened_keeps_its_key_and_loses_what_was_said(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        run_id = await with_effect(bench, EffectState.HAPPENED)

        total = await purged(bench, PurgeScope(bench.clock.now, run_id=run_id))
        again = await purged(bench, PurgeScope(bench.clock.now))

        assert total == Purged(emptied=1) and again == Purged()
        view = await bench.store.run(run_id)
        assert view is not None and (view.info.input, view.state.output) == ("", None)
        assert view.info.context == {} and await bench.store.items(run_id) == []
        (effect,) = await bench.store.effects(limit=9)
        assert (effect.entry.key, effect.entry.state, effect.arguments) == (
            "refund:7",
            EffectState.HAPPENED,
            "{}",
        )
        ((_, result),) = await bench.store.results(run_id)
        assert "erased" in result.content and result.full is None
        new, applied = await bench.waiting(1, effect=True)
        (call,) = state_of(applied).calls
        hash_ = arguments_hash(call.arguments)
        claim = EffectClaimed(CommandId(call.call_id), new_token(), "w", 30.0, "refund:7", hash_)
        await bench.apply(new.run_id, claim)
        found = await bench.store.run(new.run_id)
        assert found is not None and not any(one.dispatched for one in found.state.calls), (
            "it is not done again"
        )

    play(story, open_bench, tmp_path)


def test_files_of_a_tenant_go_with_their_age(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        files = bench.store.files
        assert files is not None
        for tenant in ("acme", "other"):
            for age in ("old", "new"):
                file = StoredFile(f"file_{tenant}_{age}", tenant, "a", "batch", 5, "", "")
                await files.add(file, keep_s=90 * DAY_S, tenant_bytes_max=100)
                bench.clock.advance(DAY_S)

        total = await purged(bench, PurgeScope(bench.clock.now - 1.5 * DAY_S, tenant="acme"))
        rest = await purged(bench, PurgeScope(bench.clock.now - 1.5 * DAY_S, run_id=RunId("run_1")))

        assert (total, rest) == (Purged(files=2), Purged())
        left = {one.file_id for one in await files.files(limit=9)}
        assert left == {"file_other_old", "file_other_new"}
        assert await files.kept_bytes("acme") == 0

    play(story, open_bench, tmp_path)


def test_a_run_that_waits_for_a_human_is_left(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        run_id = await with_effect(bench, EffectState.NEEDS_HUMAN)

        assert await purged(bench, PurgeScope(bench.clock.now + DAY_S)) == Purged()
        assert await bench.store.run(run_id) is not None

    play(story, open_bench, tmp_path)


def test_a_batch_goes_with_its_lines(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        batches = bench.store.batches
        assert batches is not None
        for name in ("batch_1", "batch_2"):
            await batches.open(NewBatch(name, "default", "/v1/runs", 3600.0), "t")
            await batches.add(name, "t", [NewItem(line, f"i{line}", new_run()) for line in range(1, 5)])
            await batches.release(name, "t", endpoint="/v1/runs", ignored={})
        await batches.cancel("batch_1")
        while (await batches.advance(in_flight_max=0, feed_max=1)).more:
            pass

        total = await purged(bench, PurgeScope(bench.clock.now))

        assert total == Purged(batches=1)
        assert await batches.batch("batch_1") is None
        kept = await batches.batch("batch_2")
        assert kept is not None and kept.counts.pending == 4

    play(story, open_bench, tmp_path)
