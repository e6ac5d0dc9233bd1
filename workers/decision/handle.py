"""One model turn: take the lease, build the request, ask the model, reduce, store, publish."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.events import (
    DecisionDeferred,
    DecisionLeased,
    ModelFailed,
    ModelReplied,
    ProposedCall,
    RunUnworkable,
    StepFacts,
)
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId
from toolfleet.schemas.messages import DecideMessage
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage
from toolfleet.schemas.outcomes import Lane, ReasonCode
from toolfleet.schemas.ports import (
    Applied,
    Clock,
    DecisionWatch,
    ModelClient,
    RunStore,
    Telemetry,
    Transition,
)
from toolfleet.schemas.run import RunState
from toolfleet.schemas.views import Conversation
from toolfleet.workers.backoff import backoff_s
from toolfleet.workers.consumer import Done, Received, each
from toolfleet.workers.decision.fallback import WAIT_FOR_IT_MAX_S, models_left, on_model, what_follows
from toolfleet.workers.decision.output import read_output
from toolfleet.workers.decision.pace import ModelPace, NotNow, lane_of
from toolfleet.workers.decision.prepare import Prepared, Preparer, Refused
from toolfleet.workers.decision.reply import propose
from toolfleet.workers.decision.tokens import estimated_tokens
from toolfleet.workers.leases import Leases, commit
from toolfleet.workers.points import Point
from toolfleet.workers.publisher import Publisher
from toolfleet.workers.telemetry import SILENT

log = structlog.get_logger("toolfleet.decision")

Decided = ModelReplied | ModelFailed | RunUnworkable | DecisionDeferred  # each ends the lease


class Decider:
    """The decision worker. Owns nothing: killed anywhere, its lease expires and another one asks again.

    `approvals` False: this fleet asks nobody before a call of tier high or irreversible.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        model: ModelClient,
        publisher: Publisher,
        leases: Leases,
        clock: Clock,
        owner: str,
        draw: Callable[[], float],
        token: Callable[[], LeaseToken],
        point: Point,
        telemetry: Telemetry = SILENT,
        pace: ModelPace | None = None,
        preparer: Preparer | None = None,
        approvals: bool = True,
    ) -> None:
        self._store = store
        self._model = model
        self._publisher = publisher
        self._leases = leases
        self._clock = clock
        self._owner = owner
        self._draw = draw
        self._token = token
        self._point = point
        self._telemetry = telemetry
        self._pace = pace
        self._preparer = preparer or Preparer()
        self._approvals = approvals
        self.dropped = 0  # messages that found no work
        self._agents: dict[tuple[str, str], AgentSpec] = {}

    async def accept(self, received: Sequence[Received], done: Done) -> None:
        await each(received, self._one, done)

    async def _one(self, received: Received) -> None:
        message = received.message
        if not isinstance(message, DecideMessage):
            return
        run_id, command_id, token = RunId(message.run_id), CommandId(message.command_id), self._token()
        lease = DecisionLeased(command_id, token, self._owner, self._leases.lease_s)
        applied = await self._apply(run_id, lease)
        state = applied.state
        if applied.missed is not None or state is None or state.terminal:
            self.dropped += applied.missed is not None
            if applied.missed is None and state is not None:  # a limit ended the run instead of a model call
                with self._telemetry.decision(state, message.trace) as watch:
                    watch.ended(lease, applied)
            return
        await self._leases.guard(
            run_id,
            command_id,
            token,
            self._work(state, command_id, token, applied, message.trace),
            deadline_s=state.limits.model_timeout_s,
        )

    async def _work(
        self,
        state: RunState,
        command_id: CommandId,
        token: LeaseToken,
        leased: Applied,
        trace: Mapping[str, str],
    ) -> None:
        await self._point("decide.after_lease")
        with self._telemetry.decision(state, trace) as watch:
            event = await self._decide(state, command_id, token, leased, watch)
            watch.ended(event, await self._apply(state.run_id, event))
        await self._point("decide.after_publish")

    async def _apply(self, run_id: RunId, event: DecisionLeased | Decided) -> Applied:
        (applied,) = await commit(self._store, self._clock, [Transition(run_id, event)])
        if not isinstance(event, DecisionLeased):
            self._leases.drop(
                event.command_id
            )  # at once: a renewal that misses it must not stop the publishing
        if isinstance(event, ModelReplied):
            await self._point("decide.after_commit")
        await self._publisher.rows(applied.publish)
        return applied

    async def _decide(
        self,
        state: RunState,
        command_id: CommandId,
        token: LeaseToken,
        leased: Applied,
        watch: DecisionWatch,
    ) -> Decided:
        conversation = await self._store.conversation(state.run_id)
        assert conversation is not None, "a leased run has a conversation"
        info = conversation.info
        agent = await self._agent(info.agent, info.agent_version)
        if agent is None:
            message = f"agent {info.agent!r} of version {info.agent_version} is not known to this database"
            return RunUnworkable(command_id, token, ReasonCode.AGENT_NOT_LOADED, message)
        prepared = await self._preparer.prepare(
            on_model(agent, state.model_index), state, conversation, grants=self._approvals
        )
        if isinstance(prepared, Refused):
            return RunUnworkable(command_id, token, prepared.reason, prepared.message)
        request = prepared.request
        queue_s = _waited(state, command_id, leased)
        await self._point("decide.before_model")
        started = self._clock.monotonic_s()
        try:
            with watch.asking(info, request):
                reply = await self._ask_in_turn(request, state.lane)
        except NotNow as exc:
            elsewhere = exc.delay_s > WAIT_FOR_IT_MAX_S and models_left(agent, state.model_index) > 0
            return DecisionDeferred(
                command_id, token, 0.0 if elsewhere else exc.delay_s, exc.reason, elsewhere
            )
        except ModelError as exc:
            facts = self._facts(prepared, queue_s, started)
            left = models_left(agent, state.model_index)
            follows = what_follows(exc.fault, failures=state.model_failures + 1, left=left)
            if exc.fault.kind == "context_length":
                facts = replace(facts, tighter_tokens=await prepared.tighter())
            delay = backoff_s(state.model_failures + 1, self._draw(), retry_after_s=exc.fault.retry_after_s)
            log.warning("model_failed", run_id=state.run_id, kind=exc.fault.kind, error=exc.fault.message)
            return ModelFailed(command_id, token, exc.fault, delay, facts, next_model=follows == "next")
        await self._point("decide.after_model")
        control, calls = prepared.control, self._proposed(reply, agent, state, conversation, prepared)
        facts = self._facts(prepared, queue_s, started, reply)
        output = None
        if agent.output is not None and reply.text and not calls:
            output = read_output(reply.text, agent.output)
        return ModelReplied(
            command_id, token, reply, calls, control.parallel, facts, control=control, output=output
        )

    def _proposed(
        self,
        reply: ModelReply,
        agent: AgentSpec,
        state: RunState,
        conversation: Conversation,
        prepared: Prepared,
    ) -> tuple[ProposedCall, ...]:
        calls = propose(
            reply,
            agent,
            run_id=state.run_id,
            turn=state.turn,
            allowed=prepared.control.callable,
            items=conversation.items,
            excluded=dict(prepared.control.excluded),
            permissions=conversation.info.permissions,
        )
        if self._approvals:
            return calls
        return tuple(replace(one, terms=one.terms.unasked()) for one in calls)

    async def _ask_in_turn(self, request: ModelRequest, lane: Lane) -> ModelReply:
        """Raises NotNow where the call was not made, ModelError where it failed."""
        if self._pace is None:
            return await self._ask(request)
        return await self._pace.call(
            lane_of(self._model, request.agent),
            lambda: estimated_tokens(len(self._model.render(request))) + request.output_tokens_max,
            lambda: self._ask(request),
            batch=lane is Lane.BATCH,
        )

    async def _ask(self, request: ModelRequest) -> ModelReply:
        try:
            async with asyncio.timeout(request.timeout_s):
                return await self._model.complete(request)
        except TimeoutError:
            message = f"the model did not answer within {request.timeout_s:g} s"
            raise ModelError(ModelFault("timeout", message, retryable=True)) from None
        except ModelError:
            raise
        except Exception as exc:
            message = f"the model client raised {type(exc).__name__} at {_place_of(exc)}"
            raise ModelError(ModelFault("bad_reply", message, retryable=True)) from exc

    async def _agent(self, name: str, version: str) -> AgentSpec | None:
        known = self._agents.get((name, version))
        if known is None:
            known = await self._store.agent(name, version)
            if known is not None:
                self._agents[name, version] = (
                    known  # immutable under its version; bounded by what is deployed
                )
        return known

    def _facts(
        self, prepared: Prepared, queue_s: float, started: float, reply: ModelReply | None = None
    ) -> StepFacts:
        request = prepared.request
        agent = request.agent
        used = reply.usage if reply is not None else Usage(known=False)
        expected = Usage(
            input_tokens=used.input_tokens
            + used.output_tokens
            + estimated_tokens(request.agent.limits.calls_max * 64),
            output_tokens=request.output_tokens_max,
        )
        return StepFacts(
            owner=self._owner,
            model=agent.model,
            model_version=reply.model if reply is not None else "",
            tool_choice=request.tool_choice,
            parallel=request.parallel,
            allowed=request.allowed,
            model_s=max(0.0, self._clock.monotonic_s() - started),
            queue_s=queue_s,
            cost_usd=self._model.cost_usd(agent, used) if reply is not None else 0.0,
            next_reserve_usd=self._model.cost_usd(agent, expected),
            request_id=reply.request_id if reply is not None else None,
            control=prepared.control,
            context=prepared.fitted.facts,
        )


def _waited(state: RunState, command_id: CommandId, leased: Applied) -> float:
    """Seconds between the step's due time and its lease, by the database's clock."""
    before = leased.before.command(command_id) if leased.before is not None else None
    return 0.0 if before is None else max(0.0, leased.now_s - before.due_at)


def _place_of(exc: Exception) -> str:
    """File and line where it was raised, without the values there."""
    frames = traceback.extract_tb(exc.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"
