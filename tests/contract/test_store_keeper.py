"""The contract of the store for what is not a transition: due and lost rows, marks, renewals, leases, brokers."""

from __future__ import annotations

from pathlib import Path

from tests.contract.store_bench import (
    Bench,
    OpenBench,
    command_ids,
    each_store,
    lease,
    over_every_store,
    play,
    settled,
    state_of,
)
from toolfleet.schemas.events import CallLeased, CallRetry, HandedBack
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId, new_token
from toolfleet.schemas.limits import LOST_AFTER_S, LOST_BACKOFF_MAX, UNSENT_AFTER_S, WAITING_MARGIN_S
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.ports import SentMark
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.views import DueRow

pytestmark = over_every_store
open_bench = each_store

BROKER = "memory"


def _decide(run_id: RunId) -> CommandId:
    return CommandId(f"{run_id}/1")


async def _due(bench: Bench, broker: str = BROKER) -> list[CommandId]:
    await bench.written()
    return [due.row.id for due in await bench.store.due_rows(limit=100, broker=broker)]


async def _mark(bench: Bench, command_id: CommandId, due_at: float) -> None:
    await bench.store.mark_sent([SentMark(command_id, due_at, bench.clock.now)])


def test_an_unsent_row_is_published_once_it_is_due_for_a_while(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()

        bench.clock.advance(UNSENT_AFTER_S - 0.01)
        early = await _due(bench)
        bench.clock.advance(0.02)
        (due,) = await bench.store.due_rows(limit=10, broker=BROKER)

        assert early == []
        assert (due.run_id, due.row.id, due.trace) == (new.run_id, _decide(new.run_id), new.trace)

    play(story, open_bench, tmp_path)


def test_a_row_whose_message_still_waits_in_its_queue_is_not_lost(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        (due,) = await _after(bench, UNSENT_AFTER_S + 0.1)
        sent_at = bench.clock.now
        await _mark(bench, due.row.id, due.row.due_at)
        bench.clock.advance(10 * LOST_AFTER_S)
        await bench.written()

        async def found(since: float | None) -> list[CommandId]:
            waiting = {} if since is None else {due.row.queue: since}
            rows = await bench.store.due_rows(limit=10, broker=BROKER, waiting_since_s=waiting)
            return [one.row.id for one in rows]

        lost = [_decide(new.run_id)]
        assert await found(None) == lost
        assert await found(sent_at) == lost, "it may be the one that was fetched last: clocks differ"
        assert await found(sent_at - WAITING_MARGIN_S - 1) == []
        other = await bench.store.due_rows(
            limit=10, broker=BROKER, waiting_since_s={"exec.low": sent_at - 1000}
        )
        assert len(other) == 1, "another queue says nothing about it"
        await bench.store.broker_marker(BROKER)
        await bench.store.note_broker_reset(BROKER)
        assert await found(sent_at - WAITING_MARGIN_S - 1) == lost, (
            "what was sent before a wipe waits nowhere"
        )

    play(story, open_bench, tmp_path)


async def _after(bench: Bench, seconds: float) -> list[DueRow]:
    bench.clock.advance(seconds)
    return await bench.store.due_rows(limit=10, broker=BROKER)


def test_the_oldest_due_rows_come_first_and_no_more_than_asked_for(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        runs = []
        for _ in range(5):
            runs.append(await bench.accepted())
            bench.clock.advance(1)
        bench.clock.advance(UNSENT_AFTER_S)

        due = await bench.store.due_rows(limit=3, broker=BROKER)

        assert [one.run_id for one in due] == [run.run_id for run in runs[:3]]

    play(story, open_bench, tmp_path)


def test_a_sent_row_is_lost_after_a_time_that_doubles_with_each_send(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        due_at = bench.clock.now

        for sends in (1, 2, 3, 4, 5, 6):
            await _mark(bench, _decide(new.run_id), due_at)
            patience = LOST_AFTER_S * min(2 ** (sends - 1), LOST_BACKOFF_MAX)
            bench.clock.advance(patience - 0.5)
            assert await _due(bench) == [], f"after {sends} sends"
            bench.clock.advance(1)
            assert await _due(bench) == [_decide(new.run_id)], f"after {sends} sends"

        view = await bench.store.run(new.run_id)
        assert view is not None and view.state.commands[0].sends == 6

    play(story, open_bench, tmp_path)


def test_a_mark_counts_only_while_the_due_time_is_the_same(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(1)
        (command_id,) = command_ids(applied)
        published_at = state_of(applied).commands[0].due_at
        failed = CallResult(state_of(applied).calls[0].call_id, 0, CallOutcome.FAILED, "{}")
        await bench.apply(new.run_id, CallRetry(command_id, None, 1, 1.0, False, failed))

        await _mark(bench, command_id, published_at)
        await _mark(bench, CommandId("gone"), published_at)
        bench.clock.advance(1 + UNSENT_AFTER_S)

        assert await _due(bench) == [command_id], "the late mark was of the publish before"
        (view,) = await bench.store.peek_calls([command_id])
        assert view is not None and (view.row.sent_at, view.row.sends) == (None, 0)

    play(story, open_bench, tmp_path)


def test_a_mark_with_the_same_due_time_counts(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        _, applied = await bench.waiting(1)
        (row,) = state_of(applied).commands
        bench.clock.advance(0.123456)

        await _mark(bench, row.id, row.due_at)
        await bench.written()

        (view,) = await bench.store.peek_calls([row.id])
        assert view is not None and (view.row.sent_at, view.row.sends) == (bench.clock.now, 1)

    play(story, open_bench, tmp_path)


def test_a_row_that_is_leased_is_not_published(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.deciding()
        bench.clock.advance(10 * LOST_AFTER_S)

        assert await _due(bench) == []

    play(story, open_bench, tmp_path)


def test_a_row_that_is_due_later_waits(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(1)
        (command_id,) = command_ids(applied)
        failed = CallResult(state_of(applied).calls[0].call_id, 0, CallOutcome.FAILED, "{}")
        await bench.apply(new.run_id, CallRetry(command_id, None, 1, 60.0, False, failed))

        bench.clock.advance(59)
        early = await _due(bench)
        bench.clock.advance(1)

        assert early == []
        assert await _due(bench) == [command_id]

    play(story, open_bench, tmp_path)


def test_after_a_wipe_every_row_sent_before_it_goes_out_again_at_once(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        before, after = await bench.accepted(), await bench.accepted()
        await bench.store.broker_marker("another")
        await _mark(bench, _decide(before.run_id), bench.clock.now)
        due_at = bench.clock.now
        await bench.written()
        bench.clock.advance(1)

        await bench.store.note_broker_reset(BROKER)
        bench.clock.advance(0.5)
        await _mark(bench, _decide(after.run_id), due_at)

        assert await _due(bench) == [_decide(before.run_id)]
        assert await _due(bench, "another") == []

    play(story, open_bench, tmp_path)


def test_a_broker_has_one_marker(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        marker = await bench.store.broker_marker(BROKER)
        await bench.store.note_broker_reset(BROKER)
        await bench.store.note_broker_reset("another")

        assert marker and await bench.store.broker_marker(BROKER) == marker
        assert await bench.store.broker_marker("another") != marker

    play(story, open_bench, tmp_path)


def test_a_renewal_extends_what_is_held_and_names_only_that(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        held, held_token = await bench.deciding()
        lost, lost_token = await bench.deciding()
        other, _ = await bench.deciding()
        await bench.apply(lost.run_id, HandedBack(_decide(lost.run_id), lost_token))
        bench.clock.advance(20)

        kept = await bench.store.renew(
            [
                (_decide(held.run_id), held_token),
                (_decide(lost.run_id), lost_token),
                (_decide(other.run_id), LeaseToken("somebody else's")),
                (CommandId("gone"), new_token()),
            ],
            30.0,
        )

        assert kept == {_decide(held.run_id)}
        assert await bench.store.renew([], 30.0) == set()
        bench.clock.advance(15)
        assert [run_id for run_id, _, _ in await bench.store.expired_leases(limit=10)] == [other.run_id]

    play(story, open_bench, tmp_path)


def test_a_renewal_does_not_ask_whether_the_lease_has_run_out(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, token = await bench.deciding()
        bench.clock.advance(100)

        assert await bench.store.renew([(_decide(new.run_id), token)], 30.0) == {_decide(new.run_id)}
        assert await bench.store.expired_leases(limit=10) == []

    play(story, open_bench, tmp_path)


def test_held_leases_name_holder_step_and_tool(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        deciding, token = await bench.deciding()
        bench.clock.advance(1)
        new, applied = await bench.waiting(1)
        (command_id,), call_token = command_ids(applied), new_token()
        await bench.apply(new.run_id, CallLeased(command_id, call_token, "worker-2", 30.0))
        await bench.accepted()

        first, second = await bench.store.held_leases(limit=10)

        assert (first.run_id, first.command_id, first.token) == (
            deciding.run_id,
            _decide(deciding.run_id),
            token,
        )
        assert (first.owner, first.queue, first.tool) == ("worker-1", "decide.interactive", None)
        assert (second.token, second.owner, second.queue) == (call_token, "worker-2", "exec.low")
        assert second.tool == "look_up"
        assert len(await bench.store.held_leases(limit=1)) == 1
        assert (await bench.store.counts())["leases"] == 2

    play(story, open_bench, tmp_path)


def test_a_lease_counts_as_sent(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        await bench.apply(new.run_id, lease(new.run_id, 1, new_token()))

        view = await bench.store.run(new.run_id)

        assert view is not None and view.state.commands[0].sent_at == bench.clock.now

    play(story, open_bench, tmp_path)


def test_the_next_decision_is_due_when_the_turn_is_merged(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(2)
        bench.clock.advance(5)
        await bench.apply(new.run_id, settled(state_of(applied).calls))

        bench.clock.advance(UNSENT_AFTER_S)

        assert await _due(bench) == [CommandId(f"{new.run_id}/2")]

    play(story, open_bench, tmp_path)
