"""The store as an engine, over a machine that does as it is told: differences, records, misses, and what raises."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.store_bench import (
    Bench,
    OpenBench,
    ScriptedMachine,
    each_store,
    memory_bench,
    new_run,
    over_every_store,
    play,
    result_of,
    settled,
    state_of,
    told,
)
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.conversation import MergeItem, NoticeItem
from toolfleet.schemas.errors import StoreUnavailable
from toolfleet.schemas.ids import CommandId, LeaseToken
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, RunStatus
from toolfleet.schemas.ports import Applied, Transition
from toolfleet.schemas.records import (
    AppendDead,
    AppendEvent,
    AppendItem,
    AppendMerge,
    CloseUsage,
    OpenUsage,
    ReuseResult,
    Step,
    StoreResult,
)
from toolfleet.schemas.run import RunState

open_bench = each_store


def _row(name: str, due_at: float) -> CommandRow:
    return CommandRow(id=CommandId(name), queue="exec.low", turn=1, due_at=due_at)


@over_every_store
def test_rows_are_put_changed_and_dropped_by_the_difference(open_bench: OpenBench, tmp_path: Path) -> None:
    def put(state: RunState, now: float) -> Step:
        kept = state.commands[0]
        rows = (
            kept,
            _row("due", now),
            _row("later", now + 5),
            _row("leased", now).leased(LeaseToken("t"), "o", now, now),
        )
        return Step(replace(state, commands=rows))

    def change(state: RunState, now: float) -> Step:
        later = state.command("later")
        assert later is not None
        return Step(
            replace(state, commands=(later.due(now), *(row for row in state.commands if row.id == "due")))
        )

    machine = ScriptedMachine({"put": put, "change": change})

    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        (first,) = await bench.store.transact([told(new.run_id, "put")])
        (second,) = await bench.store.transact([told(new.run_id, "change")])

        assert [due.row.id for due in first.publish] == ["due"], "new, due, unleased; an unchanged row is not"
        assert [due.row.id for due in second.publish] == ["later"]
        view = await bench.store.run(new.run_id)
        assert view is not None and {row.id for row in view.state.commands} == {"due", "later"}
        assert (await bench.store.counts())["commands"] == 2

    play(story, open_bench, tmp_path, machine)


@over_every_store
def test_of_a_miss_only_the_records_are_written(open_bench: OpenBench, tmp_path: Path) -> None:
    def miss(state: RunState, now: float) -> Step:
        ignored = replace(state, status=RunStatus.FAILED, commands=())
        return Step(ignored, (AppendEvent(99, "evidence", {"x": 1}),), missed="too late")

    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        before = await bench.store.run(new.run_id)

        (applied,) = await bench.store.transact([told(new.run_id, "miss")])

        assert (applied.missed, applied.publish) == ("too late", ())
        assert before is not None and applied.state == applied.before == before.state
        assert await bench.store.run(new.run_id) == before
        assert [event.seq for event in await bench.store.events(new.run_id)] == [1, 99]

    play(story, open_bench, tmp_path, ScriptedMachine({"miss": miss}))


@over_every_store
def test_the_first_result_of_a_call_stays(open_bench: OpenBench, tmp_path: Path) -> None:
    def store_again(state: RunState, now: float) -> Step:
        other = result_of(state.calls[0], '{"late":1}', outcome=CallOutcome.FAILED)
        return Step(state, (StoreResult(1, other), AppendMerge(state.item_count, 1, state.calls)))

    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(2)
        await bench.apply(new.run_id, settled(state_of(applied).calls[:1], '{"first":1}'))

        await bench.store.transact([told(new.run_id, "again")])

        ((_, stored),) = await bench.store.results(new.run_id)
        assert stored.content == '{"first":1}'
        last = (await bench.store.items(new.run_id))[-1].item
        assert isinstance(last, MergeItem)
        assert [result.content for result in last.results] == ['{"first":1}'], "a merge says what is stored"

    play(story, open_bench, tmp_path, ScriptedMachine({"again": store_again}))


@over_every_store
def test_calls_and_results_of_one_transaction_are_merged_in_it(open_bench: OpenBench, tmp_path: Path) -> None:
    def reuse_and_merge(state: RunState, now: float) -> Step:
        source, target = state.calls
        closed = tuple(
            replace(call, outcome=CallOutcome.OK, waiting=CallWaiting.READY) for call in state.calls
        )
        records = (
            AppendMerge(state.item_count, 1, closed),
            StoreResult(1, result_of(source, '{"status":"success","data":7}')),
            ReuseResult(1, target.call_id, target.index, source.call_id, "the same again"),
            AppendItem(state.item_count + 1, 1, NoticeItem("after")),
        )
        return Step(replace(state, turn=2, calls=(), commands=(), item_count=state.item_count + 2), records)

    async def story(bench: Bench) -> None:
        new, _ = await bench.waiting(2)
        # the source is stored by an earlier transaction, as the machine does it
        await bench.store.transact([told(new.run_id, "source")])

        await bench.store.transact([told(new.run_id, "merge")])

        items = await bench.store.items(new.run_id)
        assert [stored.seq for stored in items] == [0, 1, 2, 3]
        merge = items[2].item
        assert isinstance(merge, MergeItem)
        assert [one.content for one in merge.results] == [
            '{"status":"success","data":7}',
            '{"status":"success","data":7,"notice":"the same again"}',
        ]
        view = await bench.store.run(new.run_id)
        assert view is not None and (view.state.turn, view.state.calls) == (2, ())

    def source(state: RunState, now: float) -> Step:
        return Step(state, (StoreResult(1, result_of(state.calls[0], '{"status":"success","data":7}')),))

    play(story, open_bench, tmp_path, ScriptedMachine({"merge": reuse_and_merge, "source": source}))


@over_every_store
def test_usage_stands_as_reserved_until_it_is_closed_once(open_bench: OpenBench, tmp_path: Path) -> None:
    token = LeaseToken("one model call")

    def opened(state: RunState, now: float) -> Step:
        return Step(state, (OpenUsage(token, 1, 1, "gpt", 0.25),))

    def closed(state: RunState, now: float) -> Step:
        return Step(state, (CloseUsage(token, "failed", ""),))

    def replied(state: RunState, now: float) -> Step:
        return Step(state, (CloseUsage(token, "replied", "late", cost_usd=9.0),), missed="late")

    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        await bench.store.transact([told(new.run_id, "opened")])
        (reserved,) = await bench.store.usage(new.run_id)
        await bench.store.transact([told(new.run_id, "closed")])
        await bench.store.transact([told(new.run_id, "replied")])

        (row,) = await bench.store.usage(new.run_id)

        assert (reserved["status"], reserved["cost_usd"]) == ("reserved", 0.25)
        assert (row["status"], row["model"], row["cost_usd"], row["reserved_usd"]) == (
            "failed",
            "gpt",
            0.0,
            0.25,
        )

    play(
        story, open_bench, tmp_path, ScriptedMachine({"opened": opened, "closed": closed, "replied": replied})
    )


@over_every_store
def test_a_step_given_up_leaves_a_letter_that_names_it(open_bench: OpenBench, tmp_path: Path) -> None:
    def give_up(state: RunState, now: float) -> Step:
        return Step(
            replace(state, commands=()), (AppendDead("run/1", "decide.batch", 1, None, "worker_lost", 3),)
        )

    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        await bench.store.transact([told(new.run_id, "give_up")])

        (letter,) = await bench.store.dead(limit=10)

        assert (letter.id, letter.queue, letter.at) == ("dead_run_1", "decide.batch", bench.clock.now)
        assert (letter.run_id, letter.turn, letter.reason) == (new.run_id, 1, "worker_lost")

    play(story, open_bench, tmp_path, ScriptedMachine({"give_up": give_up}))


def _note(state: RunState, now: float) -> Step:
    event = AppendEvent(state.event_count + 1, "noted")
    return Step(replace(state, event_count=state.event_count + 1), (event,))


def _raise(state: RunState, now: float) -> Step:
    raise ValueError("the machine has a bug here")


def _break(state: RunState, now: float) -> Step:
    """Breaks a constraint of the database: a number that is taken."""
    return Step(
        replace(state, item_count=9), (AppendEvent(1, "taken"), AppendItem(5, 1, NoticeItem("not stored")))
    )


@over_every_store
@pytest.mark.parametrize("poison", ["raise", "break"])
def test_one_poisoned_transition_of_fifty_fails_alone(
    open_bench: OpenBench, tmp_path: Path, poison: str
) -> None:
    async def story(bench: Bench) -> None:
        runs = [new_run() for _ in range(50)]
        await bench.store.submit(runs)
        rules = [poison if number == 31 else "note" for number in range(50)]

        answers = await asyncio.gather(
            *(bench.store.transact([told(run.run_id, rule)]) for run, rule in zip(runs, rules, strict=True)),
            return_exceptions=True,
        )

        failed = [number for number, answer in enumerate(answers) if isinstance(answer, BaseException)]
        assert failed == [31]
        for number, run in enumerate(runs):
            seqs = [event.seq for event in await bench.store.events(run.run_id)]
            assert seqs == ([1] if number == 31 else [1, 2])
        assert len(await bench.store.items(runs[31].run_id)) == 1

    machine = ScriptedMachine({"note": _note, "raise": _raise, "break": _break})
    play(story, open_bench, tmp_path, machine)


@over_every_store
@pytest.mark.parametrize("poison", ["raise", "break"])
def test_the_others_of_a_call_are_carried_out_before_it_raises(
    open_bench: OpenBench, tmp_path: Path, poison: str
) -> None:
    async def story(bench: Bench) -> None:
        runs = [new_run() for _ in range(3)]
        await bench.store.submit(runs)
        first, bad, last = (run.run_id for run in runs)

        with pytest.raises(Exception, match="bug here" if poison == "raise" else r"events|number"):
            await bench.store.transact([told(first, "note"), told(bad, poison), told(last, "note")])

        assert [len(await bench.store.events(run.run_id)) for run in runs] == [2, 1, 2]

    machine = ScriptedMachine({"note": _note, "raise": _raise, "break": _break})
    play(story, open_bench, tmp_path, machine)


@over_every_store
def test_many_transitions_of_one_run_are_carried_out_in_order(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()

        whole: list[list[Applied]] = await asyncio.gather(
            *(bench.store.transact([told(new.run_id, "note")] * 5) for _ in range(10))
        )

        counts = [state_of(one).event_count for applied in whole for one in applied]
        assert counts == list(range(2, 52))
        assert [event.seq for event in await bench.store.events(new.run_id)] == list(range(1, 52))

    play(story, open_bench, tmp_path, ScriptedMachine({"note": _note}))


def test_the_fake_can_fail_before_a_write_and_after_a_commit(tmp_path: Path) -> None:
    seen: list[Transition] = []

    def fail(transitions: object) -> None:
        raise StoreUnavailable("injected")

    async def story(bench: Bench) -> None:
        from toolfleet.adapters.store.memory import MemoryStore

        store = bench.store
        assert isinstance(store, MemoryStore)
        new = await bench.accepted()
        store.before_write = fail
        with pytest.raises(StoreUnavailable):
            await store.transact([told(new.run_id, "note")])
        with pytest.raises(StoreUnavailable):
            await store.submit([new_run()])
        store.before_write = seen.extend
        store.after_commit = fail
        with pytest.raises(StoreUnavailable):
            await store.transact([told(new.run_id, "note")])

        assert [event.type for event in await store.events(new.run_id)] == ["run.accepted", "noted"]
        assert [one.run_id for one in seen] == [new.run_id]
        assert len(await store.runs(limit=10)) == 1

    play(story, memory_bench, tmp_path, ScriptedMachine({"note": _note}))
