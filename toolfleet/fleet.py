"""The Python face: declare tools and agents, run the embedded fleet, submit, wait, cancel, watch.

With a broker that processes share (redis://, amqp://) the workers usually are other processes (`toolfleet up --broker`,
`toolfleet worker`); this object submits to them, and `with fleet:` runs all roles here as well.

Blocking methods may be called from any thread; each has an `_async` twin for use inside an event loop. Heavy modules
are imported when a fleet is opened, so that a child process that only needs the tools stays small.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from pydantic import BaseModel

from toolfleet.contracts import ContractOptions
from toolfleet.definitions import P, R, Registry, Tool, tool
from toolfleet.outputs import output_spec
from toolfleet.schemas.agents import AgentSpec, ExampleTurn, Price
from toolfleet.schemas.context import ContextPolicy
from toolfleet.schemas.control import ControlPolicy
from toolfleet.schemas.errors import InvalidDefinition
from toolfleet.schemas.limits import DEFAULT_LIMITS, Limits
from toolfleet.schemas.outcomes import Lane, Tier
from toolfleet.schemas.output import OutputSpec
from toolfleet.schemas.ports import Credentials, MessageLayer, ModelClient, RunStore
from toolfleet.schemas.tools import Runner, Strict

if TYPE_CHECKING:
    from celery import Celery

    from toolfleet.access import Access
    from toolfleet.app import EmbeddedFleet
    from toolfleet.approving import Approving, Looked
    from toolfleet.batching.face import FleetBatches
    from toolfleet.batching.front import Batches
    from toolfleet.cache import Cache
    from toolfleet.client import CancelAck, Client, RunResult
    from toolfleet.schemas.effects import StandingApproval
    from toolfleet.schemas.views import ApprovalView, EffectView, RunEvent
    from toolfleet.settings import Settings
    from toolfleet.standing import Standing
    from toolfleet.telemetry import Instruments
    from toolfleet.worker import Worker
    from toolfleet.workers.publisher import Publisher

T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was accepted: its id, and what one does with it."""

    id: str
    fleet: Fleet

    def wait(self, *, timeout_s: float | None = None) -> RunResult:
        """Block until the run is terminal. Raises TimeoutError; the run goes on."""
        return self.fleet.wait(self, timeout_s=timeout_s)

    def result(self) -> RunResult:
        """What the run has come to so far; does not wait."""
        return self.fleet.result(self)

    def cancel(self, *, by: str = "") -> CancelAck:
        return self.fleet.cancel(self, by=by)

    def events(self, *, after: int = 0, follow: bool = True) -> Iterator[RunEvent]:
        return self.fleet.events(self, after=after, follow=follow)


