"""Keys and quotas at their front door: what is refused and why, and what a submitted run is held to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.contract.store_bench import START, Clock
from toolfleet.access import Access, hashed, require, require_agent
from toolfleet.adapters.store.memory import MemoryStore
from toolfleet.approving import Approving
from toolfleet.client import Client, RunRequest
from toolfleet.quotas import SEEN_S, Quotas
from toolfleet.schemas.access import Key, Quota, Scope
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import InputError, KeyRefused, QuotaExceeded
from toolfleet.workers.machine import MACHINE

DAY_S = 86_400.0


class World:
    """A store in memory on a clock moved by hand, and its front doors."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore(MACHINE, time_source=self.clock)
        self.access = Access(self.store)
        self.client = Client(self.store)
        self.client._quotas = Quotas(self.store, self.clock)
        self.client.know([AgentSpec(name="desk", model="scripted")])

    async def reason(self, token: str) -> str:
        with pytest.raises(KeyRefused) as caught:
            await self.access.holder(token)
        assert token not in caught.value.message, "a token is a secret"
        return caught.value.reason


def play(story: Callable[[World], Awaitable[None]]) -> None:
    asyncio.run(story(World()))


def test_a_key_works_until_it_expires_or_is_revoked_and_the_refusal_says_which() -> None:
    async def story(world: World) -> None:
        short = await world.access.create("svc", valid_s=60)
        long = await world.access.create("svc", tenants=["acme"], permissions=["refunds:write"])

        key = await world.access.holder(long.token)
        assert (key.name, key.tenants, key.permissions) == ("svc", ("acme",), ("refunds:write",))
        assert key.scopes == (Scope.SUBMIT, Scope.READ)
        assert long.token.startswith("tfk_") and long.token.startswith(key.shown) and len(key.shown) == 10
        assert await world.reason("tfk_nobody") == await world.reason("x" * 1000) == "unknown_key"
        world.clock.advance(60)
        assert await world.reason(short.token) == "expired_key"
        await world.access.revoke(long.key.id)
        assert await world.reason(long.token) == "revoked_key"
        with pytest.raises(InputError, match="could be revoked"):
            await world.access.revoke(long.key.id)

    play(story)


def test_only_the_hash_of_a_token_is_stored() -> None:
    async def story(world: World) -> None:
        made = await world.access.create("svc")

        ((_, stored),) = world.store._identities.values()
        assert stored == hashed(made.token) and made.token[10:] not in repr(await world.access.keys())

    play(story)


def test_a_rotated_key_may_do_the_same_for_as_long_and_both_work_meanwhile() -> None:
    async def story(world: World) -> None:
        first = await world.access.create("svc", agents=["desk"], scopes=["submit"], valid_s=30 * DAY_S)
        world.clock.advance(DAY_S)

        second = await world.access.rotate(first.key.id, overlap_s=3600)

        assert second.key.replaces == first.key.id and second.token != first.token
        old, new = await world.access.holder(first.token), await world.access.holder(second.token)
        assert (old.agents, old.scopes, old.name) == (new.agents, new.scopes, new.name)
        assert new.expires_at == START + 31 * DAY_S
        world.clock.advance(3600)
        assert await world.reason(first.token) == "expired_key"
        with pytest.raises(InputError, match="it is expired"):
            await world.access.rotate(first.key.id)
        with pytest.raises(InputError, match="no such key"):
            await world.access.rotate("key_9")
        assert await world.access.holder(second.token)

    play(story)


