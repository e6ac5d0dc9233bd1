"""How model calls of one process take turns, and what follows where they cannot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from toolfleet.adapters.local.governor import LocalGovernor
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault, ModelReply, Usage
from toolfleet.schemas.pace import ModelEntry, ModelLane, ModelPermit, ModelWait, Quota
from toolfleet.workers.backoff import backoff_s
from toolfleet.workers.decision.fallback import models_left, on_model, what_follows
from toolfleet.workers.decision.pace import DEFER_MAX_S, WAIT_S, ModelPace, NotNow, lane_of

LANE = ModelLane("cred", "m1")


@dataclass
class Moving:
    """A clock whose sleepers make time pass."""

    at_s: float = 1000.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s

    def boot_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds
        await asyncio.sleep(0)


class FarAway(LocalGovernor):
    """Takes its time to answer, as a cache does: the calls of a process stand in line before it."""

    async def reserve(self, entry: ModelEntry) -> ModelPermit | ModelWait:
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().reserve(entry)


def paced(clock: Moving, quota: Quota | None = None, governor: LocalGovernor | None = None) -> ModelPace:
    governor = governor or LocalGovernor(now_s=clock.now_s)
    quotas = {} if quota is None else {"*": quota}
    return ModelPace(governor, clock, owner="p1", draw=lambda: 0.5, quotas=quotas)


def reply(tokens: int = 10) -> ModelReply:
    return ModelReply("hi", (), "stop", "chat", {}, "m1", usage=Usage(input_tokens=tokens))


async def call(pace: ModelPace, answer: Any = None, *, batch: bool = False, tokens: int = 10) -> ModelReply:
    async def ask() -> ModelReply:
        if isinstance(answer, BaseException):
            raise answer
        return answer or reply(tokens)

    return await pace.call(LANE, lambda: tokens, ask, batch=batch)


def test_a_short_wait_is_waited_on_the_loop_and_a_long_line_is_sent_away() -> None:
    clock = Moving()
    pace = paced(clock, Quota(requests=60))  # one a second

    async def story() -> list[Any]:
        return await asyncio.gather(*(call(pace) for _ in range(200)), return_exceptions=True)

    answers = asyncio.run(story())

    done = [one for one in answers if isinstance(one, ModelReply)]
    away = [one for one in answers if isinstance(one, NotNow)]
    assert len(done) + len(away) == 200
    assert 5 <= len(done) <= 10  # in five seconds, and what may be used at once
    delays = [one.delay_s for one in away]
    assert min(delays) >= WAIT_S and max(delays) <= DEFER_MAX_S
    assert len({round(delay, 2) for delay in delays}) > 100  # each at a time of its own


def test_an_hour_without_a_call_is_no_reason_to_send_the_next_ones_away() -> None:
    clock = Moving()
    pace = paced(clock, governor=FarAway(now_s=clock.now_s))

    async def one_after(others: int) -> ModelReply:
        for _ in range(others):
            await asyncio.sleep(0)
        return await call(pace)

    async def story() -> list[Any]:
        answers: list[Any] = []
        for _ in range(3):
            answers += await asyncio.gather(*map(one_after, range(100)), return_exceptions=True)
            clock.at_s += 3600.0
        return answers

    assert [one for one in asyncio.run(story()) if not isinstance(one, ModelReply)] == []


def test_a_line_that_is_fast_again_sends_nobody_away_for_long() -> None:
    clock = Moving()
    governor = FarAway(now_s=clock.now_s)
    slow, fast = Quota(requests=6), Quota(requests=100_000)  # one in ten seconds; more than anybody asks for
    quotas = {"*": slow}
    pace = ModelPace(governor, clock, owner="p1", draw=lambda: 0.5, quotas=quotas)

    async def burst(count: int) -> int:
        answers = await asyncio.gather(*(call(pace) for _ in range(count)), return_exceptions=True)
        assert all(isinstance(one, ModelReply | NotNow) for one in answers)
        return sum(isinstance(one, NotNow) for one in answers)

    async def story() -> list[int]:
        away = [await burst(20)]
        quotas["*"] = fast
        for _ in range(20):
            clock.at_s += 60.0
            away.append(await burst(3))
        return away

    away = asyncio.run(story())
    assert away[0] > 10
    assert away[-1] == 0


def test_a_429_makes_every_other_call_of_the_lane_wait_that_long() -> None:
    # B052: Retry-After 75 and 3600: the worker is freed, and the step is due then.
    clock = Moving()
    governor = LocalGovernor(now_s=clock.now_s)
    mine, others = paced(clock, governor=governor), paced(clock, governor=governor)
    fault = ModelFault("rate_limited", "429", retryable=True, retry_after_s=75.0, status=429)

    async def story() -> None:
        with pytest.raises(ModelError):
            await call(mine, ModelError(fault))
        with pytest.raises(NotNow) as caught:
            await call(others)
        assert 75.0 <= caught.value.delay_s <= 75.0 * 1.2
        assert clock.at_s == 1000.0  # nobody slept for it
        with pytest.raises(ModelError):
            await mine.call(
                replace(LANE, model="m2"),
                lambda: 1,
                lambda: _raise(ModelError(replace(fault, retry_after_s=3600.0))),
                batch=False,
            )
        clock.at_s += 75.0
        await call(others)

    asyncio.run(story())
    assert backoff_s(1, 0.0, retry_after_s=3600.0) == 3600.0


async def _raise(exc: Exception) -> ModelReply:
    raise exc


def test_a_used_up_quota_pauses_nobody() -> None:
    clock = Moving()
    pace = paced(clock)
    fault = ModelFault("quota", "no quota left", retryable=False, status=429)

    async def story() -> None:
        with pytest.raises(ModelError):
            await call(pace, ModelError(fault))
        await call(pace)

    asyncio.run(story())


def test_tokens_a_failed_call_may_have_used_stay_used_and_refused_ones_come_back() -> None:
    clock = Moving()
    refused = ModelFault("bad_request", "400", retryable=False, status=400)
    lost = ModelFault("timeout", "no answer", retryable=True)

    async def after(fault: ModelFault) -> float:
        # 600 at once, about 1000 a second; nothing is known yet of what calls really use
        pace = paced(clock, Quota(tokens=60_000), LocalGovernor(now_s=clock.now_s))
        with pytest.raises(ModelError):
            await call(pace, ModelError(fault), tokens=3000)
        started = clock.at_s
        await call(pace, tokens=1)
        return clock.at_s - started

    async def story() -> None:
        assert await after(refused) < 0.1
        assert await after(lost) > 2.0

    asyncio.run(story())


def test_a_call_that_is_cancelled_gives_up_its_place_in_the_line() -> None:
    clock = Moving()
    pace = paced(clock, Quota(requests=60))

    async def story() -> None:
        for _ in range(2):
            await call(pace)
        waiting = [asyncio.create_task(call(pace)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        clock.at_s += 2.0
        await call(pace)

    asyncio.run(story())


AGENT = AgentSpec(name="a", model="m1", fallback_models=("m2", "m3"))


def test_each_number_is_a_model_and_the_last_one_stays() -> None:
    assert [on_model(AGENT, index).model for index in range(4)] == ["m1", "m2", "m3", "m3"]
    assert [models_left(AGENT, index) for index in range(4)] == [2, 1, 0, 0]
    assert lane_of(object(), on_model(AGENT, 1)) == ModelLane("default", "m2")  # type: ignore[arg-type]


def test_a_model_cannot_stand_twice_in_the_chain() -> None:
    with pytest.raises(ValueError, match="stands twice"):
        AgentSpec(name="a", model="m1", fallback_models=("m2", "m1"))


# B117: the first five of its table are transient, the last one is permanent.
FOLLOWS = [
    # kind, retryable, retry_after, failures, models left -> what follows
    ("unavailable", True, None, 1, 1, "again"),  # 529, 500, an overload inside a 200
    ("unavailable", True, None, 2, 1, "next"),
    ("unavailable", True, None, 9, 0, "again"),  # the machine counts the attempts
    ("unavailable", False, None, 1, 1, "next"),  # x-should-retry: false
    ("unavailable", False, None, 1, 0, "end"),
    ("rate_limited", True, 2.0, 1, 1, "again"),
    ("rate_limited", True, 75.0, 1, 1, "next"),
    ("rate_limited", True, 3600.0, 1, 0, "again"),  # due then
    ("quota", False, None, 1, 1, "next"),  # used up: waiting does not help
    ("quota", False, None, 1, 0, "end"),
    ("content_filter", False, None, 1, 1, "end"),
    ("context_length", False, None, 1, 1, "end"),
    ("connection", True, None, 1, 0, "again"),
    ("timeout", True, None, 2, 2, "next"),
    ("bad_reply", True, None, 2, 1, "next"),
    ("auth", False, None, 1, 1, "next"),
    ("auth", False, None, 1, 0, "end"),
    ("not_found", False, None, 1, 1, "next"),
    ("bad_request", False, None, 1, 1, "end"),
    ("bad_request", False, None, 1, 0, "end"),
]


@pytest.mark.parametrize(("kind", "retryable", "retry_after_s", "failures", "left", "expected"), FOLLOWS)
def test_what_follows_from_a_failed_call(
    kind: Any, retryable: bool, retry_after_s: float | None, failures: int, left: int, expected: str
) -> None:
    fault = ModelFault(kind, "x", retryable, retry_after_s=retry_after_s)

    assert what_follows(fault, failures=failures, left=left) == expected
