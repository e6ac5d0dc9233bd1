"""One tool call: read its row, lease where needed, one attempt, classify, store or send on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Final

import orjson
import structlog

from toolfleet.schemas.commands import RESULTS_QUEUE
from toolfleet.schemas.events import (
    ApprovalRequested,
    CallDeferred,
    CallFinished,
    CallLeased,
    CallRefused,
    CallRetry,
    Event,
    HandedBack,
    TierRaised,
)
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId, idempotency_key_of
from toolfleet.schemas.limits import DEATHS_MAX, RESULT_BYTES_INLINE
from toolfleet.schemas.messages import ExecMessage, InlineResult, ResultMessage
from toolfleet.schemas.outcomes import ASKED_TIERS, RunStatus
from toolfleet.schemas.ports import (
    Applied,
    AttemptWatch,
    Clock,
    RunStore,
    Telemetry,
    ToolBackend,
    ToolFailed,
    ToolPace,
    ToolPlace,
    Transition,
)
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import ToolContext, ToolSpec
from toolfleet.schemas.views import CallView
from toolfleet.workers.backoff import backoff_s
from toolfleet.workers.consumer import Done, Received, each
from toolfleet.workers.executor import time_left
from toolfleet.workers.executor.effects import Effects
from toolfleet.workers.executor.gate import (
    PRESENT_GATES,
    Ask,
    Asked,
    Gate,
    Later,
    Outcome,
    Raised,
    Stopped,
    Waiting,
    pass_gates,
    sent_hash,
)
from toolfleet.workers.executor.pace import gate as paced
from toolfleet.workers.executor.pinned import Pinned
from toolfleet.workers.executor.projection import Verdict, failed, returned
from toolfleet.workers.leases import Leases, commit
from toolfleet.workers.pace import UNPACED
from toolfleet.workers.points import Point
from toolfleet.workers.publisher import Publisher
from toolfleet.workers.telemetry import SILENT

log = structlog.get_logger("toolfleet.executor")

READ_AGAIN_S: Final = 1.0  # what was read longer ago, before a place was free, may be over


class Executor:
    """The tool executor of some tiers. A first try of a read-only call writes nothing; its result rides along.

    `approvals` False: this fleet asks nobody. `gates`: what is looked at before a call runs, in this order.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        tools: ToolBackend,
        publisher: Publisher,
        leases: Leases,
        clock: Clock,
        owner: str,
        draw: Callable[[], float],
        token: Callable[[], LeaseToken],
        point: Point,
        telemetry: Telemetry = SILENT,
        pace: ToolPace = UNPACED,
        approvals: bool = True,
        gates: Sequence[Gate] = PRESENT_GATES,
    ) -> None:
        self._store = store
        self._tools = tools
        self._pinned = Pinned(store)
        self._publisher = publisher
        self._leases = leases
        self._clock = clock
        self._owner = owner
        self._draw = draw
        self._token = token
        self._point = point
        self._telemetry = telemetry
        self._approvals = approvals
        self._gates = (*gates, paced(pace, draw))
        self._effects = Effects(
            store=store,
            publisher=publisher,
            leases=leases,
            clock=clock,
            owner=owner,
            draw=draw,
            token=token,
            point=point,
            telemetry=telemetry,
            apply=self._apply,
            context=self._context,
        )
        self._last_chance = asyncio.Lock()
        self.dropped = 0  # messages that found no work

    async def accept(self, received: Sequence[Received], done: Done) -> None:
        """T6 for the whole batch in one reading, then each call by itself."""
        messages = [one for one in received if isinstance(one.message, ExecMessage)]
        ids = [CommandId(one.message.command_id) for one in messages if isinstance(one.message, ExecMessage)]
        read_at = self._clock.monotonic_s()
        views = await self._store.peek_calls(ids)
        await self._point("exec.after_read")
        todo = {
            id(one): view
            for one, view in zip(messages, views, strict=True)
            if view is not None and _workable(view)
        }
        ready = [one for one in messages if id(one) in todo]
        self.dropped += len(messages) - len(ready)
        if ready:
            await each(ready, lambda one: self._one(one, replace(todo[id(one)], read_at=read_at)), done)

    async def _one(self, received: Received, view: CallView) -> None:
        """A step whose next death would be its last runs beside no other such: what kills workers dies alone."""
        last = self._last_chance if view.row.deaths >= DEATHS_MAX - 1 else nullcontext()
        async with last, self._tools.place(view.call.tool, view.call.tier) as place:
            if self._clock.monotonic_s() - view.read_at > READ_AGAIN_S:
                read_at = self._clock.monotonic_s()
                (again,) = await self._store.peek_calls([view.row.id])
                if again is None or not _workable(again):  # its run was stopped, or somebody else was faster
                    self.dropped += 1
                    return
                view = replace(again, read_at=read_at)
            await self._placed(received, view, place)

    async def _placed(self, received: Received, view: CallView, place: ToolPlace) -> None:
        message, call = received.message, view.call
        assert isinstance(message, ExecMessage)
        if call.dispatched:
            found = await self._effects.ask(view, place, self._tools.spec(call.tool))
            self.dropped += not found
            return
        poisonable = message.sends >= 1 or view.row.deaths > 0 or received.delivery.redelivered
        if not poisonable:
            await self._gated(view, call, None, place)
            return
        token = self._token()
        applied = await self._apply(view, CallLeased(view.row.id, token, self._owner, self._leases.lease_s))
        row = applied.state.command(view.row.id) if applied.state is not None else None
        leased = applied.state.call(call.call_id) if applied.state is not None else None
        if applied.missed is not None or row is None or row.token != token or leased is None:
            self.dropped += applied.missed is not None
            return
        await self._leases.guard(
            view.run_id,
            view.row.id,
            token,
            self._gated(view, leased, token, place),
            deadline_s=call.timeout_s,
        )

    async def _gated(
        self, view: CallView, call: CallState, token: LeaseToken | None, place: ToolPlace
    ) -> None:
        """The gates of the present, then the attempt."""
        spec = self._tools.spec(call.tool)
        if spec is None:
            missing = ToolFailed("not_loaded", f"{call.tool} is not loaded", 0.0, began=False)
            result = failed(call, _unloaded(call), missing).result
            await self._stopped(view, call, token, Outcome(result))
            return
        if (changed := await self._pinned.changed(view, spec)) is not None:
            await self._stopped(view, call, token, Outcome(failed(call, spec, changed).result))
            return
        context = self._context(view, call, spec)
        arguments = orjson.loads(call.arguments)
        facts = self._tools.facts(call.tool, arguments, context)
        if isinstance(facts, ToolFailed):
            log.warning("facts_failed", run_id=view.run_id, tool=call.tool, error=facts.error_type)
            await self._stopped(view, call, token, Outcome(failed(call, spec, facts).result))
            return
        timeout_s = partial(self._timeout_s, view, call)
        asked = Asked(
            view, call, spec, arguments, context, place, self._store, self._approvals, facts, timeout_s
        )
        stopped = await pass_gates(asked, self._gates)
        if stopped is not None:
            await self._stopped(view, call, token, stopped)
            return
        try:
            if call.effect:
                self.dropped += not await self._effects.claim(asked, token)
            else:
                await self._attempt(asked, token)
        finally:
            await asked.ended(None)  # what was not given back yet: the attempt was stopped

    async def _stopped(
        self, view: CallView, call: CallState, token: LeaseToken | None, stopped: Stopped
    ) -> None:
        """T9: what a gate said is written down, under the lease that was taken for it, if one was."""
        row_id, attempt = view.row.id, call.attempt
        event: Event
        match stopped:
            case Outcome(result):
                event = CallRefused(row_id, token, attempt, result)
            case Later(delay_s, reason):
                event = CallDeferred(row_id, token, attempt, delay_s, reason)
            case Raised(tier):
                event = TierRaised(row_id, token, tier, asks=self._approvals and tier in ASKED_TIERS)
            case Ask(summary, expires_s, standing, missing):
                event = ApprovalRequested(
                    row_id, token, sent_hash(call), expires_s, view.principal, summary, standing, missing
                )
            case Waiting():
                if token is not None:
                    await self._apply(view, HandedBack(row_id, token))
                return
        applied = await self._apply(view, event)
        self.dropped += applied.missed is not None

    async def _attempt(self, asked: Asked, token: LeaseToken | None) -> None:
        if token is not None:
            await self._point("exec.after_lease")
        with self._telemetry.attempt(asked.view, asked.call) as watch:
            await self._watched(asked, token, watch)
        await self._point("exec.after_publish")

    async def _watched(self, asked: Asked, token: LeaseToken | None, watch: AttemptWatch) -> None:
        view, call = asked.view, asked.call
        queue_s = max(0.0, view.now_s - view.row.due_at)
        verdict = await self._try(asked)
        await self._point("exec.after_tool")
        result = replace(verdict.result, queue_s=queue_s)
        if verdict.passing:
            delay = backoff_s(call.attempt, self._draw(), retry_after_s=verdict.retry_after_s)
            row_id, taken_at = view.row.id, None if token is not None else view.now_s
            event: Event = CallRetry(row_id, token, call.attempt, delay, verdict.died, result, taken_at)
        elif token is None and len(result.content) + len(result.full or "") <= RESULT_BYTES_INLINE:
            event = CallFinished(view.row.id, token, call.attempt, result)
            if await self._send_inline(view, result):
                watch.ended(event, None)
                return
        else:
            event = CallFinished(view.row.id, token, call.attempt, result)
        watch.ended(event, await self._apply(view, event))

    async def _try(self, asked: Asked) -> Verdict:
        view, call, spec = asked.view, asked.call, asked.spec
        timeout_s = asked.timeout_s(spec.timeout_s)
        context = replace(asked.context, deadline_at=self._clock.now_s() + timeout_s)
        answer = await asked.place.run(asked.arguments, context, timeout_s=timeout_s)
        await asked.ended(answer)
        if isinstance(answer, ToolFailed):
            log.info(
                "tool_failed", run_id=view.run_id, call_id=call.call_id, tool=call.tool, kind=answer.kind
            )
            return failed(call, spec, answer, timeout_s)
        return returned(call, spec, answer)

    def _timeout_s(self, view: CallView, call: CallState, declared_s: float) -> float:
        return time_left.timeout_s(view, call, self._clock, declared_s)

    def _context(self, view: CallView, call: CallState, spec: ToolSpec | None) -> ToolContext:
        declared_s = call.timeout_s if spec is None else spec.timeout_s
        return ToolContext(
            run_id=view.run_id,
            turn=view.turn,
            call_id=call.call_id,
            attempt=call.attempt,
            idempotency_key=idempotency_key_of(call.call_id),
            tenant=view.tenant,
            agent=view.agent,
            correlation_id=view.correlation_id,
            deadline_at=self._clock.now_s() + self._timeout_s(view, call, declared_s),
            principal=view.principal,
            context=view.context,
        )

    async def _send_inline(self, view: CallView, result: CallResult) -> bool:
        message = ResultMessage(
            run_id=view.run_id,
            turn=view.turn,
            command_id=view.row.id,
            call_id=result.call_id,
            trace=view.trace,
            published_at=self._clock.now_s(),
            result=InlineResult(
                index=result.index,
                outcome=result.outcome,
                content=result.content,
                reason=result.reason,
                attempt=result.attempt,
                full=result.full,
                tool_s=result.tool_s,
                queue_s=result.queue_s,
            ),
        )
        return await self._publisher.message(RESULTS_QUEUE, message)

    async def _apply(self, view: CallView, event: Event) -> Applied:
        (applied,) = await commit(self._store, self._clock, [Transition(RunId(view.run_id), event)])
        self._leases.drop(view.row.id)  # at once: a renewal that misses it must not stop the publishing
        await self._point("exec.after_store")
        await self._publisher.rows(applied.publish)
        return applied


def _workable(view: CallView) -> bool:
    """R8, no row, no work; and nothing new is begun for a run that stops."""
    if not view.call.open or view.row.token is not None or view.row.due_at > view.now_s:
        return False
    return view.run_status == RunStatus.WAITING or view.call.dispatched


def _unloaded(call: CallState) -> ToolSpec:
    return ToolSpec(
        name=call.tool,
        description="",
        parameters={"type": "object"},
        tier=call.tier,
        timeout_s=call.timeout_s,
    )
