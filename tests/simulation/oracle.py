"""Judges from stored rows and the outside ledger alone whether the promises of PROTOCOL.md hold.

After every commit: invariants 1, 2, 5 to 10 and 4 (truth). At every beginning and act outside: 3, 4, 5, 7 (P7), 9, 10
and 13. When faults have stopped: 11, 12 (`ending.py`). The numbers in the violations are those of PROTOCOL.md.

What a change outside is, the oracle tells by run, tool and arguments: two equal calls of a run are one effect. What was
approved it takes from the front door, which keeps what people said, not from the ledger.

The one honest exception (PROTOCOL.md, DESIGN.md "one gap"): a process frozen between its lease and the first byte of
an effect, woken after the call was settled `needs_human`, still acts. `needs_human` stands for "0 or 1 acts", so this
is no violation; `late_acts` counts it. The other half of it: the tools that say that their answers are final may then
act twice; `final_doubles` counts that, and only where the sender slept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import orjson

from tests.simulation.call_times import CallTimes
from tests.simulation.outside import Ledger, Seen
from tests.simulation.plan import REQUESTER, TOOLS
from tests.simulation.process import EPOCH
from tests.simulation.rows import Rows, RunRows
from tests.simulation.story import Story
from toolfleet.schemas.commands import DELIVER_QUEUE, RESULTS_QUEUE, CommandRow
from toolfleet.schemas.conversation import MergeItem
from toolfleet.schemas.effects import ApprovalStatus, EffectState
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.limits import DEATHS_MAX
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, RunStatus, Tier, TurnPhase
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState

# "It did not happen" is what these say of an effect; `ok` says that it did, `needs_human` that nobody knows.
NOTHING_HAPPENED = frozenset(CallOutcome) - {CallOutcome.OK, CallOutcome.NEEDS_HUMAN}
SAME_TIME_S = 1e-6
STEP_USD = 0.01  # more than one model call of the simulated model costs


def _changes(run_id: RunId, call: CallState) -> str:
    """What a call changes outside: equal calls of a run change the same."""
    return f"{run_id}/{call.tool}/{orjson.loads(call.arguments)}"


class Oracle:
    """Told when something was committed or seen outside; looks for itself."""

    def __init__(self, rows: Rows, ledger: Ledger, story: Story, now: Callable[[], float]) -> None:
        self._rows = rows
        self.ledger = ledger
        self._story = story
        self._now = now
        self.last: dict[RunId, RunRows] = {}
        self.acknowledged: dict[RunId, frozenset[str]] = {}  # effects the acknowledgement of a cancel listed
        self.late_acts = 0
        self.final_doubles = 0
        self.said: Mapping[
            tuple[str, str], set[tuple[str, str]]
        ] = {}  # what people decided: the front door's
        self.commits = 0
        self.expired: dict[str, list[str]] = defaultdict(list)  # leases by command, each by its token
        self.died: Counter[str] = Counter()  # children, counted in a row
        self.handed_back: Counter[str] = Counter()
        self.tokens: dict[
            str, str
        ] = {}  # of which command; asked again after a lost answer, it is used again
        self.calls: dict[str, tuple[RunId, CallState]] = {}  # the newest sight of every call
        self.admitted: dict[RunId, set[str]] = defaultdict(set)
        self.dispatched: dict[tuple[str, int], float] = {}  # attempt -> since when it may begin
        self.due: dict[tuple[str, int], float] = {}  # attempt -> when it was due
        self.time = CallTimes(self)
        ledger.on_begin, ledger.on_act, ledger.on_ask = self._begins, self._acts, self._asks

    def bad(self, rule: str, what: str) -> None:
        self._story.violation(rule, what)

    def require(self, holds: bool, rule: str, what: Callable[[], str] | str) -> None:
        if not holds:
            self.bad(rule, what if isinstance(what, str) else what())

    # -- commits ---------------------------------------------------------------------------------------------------

    def committed(self, run_id: RunId) -> None:
        self.commits += 1
        new = self._rows.run(run_id)
        old = self.last.get(run_id)
        if new is None:
            self.require(old is None, "P1", f"{run_id} is gone")
            return
        self._shape(new.state)
        self._leases(old, new)
        self.time.committed(old, new)
        self._calls(old, new)
        self._results(old, new)
        self._items(old, new)
        self._limits(new.state)
        self.last[run_id] = new

    def renewed(self, command_ids: Sequence[str]) -> None:
        """Leases got longer; nothing else may have changed."""
        for run_id in {self._run_of(command_id) for command_id in command_ids}:
            new = self._rows.run(run_id)
            if new is not None:
                self.last[run_id] = new

    def _run_of(self, command_id: str) -> RunId:
        known = self.calls.get(command_id)
        return known[0] if known is not None else RunId(command_id.partition("/")[0])

    def _shape(self, state: RunState) -> None:
        """1: which rows exist follows from run, turn and calls."""
        rows = [row for row in state.commands if row.queue != DELIVER_QUEUE]
        by_call: dict[str | None, list[CommandRow]] = defaultdict(list)
        for row in rows:
            by_call[row.call_id].append(row)
        who = state.run_id
        if state.terminal:
            self.require(not rows, "1", f"{who} has ended and has rows {[r.id for r in rows]}")
            return
        self.require(bool(rows), "1", f"{who} is {state.status} and nothing is outstanding")
        deciding = state.phase is TurnPhase.DECIDING
        decides = [row for row in rows if row.is_decide]
        self.require(len(decides) == deciding, "1", f"{who} {state.phase}: {len(decides)} decide rows")
        self.require(
            deciding == (state.status in (RunStatus.QUEUED, RunStatus.DECIDING)),
            "1",
            f"{who} is {state.status} in phase {state.phase}",
        )
        for call in () if deciding else state.calls:
            queues = [row.queue for row in by_call.pop(call.call_id, [])]
            right = (
                [q.startswith("exec.") for q in queues] == [True]
                if call.open
                else queues in ([], [RESULTS_QUEUE])
            )
            self.require(right, "1", f"{call.call_id} open={call.open} has rows in {queues}")
        strangers = [row.id for call_id, found in by_call.items() if call_id is not None for row in found]
        self.require(not strangers, "1", f"rows of no current call: {strangers}")

    def _leases(self, old: RunRows | None, new: RunRows) -> None:
        """7, 8, 10: who holds a step, and how it stops holding it."""
        now = self._now()
        before = {row.id: row for row in old.state.commands} if old is not None else {}
        for row in new.state.commands:
            was = before.pop(row.id, None)
            if row.token is not None and (was is None or was.token != row.token):
                self.require(was is not None, "9", f"{row.id} was put with a lease")
                self.require(was is None or was.token is None, "8", f"{row.id}: one lease replaced another")
                self.require(
                    was is None or was.due_at <= now + SAME_TIME_S, "10", f"{row.id} leased before due"
                )
                first = self.tokens.setdefault(row.token, row.id)
                self.require(first == row.id, "8", f"{row.id} is leased with a token of {first}")
            if was is not None:
                self._deaths(was, row)
        for gone in before.values():
            self._gone(gone, new)

    def _deaths(self, was: CommandRow, row: CommandRow) -> None:
        """7: a death is a lease that ran out, or a child that died; nothing else."""
        more = row.deaths - was.deaths
        if more == 1:
            self._one_death(was, released=row.token is None)
        self.require(more in (0, 1), "7", f"{row.id}: deaths went from {was.deaths} to {row.deaths}")
        known = len(self.expired[row.id]) + self.died[row.id]
        self.require(row.deaths == known, "7", f"{row.id}: {row.deaths} deaths, {known} known")
        if was.token is not None and row.token is None and more == 0 and row.is_decide:
            self.handed_back[row.id] += 1

    def _one_death(self, was: CommandRow, *, released: bool) -> None:
        seen = self.ledger.calls.get(was.call_id or "")
        if seen is not None and seen.deaths > self.died[was.id]:
            self.died[was.id] += 1
            return
        ran_out = was.token is not None and (was.lease_until or 0.0) < self._now() + SAME_TIME_S
        self.require(ran_out and released, "7", f"{was.id}: a death without a lease that ran out")
        self.expired[was.id].append(was.token or "")

    def _gone(self, row: CommandRow, new: RunRows) -> None:
        """7: a step that is given up had its last death. 8: a leased decision is consumed by its holder, unless the run
        was stopped or given up."""
        state = new.state
        if row.is_exec and any(letter.call_id == row.call_id for letter in self._rows.dead()):
            self._one_death(row, released=True)
            known = len(self.expired[row.id]) + self.died[row.id]
            self.require(known >= DEATHS_MAX, "7", f"{row.id} was given up after {known} deaths")
        if not row.is_decide or row.token is None or state.status is RunStatus.CANCELLED:
            return
        if state.reason in (ReasonCode.DEADLINE, ReasonCode.MODEL_ERROR):
            return  # stopped from outside; or failed for good, where the reservation may stand
        if state.reason == ReasonCode.WORKER_LOST:
            self._one_death(row, released=True)
            deaths = len(self.expired[row.id])
            self.require(deaths >= DEATHS_MAX, "7", f"{row.id} was given up after {deaths} deaths")
            return
        newest = [one["status"] for one in new.usage if one["turn"] == row.turn][-1:]
        self.require(
            newest not in ([], ["reserved"]), "8", f"{row.id} was consumed by somebody without its lease"
        )

    def _calls(self, old: RunRows | None, new: RunRows) -> None:
        """2, 5, 6: what a call may become."""
        state = new.state
        for call in state.calls:
            known = self.calls.get(call.call_id)
            was = known[1] if known is not None else None
            if was is not None and was.outcome is not None:
                self.require(
                    call.outcome == was.outcome, "2", f"{call.call_id}: {was.outcome} became {call.outcome}"
                )
            entry = call.entry
            begun = entry is not None and entry.state is EffectState.DISPATCHED
            if begun and (was is None or was.entry != entry):
                self._dispatch(old, was, call)
            self.require(call.attempt <= call.attempts_max, "6", f"{call.call_id}: attempt {call.attempt}")
            row = next((r for r in state.commands if r.call_id == call.call_id and r.is_exec), None)
            if row is not None:
                self.admitted[state.run_id].add(call.call_id)
                self.due.setdefault((call.call_id, call.attempt), row.due_at)
            self.calls[call.call_id] = (state.run_id, call)

    def _dispatch(self, old: RunRows | None, was: CallState | None, call: CallState) -> None:
        """5: an effect may begin while its call is open and its run goes on; a second time only under a key."""
        self.dispatched[call.call_id, call.attempt] = self._now()
        going_on = (
            old is not None
            and old.state.status is RunStatus.WAITING
            and old.state.ending != ReasonCode.DEADLINE
        )
        self.require(going_on, "5", f"{call.call_id} is dispatched in a run that stops")
        self.require(was is not None and was.open, "5", f"{call.call_id} is dispatched and was not open")
        again = was is not None and was.dispatched
        self.require(
            not again or call.idempotent, "5", f"{call.call_id} is dispatched a second time without a key"
        )
        asked = call.approval
        if call.terms.asks:
            alive = asked is not None and asked.status is ApprovalStatus.GRANTED
            in_time = asked is not None and asked.expires_at > self._now()
            self.require(alive and in_time, "5", f"{call.call_id} is dispatched without a live approval")

    def _results(self, old: RunRows | None, new: RunRows) -> None:
        """2 and 4: the first outcome stays, every closed call has one, and it tells the truth."""
        stored = {result.call_id: result for _, result in new.results}
        self.require(len(stored) == len(new.results), "2", f"{new.state.run_id}: two results of one call")
        for _, result in old.results if old is not None else ():
            self.require(stored.get(result.call_id) == result, "2", f"the result of {result.call_id} changed")
        for call in new.state.calls:
            result = stored.get(call.call_id)
            self.require(
                (result is None) == call.open, "2", f"{call.call_id}: open={call.open}, result={result}"
            )
            self.require(
                result is None or result.outcome == call.outcome,
                "2",
                f"{call.call_id}: result and call differ",
            )
        before = {result.call_id for _, result in old.results} if old is not None else set()
        for call_id, result in stored.items():
            if call_id not in before:
                if call_id in self.calls:  # a call that closes with its turn is not in the state any more
                    self.calls[call_id] = (
                        new.state.run_id,
                        replace(self.calls[call_id][1], outcome=result.outcome),
                    )
                self._truth(result)

    def _truth(self, result: CallResult) -> None:
        """4, now; `_acts` watches for ever."""
        known, seen = self.calls.get(result.call_id), self.ledger.calls.get(result.call_id)
        if known is None or not known[1].effect:
            return
        acts = 0 if seen is None else seen.acts
        if result.outcome in NOTHING_HAPPENED:
            self.require(acts == 0, "4", f"{result.call_id} is {result.outcome} and acted {acts} times")
        if result.outcome is CallOutcome.OK:
            run_id, call = known
            done = self.ledger.by_effect[_changes(run_id, call)]
            self.require(done >= 1, "4", f"{result.call_id} is ok and never acted")

    def _items(self, old: RunRows | None, new: RunRows) -> None:
        """2: append-only, one merge per turn, with the stored results in call order."""
        items = new.items
        who = new.state.run_id
        self.require(
            [one.seq for one in items] == list(range(len(items))), "2", f"{who}: items are not in a row"
        )
        kept = old.items if old is not None else ()
        self.require(items[: len(kept)] == kept, "2", f"{who}: an item changed")
        turns = [one.turn for one in items if isinstance(one.item, MergeItem)]
        self.require(len(turns) == len(set(turns)), "2", f"{who}: a turn was merged twice: {turns}")
        for one in items[len(kept) :]:
            if isinstance(one.item, MergeItem):
                expected = [(r.call_id, r.outcome, r.content) for turn, r in new.results if turn == one.turn]
                merged = [(r.call_id, r.outcome, r.content) for r in one.item.results]
                self.require(merged == expected, "2", f"{who} turn {one.turn}: the merge is not its results")

    def _limits(self, state: RunState) -> None:
        """6."""
        limits, who = state.limits, state.run_id
        admitted = len(self.admitted[who])
        self.require(admitted <= limits.calls_max, "6", f"{who}: {admitted} calls admitted")
        self.require(state.turn <= limits.turns_max, "6", f"{who}: turn {state.turn} of {limits.turns_max}")
        cost = state.counters.cost_usd
        self.require(
            cost <= limits.cost_usd_max + STEP_USD, "6", f"{who}: cost {cost} of {limits.cost_usd_max}"
        )

    # -- the outside -----------------------------------------------------------------------------------------------

    def _begins(self, seen: Seen, attempt: int, woken_at: float) -> None:
        """5, 9, 10, 13 and P7 at the first line of a tool."""
        known = self.calls.get(seen.call_id)
        if known is None:
            self.bad("9", f"{seen.call_id} begins and was never admitted")
            return
        run_id, call = known
        now, spec = self._now(), TOOLS[seen.tool]
        due_at = self.due.get((seen.call_id, attempt))
        self.require(due_at is not None, "9", f"{seen.call_id} attempt {attempt} begins without a row")
        self.require(
            (due_at or 0.0) <= now + SAME_TIME_S, "10", f"{seen.call_id} attempt {attempt} before it was due"
        )
        given_up = any(one.call_id == seen.call_id for one in self._rows.dead())
        slept = EPOCH + woken_at >= self.dispatched.get((seen.call_id, attempt), due_at or 0.0)
        self.require(slept or not given_up, "13", f"{seen.call_id} begins after it was given up")
        if not spec.effect:
            return
        self.require(
            (seen.call_id, attempt) in self.dispatched,
            "5",
            f"{seen.call_id} attempt {attempt} was not dispatched",
        )
        listed = self.acknowledged.get(run_id)
        in_order = listed is None or seen.call_id in listed or call.outcome is not None
        self.require(in_order, "P7", f"{seen.call_id} begins after the cancel was acknowledged")
        done = self.ledger.by_effect[_changes(run_id, call)]
        self.require(
            spec.idempotent or (done == 0 and seen.on_the_way == 0) or (slept and spec.reconcile_is_final),
            "P4",
            f"{seen.call_id} ({seen.tool}) begins again, and what it did before is not known to be nothing",
        )
        if call.terms.asks or TOOLS[seen.tool].permissions:
            self._approved(seen, call)
        if call.outcome is not None:  # only a sender that slept between its lease and here may be that late
            allowed = slept and (
                spec.idempotent or spec.reconcile_is_final or call.outcome is CallOutcome.NEEDS_HUMAN
            )
            self.require(allowed, "5", f"{seen.call_id} begins and is {call.outcome}")

    def _approved(self, seen: Seen, call: CallState) -> None:
        """P5, from what people said: enough of them, to these very arguments, not the one who asks."""
        arguments = self.ledger.arguments
        names = {by for answer, by in self.said.get((seen.call_id, arguments), ()) if answer != "reject"}
        if TOOLS[seen.tool].tier is Tier.IRREVERSIBLE:
            names -= {REQUESTER}
        enough = len(names) >= (2 if TOOLS[seen.tool].two_person else 1)
        granted = call.approval.permissions if call.approval is not None else ()
        lacks = set(TOOLS[seen.tool].permissions) - set(granted)
        self.require(not lacks, "P5", f"{seen.call_id} begins without permission to {sorted(lacks)}")
        self.require(enough, "P5", f"{seen.call_id} begins with {arguments}, approved by {sorted(names)}")

    def _acts(self, seen: Seen) -> None:
        """3 and 4, for ever."""
        call = self.calls[seen.call_id][1]
        what, slept = self.ledger.acted
        acts = self.ledger.by_effect[what]
        if acts > 1 and slept and TOOLS[seen.tool].reconcile_is_final:
            self.final_doubles += 1
        else:
            self.require(acts <= 1, "3", f"{what} ({seen.call_id}) happened {acts} times")
        self.require(call.outcome not in NOTHING_HAPPENED, "4", f"{seen.call_id} acts and is {call.outcome}")
        if call.outcome is CallOutcome.NEEDS_HUMAN:
            self.late_acts += 1
            self._story.say("oracle", f"an act after needs_human: {seen.call_id}")

    def _asks(self, run_id: str) -> None:
        """6: every model call has a usage row, written before it."""
        found = self.last.get(RunId(run_id))
        rows = 0 if found is None else len(found.usage)
        asked = self.ledger.asked[run_id]
        self.require(asked <= rows, "6", f"{run_id} was asked {asked} times and has {rows} usage rows")
