"""The caller's side: submit, look, wait, cancel. Needs the database only; no worker has to live in this process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from toolfleet.adapters.telemetry import ids as trace_ids
from toolfleet.adapters.telemetry.caller import trace_of_caller
from toolfleet.adapters.telemetry.ids import Traceparent
from toolfleet.definitions import unknown_agent
from toolfleet.found import Found, found_in
from toolfleet.quotas import Quotas
from toolfleet.request_checks import (
    acts_for,
    check_context,
    check_deadline,
    check_mapping,
    check_metadata,
    check_name,
    check_size,
    check_text,
)
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.control import INTENT
from toolfleet.schemas.conversation import AssistantItem
from toolfleet.schemas.effects import HOLDING
from toolfleet.schemas.errors import (
    InputError,
    RunNotFinished,
    StoreUnavailable,
    ToolfleetError,
    UnknownRun,
)
from toolfleet.schemas.events import CancelRequested
from toolfleet.schemas.ids import RunId, new_run_id
from toolfleet.schemas.limits import INPUT_BYTES_MAX, Limits
from toolfleet.schemas.outcomes import CallOutcome, Lane, ReasonCode, RunStatus
from toolfleet.schemas.ports import RunStore, Telemetry, Transition
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import NewRun, RunState
from toolfleet.schemas.views import DueRow, RunEvent, RunView
from toolfleet.workers.telemetry import SILENT

T = TypeVar("T")

AWAY_S = 300.0  # how long a database that is away is waited for
POLL_FIRST_S = 0.02
POLL_MAX_S = 0.25
FINISHED_EVENT = "run.finished"
EFFECTS_MAX = 10_000  # more calls than a run can have
_MAY_HAVE_HAPPENED = (CallOutcome.OK, CallOutcome.NEEDS_HUMAN)  # of a call with an effect


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One request to an agent. `context` is for tools (injected, never shown to the model), `metadata` for you
    (`metadata["user"]` is sent to the provider as the end user's id), `trace` is the W3C trace context the run belongs
    to (headers `traceparent`, `tracestate`; without one, a single submit takes that of the caller's current span).
    `principal`: whom the run acts for, `permissions`: what tools find that they may do; a run submitted over HTTP has
    those of its key. Where neither is said, `context["principal"]` and `context["permissions"]` are taken for them. Nothing
    adds to them later."""

    agent: str
    input: str
    previous_run_id: str | None = None
    idempotency_key: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    deadline_s: float | None = None
    lane: Lane | None = None
    tenant: str = "default"
    trace: Mapping[str, str] = field(default_factory=dict)
    principal: str = ""
    permissions: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run that was accepted; `created` False: by an earlier request of the same key."""

    run_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to. `results` are those of all its calls, also of a run that was stopped on the way.

    `output` is the answer's text; of a completed run whose agent has an output schema, the JSON value that fits it
    (`output_text` is its canonical text).
    """

    run_id: str
    agent: str
    status: RunStatus
    reason: str | None
    output: Any
    results: tuple[CallResult, ...]
    turns: int
    model_calls: int
    tool_calls: int
    corrections: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    output_text: str | None = None

    @property
    def ok(self) -> bool:
        return self.status is RunStatus.COMPLETED

    @property
    def limit(self) -> str | None:
        """Which limit ended it (`turns_max`, `deadline`, …); None: none did."""
        return self.reason if self.status is RunStatus.LIMIT_REACHED else None

    @property
    def found(self) -> tuple[Found, ...]:
        """Of a run that a limit ended: what its calls had found until then, at most FOUND_BYTES_MAX of it."""
        return () if self.limit is None else found_in(self.results)


@dataclass(frozen=True, slots=True)
class CancelAck:
    """What a cancel came to: nothing new begins from here on; `running` lists effects that have begun already and
    run to their outcome (call ids)."""

    run_id: str
    status: RunStatus
    running: tuple[str, ...]


