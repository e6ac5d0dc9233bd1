"""The oracle's own count of what calls took of their time (`call_timeout_s`), and what it forbids.

From stored rows alone, and not from what the machine keeps: a call's time begins with the first commit that shows that an
executor had it, stands still while a question is open, and begins anew once it has waited for an equal effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.plan import TOOLS
from tests.simulation.rows import RunRows
from toolfleet.schemas.effects import ApprovalStatus, EffectState
from toolfleet.schemas.outcomes import CallOutcome, CallWaiting, ReasonCode
from toolfleet.schemas.run import CallState

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle

SLACK_S = 1.0  # between the rows' times and the oracle's own; far below any time a tool has


@dataclass(slots=True)
class _Taken:
    """A call whose time has begun. `asked`: since when the open question is there."""

    since: float
    waited_s: float = 0.0
    asked: dict[str, float] = field(default_factory=dict)


class CallTimes:
    """Told after every commit, before anything else looks at it."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._taken: dict[str, _Taken] = {}

    def committed(self, old: RunRows | None, new: RunRows) -> None:
        now = self._oracle._now()
        for call in new.state.calls:
            allowed_s = TOOLS[call.tool].call_timeout_s if call.tool in TOOLS else None
            if allowed_s is None:
                continue
            was = None if old is None else old.state.call(call.call_id)
            self._follow(call, new, now)
            end = self._end(call.call_id, allowed_s)
            if end is not None:
                self._judge(was, call, new, end, now)
        self._outcomes(old, new)

    def _follow(self, call: CallState, new: RunRows, now: float) -> None:
        row = new.state.command(call.call_id)
        held = row is not None and row.token is not None
        had = held or call.waiting is not CallWaiting.READY or call.attempt > 1 or call.approval is not None
        if had and call.open and call.call_id not in self._taken:
            self._taken[call.call_id] = _Taken(now)
        taken = self._taken.get(call.call_id)
        if taken is None:
            return
        asked = call.approval
        for approval_id, since in list(taken.asked.items()):
            if asked is None or asked.id != approval_id or asked.status is not ApprovalStatus.PENDING:
                taken.waited_s += now - since
                del taken.asked[approval_id]
        if asked is not None and asked.status is ApprovalStatus.PENDING:
            taken.asked.setdefault(asked.id, now)
        if call.waits_key:
            del self._taken[call.call_id]

    def _end(self, call_id: str, allowed_s: float) -> float | None:
        taken = self._taken.get(call_id)
        if taken is None or taken.asked:
            return None
        return taken.since + taken.waited_s + allowed_s + SLACK_S

    def _judge(self, was: CallState | None, call: CallState, new: RunRows, end: float, now: float) -> None:
        """10: no effect begins, and no attempt is due, when the time of its call is over."""
        entry = call.entry
        begins = entry is not None and entry.state is EffectState.DISPATCHED
        if begins and (was is None or was.entry != entry):
            self._oracle.require(now <= end, "10", f"{call.call_id} is dispatched when its time is over")
        row = new.state.command(call.call_id)
        if row is not None and call.open and call.waiting is CallWaiting.RETRY_DUE and not call.waits_key:
            self._oracle.require(row.due_at <= end, "10", f"{call.call_id} is due when its time is over")

    def _outcomes(self, old: RunRows | None, new: RunRows) -> None:
        """What is ended by its time is `failed`, of a tool that has one, and was not asked about or out just before."""
        known = {result.call_id for _, result in old.results} if old is not None else set()
        for _, result in new.results:
            if result.call_id in known or result.reason != ReasonCode.CALL_TIMEOUT:
                continue
            call = self._oracle.calls[result.call_id][1]
            timed = TOOLS[call.tool].call_timeout_s is not None
            right = timed and result.outcome is CallOutcome.FAILED
            self._oracle.require(
                right, "10", f"{result.call_id} of {call.tool} is {result.outcome} by its time"
            )
            asked = call.approval is not None and call.approval.status is ApprovalStatus.PENDING
            self._oracle.require(not asked, "10", f"{result.call_id} was ended while somebody was asked")
