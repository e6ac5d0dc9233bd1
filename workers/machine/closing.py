"""How a turn closes and how a run ends: the one way out of every path.

`count` is step 3 to 5 of `settle`: rows of calls with an outcome go, and a turn without an open call is merged
exactly once, whatever settled its last call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from toolfleet.schemas.commands import DECIDE_QUEUES, CommandRow
from toolfleet.schemas.conversation import AssistantItem
from toolfleet.schemas.ids import decide_command_id
from toolfleet.schemas.limits import REPEAT_WINDOW
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, RunStatus, TurnPhase
from toolfleet.schemas.records import AppendStep
from toolfleet.schemas.run import RunState, Signature
from toolfleet.workers.machine import answers, limits
from toolfleet.workers.machine.draft import Draft

CANCELLED_SENTENCE = "This request was cancelled."
DENIED_SENTENCE = "I am not permitted to do what this request needs."


def count(draft: Draft) -> None:
    """Drop the rows of calls that have an outcome; with no call open, merge the turn and go on."""
    closed = {call.call_id for call in draft.state.calls if not call.open}
    draft.drop(lambda row: row.call_id in closed)
    if draft.state.phase is TurnPhase.CALLS and not draft.state.open_calls:
        _merge(draft)


def _merge(draft: Draft) -> None:
    draft.merge()
    draft.change(phase=TurnPhase.MERGED)
    state = draft.state
    draft.count(active_s=state.turn_tool_s)
    draft.add(AppendStep("merge", state.turn, "merged", fields={"results": len(state.calls)}))
    draft.event("turn.merged", turn=state.turn, results=len(state.calls))
    draft.change(
        window=(*state.window, *_remembered(state))[-REPEAT_WINDOW:],
        withdrawn=_withheld(state),
        **answers.progress(state),
    )
    state = draft.state
    denied = next((c for c in state.calls if c.outcome is CallOutcome.DENIED and not c.tell_on_denied), None)
    if state.status is RunStatus.CANCELLING:
        end(draft, RunStatus.CANCELLED, ReasonCode.CANCELLED, CANCELLED_SENTENCE)
    elif state.ending is not None:
        end_by_limit(draft, state.ending)
    elif denied is not None:
        end(draft, RunStatus.DENIED, ReasonCode.PERMISSION_DENIED, DENIED_SENTENCE)
    elif (reason := limits.after_merge(state, draft.now_s)) is not None:
        end_by_limit(draft, reason)
    else:
        next_turn(draft)


def _remembered(state: RunState) -> Iterator[Signature]:
    """What the repeat gate sees of this turn: not the calls that were kept from running, for asking again is right."""
    for call in state.calls:
        if call.outcome is not CallOutcome.NOT_RUN:
            ok = limits.counts_as_ok(call.outcome)
            yield Signature(call.signature, call.call_id, state.turn, read_only=not call.effect, ok=ok)


def _withheld(state: RunState) -> tuple[str, ...]:
    """Tools that a run may not use again: an effect of theirs waits for a human answer."""
    waiting = {c.tool for c in state.calls if c.effect and c.outcome is CallOutcome.NEEDS_HUMAN}
    return (*state.withdrawn, *sorted(waiting - set(state.withdrawn)))


def next_turn(draft: Draft) -> None:
    """Open the next turn: one decision outstanding, due now."""
    draft.change(
        turn=draft.state.turn + 1,
        phase=TurnPhase.DECIDING,
        turn_started_at=draft.now_s,
        turn_tool_s=0.0,
        calls=(),
        status=RunStatus.QUEUED,
        model_attempt=0,
        model_failures=0,
    )
    draft.put(decide_row(draft.state, draft.now_s))


def decide_row(state: RunState, due_at: float) -> CommandRow:
    """The row that asks for the model's reply of the current turn."""
    command_id = decide_command_id(state.run_id, state.turn)
    return CommandRow(id=command_id, queue=DECIDE_QUEUES[state.lane], turn=state.turn, due_at=due_at)


def end_by_limit(draft: Draft, reason: str) -> None:
    """End in `limit_reached`, with a sentence for the user; the partial results stay with the run."""
    end(draft, RunStatus.LIMIT_REACHED, reason, limits.limit_sentence(draft.state, reason))


def end(draft: Draft, status: RunStatus, reason: str | None, output: str | None, *, say: bool = True) -> None:
    """Make the run terminal: no row stays. `say`: the output is also the last item of the conversation."""
    if say and output:
        draft.item(AssistantItem(text=output, by_runtime=True))
    phase = draft.state.phase if draft.state.phase is TurnPhase.MERGED else TurnPhase.ENDED
    draft.change(
        status=status,
        phase=phase,
        reason=None if reason is None else str(reason),
        output=output,
        commands=(),
        counters=replace(draft.state.counters, reserved_usd=0.0),
    )
    used = draft.state.counters
    draft.event(
        "run.finished",
        status=status.value,
        reason=draft.state.reason,
        model_calls=used.model_calls,
        tool_calls=used.tool_calls,
        corrections=used.corrections,
        cost_usd=round(used.cost_usd, 9),
    )
