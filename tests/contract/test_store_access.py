"""Keys, quotas and requests that may be sent again, in every store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.contract.store_bench import Bench, OpenBench, each_store, new_run, over_every_store, play
from toolfleet.schemas.access import Key, Quota, Replay, Scope
from toolfleet.schemas.errors import QuotaExceeded

pytestmark = over_every_store
open_bench = each_store

DAY_S = 86_400.0


def _key(id_: str, **fields: object) -> Key:
    given = {"scopes": (Scope.SUBMIT, Scope.READ), "tenants": ("acme",), "agents": ("*",), **fields}
    return Key(id_, f"name of {id_}", **given)  # type: ignore[arg-type]


def test_a_key_is_read_back_as_it_was_with_the_state_of_the_moment(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        ends = bench.clock.now + 60
        made = _key("key_1", permissions=("refunds:write",), tools=("pay",), shown="tfk_abc", expires_at=ends)
        await bench.store.add_key(made, "hash 1")
        await bench.store.add_key(_key("key_2", tenants=("*",)), "hash 2")
        await bench.store.add_key(_key("key_3", tenants=("other",)), "hash 3")

        found = await bench.store.key_of("hash 1")
        assert found is not None and found.created_at == bench.clock.now
        assert (found.name, found.scopes, found.permissions) == (made.name, made.scopes, made.permissions)
        assert (found.tools, found.shown, found.state) == (("pay",), "tfk_abc", "active")
        assert await bench.store.key_of("hash 9") is None
        assert [one.id for one in await bench.store.keys(tenant="acme")] == ["key_1", "key_2"]

        bench.clock.advance(60)
        expired = await bench.store.key_of("hash 1")
        assert expired is not None and expired.state == "expired"
        assert await bench.store.revoke_key("key_2") and not await bench.store.revoke_key("key_2")
        assert not await bench.store.revoke_key("key_9")
        assert [one.state for one in await bench.store.keys()] == ["expired", "revoked", "active"]

    play(story, open_bench, tmp_path)


def test_a_rotated_key_goes_on_for_the_overlap_and_no_longer_than_it_would_have(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        await bench.store.add_key(_key("key_1"), "hash 1")
        await bench.store.add_key(_key("key_2", expires_at=bench.clock.now + 10), "hash 2")

        assert await bench.store.rotate_key("key_1", _key("key_3", replaces="key_1"), "hash 3", overlap_s=60)
        assert await bench.store.rotate_key("key_2", _key("key_4", replaces="key_2"), "hash 4", overlap_s=60)

        old, new = await bench.store.key_of("hash 1"), await bench.store.key_of("hash 3")
        assert old is not None and new is not None
        assert (old.state, new.state, new.replaces) == ("active", "active", "key_1")
        short = await bench.store.key_of("hash 2")
        assert short is not None and short.expires_at == bench.clock.now + 10
        bench.clock.advance(60)
        assert [one.state for one in await bench.store.keys()] == ["expired", "expired", "active", "active"]
        refused = await bench.store.rotate_key("key_1", _key("key_5"), "hash 5", overlap_s=60)
        assert not refused and await bench.store.key_of("hash 5") is None

    play(story, open_bench, tmp_path)


def test_no_more_runs_of_a_tenant_are_in_flight_than_it_may_have(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        await bench.store.set_quota(Quota("acme", runs_in_flight_max=2))
        await bench.completed(tenant="acme")
        await bench.accepted(tenant="acme")
        await bench.accepted(tenant="other")

        with pytest.raises(QuotaExceeded) as caught:
            await bench.store.submit([new_run(tenant="acme", in_flight_max=2) for _ in range(2)])
        assert (caught.value.quota, caught.value.retry_after_s > 0) == ("runs_in_flight", True)
        assert (await bench.store.tenant_use("acme")).runs_in_flight == 1

        again = new_run(tenant="acme", in_flight_max=2, idempotency_key="k")
        await bench.store.submit([again])
        (known,) = await bench.store.submit([again])  # a repeated one is no further one
        assert not known.created
        assert (await bench.store.tenant_use("acme")).runs_in_flight == 2

    play(story, open_bench, tmp_path)


def test_submits_at_once_cannot_slip_past_the_limit_together(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.store.set_quota(Quota("acme", runs_in_flight_max=3))

        asked = [bench.store.submit([new_run(tenant="acme", in_flight_max=3)]) for _ in range(8)]
        answers = await asyncio.gather(*asked, return_exceptions=True)

        assert sum(isinstance(one, QuotaExceeded) for one in answers) == 5
        assert (await bench.store.tenant_use("acme")).runs_in_flight == 3

    play(story, open_bench, tmp_path)


def test_what_a_day_costs_is_counted_by_tenant_and_day(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        bench.clock.now = 20_000 * DAY_S + 3600
        await bench.completed(tenant="acme")
        spent = (await bench.store.usage((await bench.store.runs(limit=1))[0].info.run_id))[0]["cost_usd"]

        use, other = await bench.store.tenant_use("acme"), await bench.store.tenant_use("other")
        assert (use.cost_usd_today, use.day_left_s, other.cost_usd_today) == (spent, DAY_S - 3600, 0.0)
        bench.clock.advance(DAY_S)
        assert (await bench.store.tenant_use("acme")).cost_usd_today == 0.0

    play(story, open_bench, tmp_path)


def test_quotas_are_replaced_as_a_whole(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.store.set_quota(Quota("b", 1, 2, 3.5))
        await bench.store.set_quota(Quota("a", requests_per_minute_max=7))
        await bench.store.set_quota(Quota("b", cost_usd_per_day_max=9.0))

        assert await bench.store.quotas() == [
            Quota("a", requests_per_minute_max=7),
            Quota("b", cost_usd_per_day_max=9.0),
        ]
        assert await bench.store.quota("b") == Quota("b", None, None, 9.0)
        assert await bench.store.quota("c") is None

    play(story, open_bench, tmp_path)


def test_a_request_sent_again_finds_what_became_of_the_first(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        async def begin(tenant: str, hash_: str) -> Replay | None:
            note = Replay(hash_, run_id=f"run of {hash_}")
            return await bench.store.begin_replay(tenant, "runs", "k", note, keep_s=100, stale_s=10)

        assert await begin("acme", "one") is None
        assert await begin("other", "two") is None  # another tenant's key is another key
        running = await begin("acme", "two")
        assert running is not None and (running.request_hash, running.status) == ("one", None)

        await bench.store.end_replay("acme", "runs", "k", 202, '{"a": 1}')
        await bench.store.drop_replay("acme", "runs", "k")  # what has its answer stays
        bench.clock.advance(20)
        done = await begin("acme", "one")
        assert done is not None
        assert (done.status, done.body, done.run_id, done.age_s) == (202, '{"a": 1}', "run of one", 20)

        assert await begin("other", "three") is None  # its process died: the note is stale
        await bench.store.drop_replay("other", "runs", "k")
        assert await begin("other", "four") is None
        bench.clock.advance(100)
        assert await begin("acme", "five") is None  # kept long enough

    play(story, open_bench, tmp_path)


def test_runs_are_listed_by_tenant(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        mine = [(await bench.accepted(tenant="acme")).run_id for _ in range(3)]
        await bench.accepted(tenant="other")

        first = await bench.store.runs(limit=2, tenant="acme")
        rest = await bench.store.runs(limit=2, tenant="acme", before=first[-1].info.run_id)

        assert [view.info.run_id for view in (*first, *rest)] == mine[::-1]

    play(story, open_bench, tmp_path)
