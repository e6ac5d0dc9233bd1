"""The effect ledger in every store: one key, two claims; what is shared; what an operator says."""

from __future__ import annotations

from pathlib import Path

from tests.contract.store_bench import (
    Bench,
    OpenBench,
    command_ids,
    each_store,
    over_every_store,
    play,
    result_of,
    state_of,
)
from toolfleet.schemas.effects import EffectState, arguments_hash
from toolfleet.schemas.events import CallWoken, EffectClaimed, EffectEnded, EffectResolved, ReconcileStarted
from toolfleet.schemas.ids import CommandId, new_token
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.ports import Transition
from toolfleet.schemas.run import CallState

pytestmark = over_every_store
open_bench = each_store


def _claim(call: CallState) -> EffectClaimed:
    hash_ = arguments_hash(call.arguments)
    return EffectClaimed(CommandId(call.call_id), new_token(), "worker-1", 30.0, "acme/refund:7", hash_)


def test_of_two_claims_of_one_key_one_is_sent_and_the_other_shares_what_it_came_to(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        made = [await bench.waiting(1, effect=True) for _ in range(2)]
        calls = {new.run_id: state_of(applied).calls[0] for new, applied in made}

        claims = await bench.store.transact([Transition(run, _claim(call)) for run, call in calls.items()])

        out = [one for one in claims if state_of(one).calls[0].dispatched]
        waiting = [one for one in claims if not state_of(one).calls[0].dispatched]
        assert len(out) == len(waiting) == 1
        sent, waits = state_of(out[0]), state_of(waiting[0])
        assert waits.calls[0].waits_key == "acme/refund:7"
        waiters = await bench.store.key_waiters("acme/refund:7", limit=9)
        assert waiters == [(waits.run_id, waits.calls[0].call_id)]

        done = result_of(sent.calls[0])
        await bench.apply(sent.run_id, EffectEnded(CommandId(done.call_id), 1, EffectState.HAPPENED, done))
        await bench.apply(waits.run_id, CallWoken(CommandId(waits.calls[0].call_id), "acme/refund:7"))
        await bench.apply(waits.run_id, _claim(waits.calls[0]))

        ((_, shared),) = await bench.store.results(waits.run_id)
        assert shared.outcome is CallOutcome.OK and "It was not done again" in shared.content
        (view,) = await bench.store.effects(limit=9)
        assert (view.call_id, view.entry.state) == (sent.calls[0].call_id, EffectState.HAPPENED)

    play(story, open_bench, tmp_path)


def test_an_operator_answers_for_an_effect_and_its_key_is_free(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(1, effect=True)
        (command_id,), call = command_ids(applied), state_of(applied).calls[0]
        await bench.apply(new.run_id, _claim(call))
        unknown = EffectEnded(command_id, 1, EffectState.RECONCILING, result_of(call))
        await bench.apply(new.run_id, unknown)
        bench.clock.now += 600.0
        await bench.apply(new.run_id, ReconcileStarted(command_id, new_token(), "worker-1", 30.0))
        assert (await bench.store.effect(call.call_id)).entry.state is EffectState.NEEDS_HUMAN  # type: ignore[union-attr]

        said = EffectResolved(call.call_id, False, "op", "their log has nothing")
        first = await bench.apply(new.run_id, said)
        again = await bench.apply(new.run_id, said)

        assert first.missed is None and again.missed == "it is did_not_happen"
        view = await bench.store.effect(call.call_id)
        assert view is not None
        assert (view.entry.state, view.resolved_by) == (EffectState.DID_NOT_HAPPEN, "op")
        rows = await bench.store.audits(limit=9)
        assert [(row.action, row.by) for row in rows] == [("resolve", "op"), ("call", "")]

    play(story, open_bench, tmp_path)
