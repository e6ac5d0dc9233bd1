"""The JSON shapes of the command line, and the one-line forms beside them. Keys are stable: docs/cli.md lists them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from toolfleet.commands.terminal import cut, iso

if TYPE_CHECKING:
    from toolfleet.client import CancelAck, RunResult
    from toolfleet.found import Found
    from toolfleet.schemas.commands import CommandRow
    from toolfleet.schemas.results import CallResult
    from toolfleet.schemas.run import CallState
    from toolfleet.schemas.views import DeadLetter, RunEvent, RunView, StepView

BODY_CHARS_MAX = 4_000
FOUND_CHARS_MAX = 1_000


def result(done: RunResult) -> dict[str, Any]:
    """What a run came to."""
    return {
        "run_id": done.run_id,
        "agent": done.agent,
        "status": done.status.value,
        "reason": done.reason,
        "output": done.output,
        "limit": done.limit,
        "found": [found(one) for one in done.found],
        "turns": done.turns,
        "model_calls": done.model_calls,
        "tool_calls": done.tool_calls,
        "corrections": done.corrections,
        "input_tokens": done.input_tokens,
        "output_tokens": done.output_tokens,
        "cost_usd": done.cost_usd,
        "results": [call_result(one) for one in done.results],
    }


def found(one: Found) -> dict[str, Any]:
    """What a call had found when a limit ended its run."""
    return {"call_id": one.call_id, "tool": one.tool, "data": one.data, "left_out": one.left_out}


def found_line(one: Found) -> str:
    data = "too long to show here" if one.left_out else json.dumps(one.data, ensure_ascii=False)
    return cut(f"found by {one.tool}: {data}", FOUND_CHARS_MAX)


def call_result(one: CallResult) -> dict[str, Any]:
    """The outcome of one call; `content` is what the model got."""
    return {
        "call_id": one.call_id,
        "index": one.index,
        "outcome": one.outcome.value,
        "reason": one.reason,
        "attempt": one.attempt,
        "tool_s": one.tool_s,
        "content": parsed(one.content),
    }


def run(view: RunView) -> dict[str, Any]:
    """A run as it is now. Of its context only the names: the values may be secrets."""
    from toolfleet.client import output_of

    info, state = view.info, view.state
    used = state.counters
    return {
        "run_id": info.run_id,
        "agent": info.agent,
        "agent_version": info.agent_version,
        "status": state.status.value,
        "reason": state.reason,
        "input": info.input,
        "output": output_of(state),
        "lane": state.lane.value,
        "tenant": info.tenant,
        "previous_run_id": info.previous_run_id,
        "retry_of": info.retry_of,
        "created_at": iso(info.created_at),
        "finished_at": iso(info.finished_at),
        "deadline_at": iso(state.deadline_at),
        "turns": state.turn,
        "model_calls": used.model_calls,
        "tool_calls": used.tool_calls,
        "corrections": used.corrections,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.cached_tokens,
        "reasoning_tokens": used.reasoning_tokens,
        "cost_usd": used.cost_usd,
        "model_s": used.model_s,
        "tool_s": used.tool_s,
        "queue_s": used.queue_s,
        "metadata": info.metadata,
        "context_keys": sorted(info.context),
    }


def step(one: StepView) -> dict[str, Any]:
    return {
        "at": iso(one.at),
        "turn": one.turn,
        "kind": one.kind,
        "outcome": one.outcome,
        "call_id": one.call_id,
        "tool_name": one.tool_name,
        "attempt": one.attempt,
        "fields": one.fields,
    }


def open_call(call: CallState) -> dict[str, Any]:
    """A call that has no outcome yet."""
    return {
        "call_id": call.call_id,
        "index": call.index,
        "tool": call.tool,
        "arguments": parsed(call.arguments),
        "waiting": call.waiting.value,
        "attempt": call.attempt,
        "effect_may_have_begun": call.dispatched,
    }


def outstanding(row: CommandRow) -> dict[str, Any]:
    """A step that is to be done, or is being done."""
    return {
        "step": row.id,
        "queue": row.queue,
        "turn": row.turn,
        "due_at": iso(row.due_at),
        "sends": row.sends,
        "deaths": row.deaths,
        "owner": row.owner,
    }


def event(one: RunEvent) -> dict[str, Any]:
    return {"run_id": one.run_id, "seq": one.seq, "type": one.type, "at": iso(one.at), "data": one.data}


def event_line(one: RunEvent) -> str:
    """`type key=value …`, one line."""
    fields = (f"{name}={_short(value)}" for name, value in one.data.items() if value is not None)
    return " ".join([one.type, *fields])


def ack(one: CancelAck) -> dict[str, Any]:
    return {"run_id": one.run_id, "status": one.status.value, "running": list(one.running)}


def dead(letter: DeadLetter, *, body: bool = False) -> dict[str, Any]:
    """A dead letter; with `body` the start of a message's bytes, as text that was never trusted."""
    shape: dict[str, Any] = {
        "id": letter.id,
        "kind": letter.kind,
        "queue": letter.queue,
        "reason": letter.reason,
        "at": iso(letter.at),
        "run_id": letter.run_id,
        "turn": letter.turn,
        "call_id": letter.call_id,
        "detail": letter.detail,
        "body_bytes": None if letter.body is None else len(letter.body),
    }
    if body:
        text = None if letter.body is None else letter.body.decode(errors="backslashreplace")
        shape["body"] = text if text is None else text[:BODY_CHARS_MAX]
    return shape


def parsed(text: str) -> Any:
    """The JSON value of a stored text; the text itself where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _short(value: Any) -> str:
    if isinstance(value, str):
        return (
            cut(value, 120) if value and " " not in value else json.dumps(cut(value, 120), ensure_ascii=False)
        )
    return cut(json.dumps(value, ensure_ascii=False), 300)
