"""Claims, approvals and late words against each other, in two transactions at once: PostgreSQL in each order, SQLite as
it comes. Whoever is first, no effect begins that may not, and every outcome is one of the two that are right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.contract.races import (
    Act,
    Order,
    Race,
    does,
    first_inside,
    fresh_url,
    in_each_order,
    play,
    seen_deadlocks,
    whoever_is_first,
)
from tests.contract.store_bench import (
    Clock,
    HeldMachine,
    Watcher,
    opened,
    proposed,
    result_of,
    state_of,
    until,
)
from toolfleet.adapters.store.migrate import upgrade
from toolfleet.adapters.store.sql_store import SqlStore
from toolfleet.schemas.effects import ApprovalStatus, EffectState, Terms, arguments_hash
from toolfleet.schemas.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    CancelRequested,
    EffectClaimed,
    EffectEnded,
    EffectResolved,
    LeaseExpired,
    ReconcileStarted,
)
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId, new_token
from toolfleet.schemas.limits import DEATHS_MAX
from toolfleet.schemas.outcomes import CallOutcome, RunStatus, Tier
from toolfleet.schemas.ports import Applied, Transition
from toolfleet.schemas.run import CallState, RunState

url, deadlocks = fresh_url, seen_deadlocks
Between: TypeAlias = Callable[[RunId, Act, Act], Any]

KEY = "acme/refund:7"
ASKS = Terms(asks=True)


def _claim(call: CallState, key: str = KEY) -> EffectClaimed:
    hash_ = arguments_hash(call.arguments)
    return EffectClaimed(CommandId(call.call_id), new_token(), "worker-1", 30.0, key, hash_)


def _ended(call: CallState, came: EffectState = EffectState.HAPPENED) -> EffectEnded:
    return EffectEnded(CommandId(call.call_id), call.attempt, came, result_of(call))


def _call(state: RunState) -> CallState:
    return state.calls[0]


async def _effect(race: Race) -> tuple[RunId, CallState]:
    """A run that waits for one call with an effect, which can be asked for."""
    (one,) = proposed(1, effect=True)
    run_id, state = await race.waiting(1, (replace(one, terms=Terms(reconciles=True)),))
    return run_id, _call(state)


async def _asked(race: Race, expires_s: float = 3600.0, **terms: bool) -> tuple[RunId, CallState]:
    """A run whose call with an effect waits for an approval."""
    (one,) = proposed(1, effect=True)
    made = (replace(one, tier=Tier.HIGH, terms=replace(ASKS, **terms)),)  # type: ignore[arg-type]
    run_id, state = await race.waiting(1, made)
    call = _call(state)
    question = ApprovalRequested(
        CommandId(call.call_id), None, arguments_hash(call.arguments), expires_s, requested_by="ann"
    )
    asked = await does(run_id, question)(race.store)
    return run_id, _call(state_of(asked))


def _decided(call: CallState, answer: str = "approve", by: str = "bob") -> ApprovalDecided:
    assert call.approval is not None
    return ApprovalDecided(call.call_id, call.approval.id, answer, by, call.approval.arguments_hash)


def _expired(call: CallState) -> CallRefused:
    result = result_of(call, outcome=CallOutcome.APPROVAL_EXPIRED)
    return CallRefused(CommandId(call.call_id), None, call.attempt, result)


async def _approval(race: Race, run_id: RunId) -> ApprovalStatus:
    (view,) = await race.store.approvals(limit=9, run_id=run_id)
    return view.approval.status


async def _out(race: Race, *, lease_s: float = 30.0) -> tuple[RunId, CallState, LeaseToken]:
    """A run with an effect that is out."""
    run_id, call = await _effect(race)
    claim = replace(_claim(call), lease_s=lease_s)
    claimed = await does(run_id, claim)(race.store)
    assert _call(state_of(claimed)).dispatched
    return run_id, _call(state_of(claimed)), claim.token


async def _check_claim_and_cancel(race: Race, claimed: Applied, cancelled: Applied, run_id: RunId) -> None:
    """Either the acknowledgement lists the effect, or the effect never begins."""
    assert cancelled.missed is None
    listed = [call for call in state_of(cancelled).open_calls if call.dispatched]
    effects = await race.store.effects(limit=9)
    if claimed.missed is None:
        assert len(listed) == 1 and [one.entry.state for one in effects] == [EffectState.DISPATCHED]
        assert (await race.state(run_id)).status is RunStatus.CANCELLING
    else:
        assert listed == [] and effects == []
        assert (await race.state(run_id)).status is RunStatus.CANCELLED


@in_each_order
@whoever_is_first
def test_a_claim_and_a_cancel_exclude_each_other(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, call = await _effect(race)

        claimed, cancelled = await race.between(
            run_id, does(run_id, _claim(call)), does(run_id, CancelRequested("me"))
        )

        assert (claimed.missed is None) is not race.swapped
        await _check_claim_and_cancel(race, claimed, cancelled, run_id)

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
def test_of_two_claims_of_one_call_one_sends(url: str, order: Order, deadlocks: list[str]) -> None:
    async def story(race: Race) -> None:
        run_id, call = await _effect(race)

        both = await race.between(run_id, does(run_id, _claim(call)), does(run_id, _claim(call)))

        assert [one.missed for one in both] == [None, "leased"]
        (view,) = await race.store.effects(limit=9)
        assert (view.entry.state, view.entry.attempt) == (EffectState.DISPATCHED, 1)

    play(story, url, order)
    assert deadlocks == []


@whoever_is_first
def test_of_two_claims_of_one_key_in_two_runs_one_sends(
    url: str, swapped: bool, deadlocks: list[str]
) -> None:
    """The one that looked first and found the key free writes last, and meets the index."""

    async def story(race: Race) -> None:
        (run_a, call_a), (run_b, call_b) = await _effect(race), await _effect(race)
        one, two = does(run_a, _claim(call_a)), does(run_b, _claim(call_b))
        first, second = (two, one) if race.swapped else (one, two)
        machine = HeldMachine()
        async with opened(url, machine, role="first") as slow, opened(url, role="second") as fast:
            begun = asyncio.ensure_future(first(slow))
            await machine.stands(begun)
            overtakes = await second(fast)
            machine.go.set()
            overtaken = await begun

        assert _call(state_of(overtakes)).dispatched
        waits = _call(state_of(overtaken))
        assert (waits.dispatched, waits.waits_key) == (False, KEY)
        assert len(await race.store.effects(limit=9)) == 1

    play(story, url, first_inside, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
@pytest.mark.parametrize("alive", [True, False], ids=["alive", "over"])
def test_a_grant_and_an_expiry_exclude_each_other(
    url: str, order: Order, swapped: bool, alive: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, call = await _asked(race, 3600.0 if alive else -1.0)

        granted, expired = await race.between(
            run_id, does(run_id, _decided(call)), does(run_id, _expired(call))
        )

        if alive:
            assert granted.missed is None and expired.missed is not None
            assert await _approval(race, run_id) is ApprovalStatus.GRANTED
            assert _call(await race.state(run_id)).open
        else:
            assert granted.missed in ("expired", "already_expired", "call_closed") and expired.missed is None
            assert await _approval(race, run_id) is ApprovalStatus.EXPIRED
            ((_, result),) = await race.store.results(run_id)
            assert result.outcome is CallOutcome.APPROVAL_EXPIRED

    play(story, url, order, swapped)
    assert deadlocks == []


def test_a_grant_that_was_in_time_and_committed_too_late_sends_nothing(
    url: str, deadlocks: list[str]
) -> None:
    """The question ends between the grant's look at the clock and the expiry's, while the grant holds the locks."""

    async def story(race: Race) -> None:
        run_id, call = await _asked(race, 3600.0)
        assert call.approval is not None
        clock, machine = Clock(call.approval.expires_at - 0.1), HeldMachine()
        options = {"time_source": clock}
        async with (
            opened(url, machine, role="first", **options) as one,
            opened(url, role="second", **options) as two,
        ):
            grants = asyncio.ensure_future(does(run_id, _decided(call))(one))
            await machine.stands(grants)
            clock.advance(1.0)
            expires = asyncio.ensure_future(does(run_id, _expired(call))(two))
            await until(lambda: race.watcher.waits("second"))
            machine.go.set()
            granted, expired = await grants, await expires
            claimed = await does(run_id, _claim(call))(two)

        assert (granted.missed, expired.missed) == (None, None)
        assert claimed.missed is not None and await race.store.effects(limit=9) == []
        ((_, result),) = await race.store.results(run_id)
        assert result.outcome is CallOutcome.APPROVAL_EXPIRED

    play(story, url)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_a_grant_and_a_cancel_exclude_each_other(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, call = await _asked(race)

        granted, cancelled = await race.between(
            run_id, does(run_id, _decided(call)), does(run_id, CancelRequested("me"))
        )

        assert (granted.missed is None) is not race.swapped
        assert cancelled.missed is None and (await race.state(run_id)).status is RunStatus.CANCELLED
        assert await _approval(race, run_id) is not ApprovalStatus.PENDING
        late = await does(run_id, _claim(call))(race.store)
        assert late.missed is not None and await race.store.effects(limit=9) == []

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_two_decisions_of_one_question_are_one(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, call = await _asked(race)

        yes, no = await race.between(
            run_id, does(run_id, _decided(call)), does(run_id, _decided(call, "reject", "cat"))
        )

        assert (yes.missed, no.missed) == (
            ("already_rejected", None) if race.swapped else (None, "already_granted")
        )
        wanted = ApprovalStatus.REJECTED if race.swapped else ApprovalStatus.GRANTED
        assert await _approval(race, run_id) is wanted
        assert [one.accepted for one in await race.store.audits(limit=2)] == [False, True]

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_two_people_count_as_two_and_one_person_as_one(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, call = await _asked(race, two_person=True)
        same = await race.between(run_id, does(run_id, _decided(call)), does(run_id, _decided(call)))
        assert sorted(str(one.missed) for one in same) == ["None", "same_person"]
        assert await _approval(race, run_id) is ApprovalStatus.PENDING

        run_id, call = await _asked(race, two_person=True)
        other = does(run_id, _decided(call, by="cat"))
        both = await race.between(run_id, does(run_id, _decided(call)), other)
        assert [one.missed for one in both] == [None, None]
        assert await _approval(race, run_id) is ApprovalStatus.GRANTED

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_a_late_result_and_the_sweep_of_its_lease_come_to_the_result(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, call, token = await _out(race, lease_s=-1.0)
        sweep = LeaseExpired(CommandId(call.call_id), token)

        ended, swept = await race.between(run_id, does(run_id, _ended(call)), does(run_id, sweep))

        assert ended.missed is None, "whoever holds the lease"
        assert (swept.missed is None) is race.swapped
        (row,) = (await race.state(run_id)).commands
        assert (row.queue, row.token, row.deaths) == ("results", None, int(race.swapped))
        ((_, result),) = await race.store.results(run_id)
        assert result.outcome is CallOutcome.OK

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_a_late_result_and_the_last_sweep_keep_the_first_of_both_and_the_word_of_the_other(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    async def story(race: Race) -> None:
        run_id, call, token = await _out(race, lease_s=-1.0)
        for _ in range(DEATHS_MAX - 1):
            await does(run_id, LeaseExpired(CommandId(call.call_id), token))(race.store)
            token = new_token()
            asked = ReconcileStarted(CommandId(call.call_id), token, "worker-2", -1.0)
            await does(run_id, asked)(race.store)
            if _call(await race.state(run_id)).attempt != call.attempt:
                raise AssertionError("nobody may try it again")

        ended, swept = await race.between(
            run_id, does(run_id, _ended(call)), does(run_id, LeaseExpired(CommandId(call.call_id), token))
        )

        assert (ended.missed, swept.missed is None) == (None, race.swapped)
        ((_, result),) = await race.store.results(run_id)
        (view,) = await race.store.effects(limit=9)
        late = [one for one in await race.store.events(run_id) if one.type == "call.late_result"]
        if race.swapped:
            assert (result.outcome, view.entry.state) == (CallOutcome.NEEDS_HUMAN, EffectState.NEEDS_HUMAN)
            assert [one.data["effect"] for one in late] == ["happened"]
        else:
            assert (result.outcome, view.entry.state, late) == (CallOutcome.OK, EffectState.HAPPENED, [])

    play(story, url, order, swapped)
    assert deadlocks == []


@in_each_order
@whoever_is_first
def test_an_operator_who_frees_a_key_and_a_claim_of_it_exclude_each_other(
    url: str, order: Order, swapped: bool, deadlocks: list[str]
) -> None:
    """Both answers of two operators at once: the first counts, the other is told."""

    async def story(race: Race) -> None:
        run_id, call, token = await _out(race, lease_s=-1.0)
        await _give_up(race, run_id, call, token)
        said = [EffectResolved(call.call_id, happened, "op") for happened in (True, False)]

        yes, no = await race.between(run_id, does(run_id, said[0]), does(run_id, said[1]))

        assert (yes.missed is None, no.missed is None) == (not race.swapped, race.swapped)
        (view,) = await race.store.effects(limit=9)
        other, call_b = await _effect(race)
        claimed = _call(state_of(await does(other, _claim(call_b))(race.store)))
        if race.swapped:
            assert view.entry.state is EffectState.DID_NOT_HAPPEN and claimed.dispatched
        else:
            assert view.entry.state is EffectState.HAPPENED and not claimed.dispatched

    play(story, url, order, swapped)
    assert deadlocks == []


async def _give_up(race: Race, run_id: RunId, call: CallState, token: LeaseToken) -> None:
    """Three workers died of it, so a human has to answer."""
    for _ in range(DEATHS_MAX):
        await does(run_id, LeaseExpired(CommandId(call.call_id), token))(race.store)
        token = new_token()
        asked = ReconcileStarted(CommandId(call.call_id), token, "worker-2", -1.0)
        await does(run_id, asked)(race.store)
    (view,) = await race.store.effects(limit=9)
    assert view.entry.state is EffectState.NEEDS_HUMAN


# -- SQLite: two connections, one lock -----------------------------------------------------------------------------------


def _on_sqlite(folder: Path, story: Callable[[Race, Between], Any]) -> None:
    """Both at once, each over a connection of its own; whoever gets the lock first."""
    database = f"sqlite:///{folder / 'store.db'}"
    upgrade(database)

    async def played() -> None:
        async with opened(database) as around, opened(database) as one, opened(database) as two:

            async def between(_run_id: RunId, first: Act, second: Act) -> tuple[Any, Any]:
                return tuple(await asyncio.gather(first(one), second(two)))  # type: ignore[return-value]

            watcher: Watcher = None  # type: ignore[assignment]  # nothing to watch: there are no sessions
            await story(Race(database, around, watcher, first_inside, False), between)

    asyncio.run(played())


def test_on_sqlite_claims_cancels_and_decisions_exclude_each_other(tmp_path: Path) -> None:
    async def story(race: Race, between: Between) -> None:
        run_id, call = await _effect(race)
        claimed, cancelled = await between(
            run_id, does(run_id, _claim(call, "k1")), does(run_id, CancelRequested("me"))
        )
        await _check_claim_and_cancel(race, claimed, cancelled, run_id)

        run_id, call = await _effect(race)
        both = await between(run_id, does(run_id, _claim(call, "k2")), does(run_id, _claim(call, "k2")))
        assert sorted(str(one.missed) for one in both) == ["None", "leased"]

        (run_a, call_a), (run_b, call_b) = await _effect(race), await _effect(race)
        twins = await between(run_a, does(run_a, _claim(call_a, "k3")), does(run_b, _claim(call_b, "k3")))
        assert sorted(_call(state_of(one)).dispatched for one in twins) == [False, True]

        run_id, call = await _asked(race)
        yes, no = await between(
            run_id, does(run_id, _decided(call)), does(run_id, _decided(call, "reject", "cat"))
        )
        assert (yes.missed is None) is not (no.missed is None)
        run_id, call = await _asked(race)
        _, cancelled = await between(
            run_id, does(run_id, _decided(call)), does(run_id, CancelRequested("me"))
        )
        assert cancelled.missed is None and (await race.state(run_id)).status is RunStatus.CANCELLED

    _on_sqlite(tmp_path, story)


def test_a_batch_of_claims_of_one_key_sends_one(tmp_path: Path) -> None:
    """In one transaction, as group commit puts them."""

    async def story(race: Race, between: Between) -> None:
        made = [await _effect(race) for _ in range(4)]
        store: SqlStore = race.store
        claims = await store.transact([Transition(run_id, _claim(call)) for run_id, call in made])
        assert sum(_call(state_of(one)).dispatched for one in claims) == 1

    _on_sqlite(tmp_path, story)
