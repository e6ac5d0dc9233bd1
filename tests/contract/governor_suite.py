"""What every Governor must do. Time is the test's own."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.tool_pace_suite import Maker, Now, in_a_loop
from toolfleet.schemas.pace import ModelEntry, ModelLane, ModelPermit, ModelWait, Quota, RateHint
from toolfleet.schemas.ports import Governor

LANE = ModelLane("cred", "m1")
QUOTA = Quota(requests=600, tokens=600_000)
ENTRY = ModelEntry(LANE, tokens=100, owner="p1", quota=QUOTA)

Make = Maker[[], Governor]


async def flood(
    governor: Governor, now: Now, entries: list[ModelEntry], seconds: float, *, used: int | None = None
) -> list[tuple[float, str]]:
    """Each entry asks again when it was told to, for ever; gives when who was let through."""
    due = {number: now.at_s for number in range(len(entries))}
    granted: list[tuple[float, str]] = []
    end = now.at_s + seconds
    while True:
        number = min(due, key=lambda one: due[one])
        if due[number] >= end:
            return granted
        now.at_s = max(now.at_s, due[number])
        answer = await governor.reserve(entries[number])
        if isinstance(answer, ModelPermit):
            granted.append((now.at_s, entries[number].owner))
            if used is not None:
                await governor.settle(answer, used, None)
        else:
            due[number] = now.at_s + answer.wait_s


@in_a_loop
class GovernorSuite:
    async def test_without_a_quota_nothing_waits(self, make: Make, now: Now) -> None:
        governor = make()

        answers = [await governor.reserve(replace(ENTRY, quota=Quota())) for _ in range(1000)]

        assert all(isinstance(answer, ModelPermit) for answer in answers)

    async def test_a_flood_uses_the_requests_and_no_window_holds_more(self, make: Make, now: Now) -> None:
        entries = [replace(ENTRY, owner=f"p{number}") for number in range(8)]

        times = [at for at, _ in await flood(make(), now, entries, 120.0)]

        assert len(times) >= 0.95 * 1200
        assert (
            max(sum(1 for at in times[first:] if at < start + 60) for first, start in enumerate(times)) <= 600
        )

    async def test_a_flood_uses_the_tokens_though_far_more_were_reserved(self, make: Make, now: Now) -> None:
        entries = [
            replace(ENTRY, owner=f"p{number}", tokens=12_000, quota=Quota(tokens=600_000))
            for number in range(8)
        ]

        times = [at for at, _ in await flood(make(), now, entries, 120.0, used=1_000)]

        assert len(times) * 1_000 >= 0.95 * 1_200_000
        worst = max(
            sum(1_000 for at in times[first:] if at < start + 60) for first, start in enumerate(times)
        )
        assert worst <= 600_000

    async def test_processes_take_turns(self, make: Make, now: Now) -> None:
        entries = [replace(ENTRY, owner=f"p{number}") for number in range(8)]

        owners = [owner for _, owner in await flood(make(), now, entries, 60.0)]

        counts = [owners.count(entry.owner) for entry in entries]
        assert max(counts) - min(counts) <= 0.1 * max(counts)

    async def test_interactive_ones_go_before_batch_ones(self, make: Make, now: Now) -> None:
        governor = make()
        await flood(
            governor, now, [replace(ENTRY, owner=f"b{number}", batch=True) for number in range(8)], 10.0
        )
        assert isinstance(await governor.reserve(replace(ENTRY, owner="b0", batch=True)), ModelWait)

        answer = await governor.reserve(ENTRY)

        assert isinstance(answer, ModelPermit)  # half of what may be used at once is left to it

    async def test_a_batch_one_waits_behind_an_interactive_one_that_waits(self, make: Make, now: Now) -> None:
        governor = make()
        while isinstance(await governor.reserve(ENTRY), ModelPermit):
            pass  # p1 waits now
        now.move(0.05)
        waiting = await governor.reserve(ENTRY)
        assert isinstance(waiting, ModelWait)

        batch = await governor.reserve(replace(ENTRY, owner="b1", batch=True))

        assert isinstance(batch, ModelWait) and batch.wait_s > waiting.wait_s
        await governor.withdraw(ENTRY)
        after = await governor.reserve(replace(ENTRY, owner="b1", batch=True))
        assert isinstance(after, ModelWait) and after.wait_s < batch.wait_s

    async def test_one_429_pauses_the_lane_for_everybody_and_no_other_lane(
        self, make: Make, now: Now
    ) -> None:
        governor = make()

        assert await governor.pause(LANE, 7.5) == 7.5

        answer = await governor.reserve(replace(ENTRY, owner="p2"))
        assert answer == ModelWait(7.5, paused=True)
        assert isinstance(await governor.reserve(replace(ENTRY, lane=ModelLane("cred", "m2"))), ModelPermit)
        now.move(7.5)
        answer = await governor.reserve(ENTRY)
        assert isinstance(answer, ModelWait) and not answer.paused  # nothing is left to use at once

    async def test_a_shorter_pause_does_not_end_a_longer_one(self, make: Make, now: Now) -> None:
        governor = make()
        await governor.pause(LANE, 20.0)

        assert await governor.pause(LANE, 1.0) == 20.0

    async def test_pauses_without_a_time_grow_until_an_answer_comes(self, make: Make, now: Now) -> None:
        governor = make()
        unlimited = replace(ENTRY, quota=Quota())
        pauses = []
        for _ in range(8):
            pauses.append(await governor.pause(LANE, None))
            assert await governor.pause(LANE, None) == pauses[-1]  # of calls that were under way together
            now.move(pauses[-1])

        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
        answer = await governor.reserve(unlimited)
        assert isinstance(answer, ModelPermit)
        await governor.settle(answer, 50, None)
        assert await governor.pause(LANE, None) == 1.0

    async def test_a_limit_nobody_configured_is_learned_from_the_provider(self, make: Make, now: Now) -> None:
        governor = make()
        entries = [replace(ENTRY, owner=f"p{number}", quota=Quota()) for number in range(2)]
        first = await governor.reserve(entries[0])
        assert isinstance(first, ModelPermit)

        await governor.settle(first, 100, RateHint(limit_requests=60, remaining_requests=59))

        assert 0.9 * 60 <= len(await flood(governor, now, entries, 60.0)) <= 60

    async def test_what_the_provider_has_left_is_believed(self, make: Make, now: Now) -> None:
        governor = make()
        first = await governor.reserve(ENTRY)
        assert isinstance(first, ModelPermit)

        await governor.settle(first, 100, RateHint(remaining_requests=0, remaining_tokens=590_000))

        assert isinstance(await governor.reserve(ENTRY), ModelWait)

    async def test_a_call_larger_than_the_burst_makes_a_debt(self, make: Make, now: Now) -> None:
        governor = make()
        large = replace(ENTRY, tokens=60_000, quota=Quota(tokens=600_000))  # a tenth of the minute
        assert isinstance(await governor.reserve(large), ModelPermit)

        while isinstance(answer := await governor.reserve(replace(large, tokens=1)), ModelWait):
            now.move(answer.wait_s)

        assert 5.0 < now.at_s - 1_000_000.0 < 7.0
