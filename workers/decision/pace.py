"""How a model call waits for its turn: a short while on the loop, longer ones as a row that is due later.

On the loop, because most waits are shorter than the two transactions of giving a lease back and taking it again; at
most WAIT_S, because a waiting decision holds one of the process's slots, and runs of other models need them.
(docs/decisions/0010-waiting-for-a-model.md)

Per lane and class one call of a process asks the governor; the others stand behind it, first in, first out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault, ModelReply
from toolfleet.schemas.pace import ModelEntry, ModelLane, ModelPermit, Quota
from toolfleet.schemas.ports import Clock, Governor, ModelClient

log = structlog.get_logger("toolfleet.pace")

WAIT_S: Final = 5.0
DEFER_MAX_S: Final = 300.0  # then it looks again: somebody may have left
PAUSED_SPREAD: Final = 0.2  # who waits for the end of a pause comes back spread over a fifth more of it
LANES_MAX: Final = 1000


class NotNow(Exception):
    """The call was not made. Its decision is due again in `delay_s`."""

    def __init__(self, delay_s: float, reason: str) -> None:
        super().__init__(f"{reason}: in {delay_s:g} s")
        self.delay_s = delay_s
        self.reason = reason


@dataclass(slots=True)
class _Line:
    """The calls of one process that wait for one lane, in one class."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # first in, first out
    waiting: int = 0
    gap_s: float = 0.0  # how long the one in front waits until it is let through: a mean of the last ones
    let_at: float | None = None
    booked_s: float = 0.0  # until when (monotonic) decisions were sent away


class ModelPace:
    """The turns of one process. `quotas`: configured, by model; "*" is every other model."""

    def __init__(
        self,
        governor: Governor,
        clock: Clock,
        *,
        owner: str,
        draw: Callable[[], float],
        quotas: Mapping[str, Quota],
    ) -> None:
        self._governor = governor
        self._clock = clock
        self._owner = owner
        self._draw = draw
        self._quotas = quotas
        self._lines: dict[tuple[ModelLane, bool], _Line] = {}

    async def call(
        self,
        lane: ModelLane,
        tokens: Callable[[], int],
        ask: Callable[[], Awaitable[ModelReply]],
        *,
        batch: bool,
    ) -> ModelReply:
        """The reply, once it is this call's turn. Raises NotNow, and what `ask` raises.

        `tokens`: what the call may use; asked only where a quota of tokens is configured. Without one, what a provider
        says its limit is, is paid for afterwards.
        """
        quota = self._quotas.get(lane.model, self._quotas.get("*", Quota()))
        wanted = tokens() if quota.tokens is not None else 0
        entry = ModelEntry(lane, wanted, self._owner, batch, quota)
        permit = await self._turn(entry)
        try:
            reply = await ask()
        except ModelError as exc:
            await self._failed(permit, exc.fault)
            raise
        except BaseException:
            await self._governor.settle(permit, None, None)
            raise
        used = reply.usage.input_tokens + reply.usage.output_tokens if reply.usage.known else None
        await self._governor.settle(permit, used, reply.rate)
        return reply

    async def _failed(self, permit: ModelPermit, fault: ModelFault) -> None:
        """What was refused used no tokens; of anything else nobody knows. A 429 pauses the lane for every process."""
        await self._governor.settle(permit, 0 if fault.status is not None else None, fault.rate)
        if fault.kind == "rate_limited" and fault.retryable:
            left_s = await self._governor.pause(permit.entry.lane, fault.retry_after_s)
            log.warning("model_paused", model=permit.entry.lane.model, seconds=round(left_s, 3))

    async def _turn(self, entry: ModelEntry) -> ModelPermit:
        line = self._line(entry)
        started = self._clock.monotonic_s()
        if line.waiting * line.gap_s > WAIT_S:
            raise self._later(line, started)
        line.waiting += 1
        try:
            try:
                async with asyncio.timeout(WAIT_S):
                    await line.turn.acquire()
            except TimeoutError:
                raise self._later(line, started) from None
            try:
                return await self._granted(entry, line, started)
            finally:
                line.turn.release()
        finally:
            line.waiting -= 1

    async def _granted(self, entry: ModelEntry, line: _Line, started: float) -> ModelPermit:
        while True:
            answer = await self._governor.reserve(entry)
            now = self._clock.monotonic_s()
            if isinstance(answer, ModelPermit):
                in_front = started if line.let_at is None else max(started, line.let_at)
                line.gap_s += 0.2 * (now - in_front - line.gap_s)
                line.let_at = now
                return answer
            if answer.paused and answer.wait_s > WAIT_S:
                await self._governor.withdraw(entry)
                raise NotNow(answer.wait_s * (1.0 + PAUSED_SPREAD * self._draw()), "paused")
            if now + answer.wait_s - started > WAIT_S:
                await self._governor.withdraw(entry)
                raise self._later(line, now)
            await self._clock.sleep(answer.wait_s)

    def _later(self, line: _Line, now: float) -> NotNow:
        """Behind those that stand here and those that were sent away before, so that each comes back at its turn."""
        first = now + max(WAIT_S, line.waiting * line.gap_s)
        line.booked_s = max(first, line.booked_s + max(line.gap_s, 0.001))
        delay = min(DEFER_MAX_S * (0.9 + 0.1 * self._draw()), line.booked_s - now)
        return NotNow(delay, "quota")

    def _line(self, entry: ModelEntry) -> _Line:
        key = (entry.lane, entry.batch)
        line = self._lines.pop(key, None) or _Line()
        self._lines[key] = line  # the one used last is the last
        while len(self._lines) > LANES_MAX:
            oldest = next(iter(self._lines))
            if self._lines[oldest].waiting:
                break
            del self._lines[oldest]
        return line


def lane_of(model: ModelClient, agent: AgentSpec) -> ModelLane:
    """Whose quota a call of that agent uses: clients that know their credential have a fingerprint of it."""
    credential_of = getattr(model, "credential_of", None)
    credential = (
        credential_of(agent) if credential_of is not None else getattr(model, "credential", "default")
    )
    return ModelLane(str(credential), agent.model)
