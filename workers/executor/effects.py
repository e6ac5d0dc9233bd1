"""One attempt of an effect: claim, first byte in time or not at all, classify, and ask where nobody knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import orjson
import structlog

from toolfleet.schemas.effects import EffectState, effect_key
from toolfleet.schemas.events import (
    CallWoken,
    EffectClaimed,
    EffectEnded,
    Event,
    ReconcileAnswered,
    ReconcileStarted,
)
from toolfleet.schemas.ids import LeaseToken, RunId
from toolfleet.schemas.limits import SEND_BY_S
from toolfleet.schemas.ports import (
    NOT_IN_TIME,
    Applied,
    Clock,
    RunStore,
    Telemetry,
    ToolAnswer,
    ToolFailed,
    ToolPlace,
    ToolReturned,
    Transition,
)
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState
from toolfleet.schemas.tools import ToolContext, ToolSpec
from toolfleet.schemas.views import CallView
from toolfleet.workers.backoff import backoff_s
from toolfleet.workers.executor import time_left
from toolfleet.workers.executor.gate import Asked, sent_hash
from toolfleet.workers.executor.projection import done_unfit, effect_of, not_happened, returned
from toolfleet.workers.leases import Leases
from toolfleet.workers.points import Point
from toolfleet.workers.publisher import Publisher

log = structlog.get_logger("toolfleet.executor.effects")

WAKE_MAX = 200
Apply = Callable[[CallView, Event], Awaitable[Applied]]


@dataclass(frozen=True, slots=True)
class Started:
    """When a claim or a question was begun, by two clocks that a sleep and a jump cannot both fool."""

    boot_s: float
    wall_s: float

    def late(self, clock: Clock) -> bool:
        """The first byte would leave after `send_by`, or nobody can tell."""
        passed = clock.boot_s() - self.boot_s
        return passed > SEND_BY_S or abs((clock.now_s() - self.wall_s) - passed) > SEND_BY_S


@dataclass(frozen=True, slots=True)
class Effects:
    """The part of an executor that deals with effects; the parts it is made of are the executor's."""

    store: RunStore
    publisher: Publisher
    leases: Leases
    clock: Clock
    owner: str
    draw: Callable[[], float]
    token: Callable[[], LeaseToken]
    point: Point
    telemetry: Telemetry
    apply: Apply
    context: Callable[[CallView, CallState, ToolSpec | None], ToolContext]

    async def claim(self, asked: Asked, token: LeaseToken | None) -> bool:
        """T10, and the attempt. False: somebody was faster, or the call may not run."""
        view, call = asked.view, asked.call
        token = token if token is not None else self.token()
        started = Started(self.clock.boot_s(), self.clock.now_s())
        key = effect_key(
            scope=view.effect_scope or view.run_id,
            tenant=view.tenant,
            tool=call.tool,
            arguments=call.arguments,
            business=asked.facts.business_key,
            unique=call.call_id if asked.spec.repeatable else "",
        )
        event = EffectClaimed(view.row.id, token, self.owner, self.leases.lease_s, key, sent_hash(call))
        applied = await self.apply(view, event)
        claimed = self._mine(view, applied, token)
        if claimed is None or not claimed.dispatched:
            await asked.ended(None)
            return applied.missed is None
        await self._guarded(view, claimed, token, self._send(asked, claimed, started))
        return True

    async def ask(self, view: CallView, place: ToolPlace, spec: ToolSpec | None) -> bool:
        """T13: what became of it? A look-up, or the same request under the same key. False: it found no work."""
        token = self.token()
        started = Started(self.clock.boot_s(), self.clock.now_s())
        event = ReconcileStarted(view.row.id, token, self.owner, self.leases.lease_s)
        applied = await self.apply(view, event)
        call = self._mine(view, applied, token)
        if call is None or call.entry is None:
            return applied.missed is None
        if call.entry.state is EffectState.RECONCILING:
            await self._guarded(view, call, token, self._look_up(view, call, token, place, spec))
            return True
        await self._guarded(view, call, token, self._again(view, call, started, place, spec))
        return True

    async def _guarded(
        self, view: CallView, call: CallState, token: LeaseToken, work: Awaitable[None]
    ) -> None:
        await self.leases.guard(
            view.run_id,
            view.row.id,
            token,
            work,  # type: ignore[arg-type]  # a coroutine
            deadline_s=call.timeout_s,
            stop_when_lost=False,
        )

    def _mine(self, view: CallView, applied: Applied, token: LeaseToken) -> CallState | None:
        """The call as it is now, if its lease is this token's."""
        if applied.missed is not None or applied.state is None:
            return None
        row = applied.state.command(view.row.id)
        return applied.state.call(view.call.call_id) if row is not None and row.token == token else None

    async def _send(self, asked: Asked, call: CallState, started: Started) -> None:
        answer = await self._attempt(asked.view, call, asked.spec, asked.place, started)
        await asked.ended(answer)

    async def _again(
        self, view: CallView, call: CallState, started: Started, place: ToolPlace, spec: ToolSpec | None
    ) -> None:
        await self._attempt(view, call, spec, place, started)

    async def _attempt(
        self, view: CallView, call: CallState, spec: ToolSpec | None, place: ToolPlace, started: Started
    ) -> ToolAnswer:
        """T11: one request, and what it came to, whoever holds the lease by then."""
        await self.point("exec.after_lease")
        with self.telemetry.attempt(view, call) as watch:
            arguments = orjson.loads(call.arguments)
            context = self.context(view, call, spec)
            timeout_s = time_left.timeout_s(view, call, self.clock, call.timeout_s)
            answer = await place.run(
                arguments,
                context,
                timeout_s=timeout_s,
                may_begin=lambda: not started.late(self.clock),  # the last thing before the first byte
            )
            if answer is NOT_IN_TIME:
                log.warning("effect_not_sent", run_id=view.run_id, call_id=call.call_id, tool=call.tool)
            event = self._ended(view, call, effect_of(call, spec, answer, timeout_s))
            await self.point("exec.after_tool")
            applied = await self.apply(view, event)
            watch.ended(event, applied)
        await self._wake(view, applied)
        await self.point("exec.after_publish")
        return answer

    def _ended(self, view: CallView, call: CallState, ended: EffectEnded) -> EffectEnded:
        floor = ended.delay_s if ended.delay_s > 0 else None
        delay_s = backoff_s(call.attempt, self.draw(), retry_after_s=floor) if ended.again else 0.0
        queue_s = max(0.0, view.now_s - view.row.due_at)
        return replace(ended, delay_s=delay_s, result=replace(ended.result, queue_s=queue_s))

    async def _look_up(
        self,
        view: CallView,
        call: CallState,
        token: LeaseToken,
        place: ToolPlace,
        spec: ToolSpec | None,
    ) -> None:
        """T14: the answer of the tool's own `reconcile`; whatever is no clear answer is none."""
        assert call.entry is not None
        context = self.context(view, call, spec)
        arguments = orjson.loads(call.arguments)
        answer = await place.run(arguments, context, timeout_s=call.timeout_s, part="reconcile")
        said = _said(answer)
        result = not_happened(call)
        came = EffectState.RECONCILING
        match said.get("answer"):
            case "happened" if spec is not None:
                came = EffectState.HAPPENED
                result = _told(call, spec, said, answer.seconds)
            case "did_not_happen":
                came = EffectState.DID_NOT_HAPPEN
        if came is EffectState.RECONCILING:
            log.warning("no_answer", run_id=view.run_id, call_id=call.call_id, tool=call.tool)
        event = ReconcileAnswered(view.row.id, token, call.entry.attempt, came, result)
        await self._wake(view, await self.apply(view, event))

    async def _wake(self, view: CallView, applied: Applied) -> None:
        """Calls of other runs that wait for this key; should this be lost, they look again by themselves."""
        call = None if applied.before is None else applied.before.call(view.call.call_id)
        if applied.missed is not None or call is None or call.entry is None:
            return
        key = call.entry.key
        own = effect_key(
            scope=view.run_id, tenant=view.tenant, tool=call.tool, arguments=call.arguments,
            business=None, unique="",
        )  # fmt: skip
        after = applied.state.call(view.call.call_id) if applied.state is not None else None
        if key == own or (after is not None and after.dispatched):
            return
        waiting = await self.store.key_waiters(key, limit=WAKE_MAX)
        if waiting:
            woken = [Transition(RunId(run_id), CallWoken(row_id, key)) for run_id, row_id in waiting]
            done = await self.store.transact(woken)
            await self.publisher.rows([row for one in done for row in one.publish])


def _said(answer: ToolAnswer) -> dict[str, object]:
    if isinstance(answer, ToolFailed):
        return {}
    said = orjson.loads(answer.value_json)
    return said if isinstance(said, dict) else {}


def _told(call: CallState, spec: ToolSpec, said: Mapping[str, object], seconds: float) -> CallResult:
    """The outcome of an effect that happened, with what `reconcile` says the tool would have returned."""
    if "wrong" in said:
        return done_unfit(call, ToolFailed("result_invalid", str(said["wrong"]), seconds))
    return returned(call, spec, ToolReturned(orjson.dumps(said.get("result")), seconds)).result
