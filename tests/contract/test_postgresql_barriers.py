"""Two stores over one PostgreSQL, forced into both orders: what must come out the same whoever is first.

For each pair of PROTOCOL: collector x collector (the last two results), collector x cancel, lease x commit, renew x
expire, retry_due x settle. Those of claims and approvals are in test_ledger_barriers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from dataclasses import replace
from typing import Final, TypeAlias

import pytest

from tests.contract.races import (
    HOLD_COMMANDS,
    Order,
    Race,
    both_wait_for_a_command,
    does,
    first_inside,
    fresh_url,
    in_each_order,
    play,
    seen_deadlocks,
    whoever_is_first,
)
from tests.contract.store_bench import (
    ScriptedMachine,
    lease,
    new_run,
    opened,
    proposed,
    replied,
    result_of,
    settled,
    state_of,
    told,
    until,
)
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.events import CallLeased, CallRetry, CancelRequested, LeaseExpired
from toolfleet.schemas.ids import CommandId, RunId, new_token
from toolfleet.schemas.outcomes import CallOutcome, RunStatus
from toolfleet.schemas.ports import SentMark, Transition
from toolfleet.schemas.records import AppendEvent, Step
from toolfleet.schemas.run import RunState

url, deadlocks = fresh_url, seen_deadlocks


# -- the pairs -----------------------------------------------------------------------------------------------------------


@in_each_order
@whoever_is_first
def test_two_collectors_with_the_last_two_results_merge_once(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, state = await race.waiting(2)

        both = await race.between(
            run_id,
            does(run_id, settled(state.calls[:1], '{"n":0}')),
            does(run_id, settled(state.calls[1:], '{"n":1}')),
        )

        assert [one.missed for one in both] == [None, None]
        published = [due.row.id for one in both for due in one.publish]
        assert published == [CommandId(f"{run_id}/2")], "the next decision goes out once"
        (merge,) = await race.merges(run_id)
        assert [one.content for one in merge.results] == ['{"n":0}', '{"n":1}']
        after = await race.state(run_id)
        assert (after.status, after.turn) == (RunStatus.QUEUED, 2)
        assert [row.id for row in after.commands] == published

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_a_collector_with_the_last_result_and_a_cancel_exclude_each_other(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, state = await race.waiting(1)

        counted, cancelled = await race.between(
            run_id, does(run_id, settled(state.calls)), does(run_id, CancelRequested("me"))
        )

        assert cancelled.missed is None and state_of(cancelled).status is RunStatus.CANCELLED
        assert (counted.missed is None) is not race.swapped, "a result counts while the run is open"
        ((_, stored),) = await race.store.results(run_id)
        assert stored.outcome is (CallOutcome.CANCELLED if race.swapped else CallOutcome.OK)
        assert len(await race.merges(run_id)) == 1
        after = await race.state(run_id)
        assert (after.status, after.commands) == (RunStatus.CANCELLED, ())

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_a_second_lease_never_meets_the_commit_of_the_first(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        new, token = await race.deciding()
        run_id = new.run_id

        leased, committed = await race.between(
            run_id,
            does(run_id, lease(run_id, 1, new_token())),  # of a message that came twice
            does(run_id, replied(run_id, 1, token, proposed(2))),
        )

        assert committed.missed is None and len(committed.publish) == 2
        assert leased.missed == ("row gone" if race.swapped else "leased")
        after = await race.state(run_id)
        assert (after.status, len(after.commands)) == (RunStatus.WAITING, 2)
        assert len(await race.store.usage(run_id)) == 1, "the model was paid for once"

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_a_commit_after_its_lease_expired_misses_whoever_leases_next(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        new, old = await race.deciding()
        run_id, token = new.run_id, new_token()
        expired = LeaseExpired(CommandId(f"{run_id}/1"), old, owner_gone=True)
        await does(run_id, expired)(race.store)

        leased, late = await race.between(
            run_id,
            does(run_id, lease(run_id, 1, token)),
            does(run_id, replied(run_id, 1, old, text="late")),
        )

        assert (leased.missed, late.missed) == (None, "lease lost")
        after = await race.state(run_id)
        assert (after.status, after.commands[0].token) == (RunStatus.DECIDING, token)
        assert len(await race.store.items(run_id)) == 1

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_a_lease_of_a_call_and_its_result_exclude_each_other(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, state = await race.waiting(1)
        (row,) = state.commands

        leased, counted = await race.between(
            run_id,
            does(run_id, CallLeased(row.id, new_token(), "worker-2", 30.0)),
            does(run_id, settled(state.calls)),
        )

        assert counted.missed is None and len(await race.merges(run_id)) == 1
        assert leased.missed == ("row gone" if race.swapped else None)
        after = await race.state(run_id)
        assert [one.id for one in after.commands] == [CommandId(f"{run_id}/2")]

    play(story, url, order, swapped)
    assert deadlocks == []


@pytest.mark.parametrize(
    ("order", "swapped"),
    [
        pytest.param(both_wait_for_a_command, False, id="renewal-first"),
        pytest.param(both_wait_for_a_command, True, id="expiry-first"),
        pytest.param(first_inside, True, id="expiry-inside"),  # a renewal asks no machine that could hold it
    ],
)
def test_a_renewal_and_an_expiry_exclude_each_other(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        new, token = new_run(), new_token()
        await race.store.submit([new])
        await does(new.run_id, lease(new.run_id, 1, token, lease_s=-1.0))(race.store)
        row_id = CommandId(f"{new.run_id}/1")

        async def renew(store: SqlStore) -> set[CommandId]:
            return await store.renew([(row_id, token)], 30.0)

        kept, expired = await race.between(new.run_id, renew, does(new.run_id, LeaseExpired(row_id, token)))

        assert kept == (set() if race.swapped else {row_id})
        assert expired.missed == (None if race.swapped else "lease renewed")
        (row,) = (await race.state(new.run_id)).commands
        assert (row.token, row.deaths) == ((None, 1) if race.swapped else (token, 0))

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_a_retry_that_is_due_later_and_a_result_make_one_merge(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, state = await race.waiting(1)
        (call,), (row,) = state.calls, state.commands
        failed = result_of(call, outcome=CallOutcome.FAILED)

        retried, counted = await race.between(
            run_id,
            does(run_id, CallRetry(row.id, None, call.attempt, 60.0, False, failed)),
            does(run_id, settled(state.calls)),
        )

        assert counted.missed is None
        assert (retried.missed is None) is not race.swapped
        (merge,) = await race.merges(run_id)
        assert [one.outcome for one in merge.results] == [CallOutcome.OK]
        after = await race.state(run_id)
        assert [one.id for one in after.commands] == [CommandId(f"{run_id}/2")]

    play(story, url, order, swapped)
    assert deadlocks == []


# -- many at once --------------------------------------------------------------------------------------------------------


def test_a_renewal_takes_decisions_and_calls_in_the_order_of_a_batch(url: str, deadlocks: list[str]) -> None:
    async def story(race: Race) -> None:
        deciding, token = await race.deciding()
        run_id, state = await race.waiting(1)
        (row,) = state.commands
        await does(run_id, CallLeased(row.id, call_token := new_token(), "worker-1", 30.0))(race.store)
        assert row.id < f"{deciding.run_id}/1" and deciding.run_id < run_id, "by id alone the call is first"
        both = [(CommandId(f"{deciding.run_id}/1"), token), (row.id, call_token)]
        ids = (deciding.run_id, run_id)
        transitions = [Transition(one, LeaseExpired(*pair)) for one, pair in zip(ids, both, strict=True)]

        async with opened(url, role="first") as one, opened(url, role="second") as two:
            race.watcher.hold(HOLD_COMMANDS, run_id)
            renewing = asyncio.ensure_future(one.renew(both, 30.0))
            await until(lambda: race.watcher.waits("first"))
            expiring = asyncio.ensure_future(two.transact(transitions))
            await until(lambda: race.watcher.waits("second"))
            race.watcher.let_go()

            assert await renewing == {command_id for command_id, _ in both}
            assert [applied.missed for applied in await expiring] == ["lease renewed"] * 2

    play(story, url)
    assert deadlocks == []


STORES: Final = 4
RUNS: Final = 40
ROUNDS: Final = 6
Row: TypeAlias = tuple[RunId, CommandRow]


def test_batches_of_many_runs_in_any_order_do_not_deadlock(url: str, deadlocks: list[str]) -> None:
    """Each store goes over all runs in an order of its own, renews leases of both kinds, and marks what it published."""

    async def story(race: Race) -> None:
        rows = await _leased_both_ways(race.store)
        async with contextlib.AsyncExitStack() as stack:
            machine = ScriptedMachine({"touch": _touch})
            stores = [await stack.enter_async_context(opened(url, machine)) for _ in range(STORES)]

            await asyncio.gather(*(_busy(store, seed, rows) for seed, store in enumerate(stores)))

        touched = STORES * ROUNDS
        for run_id, row in rows:
            before, after = len(await race.store.events(run_id)) - touched, await race.state(run_id)
            assert (before > 0, after.event_count) == (True, before + touched)
            assert [(one.id, one.token) for one in after.commands] == [(row.id, row.token)]
            assert after.commands[0].deaths == row.deaths + touched

    play(story, url)
    assert deadlocks == []


def _touch(state: RunState, now: float) -> Step:
    """Writes the run and its command rows."""
    rows = tuple(replace(row, deaths=row.deaths + 1) for row in state.commands)
    event = AppendEvent(state.event_count + 1, "touched")
    return Step(replace(state, commands=rows, event_count=state.event_count + 1), (event,))


async def _leased_both_ways(store: SqlStore) -> list[Row]:
    """Runs of which every other one has its decision leased, and the others their call."""
    found: list[Row] = []
    runs = [new_run() for _ in range(RUNS)]
    await store.submit(runs)
    for number, run in enumerate(runs):
        token = new_token()
        applied = await does(run.run_id, lease(run.run_id, 1, token))(store)
        if number % 2:
            applied = await does(run.run_id, replied(run.run_id, 1, token, proposed(1)))(store)
            (row,) = state_of(applied).commands
            applied = await does(run.run_id, CallLeased(row.id, new_token(), "worker-1", 30.0))(store)
        found.append((run.run_id, state_of(applied).commands[0]))
    return found


async def _busy(store: SqlStore, seed: int, rows: list[Row]) -> None:
    drawn = random.Random(seed)
    for _ in range(ROUNDS):
        mine = drawn.sample(rows, len(rows))
        half = len(mine) // 2
        held = [(row.id, row.token) for _, row in drawn.sample(rows, half) if row.token is not None]
        _, _, kept, _, _ = await asyncio.gather(
            store.transact([told(run_id, "touch") for run_id, _ in mine[:half]]),
            store.transact([told(run_id, "touch") for run_id, _ in mine[half:]]),
            store.renew(held, 30.0),
            store.mark_sent([SentMark(row.id, row.due_at, row.due_at + 1) for _, row in mine]),
            store.submit([new_run(idempotency_key=f"k{n}") for n in drawn.sample(range(20), 20)]),
        )
        assert kept == {command_id for command_id, _ in held}


def test_two_stores_that_are_given_the_same_keys_make_one_run_of_each(url: str, deadlocks: list[str]) -> None:
    async def story(race: Race) -> None:
        keys = [f"key-{number}" for number in range(50)]
        async with opened(url) as one, opened(url) as two:
            rounds = await asyncio.gather(
                one.submit([new_run(idempotency_key=key) for key in keys]),
                two.submit([new_run(idempotency_key=key) for key in reversed(keys)]),
            )

        ids = [{answer.run_id for answer in answers} for answers in rounds]
        assert ids[0] == ids[1] and len(ids[0]) == 50
        made = [answer.created for answer in itertools.chain(*rounds)]
        assert made.count(True) == 50

    play(story, url)
    assert deadlocks == []


def test_two_stores_that_register_the_same_agents_agree_on_the_last(url: str, deadlocks: list[str]) -> None:
    async def story(race: Race) -> None:
        names = [f"agent-{number}" for number in range(8)]
        async with opened(url) as one, opened(url) as two:

            async def register(store: SqlStore, text: str, order: list[str]) -> None:
                for _ in range(5):
                    specs = [AgentSpec(name=name, model="gpt", instructions=text) for name in order]
                    await store.register_agents(specs)

            await asyncio.gather(register(one, "one", names), register(two, "two", names[::-1]))

            latest = await race.store.agents()
        assert [agent.name for agent in latest] == names, "each once"
        assert len({agent.instructions for agent in latest}) == 1, "of one process, as a whole"
        assert [await race.store.agent(name) for name in names] == latest

    play(story, url)
    assert deadlocks == []
