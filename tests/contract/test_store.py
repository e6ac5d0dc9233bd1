"""The contract of the store with the real machine, over every store: the transactions of PROTOCOL as far as they apply."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.store_bench import (
    OK_CONTENT,
    Bench,
    OpenBench,
    command_ids,
    each_store,
    lease,
    new_run,
    over_every_store,
    play,
    proposed,
    replied,
    result_of,
    settled,
    state_of,
)
from toolfleet.schemas.commands import RESULTS_QUEUE
from toolfleet.schemas.conversation import AssistantItem, MergeItem, UserItem
from toolfleet.schemas.effects import EffectState, arguments_hash
from toolfleet.schemas.errors import IdempotencyConflict, RunNotFinished, UnknownRun
from toolfleet.schemas.events import (
    CallLeased,
    CallRetry,
    CallsSettled,
    CancelRequested,
    DeadlineReached,
    EffectClaimed,
    EffectEnded,
    HandedBack,
    LeaseExpired,
    ModelFailed,
    StepFacts,
    Submitted,
)
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId, new_run_id, new_token
from toolfleet.schemas.limits import DEATHS_MAX, Limits
from toolfleet.schemas.model import ModelFault
from toolfleet.schemas.outcomes import CallOutcome, RunStatus, TurnPhase
from toolfleet.schemas.ports import Applied, Transition

pytestmark = over_every_store
open_bench = each_store


# -- T1 submit -----------------------------------------------------------------------------------------------------------


def test_an_accepted_run_is_there_with_its_command_and_its_input(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new = new_run(deadline_s=60.0, limits=Limits(turns_max=3), reserve_usd=0.01)

        (submission,) = await bench.store.submit([new])

        assert (submission.run_id, submission.created) == (new.run_id, True)
        (due,) = submission.publish
        assert (due.run_id, due.row.queue, due.trace) == (new.run_id, "decide.interactive", new.trace)
        view = await bench.store.run(new.run_id)
        assert view is not None
        assert view.state.commands == (due.row,)
        assert (view.state.status, view.state.deadline_at) == (RunStatus.QUEUED, bench.clock.now + 60)
        assert view.state.limits == new.limits
        assert view.info.input == new.input and view.info.context == new.context
        assert view.info.metadata == new.metadata and view.info.created_at == bench.clock.now
        assert [stored.item for stored in await bench.store.items(new.run_id)] == [UserItem(new.input)]
        assert [event.type for event in await bench.store.events(new.run_id)] == ["run.accepted"]

    play(story, open_bench, tmp_path)


def test_an_idempotency_key_makes_one_run(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        first = new_run(idempotency_key="k", request_hash="h")
        again = new_run(idempotency_key="k", request_hash="h")
        elsewhere = new_run(idempotency_key="k", request_hash="h", tenant="other")
        await bench.store.submit([first])

        (known,) = await bench.store.submit([again])
        (other,) = await bench.store.submit([elsewhere])
        twice = await bench.store.submit(
            [new_run(idempotency_key="q", request_hash="h"), new_run(idempotency_key="q", request_hash="h")]
        )

        assert (known.run_id, known.created, known.publish) == (first.run_id, False, ())
        assert await bench.store.run(again.run_id) is None
        assert other.created, "keys are of a tenant"
        assert [one.created for one in twice] == [True, False]
        assert twice[0].run_id == twice[1].run_id
        with pytest.raises(IdempotencyConflict):
            await bench.store.submit([new_run(idempotency_key="k", request_hash="another")])

    play(story, open_bench, tmp_path)


def test_a_submit_that_is_repeated_as_it_was_makes_nothing_new(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()

        (again,) = await bench.store.submit([new])

        assert (again.run_id, again.created) == (new.run_id, False)
        assert len(await bench.store.items(new.run_id)) == 1

    play(story, open_bench, tmp_path)


def test_a_batch_with_one_bad_run_stores_none(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        good, unknown = new_run(), new_run(previous_run_id=new_run_id())

        with pytest.raises(UnknownRun):
            await bench.store.submit([good, unknown])

        assert await bench.store.run(good.run_id) is None
        assert (await bench.store.counts())["commands"] == 0

    play(story, open_bench, tmp_path)


def test_the_previous_run_has_to_be_finished_and_of_the_tenant(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        open_run, closed = await bench.accepted(), await bench.completed()

        with pytest.raises(RunNotFinished):
            await bench.store.submit([new_run(previous_run_id=open_run.run_id)])
        with pytest.raises(UnknownRun):
            await bench.store.submit([new_run(previous_run_id=closed.run_id, tenant="other")])
        (next_one,) = await bench.store.submit([new_run(previous_run_id=closed.run_id)])

        assert next_one.created

    play(story, open_bench, tmp_path)


def test_a_conversation_of_thirty_runs_reads_oldest_first(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        previous: RunId | None = None
        for number in range(30):
            run = await bench.completed(previous_run_id=previous, input=f"question {number}")
            previous = run.run_id
        last = await bench.accepted(previous_run_id=previous, input="question 30")

        found = await bench.store.conversation(last.run_id)

        assert found is not None and found.info.run_id == last.run_id
        said = [item.text for item in found.items if isinstance(item, UserItem)]
        assert said == [f"question {number}" for number in range(31)]
        assert len(found.items) == 61
        assert await bench.store.conversation(new_run_id()) is None

    play(story, open_bench, tmp_path)


# -- T2 to T5 decide -------------------------------------------------------------------------------------------------------


def test_one_of_two_workers_gets_the_decision(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        tokens = [new_token(), new_token()]

        both = await asyncio.gather(
            *(bench.apply(new.run_id, lease(new.run_id, 1, token)) for token in tokens)
        )

        assert [one.missed for one in both] == [None, "leased"]
        row = state_of(both[0]).commands[0]
        assert (row.token, row.lease_until) == (tokens[0], bench.clock.now + 30)
        assert both[1].publish == () and both[1].state == both[1].before
        (usage,) = await bench.store.usage(new.run_id)
        assert (usage["status"], usage["attempt"], usage["model"]) == ("reserved", 1, "gpt")

    play(story, open_bench, tmp_path)


def test_a_lease_asked_for_again_under_its_token_after_it_expired_has_one_usage_row(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        event = lease(new.run_id, 1, LeaseToken("t1"))
        await bench.apply(new.run_id, event)  # stored, and its answer lost
        bench.clock.advance(31)
        await bench.apply(new.run_id, LeaseExpired(event.command_id, event.token))

        again = await bench.apply(new.run_id, event)

        assert again.missed is None and state_of(again).status is RunStatus.DECIDING
        (usage,) = await bench.store.usage(new.run_id)
        assert (usage["status"], usage["attempt"]) == ("reserved", 1)

    play(story, open_bench, tmp_path)


def test_a_reply_with_calls_stores_them_and_publishes_one_row_each(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new, token = await bench.deciding()

        applied = await bench.apply(new.run_id, replied(new.run_id, 1, token, proposed(3)))

        state = state_of(applied)
        assert (state.status, state.phase, len(state.open_calls)) == (RunStatus.WAITING, TurnPhase.CALLS, 3)
        assert [due.row.queue for due in applied.publish] == ["exec.low"] * 3
        assert all(due.trace == new.trace for due in applied.publish)
        view = await bench.store.run(new.run_id)
        assert view is not None and view.state == replace(
            state, commands=tuple(sorted(state.commands, key=lambda row: row.id))
        )
        _, spoken = await bench.store.items(new.run_id)
        assert isinstance(spoken.item, AssistantItem) and len(spoken.item.calls) == 3
        assert list(spoken.item.provider or {}) == ["role", "content", "ümlaut"], "verbatim, in its order"
        (usage,) = await bench.store.usage(new.run_id)
        assert (usage["status"], usage["model"], usage["input_tokens"]) == ("replied", "gpt-1", 100)

    play(story, open_bench, tmp_path)


def test_a_late_reply_misses_but_its_cost_counts(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, token = await bench.deciding()
        bench.clock.advance(31)
        await bench.apply(new.run_id, LeaseExpired(CommandId(f"{new.run_id}/1"), token))

        late = await bench.apply(new.run_id, replied(new.run_id, 1, token, text="late"))

        assert late.missed is not None and late.publish == ()
        assert len(await bench.store.items(new.run_id)) == 1
        (usage,) = await bench.store.usage(new.run_id)
        assert (usage["status"], usage["cost_usd"]) == ("replied", 0.002)

    play(story, open_bench, tmp_path)


def test_a_final_reply_ends_the_run_and_leaves_no_row(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.completed()

        view = await bench.store.run(new.run_id)

        assert view is not None
        assert (view.state.status, view.state.output) == (RunStatus.COMPLETED, "done")
        assert view.state.commands == () and view.info.finished_at == bench.clock.now
        assert await bench.store.finished([new.run_id, new_run_id()]) == {new.run_id}
        used = view.state.counters
        assert (used.model_calls, used.input_tokens, used.cost_usd) == (1, 100, 0.002)
        counts = await bench.store.counts()
        assert counts == {"runs.completed": 1, "commands": 0, "leases": 0, "dead": 0}

    play(story, open_bench, tmp_path)


def test_a_model_error_makes_the_decision_due_later(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, token = await bench.deciding()
        fault = ModelFault("rate_limited", "slow down", retryable=True, status=429)

        failed = await bench.apply(
            new.run_id, ModelFailed(CommandId(f"{new.run_id}/1"), token, fault, 5.0, StepFacts(model="gpt"))
        )
        early = await bench.apply(new.run_id, lease(new.run_id, 1, new_token()))
        bench.clock.advance(5)
        again = await bench.apply(new.run_id, lease(new.run_id, 1, new_token()))

        assert failed.publish == (), "not due yet"
        assert early.missed == "not yet due"
        assert again.missed is None
        assert [row["status"] for row in await bench.store.usage(new.run_id)] == ["failed", "reserved"]

    play(story, open_bench, tmp_path)


# -- T6 to T8 calls ----------------------------------------------------------------------------------------------------------


def test_a_call_is_read_without_a_lock(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(2)
        ids = command_ids(applied)

        found = await bench.store.peek_calls(
            [ids[1], CommandId("none"), ids[0], CommandId(f"{new.run_id}/1")]
        )

        assert [view is not None for view in found] == [True, False, True, False]
        first = found[2]
        assert first is not None
        assert first.row == state_of(applied).command(ids[0])
        assert first.call == state_of(applied).calls[0]
        assert (first.run_id, first.run_status, first.turn) == (new.run_id, RunStatus.WAITING, 1)
        assert (first.agent, first.tenant, first.context) == ("desk", "default", new.context)
        assert (first.trace, first.now_s) == (new.trace, bench.clock.now)

    play(story, open_bench, tmp_path)


def test_a_leased_result_moves_the_row_to_results_and_is_counted_from_there(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(1, effect=True)
        (command_id,), token = command_ids(applied), new_token()
        call = state_of(applied).calls[0]
        claim = EffectClaimed(
            command_id, token, "worker-1", 30.0, f"key/{call.call_id}", arguments_hash(call.arguments)
        )
        await bench.apply(new.run_id, claim)
        happened = EffectState.HAPPENED

        stored = await bench.apply(new.run_id, EffectEnded(command_id, 1, happened, result_of(call)))
        again = await bench.apply(
            new.run_id, EffectEnded(command_id, 1, happened, result_of(call, '{"status":"other"}'))
        )
        counted = await bench.apply(new.run_id, CallsSettled())

        assert [due.row.queue for due in stored.publish] == [RESULTS_QUEUE]
        assert again.publish == ()
        assert state_of(counted).turn == 2
        assert await bench.store.results(new.run_id) == [(1, result_of(call))], "the first one wins"
        assert await bench.store.peek_calls([command_id]) == [None]

    play(story, open_bench, tmp_path)


def test_a_retry_is_due_after_its_delay_with_the_next_attempt(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(1)
        (command_id,) = command_ids(applied)
        call = state_of(applied).calls[0]
        failed = result_of(call, outcome=CallOutcome.FAILED)

        retried = await bench.apply(new.run_id, CallRetry(command_id, None, 1, 2.5, False, failed))
        stale = await bench.apply(new.run_id, CallRetry(command_id, None, 1, 2.5, False, failed))
        (view,) = await bench.store.peek_calls([command_id])

        assert retried.publish == () and stale.missed is not None
        assert view is not None
        assert (view.call.attempt, view.call.waiting.value) == (2, "retry_due")
        assert view.row.due_at == bench.clock.now + 2.5

    play(story, open_bench, tmp_path)


def test_the_time_of_a_call_is_kept_from_its_first_attempt_on(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(1, call_timeout_s=90.0)
        (command_id,), call = command_ids(applied), state_of(applied).calls[0]
        (before,) = await bench.store.peek_calls([command_id])
        began_at = bench.clock.now - 4.0
        failed = result_of(call, outcome=CallOutcome.FAILED, content='{"status":"error","message":"no"}')

        await bench.apply(new.run_id, CallRetry(command_id, None, 1, 2.5, False, failed, began_at))
        (retried,) = await bench.store.peek_calls([command_id])
        bench.clock.now += 3.0
        await bench.apply(new.run_id, CallRetry(command_id, None, 2, 900.0, False, failed))

        assert before is not None and retried is not None
        assert (before.call.call_timeout_s, before.call.deadline_at) == (90.0, None)
        assert (retried.call.call_timeout_s, retried.call.deadline_at) == (90.0, began_at + 90.0)
        ((_, result),) = await bench.store.results(new.run_id)
        assert (result.outcome, result.reason) == (CallOutcome.FAILED, "call_timeout")

    play(story, open_bench, tmp_path)


# -- T12 settle ----------------------------------------------------------------------------------------------------------------


def test_results_in_any_order_make_one_merge_in_call_order(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(3)
        first, second, third = state_of(applied).calls

        await bench.apply(new.run_id, settled([third], '{"n":3}'))
        await bench.apply(new.run_id, settled([first], '{"n":1}'))
        last = await bench.apply(new.run_id, settled([third, second], '{"n":2}'))
        repeated = await bench.apply(new.run_id, settled([first, second, third]))

        assert repeated.missed is not None
        assert [due.row.queue for due in last.publish] == ["decide.interactive"]
        merges = [one.item for one in await bench.store.items(new.run_id) if isinstance(one.item, MergeItem)]
        assert [[result.content for result in merge.results] for merge in merges] == [
            ['{"n":1}', '{"n":2}', '{"n":3}']
        ]
        assert [result.index for _, result in await bench.store.results(new.run_id)] == [0, 1, 2]

    play(story, open_bench, tmp_path)


@pytest.mark.parametrize("count", [1, 64])
def test_a_turn_of_any_size_is_merged_once(open_bench: OpenBench, tmp_path: Path, count: int) -> None:
    async def story(bench: Bench) -> None:
        new, token = await bench.deciding(limits=Limits(calls_max=100))
        applied = await bench.apply(new.run_id, replied(new.run_id, 1, token, proposed(count)))
        calls = state_of(applied).calls

        outcomes: list[Applied] = await asyncio.gather(
            *(bench.apply(new.run_id, settled([call])) for call in reversed(calls))
        )

        assert sum(len(one.publish) for one in outcomes) == 1
        items = await bench.store.items(new.run_id)
        assert [stored.seq for stored in items] == [0, 1, 2]
        assert isinstance(items[2].item, MergeItem) and len(items[2].item.results) == count

    play(story, open_bench, tmp_path)


def test_a_repeated_call_gets_a_copy_of_the_stored_result(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(1)
        first = state_of(applied).calls[0]
        await bench.apply(new.run_id, settled([first], '{"status":"success","data":"once"}'))
        token = new_token()
        await bench.apply(new.run_id, lease(new.run_id, 2, token))

        again = await bench.apply(new.run_id, replied(new.run_id, 2, token, proposed(1)))

        assert state_of(again).turn == 3, "nothing had to run"
        (_, original), (turn, copy) = await bench.store.results(new.run_id)
        assert (turn, copy.outcome) == (2, CallOutcome.OK)
        assert copy.call_id != original.call_id and '"data":"once"' in copy.content
        assert len(await bench.store.items(new.run_id)) == 5

    play(story, open_bench, tmp_path)


# -- T16 to T24 ------------------------------------------------------------------------------------------------------------------


def test_the_third_death_of_a_decision_ends_the_run_and_leaves_a_letter(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted()
        command_id = CommandId(f"{new.run_id}/1")
        for _ in range(DEATHS_MAX):
            token = new_token()
            await bench.apply(new.run_id, lease(new.run_id, 1, token))
            early = await bench.apply(new.run_id, LeaseExpired(command_id, token))
            assert early.missed == "lease renewed"
            bench.clock.advance(30.5)
            assert await bench.store.expired_leases(limit=10) == [(new.run_id, command_id, token)]
            expired = await bench.apply(new.run_id, LeaseExpired(command_id, token))

        assert state_of(expired).status is RunStatus.FAILED
        (letter,) = await bench.store.dead(limit=10)
        assert (letter.kind, letter.run_id, letter.reason) == ("step", new.run_id, "worker_lost")
        assert await bench.store.dead_letter(letter.id) == letter
        assert (await bench.store.counts())["commands"] == 0

    play(story, open_bench, tmp_path)


def test_a_lost_call_is_settled_and_its_turn_goes_on(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(1)
        (command_id,) = command_ids(applied)
        for _ in range(DEATHS_MAX):
            token = new_token()
            await bench.apply(new.run_id, CallLeased(command_id, token, "worker-1", 30.0))
            bench.clock.advance(31)
            expired = await bench.apply(new.run_id, LeaseExpired(command_id, token))

        assert state_of(expired).turn == 2
        ((_, result),) = await bench.store.results(new.run_id)
        assert (result.outcome, result.reason) == (CallOutcome.FAILED, "worker_lost")

    play(story, open_bench, tmp_path)


def test_a_cancel_settles_open_calls_and_leaves_no_row(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(2)
        await bench.apply(new.run_id, settled(state_of(applied).calls[:1]))

        cancelled = await bench.apply(new.run_id, CancelRequested("me"))
        late = await bench.apply(new.run_id, settled(state_of(applied).calls[1:]))

        assert state_of(cancelled).status is RunStatus.CANCELLED
        assert late.missed is not None
        outcomes = [result.outcome for _, result in await bench.store.results(new.run_id)]
        assert outcomes == [CallOutcome.OK, CallOutcome.CANCELLED]
        assert (await bench.store.counts())["commands"] == 0

    play(story, open_bench, tmp_path)


def test_a_deadline_ends_an_overdue_run(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new = await bench.accepted(deadline_s=10.0)
        other = await bench.accepted(deadline_s=20.0)
        assert await bench.store.overdue_runs(limit=10) == []
        bench.clock.advance(10)

        overdue = await bench.store.overdue_runs(limit=10)
        ended = await bench.apply(new.run_id, DeadlineReached())

        assert overdue == [new.run_id]
        assert state_of(ended).status is RunStatus.LIMIT_REACHED
        assert await bench.store.overdue_runs(limit=10) == []
        bench.clock.advance(10)
        assert await bench.store.overdue_runs(limit=10) == [other.run_id]

    play(story, open_bench, tmp_path)


def test_a_lease_that_is_handed_back_is_due_at_once_and_no_death(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new, token = await bench.deciding()

        back = await bench.apply(new.run_id, HandedBack(CommandId(f"{new.run_id}/1"), token))

        (due,) = back.publish
        assert (due.row.token, due.row.deaths, due.row.sent_at) == (None, 0, None)

    play(story, open_bench, tmp_path)


def test_events_are_numbered_without_gaps_and_read_in_pages(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(4)
        await asyncio.gather(*(bench.apply(new.run_id, settled([call])) for call in state_of(applied).calls))

        whole = await bench.store.events(new.run_id)
        page = await bench.store.events(new.run_id, after=2, limit=3)

        assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
        assert page == whole[2:5]
        view = await bench.store.run(new.run_id)
        assert view is not None and view.state.event_count == len(whole)

    play(story, open_bench, tmp_path)


def test_what_is_read_back_is_what_was_reduced(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(2)
        content = OK_CONTENT.replace("1", '"é\\u0000 ☂"')
        last = await bench.apply(new.run_id, settled(state_of(applied).calls, content))

        view = await bench.store.run(new.run_id)

        assert view is not None and view.state == last.state
        assert {result.content for _, result in await bench.store.results(new.run_id)} == {content}
        kinds = [(step.kind, step.outcome) for step in await bench.store.steps(new.run_id)]
        assert kinds == [("decide", "tool_calls"), ("call", "ok"), ("call", "ok"), ("merge", "merged")]

    play(story, open_bench, tmp_path)


def test_an_event_for_a_run_that_does_not_exist_is_a_miss(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        run_id, new = new_run_id(), await bench.accepted()

        both = await bench.store.transact(
            [Transition(run_id, CancelRequested()), Transition(new.run_id, Submitted(new))]
        )

        assert (both[0].missed, both[0].state, both[0].publish) == ("unknown run", None, ())
        assert both[1].missed == "run exists"
        assert await bench.store.transact([]) == [] and await bench.store.submit([]) == []

    play(story, open_bench, tmp_path)


def test_two_transitions_of_one_run_in_one_call_follow_each_other(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new, token = await bench.accepted(), LeaseToken("t-1")

        first, second, third = await bench.store.transact(
            [
                Transition(new.run_id, lease(new.run_id, 1, token)),
                Transition(new.run_id, replied(new.run_id, 1, token, text="done")),
                Transition(new.run_id, CancelRequested()),
            ]
        )

        assert first.missed is None and second.missed is None
        assert second.before == first.state
        assert third.missed == "run is completed"

    play(story, open_bench, tmp_path)