def test_an_approver_is_a_key_that_may_approve_and_nothing_else() -> None:
    async def story(world: World) -> None:
        approving = Approving(world.store)
        token = await approving.add_approver("ann", tools=["pay"])
        service = await world.access.create("svc")
        both = await world.access.create("carl", scopes=["approve", "read"])

        key = await world.access.holder(token)
        assert (key.scopes, key.tools, key.agents, key.tenants) == ((Scope.APPROVE,), ("pay",), (), ("*",))
        assert [one.name for one in await approving.approvers()] == ["ann", "carl"]
        assert [one.name for one in await world.access.keys()] == ["ann", "svc", "carl"]
        assert await approving._approver(service.token) is None, "a key for runs decides nothing"
        assert await approving._approver(both.token) is not None
        world.clock.advance(1)
        renewed = await world.access.rotate(key.id, overlap_s=0)
        assert renewed.token.startswith("tfa_") and await approving._approver(renewed.token) is not None
        assert await approving._approver(token) is None

    play(story)


def test_what_a_key_is_not_for_is_said() -> None:
    key = Key("key_1", "svc", (Scope.READ,), agents=("desk",))

    require(key, Scope.READ)
    require_agent(key, "desk")
    with pytest.raises(KeyRefused, match="no scope 'submit'") as scope:
        require(key, Scope.SUBMIT)
    with pytest.raises(KeyRefused, match="may not use agent 'bank'") as agent:
        require_agent(key, "bank")
    assert (scope.value.reason, agent.value.reason) == ("wrong_scope", "agent_not_allowed")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"name": " "}, "a key has a name"),
        ({"name": "x" * 129}, "a key has a name"),
        ({"name": "a\nb"}, "a key has a name"),
        ({"name": "a", "scopes": ["root"]}, "no scope 'root'"),
        ({"name": "a", "scopes": []}, "needs a scope"),
        ({"name": "a", "tenants": []}, "1 to 100 tenants"),
        ({"name": "a", "tenants": "acme"}, "1 to 100 tenants"),
        ({"name": "a", "scopes": ["approve"], "tiers": ["huge"]}, "no tier huge"),
        ({"name": "a", "valid_s": 0}, "cannot be valid"),
        ({"name": "a", "permissions": [""]}, "a permission has a name"),
    ],
)
def test_a_key_that_cannot_be_is_refused(given: dict[str, Any], match: str) -> None:
    async def story(world: World) -> None:
        with pytest.raises(InputError, match=match):
            await world.access.create(**given)
        assert await world.access.keys() == []

    play(story)


def test_a_submit_is_held_to_the_quotas_of_its_tenant_and_not_of_another() -> None:
    async def story(world: World) -> None:
        await world.access.set_quota(Quota("acme", runs_in_flight_max=2))
        mine = RunRequest("desk", "hi", tenant="acme", principal="svc", permissions=["p"])

        ids = await world.client.submit([mine, mine])
        with pytest.raises(QuotaExceeded) as caught:
            await world.client.submit([mine])
        await world.client.submit([RunRequest("desk", "hi", tenant="other")] * 5)

        assert caught.value.quota == "runs_in_flight"
        info = (await world.client.get(ids[0])).info
        assert (info.principal, info.permissions) == ("svc", ("p",))
        await world.access.set_quota(Quota("acme"))
        world.clock.advance(SEEN_S)
        assert len(await world.client.submit([mine] * 3)) == 3

    play(story)


def test_a_tenant_that_has_spent_what_a_day_may_cost_waits_for_the_next_one() -> None:
    async def story(world: World) -> None:
        world.clock.now = 20_000 * DAY_S + 82_800
        await world.access.set_quota(Quota("acme", cost_usd_per_day_max=0.0))
        mine = RunRequest("desk", "hi", tenant="acme")

        with pytest.raises(QuotaExceeded, match="may spend 0 USD a day") as caught:
            await world.client.submit([mine])
        assert (caught.value.quota, caught.value.retry_after_s) == ("cost_usd_per_day", 3600)

    play(story)


def test_a_run_is_accepted_once_under_the_id_it_was_given() -> None:
    async def story(world: World) -> None:
        asked = [RunRequest("desk", "hi", tenant="acme")]

        (first,) = await world.client.accept(asked, run_ids=["run_a"])
        (again,) = await world.client.accept(asked, run_ids=["run_a"])

        assert (first.run_id, first.created, again.run_id, again.created) == ("run_a", True, "run_a", False)

    play(story)
