"""Steps as attributes of spans: the facts of DESIGN section 11, and content only where it is asked for. Pure.

Injected context is nowhere here: attributes are made from what the model wrote and what was stored, never from what a
tool was given beside its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import orjson

from toolfleet.adapters.telemetry import names as n
from toolfleet.schemas.effects import EffectState
from toolfleet.schemas.events import (
    CallFinished,
    CallRetry,
    DecisionDeferred,
    EffectEnded,
    Event,
    ModelFailed,
    ModelReplied,
    RunUnworkable,
    StepFacts,
)
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.outcomes import CallOutcome
from toolfleet.schemas.ports import Applied
from toolfleet.schemas.records import AppendMerge, AppendStep
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.run import CallState, RunState
from toolfleet.schemas.views import CallView, RunInfo

Attribute = str | bool | int | float | Sequence[str]
Attributes = dict[str, Attribute]

CONTENT_CHARS_MAX: Final = 65_536  # of one attribute; larger ones are refused by many collectors
_PROVIDERS: Final = {"chat_completions": "openai"}
# Not failures of a tool: somebody, or a rule, decided that it does not run, or it said no for a reason.
_NO_ERRORS: Final = frozenset(
    {
        CallOutcome.OK,
        CallOutcome.NOT_RUN,
        CallOutcome.CANCELLED,
        CallOutcome.REJECTED,
        CallOutcome.BUSINESS_ERROR,
    }
)


def decision(
    state: RunState,
    info: RunInfo | None,
    request: ModelRequest | None,
    event: Event | None,
    applied: Applied | None,
) -> Attributes:
    """Of one try of a decision. `event` None: it was abandoned."""
    found = {n.RUN: state.run_id, n.TURN: state.turn, n.ATTEMPT: state.model_attempt, **_about(info)}
    if request is not None:
        found |= _choices(request)
    found[n.OUTCOME] = _outcome(event, applied)
    match event:
        case ModelReplied(reply=reply, calls=calls, facts=facts):
            found |= {n.CALLS: len(calls), n.MODEL_S: facts.model_s, n.QUEUE_S: facts.queue_s}
            found |= {n.COST_USD: facts.cost_usd, **_tokens(event), n.REQUEST_MODEL: facts.model}
            found |= _text(n.RESPONSE_MODEL, reply.model) | _ruled(facts)
        case ModelFailed(fault=fault, facts=facts, delay_s=delay_s):
            found |= _ruled(facts)
            found |= {n.MODEL_S: facts.model_s, n.QUEUE_S: facts.queue_s, n.REQUEST_MODEL: facts.model}
            found[n.ERROR_TYPE] = fault.kind
            if applied is not None and applied.state is not None and not applied.state.terminal:
                found[n.WAIT_S] = delay_s
        case RunUnworkable(reason=reason):
            found[n.ERROR_TYPE] = str(reason)
        case DecisionDeferred(delay_s=delay_s):
            found[n.WAIT_S] = delay_s
        case _:
            pass
    return found | ended(applied)


def chat(info: RunInfo, request: ModelRequest, event: Event | None, *, content: bool) -> Attributes:
    """Of the model call inside a decision."""
    found: Attributes = {n.OPERATION: n.CHAT, n.RUN: info.run_id, n.AGENT_NAME: info.agent}
    found |= {n.REQUEST_MODEL: request.agent.model, n.MAX_TOKENS: request.output_tokens_max}
    if request.agent.temperature is not None:
        found[n.TEMPERATURE] = request.agent.temperature
    if content:
        found[n.INPUT_MESSAGES] = _json([asdict(item) for item in request.items])
        found |= _text(n.SYSTEM_INSTRUCTIONS, request.agent.system_text[:CONTENT_CHARS_MAX])
    match event:
        case ModelReplied(reply=reply, facts=facts):
            found |= {n.PROVIDER: _PROVIDERS.get(reply.wire, reply.wire), n.FINISH_REASONS: (reply.finish,)}
            found |= {**_tokens(event), n.COST_USD: facts.cost_usd, n.MODEL_S: facts.model_s}
            found |= _text(n.RESPONSE_MODEL, reply.model) | _text(n.RESPONSE_ID, reply.request_id)
            if content:
                found[n.OUTPUT_MESSAGES] = _json(
                    [{"text": reply.text, "calls": [asdict(c) for c in reply.calls]}]
                )
        case ModelFailed(fault=fault, facts=facts):
            found |= {n.ERROR_TYPE: fault.kind, n.MODEL_S: facts.model_s}
            found |= _text(n.RESPONSE_ID, fault.request_id)
        case _:
            found[n.ERROR_TYPE] = n.ABANDONED
    return found


def attempt(
    view: CallView, call: CallState, event: Event | None, applied: Applied | None, *, content: bool
) -> Attributes:
    """Of one attempt of a call. `event` None: it was abandoned."""
    found: Attributes = {n.OPERATION: n.EXECUTE_TOOL, n.TOOL_NAME: call.tool, n.TOOL_TYPE: "function"}
    found |= {n.TOOL_CALL_ID: call.call_id, n.RUN: view.run_id, n.TURN: view.turn, n.ATTEMPT: call.attempt}
    found |= {n.TIER: call.tier.value, n.EFFECT: call.effect, n.REPAIRED: call.repaired}
    found |= {n.AGENT_NAME: view.agent, n.AGENT_VERSION: view.agent_version, n.TENANT: view.tenant}
    found |= {n.CORRELATION: view.correlation_id}
    if content:
        found[n.TOOL_ARGUMENTS] = call.arguments[:CONTENT_CHARS_MAX]
    match event:
        case CallFinished(result=result):
            found |= _result(result, content=content)
        case EffectEnded(result=result, came=came, delay_s=delay_s):
            found |= _effect_result(result, call, applied, came, delay_s, content=content)
        case CallRetry(result=result, delay_s=delay_s):
            found |= _result(result, content=content)
            after = None if applied is None or applied.state is None else applied.state.call(call.call_id)
            if applied is not None and applied.missed is None and after is not None and after.open:
                found |= {n.OUTCOME: n.RETRY_DUE, n.WAIT_S: delay_s}
        case _:
            found |= {n.OUTCOME: n.ABANDONED, n.ERROR_TYPE: n.ABANDONED}
    if applied is not None and applied.missed is not None:
        found[n.OUTCOME] = n.MISSED
    return found


def _effect_result(
    result: CallResult,
    call: CallState,
    applied: Applied | None,
    came: EffectState,
    delay_s: float,
    *,
    content: bool,
) -> Attributes:
    """Of an attempt of an effect: its outcome, or what is waited for."""
    found = _result(result, content=content)
    after = None if applied is None or applied.state is None else applied.state.call(call.call_id)
    if applied is None or applied.missed is not None or after is None:
        return found
    if after.open:
        waits = n.RECONCILING if came is EffectState.RECONCILING else n.RETRY_DUE
        return found | {n.OUTCOME: waits, n.WAIT_S: delay_s}
    if after.outcome is not None and after.outcome is not result.outcome:
        found |= {n.OUTCOME: after.outcome.value, n.ERROR_TYPE: after.outcome.value}
    return found


def answered(state: RunState, step: AppendStep, known: frozenset[str]) -> Attributes:
    """Of a call that the decision answered itself. A tool's name is the model's text unless the agent has the tool."""
    found: Attributes = {n.RUN: state.run_id, n.TURN: step.turn, n.OUTCOME: step.outcome}
    found |= _text(n.TOOL_CALL_ID, step.call_id) | _text(n.REASON, step.fields.get("reason"))
    if step.tool_name in known:
        found |= _text(n.TOOL_NAME, step.tool_name)
    return found


def merge(applied: Applied, merged: AppendMerge) -> Attributes:
    """Of the merge of one turn."""
    assert applied.before is not None, "a run that is merged was there before"
    found: Attributes = {n.RUN: applied.before.run_id, n.TURN: merged.turn, n.RESULTS: len(merged.calls)}
    return found | {n.OUTCOME: "merged"} | ended(applied)


def ended(applied: Applied | None) -> Attributes:
    """What a run came to, for the step that ended it; empty for every other step."""
    if applied is None or applied.missed is not None or applied.state is None or not applied.state.terminal:
        return {}
    state, used = applied.state, applied.state.counters
    found: Attributes = {n.RUN_STATUS: state.status.value, **_text(n.RUN_REASON, state.reason)}
    found |= {n.RUN_MODEL_CALLS: used.model_calls, n.RUN_TOOL_CALLS: used.tool_calls}
    found |= {n.RUN_CORRECTIONS: used.corrections, n.RUN_COST_USD: used.cost_usd}
    found |= {n.RUN_INPUT_TOKENS: used.input_tokens, n.RUN_OUTPUT_TOKENS: used.output_tokens}
    return found | {n.RUN_QUEUE_S: used.queue_s, n.RUN_MODEL_S: used.model_s, n.RUN_TOOL_S: used.tool_s}


def _about(info: RunInfo | None) -> Attributes:
    if info is None:
        return {}
    return {
        n.AGENT_NAME: info.agent,
        n.AGENT_VERSION: info.agent_version,
        n.PROMPT_VERSION: info.prompt_version,
        n.TOOLSET_VERSION: info.toolset_version,
        n.TENANT: info.tenant,
        n.CORRELATION: info.correlation_id,
    }


def _choices(request: ModelRequest) -> Attributes:
    allowed = request.allowed
    return {
        n.TOOL_CHOICE: request.tool_choice,
        n.PARALLEL: request.parallel,
        n.ALLOWED_TOOLS: tuple(t.name for t in request.tools) if allowed is None else allowed,
    }


def _ruled(facts: StepFacts) -> Attributes:
    """What the rules of the agent came to, and what was left out of the request."""
    found: Attributes = {}
    if facts.control is not None:
        found[n.TOOL_BAND] = facts.control.band
        if facts.control.rules:
            found[n.RULES] = facts.control.rules
        if facts.control.excluded:
            found[n.EXCLUDED_TOOLS] = tuple(f"{tool}={why}" for tool, why in facts.control.excluded)
    if facts.context.dropped_items:
        found[n.DROPPED_ITEMS] = facts.context.dropped_items
    return found


def _tokens(event: ModelReplied) -> Attributes:
    used = event.reply.usage
    if not used.known:
        return {}
    return {
        n.INPUT_TOKENS: used.input_tokens,
        n.OUTPUT_TOKENS: used.output_tokens,
        n.CACHED_TOKENS: used.cached_tokens,
        n.REASONING_TOKENS: used.reasoning_tokens,
    }


def _outcome(event: Event | None, applied: Applied | None) -> str:
    """That of the step row, where one was stored."""
    if event is None or applied is None:
        return n.ABANDONED
    if applied.missed is not None:
        return n.MISSED
    stored = (r.outcome for r in applied.records if isinstance(r, AppendStep) and r.kind == n.DECIDE)
    return next(stored, str(applied.state.reason) if applied.state is not None else "")


def _result(result: CallResult, *, content: bool) -> Attributes:
    found: Attributes = {n.OUTCOME: result.outcome.value, n.TOOL_S: result.tool_s, n.QUEUE_S: result.queue_s}
    found |= _text(n.REASON, result.reason)
    if result.outcome not in _NO_ERRORS:
        found[n.ERROR_TYPE] = result.reason or result.outcome.value
    if content:
        found[n.TOOL_RESULT] = result.content[:CONTENT_CHARS_MAX]
    return found


def _text(name: str, value: str | None) -> Attributes:
    """The attribute, where there is anything to say."""
    return {name: str(value)} if value else {}


def _json(value: Sequence[Mapping[str, Any]]) -> str:
    return orjson.dumps(value, default=str).decode()[:CONTENT_CHARS_MAX]