class Fleet:
    """Tools, agents and the way to run them. `with fleet:` runs the embedded workers inside this process.

    database: SQLAlchemy URL (default: TOOLFLEET_DATABASE, else sqlite:///toolfleet.db). model: a ModelClient; default
    is the official OpenAI client with OPENAI_BASE_URL and OPENAI_API_KEY. approvals="off" lets tools above medium run
    without asking anybody. credentials: asked for what tools declare as Injected("credential:NAME"). All other settings come from `settings` or the environment.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        broker: str | None = None,
        cache: str | None = None,
        model: ModelClient | None = None,
        approvals: Literal["required", "off"] | None = None,
        credentials: Credentials | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.registry = Registry()
        self.registry.credentials = credentials
        self._overrides: dict[str, Any] = {
            "database": database,
            "broker": broker,
            "cache": cache,
            "approvals": approvals,
        }
        self._given_settings = settings
        self._model = model
        self._workers: EmbeddedFleet | Worker | None = None
        self._layer: MessageLayer | None = None
        self._celery: Celery | None = None
        self._client: Client | None = None
        self._instruments: Instruments | None = None  # of a process that only submits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # -- declare ---------------------------------------------------------------------------------------------------

    @overload
    def tool(self, function: Callable[P, R], /) -> Tool[P, R]: ...

    @overload
    def tool(
        self,
        /,
        *,
        tier: Tier | str = ...,
        effect: bool = ...,
        idempotent: bool = ...,
        repeatable: bool = ...,
        timeout_s: float = ...,
        call_timeout_s: float | None = ...,
        attempts_max: int = ...,
        name: str | None = ...,
        description: str | None = ...,
        parameters: dict[str, Any] | None = ...,
        runner: Runner | None = ...,
        result_bytes_to_model: int = ...,
        result_bytes_stored: int = ...,
        on_denied: Literal["end_run", "tell_model"] = ...,
        strict: Strict = ...,
        **contract: Unpack[ContractOptions],
    ) -> Callable[[Callable[P, R]], Tool[P, R]]: ...

    def tool(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a tool of this fleet; the options are those of `toolfleet.tool`."""
        if function is not None:
            declared = tool(function)
            self.registry.add_tool(declared)
            return declared

        def decorate(wrapped: Any) -> Any:
            declared = tool(**options)(wrapped)
            self.registry.add_tool(declared)
            return declared

        return decorate

    def hook(self, function: H) -> H:
        """Declare a function that agents name in `control=ControlPolicy(hook=...)` or `ContextPolicy(summariser=...)`.

        A policy hook is given a PolicyStep and returns Narrowing or None; a summariser is given the items that are left
        out and returns a text. Plain or async; they have to answer the same to the same step.
        """
        self.registry.add_hook(function)
        return function

    def agent(
        self,
        name: str,
        *,
        model: str,
        instructions: str = "",
        tools: Iterable[Tool[..., Any] | str] = (),
        examples: Sequence[ExampleTurn] = (),
        limits: Limits = DEFAULT_LIMITS,
        lane: Lane | str = Lane.INTERACTIVE,
        temperature: float | None = None,
        tool_choice: str = "auto",
        parallel_tool_calls: Literal["auto", "on", "off"] = "auto",
        selection_rules: str = "",
        top_p: float | None = None,
        control: ControlPolicy | None = None,
        context: ContextPolicy | None = None,
        output: type[BaseModel] | OutputSpec | Mapping[str, Any] | None = None,
        price: Price | None = None,
        fallback_models: Sequence[str] = (),
        provider_options: Mapping[str, Any] | None = None,
    ) -> AgentSpec:
        """Declare an agent of this fleet. Raises InvalidDefinition naming what is wrong.

        tool_choice: auto | required | none | a tool's name; required and a name hold until a call is made. control: the
        rules of which tool may be called when (docs/control.md). context: how much of a conversation is sent. output:
        the shape of the final answer, a pydantic model or a JSON Schema (docs/agents.md). provider_options: more of every
        request, as the provider names it: {"reasoning": {"effort": "low"}} (docs/providers.md).
        """
        return self.registry.add_agent(
            name,
            tools=tools,
            model=model,
            instructions=instructions,
            examples=tuple(examples),
            limits=limits,
            lane=lane,
            temperature=temperature,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            selection_rules=selection_rules,
            top_p=top_p,
            control=control or ControlPolicy(),
            context=context or ContextPolicy(),
            output=None if output is None else output_spec(output),
            price=price,
            fallback_models=tuple(fallback_models),
            provider_options=dict(provider_options or {}),
        )

    # -- run the embedded workers ----------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings in force; read once."""
        if self._given_settings is None:
            from toolfleet.settings import load_settings

            self._given_settings = load_settings(**self._overrides)
        elif any(value is not None for value in self._overrides.values()):
            from toolfleet.settings import load_settings

            given = {name: value for name, value in self._overrides.items() if value is not None}
            self._given_settings = load_settings(**{**dict(self._given_settings), **given})
            self._overrides = {}
        return self._given_settings

    @property
    def duplicates_dropped(self) -> int:
        """Messages that found no work since the start: repeated, late, or overtaken ones."""
        return 0 if self._workers is None else self._workers.dropped

    @property
    def brings_model(self) -> bool:
        """Whether a model client was given, so that OPENAI_BASE_URL and OPENAI_API_KEY are not asked."""
        return self._model is not None

    def configure(self, **overrides: Any) -> None:
        """Override settings before the fleet is opened (the command line does); None leaves a setting alone."""
        if self._client is not None:
            raise InvalidDefinition("the fleet is open already", hint="Configure it before start or submit.")
        self._overrides.update({name: value for name, value in overrides.items() if value is not None})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all roles in a background thread of this process. Raises FleetBusy, UnsafeSettings, NewerSchema."""
        self._run(self.start_async())

    def stop(self, *, drain_s: float | None = None) -> None:
        """Drain, stop, close. Outstanding runs go on at the next start."""
        if self._loop is None:
            return
        self._run(self.stop_async(drain_s=drain_s))
        self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join()
        self._loop.close()
        self._loop, self._thread = None, None

    async def start_async(self) -> None:
        """As `start`, inside the running loop, which then carries the workers."""
        from toolfleet.brokers import is_embedded

        _quiet_logs()
        workers = await self._embedded_workers() if is_embedded(self.settings) else self._shared_workers()
        await workers.start()
        self._workers = workers
        self._client = self._new_client(workers)

    async def _embedded_workers(self) -> EmbeddedFleet:
        from toolfleet.adapters.store.migrate import upgrade
        from toolfleet.app import EmbeddedFleet, lock_path

        lock_path(self.settings.database)
        await asyncio.to_thread(upgrade, self.settings.database)
        return EmbeddedFleet(self.registry, self.settings, self.new_model())

    def _shared_workers(self) -> Worker:
        from toolfleet.worker import Worker

        return Worker(self.registry, self.settings, self.new_model)

    async def stop_async(self, *, drain_s: float | None = None) -> None:
        """As `stop`, inside the loop it was started in."""
        client, workers, layer = self._client, self._workers, self._layer
        instruments = self._instruments
        self._client, self._workers, self._layer, self._instruments = None, None, None, None
        if workers is not None:
            await workers.stop(drain_s=drain_s)
        if layer is not None:
            await layer.aclose()
        if client is not None:
            await client.aclose()
        if instruments is not None:
            await instruments.stop()

    # -- use it ----------------------------------------------------------------------------------------------------

    def submit(self, agent: str, input: str, **options: Any) -> Run:
        """Accept one run; once this returns, it is never lost. Options: those of `RunRequest`."""
        return Run(self._run(self.submit_async(agent, input, **options)), self)

    def submit_many(self, requests: Sequence[Any]) -> list[Run]:
        """Accept many `RunRequest`s in one transaction, all or none."""
        return [Run(run_id, self) for run_id in self._run(self._submit_many(requests))]

    def result(self, run: Run | str) -> RunResult:
        """What the run has come to so far; does not wait. Raises UnknownRun."""
        return self._run(self.result_async(run))

    def wait(self, run: Run | str, *, timeout_s: float | None = None) -> RunResult:
        """The result once the run is terminal. Raises TimeoutError, UnknownRun."""
        return self._run(self.wait_async(run, timeout_s=timeout_s))

    def cancel(self, run: Run | str, *, by: str = "") -> CancelAck:
        """Stop a run: after this returns no effect of it begins."""
        return self._run(self.cancel_async(run, by=by))

    def retry(self, run: Run | str, *, repeat_effects: bool = False) -> Run:
        """Start a run that has ended again, as a new one; effects of the old one are shared, not made again.
        Raises UnknownRun, RunNotFinished, InputError (see `Client.retry`)."""
        return Run(self._run(self.client().retry(_id(run), repeat_effects=repeat_effects)), self)

    def events(self, run: Run | str, *, after: int = 0, follow: bool = True) -> Iterator[RunEvent]:
        """The events of a run, without gaps; with `follow` until it has finished."""
        source = self.events_async(run, after=after, follow=follow)
        try:
            while True:
                try:
                    yield self._run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            self._run(_close(source))

    # -- decide ----------------------------------------------------------------------------------------------------

    def approvals(self, *, status: str | None = "pending", **only: Any) -> list[ApprovalView]:
        """Questions to people, the oldest first; `only`: tenant, run_id, limit."""
        return self._run(self.approving().approvals(status=status, **only))

    def approve(self, approval_id: str, *, token: str, **said: Any) -> ApprovalView:
        """One confirmation, by the approver whose token it is; `said`: reason, arguments_hash (of what was seen).
        Raises UnknownApproval, NotAllowed."""
        return self._run(self.approving().approve(approval_id, token=token, **said))

    def reject(self, approval_id: str, *, token: str, reason: str) -> ApprovalView:
        """The call is not run, and the model is told the reason. Raises as `approve`."""
        return self._run(self.approving().reject(approval_id, token=token, reason=reason))

    def edit(
        self, approval_id: str, *, token: str, arguments: Mapping[str, Any], **said: Any
    ) -> ApprovalView:
        """Approve with these arguments in place of the model's. Raises as `approve`, and InputError."""
        return self._run(self.approving().edit(approval_id, token=token, arguments=arguments, **said))

    def add_approver(self, name: str, **scope: Sequence[str]) -> str:
        """The token of somebody who may decide, shown this once; `scope`: tenants, tools, tiers (default: any),
        grants (permissions they may grant for one call; default: none)."""
        return self._run(self.approving().add_approver(name, **scope))

    def standing(self, **only: Any) -> list[StandingApproval]:
        """Standing approvals in force, the newest first; `only`: tenant, tool, limit, ended (True: those that are over,
        too)."""
        return self._run(self._standing().ls(**only))

    def add_standing(
        self, tool: str, *, arguments: Mapping[str, Any], tenant: str, valid_s: float, token: str
    ) -> StandingApproval:
        """Approve calls of this tool with these values, of this tenant, beforehand. Raises InputError, NotAllowed."""
        scope: dict[str, Any] = {"arguments": arguments, "tenant": tenant, "valid_s": valid_s}
        return self._run(self._standing().add(tool, **scope, token=token))

    def end_standing(self, standing_id: str, *, token: str) -> StandingApproval:
        """Calls are asked for again. Raises UnknownApproval, NotAllowed, InputError where it is over."""
        return self._run(self._standing().end(standing_id, token=token))

    def _standing(self) -> Standing:
        from toolfleet.standing import Standing

        return Standing(self.client().store)

    def approving(self) -> Approving:
        """All about approvals, approvers and effects, for asynchronous use."""
        from toolfleet.approving import Approving

        client = self.client()
        return Approving(client.store, client.publish_due, self._look)

    def effects(self, *, state: str | None = None, **only: Any) -> list[EffectView]:
        """Changes in the outside world and what is known of them; `only`: tenant, run_id, limit."""
        return self._run(self.approving().effects(state=state, **only))

    def resolve(
        self,
        call_id: str,
        *,
        happened: bool,
        token: str,
        note: str,
        answer: Any = None,
        confirmed: bool = False,
    ) -> EffectView:
        """Answer for an effect that waits for a human. Before "did not happen" is written down, the tool's `reconcile` is
        asked once more; where nobody can be asked, it takes `confirmed`. Raises UnknownEffect, NotAllowed."""
        said: dict[str, Any] = {"happened": happened, "note": note, "answer": answer, "confirmed": confirmed}
        return self._run(self.approving().resolve(call_id, token=token, **said))

    async def _look(self, view: EffectView) -> Looked:
        from toolfleet.asking import ask_again

        return await ask_again(self.registry, self.settings, self.client().store, view)

    @property
    def cache(self) -> Cache:
        """The breakers and rates of the workers in this process, which has been started."""
        assert self._workers is not None, "the fleet is not started"
        return self._workers.cache

    def access(self) -> Access:
        """All about keys and quotas of tenants, for asynchronous use."""
        from toolfleet.access import Access

        return Access(self.client().store)

    # -- batches ---------------------------------------------------------------------------------------------------

    @property
    def batches(self) -> FleetBatches:
        """Files of requests: `fleet.batches.submit("night.jsonl")`, blocking (docs/batches.md)."""
        from toolfleet.batching.face import FleetBatches

        return FleetBatches(self.batching, self._run)

    def batching(self) -> Batches:
        """All about batches, for asynchronous use."""
        from toolfleet.batching.front import Batches

        return Batches(self.client())

    async def submit_async(self, agent: str, input: str, **options: Any) -> str:
        from toolfleet.client import RunRequest

        (run_id,) = await self._submit_many([RunRequest(agent, input, **options)])
        return run_id

    async def result_async(self, run: Run | str) -> RunResult:
        return await self.client().result(_id(run))

    async def wait_async(self, run: Run | str, *, timeout_s: float | None = None) -> RunResult:
        return await self.client().wait(_id(run), timeout_s=timeout_s)

    async def cancel_async(self, run: Run | str, *, by: str = "") -> CancelAck:
        return await self.client().cancel(_id(run), by=by)

    def events_async(self, run: Run | str, *, after: int = 0, follow: bool = True) -> AsyncIterator[RunEvent]:
        return self.client().events(_id(run), after=after, follow=follow)

    async def _submit_many(self, requests: Sequence[Any]) -> list[str]:
        return await self.client().submit(requests)

    def client(self) -> Client:
        """The async client of this fleet; opened on first use, without workers if the fleet is not started."""
        if self._client is None:
            _quiet_logs()
            self._client = self._new_client(None)
        return self._client

    @property
    def celery(self) -> Celery:
        """The Celery app whose workers host this fleet's roles: `celery -A myapp:app worker -Q exec.low`."""
        if self._celery is None:
            from toolfleet.celery_app import make_app

            self._celery = make_app(self)
        return self._celery

    def _new_client(self, workers: EmbeddedFleet | Worker | None) -> Client:
        from toolfleet.app import open_store
        from toolfleet.client import Client
        from toolfleet.prices import price_table, refuse_unpriced_run
        from toolfleet.schemas.model import Usage
        from toolfleet.telemetry import Instruments
        from toolfleet.tiers import raise_tiers
        from toolfleet.workers.decision.tokens import estimated_tokens

        # A process that only submits needs prices and no key, so it makes no model client.
        prices = price_table(self.settings) if self._model is None else self._model
        known = getattr(prices, "price_known", None)

        def reserve(agent: AgentSpec, size: int) -> float:
            if (
                known is not None and agent.name in self.registry.agents
            ):  # others were asked where they are served
                refuse_unpriced_run(agent, self.settings, known)
            prompt = estimated_tokens(size + len(agent.model_dump_json()))
            return prices.cost_usd(
                agent, Usage(input_tokens=prompt, output_tokens=agent.limits.output_tokens_max)
            )

        store = workers.store if workers is not None else open_store(self.settings)
        publisher = workers.publisher if workers is not None else self._publisher(store)
        publish = publisher.rows if publisher is not None else None
        if workers is None:
            self._instruments = Instruments(self.settings)
            self._instruments.start()
        instruments = self._instruments if workers is None else workers.instruments
        assert instruments is not None
        client = Client(store, publish=publish, reserve_usd=reserve, telemetry=instruments.telemetry)
        raise_tiers(self.registry, self.settings, all_known=False)
        client.know(list(self.registry.agents.values()))
        return client

    def _publisher(self, store: RunStore) -> Publisher | None:
        """Of a process that only submits to a shared broker; without one the keeper of the fleet sends the rows."""
        from toolfleet.adapters.clock import SystemClock
        from toolfleet.brokers import is_embedded, open_codec, open_layer
        from toolfleet.workers.publisher import Publisher

        if is_embedded(self.settings):
            return None
        clock = SystemClock()
        codec = open_codec(self.settings, clock)
        self._layer = open_layer(self.settings)
        return Publisher(store, self._layer, codec, clock.now_s)

    def new_model(self) -> ModelClient:
        """The model client that was given, or a new one over the servers of the settings. Raises UnsafeSettings."""
        if self._model is not None:
            return self._model
        from toolfleet.models import open_models

        return open_models(self.settings, self.registry)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on this fleet's own loop, which lives in a background thread, and block until it is done."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="toolfleet", daemon=True)
            self._thread.start()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "blocking methods of a fleet cannot be used on its own loop; use the _async ones"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _quiet_logs() -> None:
    """Where nobody configured structlog: warnings and worse, on stderr, tracebacks without the values in them."""
    import logging
    import sys

    import structlog

    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _id(run: Run | str) -> str:
    return run.id if isinstance(run, Run) else run


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


async def _close(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
