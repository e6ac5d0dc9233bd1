"""Transitions of a turn: accepted, asked, replied, asked again, given up (T1 to T5)."""

from __future__ import annotations

from dataclasses import replace

import orjson

from toolfleet.schemas.commands import EXEC_QUEUES, CommandRow
from toolfleet.schemas.conversation import AssistantItem, ItemCall, NoticeItem, UserItem
from toolfleet.schemas.events import (
    DecisionLeased,
    ModelFailed,
    ModelReplied,
    RunUnworkable,
    StepFacts,
    Submitted,
)
from toolfleet.schemas.ids import LeaseToken, call_command_id
from toolfleet.schemas.limits import DRAFT_CHARS_MAX, LOST_MARGIN_S
from toolfleet.schemas.outcomes import CallOutcome, ReasonCode, RunStatus, TurnPhase
from toolfleet.schemas.records import AppendStep, CloseUsage, OpenUsage, ReuseResult, Step
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.workers.machine import closing, limits
from toolfleet.workers.machine.answers import Correction, refused_answer
from toolfleet.workers.machine.draft import Draft, miss, refusal_of
from toolfleet.workers.machine.gates import Gated, gate

EMPTY_REPLY_NOTICE = "Your last reply was empty. Answer the user, or call a tool."
FAILED_SENTENCE = "I could not finish this request because of a technical problem."
REFUSED_SENTENCE = "The model refused this request."
FILTERED_SENTENCE = "The model's answer was withheld by its provider's content filter."


def submitted(state: RunState | None, event: Submitted, now_s: float) -> Step:
    """T1: the run exists, its input is an item, and one decision is outstanding."""
    if state is not None:
        return miss(state, "run exists")
    new = event.new
    fresh = RunState(
        run_id=new.run_id,
        status=RunStatus.QUEUED,
        lane=new.lane,
        limits=new.limits,
        turn_started_at=now_s,
        deadline_at=None if new.deadline_s is None else now_s + new.deadline_s,
    )
    draft = Draft(fresh, now_s)
    draft.count(next_reserve_usd=new.reserve_usd)
    draft.item(UserItem(new.input))
    draft.put(closing.decide_row(draft.state, now_s))
    draft.event("run.accepted", agent=new.agent, lane=new.lane.value)
    return draft.step()


def decision_leased(state: RunState, event: DecisionLeased, now_s: float) -> Step:
    """T2: the lease is taken and the cost reserved; or a limit of time or cost ends the run here."""
    row = state.command(event.command_id)
    if row is not None and row.token == event.token:
        return Step(state)  # asked again because the answer was lost: the lease is the sender's already
    refused = refusal_of(row, now_s)
    if refused is not None or row is None:
        return miss(state, refused or "row gone")
    if not row.is_decide or state.status not in (RunStatus.QUEUED, RunStatus.DECIDING):
        return miss(state, "not deciding")
    draft = Draft(state, now_s)
    reason = limits.before_model_call(state, now_s)
    if reason is not None:
        closing.end_by_limit(draft, reason)
        return draft.step()
    reserve = state.counters.next_reserve_usd
    draft.put(row.leased(event.token, event.owner, now_s + event.lease_s, now_s))
    draft.change(status=RunStatus.DECIDING, model_attempt=state.model_attempt + 1)
    draft.count(cost_usd=reserve)
    draft.set_counters(replace(draft.state.counters, reserved_usd=reserve))
    draft.add(OpenUsage(event.token, state.turn, draft.state.model_attempt, event.model, reserve))
    draft.event("turn.deciding", turn=state.turn, attempt=draft.state.model_attempt)
    return draft.step()


