"""Workers that hold leases, sleep, repeat themselves and die, against a model of what may come of it: P1, P2, P3, P6, P7."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.machine_builders import (
    LEASE_S,
    ask,
    came_to,
    claim,
    effect,
    ended,
    invalid,
    ok,
    proposed,
    replied,
    submitted,
)
from tests.unit.machine_invariants import check_invariants
from toolfleet.schemas.commands import RESULTS_QUEUE, CommandRow
from toolfleet.schemas.effects import EffectState
from toolfleet.schemas.events import (
    CallFinished,
    CallLeased,
    CallRetry,
    CallsSettled,
    CancelRequested,
    DeadlineReached,
    DecisionLeased,
    EffectClaimed,
    EffectEnded,
    Event,
    HandedBack,
    LeaseExpired,
    ModelFailed,
    ProposedCall,
    ReconcileAnswered,
    ReconcileStarted,
    StepFacts,
)
from toolfleet.schemas.ids import CommandId, LeaseToken
from toolfleet.schemas.limits import Limits
from toolfleet.schemas.model import ModelFault
from toolfleet.schemas.outcomes import CallOutcome, RunStatus
from toolfleet.schemas.records import AppendMerge, OpenUsage, ReuseResult, Step, StoreResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import reduce

LIMITS = Limits(turns_max=4, calls_max=7, cost_usd_max=0.50)
RESERVE_USD = 0.04
TURNS: tuple[tuple[ProposedCall, ...], ...] = (
    (),
    (proposed(0),),
    (proposed(0), effect(1)),
    (effect(0, idempotent=True), proposed(1), effect(2)),
    (proposed(0, tell_on_denied=True), invalid(1)),
    (invalid(0),),
)
OUTCOMES = (CallOutcome.OK, CallOutcome.OK, CallOutcome.FAILED, CallOutcome.DENIED, CallOutcome.NEEDS_HUMAN)
FAULTS = (
    ModelFault("unavailable", "503", retryable=True, status=503),
    ModelFault("timeout", "nothing came", retryable=True),
)


TAKES = DecisionLeased | CallLeased | EffectClaimed | ReconcileStarted
CAME = (
    EffectState.HAPPENED,
    EffectState.BUSINESS_ERROR,
    EffectState.NOT_SENT,
    EffectState.REFUSED,
    EffectState.RECONCILING,
    EffectState.DID_NOT_HAPPEN,
)


def _sent(call: CallState, old: CallState | None) -> bool:
    """An attempt of an effect is out that was not before."""
    entry = call.entry
    return entry is not None and entry.state is EffectState.DISPATCHED and (old is None or old.entry != entry)


@dataclass(frozen=True)
class Held:
    """What a worker believes that it holds; nobody tells it when that is over. `token` None: a first read."""

    command_id: CommandId
    token: LeaseToken | None
    call: CallState | None


class Fleet(RuleBasedStateMachine):
    """One run and any number of workers that know only what they saw."""

    def __init__(self) -> None:
        super().__init__()
        self.state: RunState = submitted(LIMITS, deadline_s=2000.0, reserve_usd=RESERVE_USD)
        self.now = 1.0
        self.number = 0
        self.held: list[Held] = []
        self.sent: list[Event] = []
        self.expired: dict[str, int] = {}  # deaths of each row, counted by us
        self.granted: set[LeaseToken] = set()
        self.merged: list[int] = []
        self.results: dict[str, CallOutcome | None] = {}
        self.begun: dict[str, int] = {}
        self.spent: dict[str, float] = {}  # what each model call has cost or may have cost
        self.allowed: set[str] | None = None  # effects that the acknowledgement of a cancel lists

    def _feed(self, event: Event) -> Step:
        before, self.sent = self.state, [*self.sent, event][-40:]
        step = reduce(before, event, self.now)
        check_invariants(before, event, step, self.now)
        self.state = step.state
        for record in step.records:
            match record:
                case AppendMerge():
                    assert record.turn not in self.merged, "P3: a turn was merged twice"
                    self.merged.append(record.turn)
                case StoreResult():
                    self._closed(record.result.call_id, record.result.outcome)
                case ReuseResult():
                    self._closed(record.call_id, None)
                case OpenUsage():
                    assert record.token not in self.spent, "6: one model call with two usage rows"
                    self.spent[record.token] = record.reserved_usd
                case _:
                    pass
        if step.missed is None:
            self._follow(before, event)
        return step

    def _closed(self, call_id: str, outcome: CallOutcome | None) -> None:
        assert call_id not in self.results, "2: a call has two results"
        self.results[call_id] = outcome

    def _follow(self, before: RunState, event: Event) -> None:
        """What the model makes of an accepted event."""
        if isinstance(event, TAKES):
            self.granted.add(event.token)
        if isinstance(event, LeaseExpired) or (isinstance(event, CallRetry | EffectEnded) and event.died):
            more = 1 if not isinstance(event, LeaseExpired) or event.death else 0
            self.expired[event.command_id] = self.expired.get(event.command_id, 0) + more
        for call in self.state.calls:
            old = before.call(call.call_id)
            if isinstance(event, EffectClaimed | ReconcileStarted) and _sent(call, old):
                assert self.allowed is None, "P7: an effect begins after the cancel"
                self.begun[call.call_id] = self.begun.get(call.call_id, 0) + 1
        if isinstance(event, CancelRequested):
            self.allowed = {call.call_id for call in self.state.open_calls}
            assert all(call.dispatched for call in self.state.open_calls), "P7: the list is not complete"

    def _token(self) -> LeaseToken:
        self.number += 1
        return LeaseToken(f"t{self.number}")

    @rule(seconds=st.sampled_from([0.1, 2.0, LEASE_S + 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data())
    def a_worker_takes_a_lease(self, data: st.DataObject) -> None:
        if not self.state.commands:
            return
        row = data.draw(st.sampled_from(self.state.commands))
        call = self.state.call(row.call_id or "")
        if call is not None and not call.effect and data.draw(st.booleans()):
            self.held.append(Held(row.id, None, call))
            return
        token = self._token()
        if self._feed(self._lease(row, call, token, data.draw(st.booleans()))).missed is None:
            self.held.append(Held(row.id, token, self.state.call(row.call_id or "")))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def a_worker_ends_its_step_whether_it_holds_it_or_not(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        if held.call is not None:
            self._end_call(held, held.call, data)
        elif held.token is not None:
            self._end_decision(held.command_id, held.token, data)

    def _end_decision(self, command_id: CommandId, token: LeaseToken, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 4)) == 0:
            fault = data.draw(st.sampled_from(FAULTS))
            self._feed(ModelFailed(command_id, token, fault, 3.0, StepFacts(model_s=1.0)))
            return
        text = data.draw(st.sampled_from(["done", "", ""]))
        self._reply(command_id, token, data.draw(st.sampled_from(TURNS)), text)

    def _reply(
        self, command_id: CommandId, token: LeaseToken, turn: tuple[ProposedCall, ...], text: str = ""
    ) -> None:
        calls = [replace(call, signature=f"{self.number}-{call.index}") for call in turn]
        # The builder takes the row from the state; this worker knows only its own.
        carrier = replace(self.state, commands=submitted().commands)
        event = replied(
            carrier,
            calls,
            text=None if calls else text,
            token=token,
            cost_usd=RESERVE_USD,
            next_reserve_usd=RESERVE_USD,
        )
        self._feed(replace(event, command_id=command_id))

    def _end_call(self, held: Held, call: CallState, data: st.DataObject) -> None:
        result = came_to(call, data.draw(st.sampled_from(OUTCOMES)))
        if call.effect:
            came = data.draw(st.sampled_from(CAME))
            result = came_to(call, CallOutcome.OK if came is EffectState.HAPPENED else CallOutcome.FAILED)
            again = came in (EffectState.NOT_SENT, EffectState.REFUSED)
            delay, died = data.draw(st.sampled_from([0.0, 5.0])), data.draw(st.booleans())
            unknown = came is EffectState.RECONCILING
            if data.draw(st.booleans()) or held.token is None:
                self._feed(
                    EffectEnded(held.command_id, call.attempt, came, result, again, delay, died and unknown)
                )
            else:
                self._feed(ReconcileAnswered(held.command_id, held.token, call.attempt, came, result))
            return
        how = data.draw(st.sampled_from(["finish", "ride along", "retry", "die"]))
        if how == "ride along" and held.token is None:
            self._feed(CallsSettled((result,)))
        elif how in ("retry", "die"):
            delay = data.draw(st.sampled_from([0.0, 5.0]))
            self._feed(CallRetry(held.command_id, held.token, call.attempt, delay, how == "die", result))
        else:
            self._feed(CallFinished(held.command_id, held.token, call.attempt, result))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), death=st.booleans(), gone=st.booleans())
    def the_keeper_looks_at_a_lease(self, data: st.DataObject, death: bool, gone: bool) -> None:
        held = data.draw(st.sampled_from(self.held))
        if held.token is not None:
            self._feed(LeaseExpired(held.command_id, held.token, owner_gone=gone, death=death))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def a_worker_stops(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        if held.token is not None:
            self._feed(HandedBack(held.command_id, held.token))

    @precondition(lambda self: self.state.status is RunStatus.QUEUED)
    @rule(data=st.data())
    def a_turn_is_decided(self, data: st.DataObject) -> None:
        """The way that leads far into a run; the rules above try everything beside it."""
        row = self.state.commands[0]
        self.now = max(self.now, row.due_at)
        lease = DecisionLeased(row.id, self._token(), "me", LEASE_S)
        self._feed(lease)
        if self.state.status is RunStatus.DECIDING:
            self.held.append(Held(row.id, lease.token, None))
            self._reply(row.id, lease.token, data.draw(st.sampled_from(TURNS[1:])))

    @precondition(lambda self: any(row.is_exec and row.token is None for row in self.state.commands))
    @rule(data=st.data())
    def an_executor_takes_a_call(self, data: st.DataObject) -> None:
        waiting = [row for row in self.state.commands if row.is_exec and row.token is None]
        row, token = data.draw(st.sampled_from(waiting)), self._token()
        self.now = max(self.now, row.due_at)
        self._feed(self._lease(row, self.state.call(row.call_id or ""), token, data.draw(st.booleans())))
        self.held.append(Held(row.id, token, self.state.call(row.call_id or "")))

    def _lease(self, row: CommandRow, call: CallState | None, token: LeaseToken, looks: bool) -> Event:
        """What a worker begins with: a lease; of an effect, a claim, a question, or a look at its gates."""
        if call is None:
            return DecisionLeased(row.id, token, "me", LEASE_S)
        if call.dispatched:
            return ask(call, token)
        return claim(call, token) if call.effect and not looks else CallLeased(row.id, token, "me", LEASE_S)

    @precondition(lambda self: any(row.token is not None and row.is_exec for row in self.state.commands))
    @rule(data=st.data())
    def the_executor_of_a_call_answers(self, data: st.DataObject) -> None:
        rows = [row for row in self.state.commands if row.token is not None and row.is_exec]
        row = data.draw(st.sampled_from(rows))
        call = self.state.call(row.call_id or "")
        assert call is not None
        self._end_call(Held(row.id, row.token, call), call, data)

    @precondition(lambda self: any(row.queue == RESULTS_QUEUE for row in self.state.commands))
    @rule()
    def the_collector_counts(self) -> None:
        self._feed(CallsSettled(()))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_message_comes_again(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.sent))
        if isinstance(event, TAKES) and event.token in self.granted:
            row = self.state.command(event.command_id)
            if row is None or row.token != event.token:
                return  # a token names one lease, once: a worker that comes back asks under a new one
        self._feed(event)

    @precondition(lambda self: self.number > 4 and self.state.status is not RunStatus.QUEUED)
    @rule()
    def somebody_cancels(self) -> None:
        self._feed(CancelRequested("me"))

    @precondition(lambda self: self.number > 10)
    @rule()
    def the_deadline_passes(self) -> None:
        self.now = max(self.now, 2001.0)
        self._feed(DeadlineReached())

    @invariant()
    def deaths_are_the_leases_that_ran_out_and_the_children_that_died(self) -> None:
        for row in self.state.commands:
            assert row.deaths == self.expired.get(row.id, 0), "7"

    @invariant()
    def an_effect_begins_again_only_under_a_key(self) -> None:
        for call in self.state.calls:
            times = self.begun.get(call.call_id, 0)
            assert times <= call.attempts_max, "P4"  # that none is unknown, `check_invariants` sees

    @invariant()
    def what_was_spent_is_booked(self) -> None:
        used = self.state.counters
        assert used.cost_usd <= LIMITS.cost_usd_max + 1e-9, "P6"
        assert used.cost_usd <= sum(self.spent.values()) + 1e-9, "P6: more is booked than was asked for"

    def teardown(self) -> None:
        """Faults stop: whoever is left, one honest worker brings the run to its end."""
        for _ in range(200):
            if self.state.terminal:
                break
            self.now += LEASE_S + 61.0
            self._honest()
        assert self.state.terminal, f"P1: the run is stuck as {self.state.status}"
        assert set(self.merged) <= set(range(1, LIMITS.turns_max + 1))

    def _honest(self) -> None:
        for row in self.state.commands:
            if row.token is not None:
                self._feed(LeaseExpired(row.id, row.token, death=False))
                return
            if row.is_decide:
                self._feed(DecisionLeased(row.id, token := self._token(), "me", LEASE_S))
                if self.state.status is RunStatus.DECIDING:
                    self._feed(replied(self.state, text="done", token=token))
                return
            call = self.state.call(row.call_id or "")
            if row.is_exec and call is not None:
                self._feed(self._lease(row, call, token := self._token(), False))
                now = self.state.call(call.call_id)
                if now is not None and now.open and now.effect:
                    self._feed(ended(now))
                elif now is not None and now.open:
                    self._feed(CallFinished(row.id, token, now.attempt, ok(now)))
                return
        self._feed(CallsSettled(()))


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
