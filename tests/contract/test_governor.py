"""Both implementations of Governor do the same; and what happens while the cache is away."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from tests import servers
from tests.contract.governor_suite import ENTRY, LANE, GovernorSuite, Make, flood
from tests.contract.tool_pace_suite import Maker, Now
from toolfleet.adapters.local.governor import LocalGovernor
from toolfleet.adapters.redis.governor import RedisGovernor
from toolfleet.adapters.redis.outage import Reach, SharedGovernor
from toolfleet.schemas.pace import ModelPermit, ModelWait, Quota

_prefixes = (f"governor{number}" for number in itertools.count(1))


@pytest.fixture
def now() -> Now:
    return Now()


class TestLocal(GovernorSuite):
    @pytest.fixture
    def make(self, now: Now) -> Make:
        return Maker(lambda: LocalGovernor(now_s=now))


class TestShared(GovernorSuite):
    @pytest.fixture
    def make(self, redis: servers.Server, now: Now) -> Make:
        prefix = next(_prefixes)
        return Maker(lambda: RedisGovernor(servers.redis_url(redis), prefix=prefix, now_s=now, seen_s=0.0))


def test_a_pause_holds_for_every_process(redis: servers.Server) -> None:
    url, prefix = servers.redis_url(redis), next(_prefixes)

    async def story() -> None:
        one, other = RedisGovernor(url, prefix=prefix), RedisGovernor(url, prefix=prefix)
        await one.pause(LANE, 60.0)

        answer = await other.reserve(replace(ENTRY, owner="p2"))

        assert isinstance(answer, ModelWait) and answer.paused and 59.0 < answer.wait_s <= 60.0
        await one.aclose()
        await other.aclose()

    asyncio.run(story())


def test_without_the_cache_each_of_four_processes_has_a_quarter(now: Now) -> None:
    async def story() -> None:
        port = servers.free_port()
        shared = RedisGovernor(f"redis://127.0.0.1:{port}/0")
        governor = SharedGovernor(shared, LocalGovernor(share=lambda: 4, now_s=now), Reach())
        entry = replace(ENTRY, quota=Quota(requests=400))

        granted = await flood(governor, now, [entry], 60.0)

        assert 0.9 * 100 <= len(granted) <= 100
        permit = await governor.reserve(replace(entry, lane=replace(LANE, model="m3")))
        assert isinstance(permit, ModelPermit) and not permit.shared
        await governor.settle(permit, 10, None)
        assert await governor.pause(LANE, 3.0) == 3.0
        assert await governor.reserve(entry) == ModelWait(3.0, paused=True)
        await governor.aclose()

    asyncio.run(story())