def model_replied(state: RunState, event: ModelReplied, now_s: float) -> Step:
    """T3, T4: the reply is stored once; its calls go out, or the run ends with its text."""
    usage = _close_usage(event)
    row = _mine(state, event.command_id, event.token)
    if row is None:
        return Step(state, (usage,), missed="lease lost")  # what it cost still counts
    draft = Draft(state, now_s)
    draft.add(usage)
    _book_reply(draft, event)
    draft.drop(lambda old: old.id == row.id)
    if event.calls and event.reply.finish not in ("content_filter", "refusal"):
        _emit_calls(draft, event)
    else:
        _final(draft, event)
    return draft.step()


def model_failed(state: RunState, event: ModelFailed, now_s: float) -> Step:
    """T5: the same decision is due later, or the run has failed."""
    usage = CloseUsage(event.token, status="failed", model=event.facts.model)
    row = _mine(state, event.command_id, event.token)
    if row is None:
        return miss(state, "lease lost")
    draft = Draft(state, now_s)
    if (
        event.fault.status is not None
    ):  # refused by the server, so nothing was used; else the reservation stands
        draft.add(usage)
        draft.count(cost_usd=-state.counters.reserved_usd)
    draft.set_counters(replace(draft.state.counters, reserved_usd=0.0))
    draft.count(model_s=event.facts.model_s, active_s=event.facts.model_s)
    draft.add(_decide_step(draft.state, event.fault.kind, event.facts, error=event.fault.message))
    if event.fault.kind == "context_length":
        _too_long(draft, event, row)
        return draft.step()
    draft.change(model_failures=state.model_failures + 1)
    if event.next_model:
        draft.put(row.due(now_s))
        draft.change(status=RunStatus.QUEUED, model_failures=0, model_index=state.model_index + 1)
        draft.event("model.fallback", turn=state.turn, fault=event.fault.kind, model=event.facts.model)
        return draft.step()
    if event.fault.retryable and draft.state.model_failures < state.limits.model_attempts_max:
        draft.put(row.due(now_s + event.delay_s))
        draft.change(status=RunStatus.QUEUED)
        draft.event("turn.retry", turn=state.turn, fault=event.fault.kind, delay_s=round(event.delay_s, 3))
        return draft.step()
    draft.event("model.failed", turn=state.turn, fault=event.fault.kind, message=event.fault.message)
    if event.fault.kind == "content_filter":
        closing.end(draft, RunStatus.FAILED, ReasonCode.CONTENT_FILTER, FILTERED_SENTENCE)
    else:
        closing.end(draft, RunStatus.FAILED, ReasonCode.MODEL_ERROR, FAILED_SENTENCE)
    return draft.step()


def _too_long(draft: Draft, event: ModelFailed, row: CommandRow) -> None:
    """One tighter try in a run, kept for its later turns; refused again, or with nothing to cut, the run fails."""
    tighter = event.facts.tighter_tokens
    if draft.state.context_tokens_max is not None or tighter is None:
        draft.event(
            "model.failed", turn=draft.state.turn, fault=event.fault.kind, message=event.fault.message
        )
        closing.end(draft, RunStatus.FAILED, ReasonCode.CONTEXT_LENGTH, FAILED_SENTENCE)
        return
    draft.put(row.due(draft.now_s))
    draft.change(status=RunStatus.QUEUED, context_tokens_max=tighter)
    draft.event("turn.tightened", turn=draft.state.turn, budget_tokens=tighter)


def run_unworkable(state: RunState, event: RunUnworkable, now_s: float) -> Step:
    """T4: nobody can work on this decision; the run fails with the reason."""
    row = _mine(state, event.command_id, event.token)
    if row is None:
        return miss(state, "lease lost")
    draft = Draft(state, now_s)
    draft.add(CloseUsage(event.token, status="failed", model=""))
    draft.count(cost_usd=-state.counters.reserved_usd)
    draft.event("run.unworkable", reason=event.reason, message=event.message)
    closing.end(draft, RunStatus.FAILED, event.reason, FAILED_SENTENCE)
    return draft.step()


