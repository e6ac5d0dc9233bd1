"""The ports as one process sees them: the shared store and broker behind its gate, with what can happen on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tests.simulation.faults import Faults
from tests.simulation.process import Process
from toolfleet.adapters.broker.memory import MemoryLayer
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.effects import StandingApproval
from toolfleet.schemas.errors import BrokerUnavailable, StoreUnavailable
from toolfleet.schemas.ids import CommandId, LeaseToken, RunId
from toolfleet.schemas.ports import Applied, Delivery, Outgoing, RunStore, SentMark, Submission, Transition
from toolfleet.schemas.run import NewRun
from toolfleet.schemas.views import CallView, Conversation, DeadLetter, DueRow

T = TypeVar("T")

FETCH_WAIT_S = (
    20.0  # a fetch is woken by a publish, so waiting longer changes nothing but the number of fetches
)


class Judge(Protocol):
    """Told at once, before anybody else can do anything."""

    def committed(self, run_id: RunId) -> None: ...

    def renewed(self, command_ids: Sequence[str]) -> None: ...


class StorePort:
    """The part of RunStore that the fleet uses, as seen from one process."""

    batches = None  # none in this world: its runs are submitted one by one

    def __init__(
        self, store: RunStore, process: Process, faults: Faults, later: Callable[..., object], judge: Judge
    ) -> None:
        self._store = store
        self._process = process
        self._faults = faults
        self._later = later
        self._judge = judge

    async def submit(self, runs: Sequence[NewRun]) -> list[Submission]:
        def judge() -> None:
            for new in runs:
                self._judge.committed(new.run_id)

        return await self._write("Submitted", lambda: self._store.submit(runs), judge, run_id=runs[0].run_id)

    async def transact(self, transitions: Sequence[Transition]) -> list[Applied]:
        """Events of one kind travel together, so the first names the place."""
        event = transitions[0].event
        ids: dict[str, Any] = {"run_id": transitions[0].run_id, "event": event}
        command_id = getattr(event, "command_id", None)
        if command_id is not None:
            ids["command_id"] = command_id

        async def work() -> list[Applied]:
            answer = await self._store.transact(transitions)
            for transition, applied in zip(transitions, answer, strict=True):
                self._tell(transition, applied)
            return answer

        def judge() -> None:
            for transition in transitions:
                self._judge.committed(transition.run_id)

        return await self._write(type(event).__name__, work, judge, **ids)

    def _tell(self, transition: Transition, applied: Applied) -> None:
        event = transition.event
        what = getattr(event, "command_id", transition.run_id)
        came_to = f"MISS {applied.missed}" if applied.missed is not None else "stored"
        status = applied.state.status.value if applied.state is not None else "-"
        self._faults.story.say(self._process.name, f"{type(event).__name__} {what}: {came_to} ({status})")

    async def mark_sent(self, marks: Sequence[SentMark]) -> None:
        """Written a little later, if the process and the database live until then."""
        await self._process.gate()
        if self._faults.strikes("mark_lost"):
            return

        def write() -> None:
            if not self._process.dead and not self._away():
                finished(self._store.mark_sent(marks))

        self._later(0.05, write)

    async def key_waiters(self, key: str, *, limit: int) -> list[tuple[RunId, CommandId]]:
        return await self._read(lambda: self._store.key_waiters(key, limit=limit))

    async def standing(self, tenant: str, tool: str) -> list[StandingApproval]:
        return await self._read(lambda: self._store.standing(tenant, tool))

    async def renew(self, leases: Sequence[tuple[CommandId, LeaseToken]], lease_s: float) -> set[CommandId]:
        ids = [command_id for command_id, _ in leases]
        return await self._write(
            "renew", lambda: self._store.renew(leases, lease_s), lambda: self._judge.renewed(ids)
        )

    async def note_broker_reset(self, name: str) -> None:
        await self._write("reset", lambda: self._store.note_broker_reset(name))

    async def add_dead(self, letter: DeadLetter) -> None:
        await self._write("dead", lambda: self._store.add_dead(letter))

    async def peek_calls(self, command_ids: Sequence[CommandId]) -> list[CallView | None]:
        return await self._read(lambda: self._store.peek_calls(command_ids))

    async def conversation(self, run_id: RunId) -> Conversation | None:
        return await self._read(lambda: self._store.conversation(run_id))

    async def agent(self, name: str, version: str | None = None) -> AgentSpec | None:
        return await self._read(lambda: self._store.agent(name, version))

    async def due_rows(
        self, *, limit: int, broker: str, waiting_since_s: Mapping[str, float]
    ) -> list[DueRow]:
        return await self._read(
            lambda: self._store.due_rows(limit=limit, broker=broker, waiting_since_s=waiting_since_s)
        )

    async def expired_leases(self, *, limit: int) -> list[tuple[RunId, CommandId, LeaseToken]]:
        return await self._read(lambda: self._store.expired_leases(limit=limit))

    async def overdue_runs(self, *, limit: int) -> list[RunId]:
        return await self._read(lambda: self._store.overdue_runs(limit=limit))

    async def broker_marker(self, name: str) -> str:
        return await self._read(lambda: self._store.broker_marker(name))

    def _away(self) -> bool:
        cut_off = self._faults.now() < self._process.cut_off_until
        return cut_off or (self._faults.within(self._faults.rates.outages) and self._faults.active)

    async def _write(
        self,
        name: str,
        work: Callable[[], Awaitable[T]],
        judge: Callable[[], None] = lambda: None,
        **ids: Any,
    ) -> T:
        """Before, commit, after: the process may die or freeze on both sides, and the answer may be lost."""
        await self._faults.hit(self._process, f"store.{name}.before", **ids)
        await asyncio.sleep(self._faults.rng.uniform(0.0005, 0.01))
        if self._away():
            raise StoreUnavailable("the simulated database is away")
        answer = await work()
        judge()
        await self._faults.hit(self._process, f"store.{name}.after", **ids)
        if self._faults.lose_next_answer or self._faults.strikes(
            "answer_lost", f"{self._process.name} {name}"
        ):
            self._faults.lose_next_answer = False
            raise StoreUnavailable("the answer of the simulated database was lost")
        return answer

    async def _read(self, work: Callable[[], Awaitable[T]]) -> T:
        await self._process.gate()
        if self._away():
            raise StoreUnavailable("the simulated database is away")
        answer = await work()
        await asyncio.sleep(0)
        await self._process.gate()
        return answer


class Broker:
    """The one message layer of the world, and who holds which delivery."""

    def __init__(self, layer: MemoryLayer, faults: Faults, later: Callable[..., object]) -> None:
        self.layer = layer
        self.faults = faults
        self.later = later
        self.published: Counter[str] = Counter()  # by role
        self.on_the_way = 0  # late ones that are not in their queue yet
        self.deaf: set[str] = set()  # queues nobody is given anything from
        self._held: dict[str, dict[Any, Delivery]] = {}

    def away(self) -> bool:
        return self.faults.within(self.faults.rates.broker_outages) and self.faults.active

    def put(self, message: Outgoing) -> None:
        finished(self.layer.publish([message]))

    def put_later(self, message: Outgoing, seconds: float) -> None:
        self.on_the_way += 1

        def arrive() -> None:
            self.on_the_way -= 1
            self.put(message)

        self.later(seconds, arrive)

    def hold(self, process: Process, deliveries: Sequence[Delivery]) -> None:
        self._held.setdefault(process.name, {}).update({one.handle: one for one in deliveries})

    def let_go(self, process: Process, deliveries: Sequence[Delivery]) -> None:
        held = self._held.get(process.name, {})
        for one in deliveries:
            held.pop(one.handle, None)

    def holder_died(self, process: Process) -> None:
        """What it held comes again at once (its connection broke), after the claim has ended, or never."""
        for handle, delivery in self._held.pop(process.name, {}).items():
            again, claim, lost = self.faults.rates.of_the_dead
            fate = self.faults.rng.choices(
                ("again", "claim", "lost"), (again, claim, lost if self.faults.active else 0)
            )[0]
            if fate == "lost":
                self.faults.story.fault("delivery_lost", delivery.queue)
                finished(self.layer.settle([delivery]))
            elif fate == "again":
                self._return(handle)

    def _return(self, handle: Any) -> None:
        """As the layer does when a claim ends: in front of its queue, marked. It has no method for it, because in
        one process nobody else dies."""
        entry = self.layer._in_flight.pop(handle, None)
        if entry is not None:
            entry.redelivered = True
            self.layer._ready[entry.queue].appendleft(entry)
            self.layer._wake({entry.queue})

    def wipe(self, *, keep_marker: bool) -> None:
        marker = finished(self.layer.marker())
        finished(self.layer.wipe())
        if keep_marker and marker is not None:
            finished(self.layer.set_marker(marker))


class LayerPort:
    """The message layer as seen from one process; implements schemas.ports.MessageLayer."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process
        self._faults = broker.faults
        self.name = broker.layer.name

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        await self._pass()
        self._broker.published[self._process.kind] += len(messages)
        for message in messages:
            self._send(message)
        if self._faults.strikes("publish_unknown", self._process.name):
            raise BrokerUnavailable("the confirm of the simulated broker was lost")
        await self._process.gate()

    def _send(self, message: Outgoing) -> None:
        rng = self._faults.rng
        if message.queue in self._faults.lose_first:
            self._faults.lose_first.discard(message.queue)
            self._faults.story.fault("publish_lost", message.queue)
            return
        if self._faults.strikes("publish_lost", message.queue):
            return
        if self._faults.strikes("duplicate", message.queue):
            self._broker.put_later(message, rng.choice((0.001, 0.05, 1.0, 20.0, 70.0)))
        for seconds in self._faults.rates.echoes if self._faults.active else ():
            self._faults.story.fault("echo", message.queue)
            self._broker.put_later(message, seconds)
        if self._faults.strikes("late", message.queue):
            self._broker.put_later(message, rng.choice((0.05, 0.5, 3.0, 15.0)))
        else:
            self._broker.put(message)

    async def fetch(self, queues: Sequence[str], limit: int, *, wait_s: float) -> list[Delivery]:
        await self._pass()
        open_queues = [queue for queue in queues if queue not in self._broker.deaf]
        if not open_queues:
            await self._process.clock.sleep(wait_s)
            return []
        fetched = await self._broker.layer.fetch(open_queues, limit, wait_s=FETCH_WAIT_S)
        kept = [one for one in fetched if not self._faults.strikes("lost_later", one.queue)]
        await self._broker.layer.settle([one for one in fetched if one not in kept])
        self._broker.hold(self._process, kept)
        await self._process.gate()
        return kept

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        await self._pass()
        await self._broker.layer.settle(deliveries)
        self._broker.let_go(self._process, deliveries)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        await self._pass()
        await self._broker.layer.extend(deliveries)

    async def release(self, deliveries: Sequence[Delivery], *, delay_s: float) -> None:
        await self._pass()
        await self._broker.layer.release(deliveries, delay_s=delay_s)
        self._broker.let_go(self._process, deliveries)

    async def marker(self) -> str | None:
        await self._pass()
        return await self._broker.layer.marker()

    async def set_marker(self, value: str) -> None:
        await self._pass()
        await self._broker.layer.set_marker(value)

    async def depths(self) -> dict[str, int]:
        await self._pass()
        return await self._broker.layer.depths()

    async def waiting_since_s(self) -> dict[str, float]:
        return await self._broker.layer.waiting_since_s()

    async def aclose(self) -> None:
        """The broker outlives its users."""

    async def _pass(self) -> None:
        await self._process.gate()
        if self._broker.away():
            raise BrokerUnavailable("the simulated broker is away")


def finished(work: Any) -> Any:
    """The answer of a coroutine that never waits, had at once."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise AssertionError("the in-memory port waited for something")
