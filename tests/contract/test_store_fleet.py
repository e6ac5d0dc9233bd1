"""The contract of the store for worker processes and for what is outstanding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.contract.store_bench import (
    Bench,
    OpenBench,
    each_store,
    over_every_store,
    play,
    settled,
    state_of,
)
from toolfleet.schemas.events import CallLeased
from toolfleet.schemas.ids import CommandId, new_token
from toolfleet.schemas.limits import WORKER_FORGOTTEN_S
from toolfleet.schemas.ports import Transition
from toolfleet.schemas.views import QueueLoad, WorkerBeat

pytestmark = over_every_store
open_bench = each_store

BEAT = WorkerBeat("a:1:x", "a", 1, ("exec.low", "keeper"), "0.1.0", 10.0, {"in_flight": 2, "stuck": ""})


def test_a_worker_is_listed_as_it_was_last_heard_of(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.store.beat(BEAT)
        bench.clock.advance(5)
        later = replace(BEAT, state={"in_flight": 0, "stuck": "no"})
        await bench.store.beat(later)
        await bench.store.beat(replace(BEAT, id="b:2:y", host="b", started_at=20.0))
        bench.clock.advance(3)

        second, first = await bench.store.workers()

        assert (second.beat.id, first.beat) == ("b:2:y", later)
        assert (first.seen_at, first.silent_s) == (bench.clock.now - 3, 3)

    play(story, open_bench, tmp_path)


def test_a_worker_that_left_or_was_silent_for_long_is_not_listed(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        for name in ("left", "silent", "there"):
            await bench.store.beat(replace(BEAT, id=name))
        await bench.store.leave("left")
        await bench.store.leave("never seen")
        bench.clock.advance(WORKER_FORGOTTEN_S + 1)
        await bench.store.beat(replace(BEAT, id="there"))

        assert [view.beat.id for view in await bench.store.workers()] == ["there"]

    play(story, open_bench, tmp_path)


def test_what_is_outstanding_is_counted_by_queue(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        assert await bench.store.loads() == []
        await bench.accepted()
        run, applied = await bench.waiting(3)
        rows = state_of(applied).commands
        lease = CallLeased(CommandId(rows[0].id), new_token(), "worker-1", 30.0)
        await bench.store.transact([Transition(run.run_id, lease)])
        bench.clock.advance(7)

        decide, execute = await bench.store.loads()

        assert decide == QueueLoad("decide.interactive", 1, 0, 7.0)
        assert execute == QueueLoad("exec.low", 3, 1, 7.0)
        await bench.apply(run.run_id, settled(state_of(applied).calls))
        assert [load.queue for load in await bench.store.loads()] == ["decide.interactive"]

    play(story, open_bench, tmp_path)
