"""The second part of the invariants, 11 and 12: what holds once nothing goes wrong any more."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.oracle import Oracle
from tests.simulation.plan import RunPlan
from tests.simulation.ports import Broker
from tests.simulation.rows import Rows
from toolfleet.schemas.commands import CommandRow
from toolfleet.schemas.conversation import MergeItem
from toolfleet.schemas.ids import RunId
from toolfleet.schemas.limits import LEASE_S, LOST_BACKOFF_MAX
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.run import RunState

SLACK_S = 12.0  # publish, keeper periods, a late delivery of the simulated broker
STEP_S = 200.0  # the longest a step may hold its lease: its deadline, the overrun and the lease, generously
PUBLISHED_MAX = 40  # the constant of invariant 12


class Ending:
    """Watches from the moment faults have stopped; `restart` is when the last process was up again."""

    def __init__(self, oracle: Oracle, rows: Rows, broker: Broker, now_s: float) -> None:
        self._oracle = oracle
        self._rows = rows
        self._broker = broker
        self._since = now_s
        self._published = broker.published.total()
        self._steps = self._steps_now()
        self._outstanding = sum(len(one.state.commands) for one in oracle.last.values())
        self._leases: dict[str, float] = {}  # when a lease was seen first

    def watch(self, run_ids: Iterable[RunId], now_s: float) -> None:
        """11, while it goes on: no row is left alone for longer than its message may be lost."""
        for run_id in run_ids:
            found = self._rows.run(run_id)
            for row in () if found is None else found.state.commands:
                self._row(row, now_s)

    def _row(self, row: CommandRow, now_s: float) -> None:
        if row.token is not None:
            held_s = now_s - self._leases.setdefault(row.token, now_s)
            self._oracle.require(held_s <= STEP_S, "11", f"{row.id} is leased for {held_s:.0f} s")
            return
        waiting_s = now_s - max(row.due_at, row.sent_at or 0.0, self._since)
        allowed_s = row.lost_after_s * min(2.0 ** max(row.sends, 0), LOST_BACKOFF_MAX) + SLACK_S
        self._oracle.require(
            waiting_s <= allowed_s, "11", f"{row.id} waits for {waiting_s:.0f} s (sends {row.sends})"
        )

    def judge(self, plans: Iterable[RunPlan], accepted: Iterable[RunId]) -> None:
        """11 and 12, at the end."""
        require = self._oracle.require
        by_id = {plan.run_id: plan for plan in plans}
        for run_id in accepted:
            found = self._rows.run(run_id)
            if found is None:
                self._oracle.bad("P1", f"{run_id} was accepted and is gone")
                continue
            require(found.state.terminal, "11", f"{run_id} is {found.state.status} for ever")
            self._events(run_id)
            self._merges(run_id)
            self._model_calls(found.state, by_id[run_id])
        counts = self._rows.counts()
        require(counts["commands"] == 0 and counts["leases"] == 0, "12", f"left over: {counts}")
        published = self._broker.published.total() - self._published
        allowed = 2 * (self._steps_now() - self._steps) + 4 * self._outstanding + PUBLISHED_MAX
        require(published <= allowed, "12", f"{published} messages after the faults, {allowed} allowed")
        letters = [letter for letter in self._rows.dead() if letter.kind != "step"]
        require(not letters, "12", f"messages that could not be read: {letters}")

    def _steps_now(self) -> int:
        """Transactions, and attempts of calls: a first try of a read-only one writes nothing."""
        return self._oracle.commits + sum(len(seen.begins) for seen in self._oracle.ledger.calls.values())

    def _events(self, run_id: RunId) -> None:
        events = self._rows.events(run_id)
        numbers = [event.seq for event in events]
        self._oracle.require(
            numbers == list(range(1, len(events) + 1)), "2", f"{run_id}: event numbers {numbers}"
        )
        ends = sum(1 for event in events if event.type == "run.finished")
        self._oracle.require(ends == 1, "2", f"{run_id} finished {ends} times")

    def _merges(self, run_id: RunId) -> None:
        """P3: one merge for each turn all of whose calls have an outcome, which are all turns with calls."""
        found = self._oracle.last[run_id]
        merged = {one.turn for one in found.items if isinstance(one.item, MergeItem)}
        with_results = {turn for turn, _ in found.results}
        self._oracle.require(
            merged == with_results, "2", f"{run_id}: merged {merged}, results {with_results}"
        )
        for _, result in found.results:
            if result.outcome is CallOutcome.OK and '"n":' in result.content and not result.reason:
                known = self._oracle.calls.get(result.call_id)
                wanted = known[1].arguments.strip("{}") if known is not None else ""
                self._oracle.require(
                    wanted in result.content, "2", f"{result.call_id} has another call's result"
                )

    def _model_calls(self, state: RunState, plan: RunPlan) -> None:
        """6 and 13: asked once, and once more for each death, failure and hand-back."""
        usage = self._oracle.last[state.run_id].usage
        for turn in range(1, state.turn + 1):
            row = f"{state.run_id}/{turn}"
            asked = sum(1 for one in usage if one["turn"] == turn)
            more = len(self._oracle.expired[row]) + self._oracle.handed_back[row]
            self._oracle.require(asked <= 1 + more, "6", f"{row} was asked {asked} times, {more} reasons to")
        if plan.poison_decision:
            kills = self._oracle.ledger.decision_kills[state.run_id]
            self._oracle.require(kills <= 3, "13", f"the decision of {state.run_id} ended {kills} processes")
        for call_id, seen in self._oracle.ledger.calls.items():
            if seen.kills:
                leased = len(self._oracle.expired[call_id])
                self._oracle.require(
                    leased <= 3 and seen.kills <= 8,
                    "13",
                    f"{call_id} ended {seen.kills} processes ({leased} leased)",
                )


def lease_and_a_bit(seconds: float = 0.0) -> float:
    """One lease, the keeper's period and the rest: what a death may cost."""
    return LEASE_S + SLACK_S + seconds
