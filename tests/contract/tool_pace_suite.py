"""What every ToolPace must do. Time is the test's own: `Now` is moved, nothing sleeps."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from toolfleet.schemas.pace import BreakerRule, Open, Permit, Rate, ToolEntry, Wait
from toolfleet.schemas.ports import ToolPace

P = ParamSpec("P")


class Closable(Protocol):
    async def aclose(self) -> None: ...


Made = TypeVar("Made", bound=Closable)

RULE = BreakerRule()  # 10 calls, half of them failed, in 30 s; open for 30 s
ENTRY = ToolEntry(tenant="acme", tool="charge", call_id="c0")


@dataclass(slots=True)
class Now:
    at_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.at_s

    def move(self, seconds: float) -> None:
        self.at_s += seconds


class Maker(Generic[P, Made]):
    """Makes one thing at each call, as another process would, and closes them all."""

    def __init__(self, make: Callable[P, Made]) -> None:
        self._make = make
        self._made: list[Made] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Made:
        self._made.append(self._make(*args, **kwargs))
        return self._made[-1]

    async def aclose(self) -> None:
        for one in self._made:
            await one.aclose()


Make = Maker[[BreakerRule], ToolPace]


def in_a_loop(suite: type[Any]) -> type[Any]:
    """Runs each test of the suite in a loop of its own, which closes what `make` made."""
    for name, test in list(vars(suite).items()):
        if inspect.iscoroutinefunction(test):
            setattr(suite, name, _run(test))
    return suite


def _run(test: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: Any, make: Any, **given: Any) -> None:
        async def story() -> None:
            try:
                await test(self, make=make, **given)
            finally:
                await make.aclose()

        asyncio.run(story())

    return run


async def permit(pace: ToolPace, entry: ToolEntry = ENTRY) -> Permit:
    answer = await pace.enter(entry)
    assert isinstance(answer, Permit), answer
    return answer


async def attempts(pace: ToolPace, *, ok: int = 0, failed: int = 0, entry: ToolEntry = ENTRY) -> None:
    for _ in range(ok):
        await pace.leave(await permit(pace, entry), "ok")
    for _ in range(failed):
        await pace.leave(await permit(pace, entry), "failed")


async def opened(pace: ToolPace, *, now: Now) -> float:
    """Opens the breaker; gives the time."""
    await attempts(pace, failed=10)
    return now.at_s


@in_a_loop
class ToolPaceSuite:
    """Subclasses give `pace` (another process at each call, as far as there is such a thing) and `now`."""

    shared = True

    async def test_a_breaker_opens_at_ten_calls_and_half_of_them_failed(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await attempts(pace, ok=4, failed=5)
        assert isinstance(await pace.enter(ENTRY), Permit)  # nine calls

        await attempts(pace, failed=1)

        answer = await pace.enter(ENTRY)
        assert isinstance(answer, Open)
        assert answer.wait_s == 30.0 and answer.until_s == now.at_s + 30.0

    async def test_fewer_than_half_leave_it_closed(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await attempts(pace, ok=11, failed=1)
        await attempts(pace, failed=9)

        assert isinstance(await pace.enter(ENTRY), Permit)

    async def test_old_failures_do_not_count(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await attempts(pace, failed=9)
        now.move(34.0)

        await attempts(pace, failed=9)

        assert isinstance(await pace.enter(ENTRY), Permit)

    async def test_what_tells_nothing_of_the_tool_does_not_count(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        for _ in range(30):
            await pace.leave(await permit(pace), "neither")

        await attempts(pace, failed=9)

        assert isinstance(await pace.enter(ENTRY), Permit)

    async def test_a_breaker_is_of_one_tenant_and_one_tool(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await opened(pace, now=now)

        assert isinstance(await pace.enter(replace(ENTRY, tenant="other")), Permit)
        assert isinstance(await pace.enter(replace(ENTRY, tool="refund")), Permit)
        assert await pace.open_breakers("acme") == {"charge": now.at_s + 30.0}
        assert await pace.open_breakers("other") == {}

    async def test_it_half_opens_by_time_whoever_looks_meanwhile(self, make: Make, now: Now) -> None:
        # B054: looks at t = 10, 20 and 29 do not move the time at which it opened.
        pace = make(RULE)
        opened_at = await opened(pace, now=now)
        for later in (10.0, 10.0, 9.0):
            now.move(later)
            assert isinstance(await make(RULE).enter(ENTRY), Open) if self.shared else True
            assert isinstance(await pace.enter(ENTRY), Open)
            (view,) = await pace.breakers()
            assert (view.state, view.opened_at) == ("open", opened_at)
            assert await pace.open_breakers("acme") == {"charge": opened_at + 30.0}

        now.move(1.0)

        assert await pace.open_breakers("acme") == {}, "a tool nobody is offered would never be tried"
        (view,) = await pace.breakers()
        assert (view.state, view.opened_at) == ("half_open", opened_at)
        assert (await permit(pace)).probe

    async def test_one_probe_goes_at_a_time(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await opened(pace, now=now)
        now.move(30.0)

        answers = await asyncio.gather(*(pace.enter(ENTRY) for _ in range(20)))

        assert [isinstance(answer, Permit) for answer in answers].count(True) == 1
        (view,) = await pace.breakers()
        assert view.probing

    async def test_a_good_probe_closes_it_with_a_fresh_window(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await opened(pace, now=now)
        now.move(30.0)

        await pace.leave(await permit(pace), "ok")

        await attempts(pace, failed=9)
        assert isinstance(await pace.enter(ENTRY), Permit)

    async def test_a_bad_probe_opens_it_again_from_now(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await opened(pace, now=now)
        now.move(31.0)

        await pace.leave(await permit(pace), "failed")

        answer = await pace.enter(ENTRY)
        assert isinstance(answer, Open) and answer.wait_s == 30.0

    async def test_a_probe_that_told_nothing_leaves_the_next_one_to_probe(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await opened(pace, now=now)
        now.move(30.0)

        await pace.leave(await permit(pace), "neither")

        assert (await permit(pace)).probe

    async def test_a_probe_whose_process_died_is_followed_by_another(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await opened(pace, now=now)
        now.move(30.0)
        await permit(pace, replace(ENTRY, deadline_s=5.0))  # and is never heard of again
        assert isinstance(await pace.enter(ENTRY), Open)

        now.move(35.0)

        assert (await permit(pace)).probe

    async def test_a_straggler_moves_nothing(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        late = [await permit(pace) for _ in range(4)]
        opened_at = await opened(pace, now=now)
        now.move(10.0)
        await pace.leave(late[0], "failed")
        await pace.leave(late[1], "ok")
        now.move(20.0)
        probe = await permit(pace)

        await pace.leave(late[2], "ok")
        await pace.leave(late[3], "failed")

        (view,) = await pace.breakers()
        assert (view.state, view.opened_at, view.probing) == ("half_open", opened_at, True)
        await pace.leave(probe, "ok")
        assert isinstance(await pace.enter(ENTRY), Permit)

    async def test_an_operator_closes_it(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        await opened(pace, now=now)

        assert await pace.reset("acme", "charge") is True
        assert await pace.reset("acme", "nothing") is False

        assert isinstance(await pace.enter(ENTRY), Permit)
        assert await pace.open_breakers("acme") == {}

    async def test_a_rate_holds_in_every_window(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        entry = replace(ENTRY, rate=Rate(5, 1.0), returning=True)
        starts: list[float] = []
        for _ in range(400):
            answer = await pace.enter(entry)
            if isinstance(answer, Permit):
                starts.append(now.at_s)
            now.move(0.017)

        for at, start in enumerate(starts):
            assert sum(1 for other in starts[at:] if other < start + 1.0) <= 5
        assert len(starts) >= 5 * 6

    async def test_who_is_refused_by_a_rate_is_told_a_time_of_its_own(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        entry = replace(ENTRY, rate=Rate(2, 1.0))
        await permit(pace, entry), await permit(pace, entry)

        waits = [await pace.enter(entry) for _ in range(4)]

        told = [round(wait.wait_s, 3) for wait in waits if isinstance(wait, Wait) and wait.reason == "rate"]
        assert told == [1.0, 1.5, 2.0, 2.5]

    async def test_who_was_booked_goes_before_who_is_new(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        entry = replace(ENTRY, rate=Rate(1, 1.0))
        await permit(pace, entry)
        assert isinstance(await pace.enter(entry), Wait)
        assert isinstance(await pace.enter(entry), Wait)
        now.move(1.0)

        assert isinstance(await pace.enter(entry), Wait)
        assert isinstance(await pace.enter(replace(entry, returning=True)), Permit)

    async def test_at_most_so_many_at_a_time(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        entry = replace(ENTRY, concurrent_max=2)
        first = await permit(pace, entry)
        await permit(pace, replace(entry, tenant="other"))  # the places are the tool's

        answer = await pace.enter(replace(entry, call_id="c3"))
        assert isinstance(answer, Wait) and answer.reason == "bulkhead" and answer.wait_s > 0
        await pace.leave(first, "ok")
        await pace.leave(first, "ok")  # twice is harmless

        await permit(pace, replace(entry, call_id="c3"))
        assert isinstance(await pace.enter(replace(entry, call_id="c4")), Wait)

    async def test_calls_with_one_serial_key_run_one_at_a_time(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        entry = replace(ENTRY, serial_key="order:1")
        held = await permit(pace, entry)

        answer = await pace.enter(replace(entry, tool="other", call_id="c2"))
        assert isinstance(answer, Wait) and answer.reason == "serial"
        await permit(pace, replace(entry, serial_key="order:2"))
        await permit(pace, replace(entry, tenant="other"))

        await pace.leave(held, "failed")
        await permit(pace, entry)

    async def test_the_longer_the_line_the_later_one_comes_back(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        entry = replace(ENTRY, serial_key="order:1")
        await permit(pace, entry)

        waits = [await pace.enter(replace(entry, call_id=f"w{number}")) for number in range(100)]

        told = [wait.wait_s for wait in waits if isinstance(wait, Wait)]
        assert told[0] == 0.5 and told == sorted(told) and told[-1] == 30.0

    async def test_retries_are_a_share_of_the_calls(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        retry = replace(ENTRY, retry=True, retry_share=0.2)
        await attempts(pace, ok=100, entry=replace(ENTRY, concurrent_max=1000))
        if self.shared:
            await pace.breakers()  # what was answered is counted by now

        answers = [await pace.enter(retry) for _ in range(30)]

        assert [isinstance(answer, Permit) for answer in answers] == [True] * 20 + [False] * 10
        refused = answers[-1]
        assert isinstance(refused, Wait) and refused.reason == "retry_budget" and 0 < refused.wait_s <= 3.0
        now.move(40.0)
        assert isinstance(await pace.enter(retry), Permit)  # a few are always allowed

    async def test_what_is_refused_takes_nothing(self, make: Make, now: Now) -> None:
        pace = make(RULE)
        entry = replace(ENTRY, rate=Rate(2, 60.0), concurrent_max=1)
        held = await permit(pace, entry)
        for number in range(5):
            assert isinstance(await pace.enter(replace(entry, call_id=f"r{number}")), Wait)  # no place
        await pace.leave(held, "ok")

        await permit(pace, entry)  # the second start of the rate is still there