def _mine(state: RunState, command_id: str, token: LeaseToken) -> CommandRow | None:
    """The decide row, if its lease is still this token's. `lease_until` is never asked."""
    row = state.command(command_id)
    return row if row is not None and row.token == token and row.is_decide else None


def _close_usage(event: ModelReplied) -> CloseUsage:
    used = event.reply.usage
    return CloseUsage(
        event.token,
        status="replied",
        model=event.reply.model,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cached_tokens,
        reasoning_tokens=used.reasoning_tokens,
        cost_usd=event.facts.cost_usd,
    )


def _book_reply(draft: Draft, event: ModelReplied) -> None:
    used, facts = event.reply.usage, event.facts
    draft.count(
        model_calls=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cached_tokens,
        reasoning_tokens=used.reasoning_tokens,
        cost_usd=facts.cost_usd - draft.state.counters.reserved_usd,
        model_s=facts.model_s,
        active_s=facts.model_s,
        queue_s=facts.queue_s,
    )
    counters = replace(draft.state.counters, reserved_usd=0.0, next_reserve_usd=facts.next_reserve_usd)
    draft.set_counters(counters)
    fields = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.cached_tokens,
        "reasoning_tokens": used.reasoning_tokens,
        "calls": len(event.calls),
    }
    draft.add(_decide_step(draft.state, event.reply.finish, facts, **fields))


def _decide_step(state: RunState, outcome: str, facts: StepFacts, **fields: object) -> AppendStep:
    return AppendStep(
        "decide",
        state.turn,
        outcome,
        attempt=state.model_attempt,
        fields={
            "owner": facts.owner,
            "model": facts.model,
            "model_version": facts.model_version,
            "tool_choice": facts.tool_choice,
            "parallel_tool_calls": facts.parallel,
            "allowed_tools": None if facts.allowed is None else list(facts.allowed),
            **_ruled(facts),
            **facts.context.fields,
            "model_s": facts.model_s,
            "queue_s": facts.queue_s,
            "cost_usd": facts.cost_usd,
            "request_id": facts.request_id,
            **fields,
        },
    )


def _ruled(facts: StepFacts) -> dict[str, object]:
    """What the rules of the agent came to, where they came to anything."""
    control = facts.control
    if control is None:
        return {}
    said = {
        "rules": list(control.rules),
        "excluded_tools": dict(control.excluded),
        "answer_needs": list(control.missing),
    }
    return {"tool_band": control.band, **{name: value for name, value in said.items() if value}}


def _emit_calls(draft: Draft, event: ModelReplied) -> None:
    gated = gate(draft.state, event)
    _append_reply(draft, event, gated)
    if event.reply.text and event.reply.text.strip():
        draft.change(draft=event.reply.text[:DRAFT_CHARS_MAX])
    draft.change(
        phase=TurnPhase.CALLS,
        status=RunStatus.WAITING,
        calls=tuple(verdict.call for verdict in gated.verdicts),
        withdrawn=gated.withdrawn,
        ending=gated.ending,
        turn_tool_s=0.0,
    )
    draft.count(corrections=gated.corrections)
    for verdict in gated.verdicts:
        if verdict.answer is not None:
            draft.result(verdict.call, verdict.answer)
        elif verdict.reuse is not None:
            call, reuse = verdict.call, verdict.reuse
            draft.add(ReuseResult(draft.state.turn, call.call_id, call.index, reuse.source, reuse.notice))
            copied = CallResult(call.call_id, call.index, CallOutcome.OK, "", reason=ReasonCode.REPEATED_CALL)
            draft.close_call(call, copied)
        else:
            draft.put(_exec_row(draft, verdict.call))
            draft.count(tool_calls=1)
    draft.event(
        "turn.calls",
        turn=draft.state.turn,
        calls=[{"call_id": c.call_id, "tool": c.tool, "open": c.open} for c in draft.state.calls],
    )
    closing.count(draft)