class Client:
    """Async operations on runs. `publish` hands fresh rows to a broker in this process; without it the keeper does.

    `reserve_usd` says what the first model call of a run may cost.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        publish: Callable[[Sequence[DueRow]], Any] | None = None,
        reserve_usd: Callable[[AgentSpec, int], float] | None = None,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self.store = store
        self._publish = publish
        self._reserve_usd = reserve_usd
        self._telemetry = telemetry
        self._agents: dict[str, AgentSpec] = {}
        self._finished = _Finished(store)
        self._quotas = Quotas(store)

    def know(self, agents: Sequence[AgentSpec]) -> None:
        """Agents declared in this process: submit needs no reading for them."""
        self._agents.update({agent.name: agent for agent in agents})

    async def agents(self) -> dict[str, AgentSpec]:
        """Agents by name as they are registered last; those declared in this process as they are here."""
        return {agent.name: agent for agent in await self.store.agents()} | self._agents

    async def aclose(self) -> None:
        """End every wait and close the store."""
        await self._finished.aclose()
        await self.store.aclose()

    async def submit(self, requests: Sequence[RunRequest]) -> list[str]:
        """Accept runs, all of them or none; returns their ids in order. Once returned, an id is never lost.

        Raises UnknownAgent, UnknownRun, RunNotFinished, IdempotencyConflict, TooLarge, InputError, QuotaExceeded.
        """
        return [one.run_id for one in await self.accept(requests)]

    async def accept(
        self, requests: Sequence[RunRequest], *, run_ids: Sequence[str] | None = None
    ) -> list[Accepted]:
        """As `submit`, and says which of them are new. `run_ids`: what the new ones are to be called; one that is there
        already is the same run, if it is the same request."""
        if isinstance(requests, (str, bytes)) or not isinstance(requests, Sequence):
            raise InputError(
                f"runs are asked for with a list of RunRequests, not with {type(requests).__name__}",
                hint='submit_many([RunRequest("agent", "input")]).',
            )
        caller = trace_of_caller() if len(requests) == 1 else None  # a batch is not one trace
        new = [await self._new_run(request, caller) for request in requests]
        if run_ids is not None:
            named = zip(new, run_ids, strict=True)
            new = [replace(one, run_id=RunId(id_), correlation_id=id_) for one, id_ in named]
        return await self._accepted(new)

    async def retry(
        self, run_id: str, *, idempotency_key: str | None = None, repeat_effects: bool = False
    ) -> str:
        """Start a run that has ended again, as a new run that names the old one; returns the new id.

        Same agent (as registered last), input, conversation, context, principal, metadata, limits and time allowed, and
        the same scope of effect keys: an effect of the old run that happened or may have happened is shared, not made
        again. `repeat_effects` gives the new run a scope of its own; keys of the business hold all the same. Raises
        UnknownRun, RunNotFinished, and InputError where an effect of the old run could not be shared (its tool is
        repeatable, or is not known any more), unless `repeat_effects`.
        """
        view = await self.get(run_id)
        info, state = view.info, view.state
        if not state.terminal:
            raise RunNotFinished(
                f"run {run_id} is {state.status.value}; only a run that has ended can be started again",
                hint=f"Wait for its end (toolfleet runs show {run_id}) or stop it: toolfleet runs cancel {run_id}",
            )
        done = () if repeat_effects else await self._not_shared(view)
        if done:
            raise InputError(
                f"effects of run {run_id} happened or may have happened, and would be repeated: {', '.join(done)}",
                hint="Look what they did, then submit what is left to do, or say that they may be repeated.",
                effects=done,
            )
        request = RunRequest(
            info.agent,
            info.input,
            previous_run_id=info.previous_run_id,
            idempotency_key=idempotency_key,
            context=info.context,
            metadata=info.metadata,
            limits=state.limits,
            deadline_s=None if state.deadline_at is None else state.deadline_at - info.created_at,
            lane=state.lane,
            tenant=info.tenant,
            principal=info.principal,
            permissions=info.permissions,
        )
        new = replace(
            await self._new_run(request, trace_of_caller()),
            retry_of=info.run_id,
            correlation_id=info.correlation_id,
            effect_scope="" if repeat_effects else info.effect_scope or info.run_id,
        )
        (accepted,) = await self._accepted([new])
        return accepted.run_id

    async def _accepted(self, new: Sequence[NewRun]) -> list[Accepted]:
        new = await self._quotas.admitted(new)
        with self._telemetry.submitting(new) as watch:
            submitted = await self.store.submit(watch.runs)
            watch.ended(submitted)
        if self._publish is not None:
            await self._publish([row for one in submitted for row in one.publish])
        return [Accepted(one.run_id, one.created) for one in submitted]

    async def _not_shared(self, view: RunView) -> tuple[str, ...]:
        """`tool (what is known)` of each effect that happened or may have, and that an equal call would make again."""
        run_id = view.info.run_id
        agent = await self.store.agent(view.info.agent, view.info.agent_version)
        names = {
            call.call_id: call.name
            for stored in await self.store.items(run_id)
            if isinstance(stored.item, AssistantItem)
            for call in stored.item.calls
        }
        held = {
            one.call_id: one.entry.state.value
            for one in await self.store.effects(limit=EFFECTS_MAX, run_id=run_id)
            if one.entry.state in HOLDING
        }
        found = []
        for _, result in await self.store.results(run_id):
            name = names.get(result.call_id, "")
            spec = None if agent is None else agent.tool(name)
            known = held.get(result.call_id)
            if known is not None:
                again = spec is None or spec.repeatable
            else:  # in no ledger, so no key holds it; or the ledger has it under another call
                known = result.outcome.value
                again = result.outcome in _MAY_HAVE_HAPPENED and (spec is None or spec.effect)
                again = again and result.reason != ReasonCode.SHARED_EFFECT
            if again:
                found.append(f"{name} ({known})")
        return tuple(found)

    async def get(self, run_id: str) -> RunView:
        """The run as it is now. Raises UnknownRun."""
        view = await self.store.run(RunId(run_id))
        if view is None:
            raise UnknownRun(
                f"no run is called {run_id!r}", hint="List them with: toolfleet runs ls", run_id=run_id
            )
        return view

    async def result(self, run_id: str) -> RunResult:
        """What the run has come to so far."""
        view = await self.get(run_id)
        results = await self.store.results(RunId(run_id))
        used = view.state.counters
        return RunResult(
            run_id=run_id,
            agent=view.info.agent,
            status=view.state.status,
            reason=view.state.reason,
            output=output_of(view.state),
            output_text=view.state.output,
            results=tuple(result for _, result in results),
            turns=view.state.turn,
            model_calls=used.model_calls,
            tool_calls=used.tool_calls,
            corrections=used.corrections,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cost_usd=used.cost_usd,
        )

    async def wait(self, run_id: str, *, timeout_s: float | None = None) -> RunResult:
        """The result once the run is terminal. Raises TimeoutError after timeout_s; the run goes on.

        A database that is away is waited for, as workers do, for AWAY_S; then StoreUnavailable is raised.
        """
        async with asyncio.timeout(timeout_s):
            await _patiently(lambda: self.get(run_id))
            await self._finished.wait(RunId(run_id))
            return await _patiently(lambda: self.result(run_id))

    async def cancel(self, run_id: str, *, by: str = "") -> CancelAck:
        """Stop the run. After this returns no effect of it begins. Idempotent; raises UnknownRun."""
        await self.get(run_id)
        (applied,) = await self.store.transact([Transition(RunId(run_id), CancelRequested(by))])
        if self._publish is not None:
            await self._publish(applied.publish)
        state = applied.state
        assert state is not None, "the run was read before"
        return CancelAck(run_id, state.status, tuple(c.call_id for c in state.open_calls if c.dispatched))

    async def publish_due(self, rows: Sequence[DueRow]) -> None:
        """Send these rows at once, where this process can; otherwise the keeper of the fleet does."""
        if self._publish is not None:
            await self._publish(rows)

    async def events(self, run_id: str, *, after: int = 0, follow: bool = True) -> AsyncIterator[RunEvent]:
        """The run's events from `after` on, without gaps; with `follow` until the run has finished."""
        await self.get(run_id)
        pause = POLL_FIRST_S
        while True:
            fresh = await self.store.events(RunId(run_id), after=after)
            for event in fresh:
                yield event
                after = event.seq
                if event.type == FINISHED_EVENT:
                    follow = False
            if fresh:
                pause = POLL_FIRST_S
                continue
            if not follow:
                return
            await asyncio.sleep(pause)
            pause = min(POLL_MAX_S, pause * 1.5)

    async def _new_run(self, request: RunRequest, caller: Traceparent | None) -> NewRun:
        _check_types(request)
        return self.new_run(request, await self._agent(request.agent), caller)

    def new_run(self, request: RunRequest, agent: AgentSpec, caller: Traceparent | None = None) -> NewRun:
        """The run this request stands for, under a fresh id; nothing is stored. Raises InputError, TooLarge."""
        _check_types(request)
        _check(request)
        _check_intent(request, agent)
        size = len(request.input.encode())
        limits = agent.limits if request.limits is None else agent.limits.tightened_by(request.limits)
        run_id = new_run_id()
        trace = trace_ids.read(request.trace) or caller
        principal, permissions = acts_for(request.principal, request.permissions, request.context)
        return NewRun(
            run_id=run_id,
            agent=agent.name,
            agent_version=agent.version,
            prompt_version=agent.prompt_version,
            toolset_version=agent.toolset_version,
            input=request.input,
            lane=agent.lane if request.lane is None else Lane(request.lane),
            limits=limits,
            tenant=request.tenant,
            previous_run_id=None if request.previous_run_id is None else RunId(request.previous_run_id),
            idempotency_key=request.idempotency_key,
            request_hash=_request_hash(request),
            correlation_id=run_id,
            context=dict(request.context),
            metadata=dict(request.metadata),
            deadline_s=request.deadline_s,
            reserve_usd=0.0 if self._reserve_usd is None else self._reserve_usd(agent, size),
            trace={} if trace is None else trace.headers(),
            principal=principal,
            permissions=permissions,
        )

    async def _agent(self, name: str) -> AgentSpec:
        known = self._agents.get(name) or await self.store.agent(name)
        if known is None:
            raise unknown_agent(name, [agent.name for agent in await self.store.agents()])
        return known


