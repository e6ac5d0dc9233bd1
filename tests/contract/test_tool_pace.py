"""Both implementations of ToolPace do the same; and what only one that is shared can do."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import servers
from tests.contract.tool_pace_suite import ENTRY, RULE, Make, Maker, Now, ToolPaceSuite, attempts, permit
from toolfleet.adapters.local.tool_pace import LocalToolPace
from toolfleet.adapters.redis.outage import Reach, SharedToolPace
from toolfleet.adapters.redis.tool_pace import RedisToolPace
from toolfleet.schemas.errors import CacheUnavailable
from toolfleet.schemas.pace import BreakerRule, Open, Permit, Wait

ROOT = Path(__file__).parents[2]
_prefixes = (f"pace{number}" for number in itertools.count(1))


@pytest.fixture
def now() -> Now:
    return Now()


class TestLocal(ToolPaceSuite):
    shared = False

    @pytest.fixture
    def make(self, now: Now) -> Make:
        return Maker(lambda rule: LocalToolPace(rule=rule, now_s=now))


class TestShared(ToolPaceSuite):
    @pytest.fixture
    def make(self, redis: servers.Server, now: Now) -> Make:
        return shared_maker(servers.redis_url(redis), now)


def shared_maker(url: str, now: Now | None) -> Make:
    prefix = next(_prefixes)
    return Maker(lambda rule: RedisToolPace(url, prefix=prefix, rule=rule, now_s=now, seen_s=0.0))


def test_counts_are_of_the_fleet_and_outlive_whoever_counted(redis: servers.Server, now: Now) -> None:
    # B056: a threshold of 5, four workers that see 2 failures each; the worker that opened it is started again.
    make = shared_maker(servers.redis_url(redis), now)
    rule = BreakerRule(calls_min=5)

    async def story() -> None:
        workers = [make(rule) for _ in range(4)]
        permits = [[await permit(worker) for _ in range(2)] for worker in workers]
        failed = 0
        for worker, given in zip(workers, permits, strict=True):
            for one in given:
                assert bool(await make(rule).open_breakers("acme")) == (failed >= 5)
                await worker.leave(one, "failed")
                failed += 1
        for worker in workers:
            await worker.aclose()

        again = make(rule)
        assert isinstance(await again.enter(ENTRY), Open)
        now.move(30.0)
        probe = await permit(again)
        assert probe.probe
        await again.leave(probe, "ok")
        assert not (await permit(again)).probe
        await make.aclose()

    asyncio.run(story())


PROBER = """
import asyncio, sys
from toolfleet.adapters.redis.tool_pace import RedisToolPace
from toolfleet.schemas.pace import Permit, ToolEntry

async def main(url, prefix):
    pace = RedisToolPace(url, prefix=prefix)
    await pace.open_breakers("acme")
    print("ready", flush=True)
    sys.stdin.readline()
    entry = ToolEntry(tenant="acme", tool="charge", call_id="c")
    answers = await asyncio.gather(*(pace.enter(entry) for _ in range(5)))
    print(sum(isinstance(answer, Permit) for answer in answers), flush=True)
    await pace.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


def test_eight_processes_before_one_half_open_breaker_send_one_probe(
    redis: servers.Server,
) -> None:
    url, prefix = servers.redis_url(redis), next(_prefixes)

    async def opened() -> None:
        pace = RedisToolPace(url, prefix=prefix, rule=BreakerRule(open_s=0.001))
        await attempts(pace, failed=10)
        while (await pace.breakers())[0].state != "half_open":
            pass
        await pace.aclose()

    asyncio.run(opened())
    command = [sys.executable, "-c", PROBER, url, prefix]
    probers = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    try:
        for prober in probers:
            assert prober.stdout is not None and prober.stdout.readline() == "ready\n"
        for prober in probers:  # all are there: now
            assert prober.stdin is not None
            prober.stdin.write("go\n")
            prober.stdin.flush()
        sent = [int(prober.communicate(timeout=60)[0]) for prober in probers]
    finally:
        for prober in probers:
            prober.kill()
            prober.wait()

    assert sum(sent) == 1, sent


