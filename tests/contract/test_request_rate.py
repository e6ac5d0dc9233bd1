"""Requests a minute of a tenant: the same answers in one process and shared through Redis."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from tests import servers
from tests.contract.store_bench import Clock
from toolfleet.adapters.local.request_rate import LocalRequestRate
from toolfleet.adapters.redis.outage import Reach, SharedRequestRate
from toolfleet.adapters.redis.request_rate import RedisRequestRate
from toolfleet.schemas.access import RequestRate, Taken


async def _story(rate: RequestRate, clock: Clock) -> None:
    taken = [await rate.take("acme", 3) for _ in range(4)]
    assert [one.allowed for one in taken] == [True, True, True, False]
    assert [one.remaining for one in taken] == [2, 1, 0, 0]
    assert [round(one.reset_s) for one in taken] == [20, 40, 60, 60]
    assert (taken[3].limit, round(taken[3].retry_after_s)) == (3, 20)
    assert (await rate.take("other", 3)).remaining == 2, "another tenant has its own"
    clock.advance(20.001)
    assert (await rate.take("acme", 3)).allowed and not (await rate.take("acme", 3)).allowed
    clock.advance(120)
    assert (await rate.take("acme", 3)).remaining == 2, "no more than a minute is saved up"


def test_a_tenant_has_so_many_requests_at_once_and_they_come_back_one_by_one() -> None:
    clock = Clock()

    asyncio.run(_story(LocalRequestRate(clock), clock))


def test_all_processes_count_together(redis: servers.Server) -> None:
    async def story() -> None:
        clock, prefix = Clock(), f"rate{secrets.token_hex(4)}"
        first = RedisRequestRate(servers.redis_url(redis), prefix=prefix, now_s=clock)
        second = RedisRequestRate(servers.redis_url(redis), prefix=prefix, now_s=clock)

        class Both:
            """One process after the other."""

            def __init__(self) -> None:
                self.turn = 0

            async def take(self, tenant: str, per_minute: int) -> Taken:
                self.turn += 1
                return await (first, second)[self.turn % 2].take(tenant, per_minute)

            async def aclose(self) -> None:
                await first.aclose()
                await second.aclose()

        both = Both()
        try:
            await _story(both, clock)
        finally:
            await both.aclose()

    asyncio.run(story())


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0"])
def test_a_cache_that_is_away_lets_each_process_count_for_itself(url: str) -> None:
    async def story() -> None:
        clock = Clock()
        rate = SharedRequestRate(RedisRequestRate(url), LocalRequestRate(clock), Reach())
        try:
            await _story(rate, clock)
        finally:
            await rate.aclose()

    asyncio.run(story())
