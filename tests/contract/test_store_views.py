"""The contract of the store for agents, dead letters and what people look at."""

from __future__ import annotations

from pathlib import Path

from tests.contract.store_bench import (
    OK_CONTENT,
    Bench,
    OpenBench,
    each_store,
    lease,
    over_every_store,
    play,
    replied,
    result_of,
    state_of,
)
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.events import CallsSettled
from toolfleet.schemas.ids import new_run_id, new_token
from toolfleet.schemas.tools import ToolSpec
from toolfleet.schemas.views import DeadLetter

pytestmark = over_every_store
open_bench = each_store

TOOL = ToolSpec(
    name="look_up", description="d", parameters={"type": "object", "properties": {"b": {}, "a": {}}}
)


def _agent(name: str, instructions: str) -> AgentSpec:
    return AgentSpec(name=name, model="gpt", instructions=instructions, tools=(TOOL,))


def _letter(number: int, at: float) -> DeadLetter:
    return DeadLetter(
        id=f"letter-{number}",
        kind="message",
        queue="exec.low",
        reason="malformed_message",
        at=at,
        body=b"\x00\xff{",
        detail="not JSON",
    )


def test_the_agent_registered_last_is_the_current_one(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        old, new, other = _agent("desk", "old"), _agent("desk", "new"), _agent("aide", "x")
        await bench.store.register_agents([old, other])
        await bench.store.register_agents([new])

        assert await bench.store.agent("desk") == new
        assert await bench.store.agent("desk", old.version) == old
        assert await bench.store.agents() == [other, new]
        await bench.store.register_agents([old])  # a deployment that is rolled back
        assert await bench.store.agent("desk") == old
        assert await bench.store.agents() == [other, old]
        assert await bench.store.agent("nobody") is None
        assert await bench.store.agent("desk", "none") is None
        restored = await bench.store.agent("desk")
        assert restored is not None and restored.version == old.version
        versions = await bench.store.agent_versions()
        assert [(one.spec.name, one.version) for one in versions] == [
            ("aide", other.version),
            ("desk", old.version),
            ("desk", new.version),
        ]
        assert all(one.registered_at is not None for one in versions)
        assert [one.spec for one in await bench.store.agent_versions("desk")] == [old, new]
        assert await bench.store.agent_versions("nobody") == []
        await bench.store.register_agents([])

    play(story, open_bench, tmp_path)


def test_runs_are_listed_newest_first_in_pages_and_by_status_and_agent(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        made = [await bench.accepted(agent=f"agent-{number % 2}") for number in range(6)]
        done = await bench.completed(agent="agent-0")
        newest = [run.run_id for run in reversed([*made, done])]

        listed = await bench.store.runs(limit=100)
        page = await bench.store.runs(limit=2, before=newest[2])
        finished = await bench.store.runs(limit=100, status="completed")
        of_agent = await bench.store.runs(limit=2, agent="agent-1", before=newest[1])

        assert [view.info.run_id for view in listed] == newest
        assert [view.info.run_id for view in page] == newest[3:5]
        assert [view.info.run_id for view in finished] == [done.run_id]
        assert [view.info.agent for view in of_agent] == ["agent-1", "agent-1"]
        assert listed[0] == await bench.store.run(done.run_id)
        assert await bench.store.counts() == {
            "runs.queued": 6,
            "runs.completed": 1,
            "commands": 6,
            "leases": 0,
            "dead": 0,
        }

    play(story, open_bench, tmp_path)


def test_a_run_that_does_not_exist_has_nothing(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        run_id = new_run_id()

        assert await bench.store.run(run_id) is None
        assert await bench.store.items(run_id) == []
        assert await bench.store.results(run_id) == []
        assert await bench.store.steps(run_id) == []
        assert await bench.store.usage(run_id) == []
        assert await bench.store.events(run_id) == []
        assert await bench.store.runs(limit=10) == []
        assert await bench.store.peek_calls([]) == []
        assert await bench.store.finished([run_id]) == set()

    play(story, open_bench, tmp_path)


def test_what_a_run_has_many_of_is_read_by_pages(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(3)
        calls = list(state_of(applied).calls)
        large = '{"status":"success","data":"%s"}' % ("ä" * 2_500_000)
        for call, content in zip(calls, (OK_CONTENT, large, large), strict=True):
            result = result_of(call, content, full="whole")
            await bench.apply(new.run_id, CallsSettled((result,)))
        token = new_token()
        await bench.apply(new.run_id, lease(new.run_id, 2, token))
        await bench.apply(new.run_id, replied(new.run_id, 2, token, text="done"))
        run_id, store = new.run_id, bench.store

        assert [len(await store.items(run_id)), len(await store.results(run_id))] == [4, 3]
        first, more = await store.items_page(run_id, limit=2)
        assert ([one.seq for one in first], more) == ([0, 1], True)
        second, more = await store.items_page(run_id, after=1, limit=10)
        assert ([one.seq for one in second], more) == ([2], True), "the merge alone is larger than a page"
        last, more = await store.items_page(run_id, after=2, limit=1)
        assert ([one.seq for one in last], more) == ([3], False)
        assert [*first, *second, *last] == await store.items(run_id)
        assert await store.items_page(run_id, after=3, limit=1) == ([], False)

        some, more = await store.results_page(run_id, limit=2)
        assert ([(turn, one.index) for turn, one in some], more) == ([(1, 0), (1, 1)], True)
        by_size, more = await store.results_page(run_id, after=(1, 0), limit=10)
        assert ([one.index for _, one in by_size], more) == ([1, 2], False), "one is not yet a page"
        rest, more = await store.results_page(run_id, after=(1, 1), limit=10)
        assert ([(turn, one.index) for turn, one in rest], more) == ([(1, 2)], False)
        assert {one.full for _, one in (*some, *rest)} == {None}
        assert await store.results_page(run_id, after=(1, 2), limit=10) == ([], False)
        assert await store.results_page(new_run_id(), limit=10) == ([], False)

    play(story, open_bench, tmp_path)


def test_dead_letters_are_kept_listed_and_discarded(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        letters = [_letter(number, bench.clock.now + number) for number in range(1, 6)]
        for letter in letters:
            await bench.store.add_dead(letter)
        await bench.store.add_dead(letters[0])

        assert await bench.store.dead(limit=10) == letters[::-1]
        assert await bench.store.dead(limit=2, before="letter-4") == [letters[2], letters[1]]
        assert await bench.store.dead(limit=2, before="none") == []
        assert await bench.store.dead_letter("letter-2") == letters[1]
        assert await bench.store.dead_letter("none") is None
        assert await bench.store.discard_dead("letter-2")
        assert not await bench.store.discard_dead("letter-2")
        assert (await bench.store.counts())["dead"] == 4

    play(story, open_bench, tmp_path)


def test_a_dead_letter_without_a_time_gets_that_of_the_database(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        await bench.store.add_dead(_letter(1, 0.0))

        (letter,) = await bench.store.dead(limit=1)

        assert letter.at == bench.clock.now

    play(story, open_bench, tmp_path)


def test_now_is_the_time_of_the_store(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        assert await bench.store.now() == bench.clock.now

    play(story, open_bench, tmp_path)


def test_a_result_is_found_by_its_call_in_its_conversation_and_in_no_other(
    open_bench: OpenBench, tmp_path: Path
) -> None:
    async def story(bench: Bench) -> None:
        new, applied = await bench.waiting(calls=2)
        other, _ = await bench.waiting(calls=1)
        long, short = state_of(applied).calls
        results = (result_of(long, full='"the whole"'), result_of(short))
        settled_ = state_of(await bench.apply(new.run_id, CallsSettled(results)))
        token = new_token()
        await bench.apply(new.run_id, lease(new.run_id, settled_.turn, token))
        await bench.apply(new.run_id, replied(new.run_id, settled_.turn, token, text="done"))
        following = await bench.accepted(previous_run_id=new.run_id)

        for run_id in (new.run_id, following.run_id):
            assert await bench.store.full_result(run_id, long.call_id) == '"the whole"'
            assert await bench.store.full_result(run_id, short.call_id) == OK_CONTENT
        assert await bench.store.full_result(other.run_id, long.call_id) is None
        assert await bench.store.full_result(new.run_id, "call_nothing") is None
        assert await bench.store.full_result("run_nothing", long.call_id) is None

    play(story, open_bench, tmp_path)


def test_a_result_is_kept_for_its_time_and_no_longer(open_bench: OpenBench, tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        store = bench.store
        await store.keep_result("a", tenant="t", tool="get", body="old", ttl_s=10)
        await store.keep_result("b", tenant="t", tool="get", body="other", ttl_s=100)
        bench.clock.advance(4)
        await store.keep_result("a", tenant="t", tool="get", body="new", ttl_s=10)
        bench.clock.advance(9)

        found = await store.cached_result("a")
        assert found is not None and (found.body, found.age_s) == ("new", 9)
        assert await store.cached_result("nothing") is None
        bench.clock.advance(1)
        assert await store.cached_result("a") is None
        assert (await store.cached_result("b")) is not None

    play(story, open_bench, tmp_path)