def test_a_dead_holder_frees_its_place_and_its_serial_key(redis: servers.Server, now: Now) -> None:
    make = shared_maker(servers.redis_url(redis), now)
    entry = replace(ENTRY, serial_key="order:1", concurrent_max=1)

    async def story() -> None:
        dead = await permit(make(RULE), entry)  # its process never renews: time is the test's
        alive = make(RULE)
        now.move(29.0)
        assert isinstance(await alive.enter(entry), Wait)
        now.move(1.5)
        held = await permit(alive, entry)

        await make(RULE).leave(dead, "ok")  # it comes back: what it had is another's

        assert isinstance(await alive.enter(replace(entry, call_id="c2")), Wait)
        await alive.leave(held, "ok")
        await make.aclose()

    asyncio.run(story())


def test_a_live_holder_keeps_its_place_beyond_the_lease(redis: servers.Server) -> None:
    url, prefix = servers.redis_url(redis), next(_prefixes)
    entry = replace(ENTRY, serial_key="order:1")

    async def story() -> None:
        holder = RedisToolPace(url, prefix=prefix, lease_s=0.3)
        other = RedisToolPace(url, prefix=prefix, lease_s=0.3)
        await permit(holder, entry)
        loop = asyncio.get_running_loop()
        until = loop.time() + 1.0
        while loop.time() < until:  # three leases
            assert isinstance(await other.enter(entry), Wait)
        await holder.aclose()
        while not isinstance(await other.enter(entry), Permit):
            pass  # until the lease of the one that is gone has ended; pytest's timeout is the deadline
        await other.aclose()

    asyncio.run(story())


def test_an_attempt_of_a_plain_tool_costs_no_round_trip(redis: servers.Server, now: Now) -> None:
    url, prefix = servers.redis_url(redis), next(_prefixes)

    async def story() -> None:
        pace = RedisToolPace(url, prefix=prefix, seen_s=3600.0, held_s=3600.0)
        await attempts(pace, ok=1)
        sent: list[str] = []
        pump = pace._scripts._pump
        run = pump.run
        pump.run = lambda commands, **kw: (sent.extend(map(str, commands)), run(commands, **kw))[1]  # type: ignore[method-assign,assignment]

        await attempts(pace, ok=100)

        assert sent == []
        await attempts(pace, failed=1)
        assert 1 <= len(sent) <= 2, "on a slow machine what was counted before is due as well"
        (view,) = await pace.breakers()
        assert (view.calls, view.failures) == (102, 1)
        await pace.aclose()

    asyncio.run(story())


def test_without_the_cache_each_process_counts_for_itself_and_says_so_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # B056: the shared store is down.
    with servers.redis_server() as server:
        url, prefix = servers.redis_url(server), next(_prefixes)

        async def story() -> None:
            reach = Reach()
            pace = SharedToolPace(RedisToolPace(url, prefix=prefix, seen_s=0.0), LocalToolPace(), reach)
            await attempts(pace, ok=3)
            server.kill()

            await attempts(pace, failed=10)

            assert reach.away
            assert isinstance(await pace.enter(ENTRY), Open)
            assert [view.state for view in await pace.breakers()] == ["open"]
            serial = await pace.enter(replace(ENTRY, tool="other", serial_key="order:1"))
            assert isinstance(serial, Wait) and serial.reason == "serial"  # nobody can tell who holds it
            held = await permit(pace, replace(ENTRY, tool="third", concurrent_max=1))
            assert not held.shared

            server.start()
            while reach.away:
                await pace.open_breakers("acme")
            assert isinstance(await pace.enter(ENTRY), Permit)  # the fleet's breaker never opened
            await pace.leave(held, "ok")
            await pace.aclose()

        asyncio.run(story())

    said = capsys.readouterr()
    text = said.out + said.err
    assert (text.count("cache_away"), text.count("cache_back")) == (1, 1)


def test_a_cache_that_is_no_redis_is_away_and_no_error_of_the_call() -> None:
    port = servers.free_port()

    async def story() -> None:
        pace = RedisToolPace(f"redis://127.0.0.1:{port}/0", prefix=next(_prefixes))
        with pytest.raises(CacheUnavailable, match="cannot be used"):
            await pace.enter(ENTRY)
        await pace.aclose()

    asyncio.run(story())


def test_losing_the_scripts_costs_nothing(redis: servers.Server, now: Now) -> None:
    make = shared_maker(servers.redis_url(redis), now)

    async def story() -> None:
        pace = make(RULE)
        await attempts(pace, failed=9)
        await pace._scripts.commands([("SCRIPT", "FLUSH")])

        await attempts(pace, failed=1)

        assert isinstance(await pace.enter(ENTRY), Open)
        await make.aclose()

    asyncio.run(story())