def output_of(state: RunState) -> Any:
    """The answer of a run: its text, or the value where it was held against an output schema."""
    return json.loads(state.output) if state.structured and state.output is not None else state.output


class _Finished:
    """Everybody who waits for a run, and the one reading that asks for all of them together.

    The database is asked, not this process: the workers may be in another one.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._waiting: dict[RunId, list[asyncio.Future[None]]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def wait(self, run_id: RunId) -> None:
        """Until the run is terminal. Raises what the database raises."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(answer)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            await answer
        finally:
            futures = self._waiting.get(run_id, [])
            if answer in futures:
                futures.remove(answer)
            if not futures:
                self._waiting.pop(run_id, None)

    async def aclose(self) -> None:
        """Ask no more; whoever still waits is told so."""
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        self._answer(
            list(self._waiting), StoreUnavailable("the fleet was stopped while a run was waited for")
        )

    async def _ask(self) -> None:
        pause, away_since = POLL_FIRST_S, None
        while self._waiting:
            try:
                ended = await self._store.finished(list(self._waiting))
                away_since = None
            except StoreUnavailable as exc:
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if now - away_since > AWAY_S:
                    self._answer(list(self._waiting), exc)
                    return
                ended = set()
            except ToolfleetError as exc:
                self._answer(list(self._waiting), exc)
                return
            self._answer(list(ended), None)
            pause = POLL_FIRST_S if ended else min(POLL_MAX_S, pause * 1.2)
            await asyncio.sleep(pause)

    def _answer(self, run_ids: Sequence[RunId], exc: ToolfleetError | None) -> None:
        for run_id in run_ids:
            for future in self._waiting.pop(run_id, []):
                if future.done():
                    continue
                if exc is None:
                    future.set_result(None)
                else:
                    future.set_exception(exc)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` gives, asked again while the database is away."""
    began = time.monotonic()
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            if time.monotonic() - began > AWAY_S:
                raise
        await asyncio.sleep(POLL_MAX_S)


NAME_CHARS_MAX = {"idempotency_key": 256, "tenant": 128, "previous_run_id": 64}


def _check_types(request: object) -> None:
    if not isinstance(request, RunRequest):
        raise InputError(
            f"a run is asked for with a RunRequest, not with {type(request).__name__}",
            hint='submit_many([RunRequest("agent", "input")]), or submit("agent", "input").',
        )
    for name in ("agent", "input"):
        if not isinstance(getattr(request, name), str):
            found = type(getattr(request, name)).__name__
            raise InputError(f"{name!r} of a run has to be text, not {found}", hint="Nothing was submitted.")


def _check(request: RunRequest) -> None:
    """Everything a front door must know before it stores anything. Raises InputError, TooLarge."""
    if not isinstance(request.input, str) or not request.input.strip():
        raise InputError(
            "the input of a run must be a text that is not empty", hint="Pass what the user said."
        )
    check_text("input", request.input)
    check_size("input", request.input.encode(), INPUT_BYTES_MAX)
    for name, most in NAME_CHARS_MAX.items():
        check_name(name, getattr(request, name), most)
    check_metadata(request.metadata)
    check_mapping("trace", request.trace)
    if request.lane is not None and request.lane not in [*Lane]:
        raise InputError(f"no lane is called {request.lane!r}", hint=f"Lanes: {', '.join(Lane)}.")
    if request.limits is not None and not isinstance(request.limits, Limits):
        raise InputError("limits must be a Limits object", hint="Write limits=Limits(turns_max=3).")
    check_deadline(request.deadline_s)
    check_context(request.context)
    acts_for(request.principal, request.permissions, request.context)


def _check_intent(request: RunRequest, agent: AgentSpec) -> None:
    """An intent nobody declared would leave the run without a tool; a wrong name is said at once instead."""
    intent, known = request.metadata.get(INTENT), agent.control.intents
    if intent is not None and known and intent not in known:
        raise InputError(
            f"agent {agent.name!r} knows no intent {intent!r}",
            hint=f"Intents: {', '.join(sorted(known))}. Without one, all its tools may be called.",
        )


def _request_hash(request: RunRequest) -> str:
    """Of what is asked: one idempotency key with two different requests is a conflict."""
    asked: list[Any] = [
        request.agent,
        request.input,
        request.previous_run_id,
        dict(request.context),
        dict(request.metadata),
        None if request.limits is None else request.limits.model_dump(),
        request.deadline_s,
        request.lane,
    ]
    if request.principal or request.permissions:
        asked.append(acts_for(request.principal, request.permissions, request.context))
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()