def _exec_row(draft: Draft, call: CallState) -> CommandRow:
    return CommandRow(
        id=call_command_id(call.call_id),
        queue=EXEC_QUEUES[call.tier],
        turn=draft.state.turn,
        due_at=draft.now_s,
        call_id=call.call_id,
        lost_after_s=call.timeout_s + LOST_MARGIN_S,
    )


def _append_reply(draft: Draft, event: ModelReplied, gated: Gated | None) -> None:
    verdicts = gated.verdicts if gated is not None else ()
    calls = tuple(
        ItemCall(v.call.call_id, v.call.wire_id, v.call.tool, _spoken(event, v.call)) for v in verdicts
    )
    reply = event.reply
    draft.item(AssistantItem(text=reply.text, calls=calls, wire=reply.wire, provider=reply.provider))


def _spoken(event: ModelReplied, call: CallState) -> str:
    """The arguments as the conversation keeps them: the model's own text where it is the text of a JSON object, so
    that the history stays byte for byte what the provider has seen; else what was made of it."""
    raw = event.reply.calls[call.index].arguments
    if call.repaired or raw is None:
        return call.arguments
    try:
        return raw if isinstance(orjson.loads(raw), dict) else call.arguments
    except orjson.JSONDecodeError:
        return call.arguments


def _final(draft: Draft, event: ModelReplied) -> None:
    reply = event.reply
    if reply.finish == "content_filter":
        closing.end(draft, RunStatus.FAILED, ReasonCode.CONTENT_FILTER, reply.text or FILTERED_SENTENCE)
    elif reply.finish == "refusal" or (reply.refusal and not reply.text):
        closing.end(
            draft, RunStatus.FAILED, ReasonCode.REFUSAL, reply.refusal or reply.text or REFUSED_SENTENCE
        )
    elif reply.finish == "length":
        _append_if_text(draft, event)
        sentence = limits.limit_sentence(draft.state, ReasonCode.TRUNCATED_OUTPUT)
        output = reply.text or sentence
        closing.end(draft, RunStatus.LIMIT_REACHED, ReasonCode.TRUNCATED_OUTPUT, output, say=not reply.text)
    elif not (reply.text or "").strip():
        _empty(draft)
    elif (refused := refused_answer(event)) is not None:
        _correct(draft, event, refused)
    else:
        _append_reply(draft, event, None)
        text = reply.text if event.output is None else event.output.text
        draft.change(structured=event.output is not None)
        closing.end(draft, RunStatus.COMPLETED, None, text, say=False)


def _append_if_text(draft: Draft, event: ModelReplied) -> None:
    if event.reply.text:
        _append_reply(draft, event, None)


def _empty(draft: Draft) -> None:
    """An empty reply is asked again once, as a correction; the second one fails the run."""
    used = draft.state.counters
    if used.empty_replies >= 1 or used.corrections >= draft.state.limits.corrections_max:
        closing.end(draft, RunStatus.FAILED, ReasonCode.EMPTY_REPLY, FAILED_SENTENCE)
        return
    draft.count(empty_replies=1, corrections=1)
    draft.event("turn.empty_reply", turn=draft.state.turn)
    _ask_again(draft, EMPTY_REPLY_NOTICE)


def _correct(draft: Draft, event: ModelReplied, refused: Correction) -> None:
    """An answer the rules do not accept is corrected while corrections are left; else it fails the run."""
    _append_reply(draft, event, None)
    if draft.state.counters.corrections >= draft.state.limits.corrections_max:
        closing.end(draft, RunStatus.FAILED, refused.reason, FAILED_SENTENCE)
        return
    draft.count(corrections=1)
    draft.event("turn.corrected", turn=draft.state.turn, reason=refused.reason.value)
    _ask_again(draft, refused.notice)


def _ask_again(draft: Draft, notice: str) -> None:
    reason = limits.after_merge(draft.state, draft.now_s)
    if reason is not None:
        closing.end_by_limit(draft, reason)
        return
    draft.item(NoticeItem(notice))
    closing.next_turn(draft)
