"""`runs show`: everything that is stored about one run, as text by turn and as a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from toolfleet.client import Client
from toolfleet.commands import shapes
from toolfleet.commands.terminal import cut, iso, moment, printable
from toolfleet.schemas.conversation import AssistantItem, ItemCall
from toolfleet.schemas.results import CallResult
from toolfleet.schemas.views import RunEvent, RunView, StepView, StoredItem

EVENTS_PAGE = 1000
PREVIEW_WIDTH = 160
# What happened between steps; everything else that is an event is a step or an item too.
TOLD_BY_EVENTS = (
    "call.retry",
    "call.late_result",
    "call.deferred",
    "turn.retry",
    "turn.deferred",
    "model.fallback",
    "turn.empty_reply",
    "lease.expired",
    "run.cancelling",
    "run.unworkable",
    "model.failed",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One run, read from several tables; a run that goes on may have moved on between two of them."""

    view: RunView
    items: list[StoredItem]
    results: list[tuple[int, CallResult]]
    steps: list[StepView]
    usage: list[dict[str, Any]]
    events: list[RunEvent]


async def look(client: Client, run_id: str) -> Seen:
    """Raises UnknownRun."""
    view = await client.get(run_id)
    store, known = client.store, view.info.run_id
    events: list[RunEvent] = []
    while page := await store.events(known, after=events[-1].seq if events else 0, limit=EVENTS_PAGE):
        events.extend(page)
    return Seen(
        view,
        await store.items(known),
        await store.results(known),
        await store.steps(known),
        await store.usage(known),
        events,
    )


def document(seen: Seen) -> dict[str, Any]:
    """The JSON shape of `runs show`."""
    calls = _calls(seen)
    results = []
    for turn, one in seen.results:
        call = calls.get(one.call_id)
        asked = {
            "turn": turn,
            "tool": None if call is None else call.name,
            "arguments": None if call is None else shapes.parsed(call.arguments),
        }
        results.append({**asked, **shapes.call_result(one)})
    state = seen.view.state
    return {
        "run": shapes.run(seen.view),
        "calls": results,
        "open_calls": [shapes.open_call(call) for call in state.open_calls],
        "outstanding": [shapes.outstanding(row) for row in state.commands],
        "steps": [shapes.step(one) for one in seen.steps],
        "usage": [_usage(row) for row in seen.usage],
        "events": [shapes.event(one) for one in seen.events],
    }


def _usage(row: dict[str, Any]) -> dict[str, Any]:
    """A usage row; times as everywhere else."""
    return {name: iso(value) if name == "at" else value for name, value in row.items()}


def text(seen: Seen) -> str:
    """The timeline for people: a head, one block per turn, what is outstanding, the output."""
    lines = [*_head(seen)]
    turns = sorted({step.turn for step in seen.steps} | {seen.view.state.turn})
    for turn in turns:
        entries = sorted(_entries(seen, turn), key=lambda entry: entry[0])
        lines += ["", f"turn {turn}"]
        for at, what in entries:
            since = at - seen.view.info.created_at
            first, *others = what
            lines += [f"  {since:>+9.3f}s  {first}", *(f"{'':14}{other}" for other in others)]
    lines += _open(seen)
    if seen.view.state.output is not None:
        lines += ["", "output", printable(seen.view.state.output, lines=True)]
    return "\n".join(lines)


def _head(seen: Seen) -> Iterator[str]:
    info, state = seen.view.info, seen.view.state
    used = state.counters
    ended = "" if info.finished_at is None else f", ended after {info.finished_at - info.created_at:.3f} s"
    yield f"{info.run_id}  {state.status.value}{f' ({state.reason})' if state.reason else ''}"
    yield f"agent     {printable(info.agent)} (version {info.agent_version}), lane {state.lane.value}"
    yield f"input     {cut(info.input, PREVIEW_WIDTH)}"
    yield f"created   {moment(info.created_at)}{ended}"
    if info.previous_run_id is not None:
        yield f"follows   {info.previous_run_id}"
    if info.retry_of is not None:
        yield f"retry of  {info.retry_of}"
    if state.deadline_at is not None:
        yield f"deadline  {moment(state.deadline_at)}"
    yield (
        f"used      {state.turn} turn(s), {used.model_calls} model call(s), {used.tool_calls} tool call(s), "
        f"{used.corrections} correction(s)"
    )
    yield (
        f"tokens    {used.input_tokens} in ({used.cached_tokens} cached), {used.output_tokens} out "
        f"({used.reasoning_tokens} reasoning); {used.cost_usd:.6f} USD"
    )
    yield f"seconds   {used.model_s:.3f} model, {used.tool_s:.3f} tools, {used.queue_s:.3f} queues"
    if info.metadata:
        yield f"metadata  {cut(', '.join(f'{k}={v}' for k, v in info.metadata.items()), PREVIEW_WIDTH)}"


def _entries(seen: Seen, turn: int) -> Iterator[tuple[float, list[str]]]:
    calls = _calls(seen)
    results = {str(one.call_id): one for _, one in seen.results}
    for step in (one for one in seen.steps if one.turn == turn):
        if step.kind == "decide":
            yield step.at, _decided(seen, step)
        elif step.kind == "call" and step.call_id is not None:
            yield step.at, _called(step, calls.get(step.call_id), results.get(step.call_id))
        else:
            yield step.at, [f"{step.kind:<7} {step.fields.get('results', '')} result(s) {step.outcome}"]
    for event in seen.events:
        if event.type in TOLD_BY_EVENTS and event.data.get("turn", seen.view.state.turn) == turn:
            yield event.at, [f"note    {shapes.event_line(event)}"]


def _decided(seen: Seen, step: StepView) -> list[str]:
    fields = step.fields
    tokens = f"{fields.get('input_tokens', 0)} in, {fields.get('output_tokens', 0)} out"
    model = printable(str(fields.get("model", "")))
    used = f"{fields.get('model_s', 0):.3f} s  {tokens}  {fields.get('cost_usd', 0):.6f} USD"
    lines = [f"decide  {step.outcome}  {model}  attempt {step.attempt}  {used}"]
    if fields.get("error"):
        lines.append(f"error: {cut(str(fields['error']), PREVIEW_WIDTH)}")
        return lines
    said = [
        stored.item.text
        for stored in seen.items
        if stored.turn == step.turn and isinstance(stored.item, AssistantItem) and not stored.item.by_runtime
    ]
    return lines + [f"says: {cut(one, PREVIEW_WIDTH)}" for one in said if one]


def _called(step: StepView, call: ItemCall | None, result: CallResult | None) -> list[str]:
    arguments = "" if call is None else cut(call.arguments, PREVIEW_WIDTH)
    index = "" if result is None else f"[{result.index}] "
    reason = step.fields.get("reason")
    outcome = f"{step.outcome} ({reason})" if reason else step.outcome
    lines = [
        f"call    {index}{printable(step.tool_name or '')}({arguments})",
        f"{outcome}  attempt {step.attempt}  {step.fields.get('tool_s', 0):.3f} s",
    ]
    if result is not None and result.content:
        lines.append(f"result: {cut(result.content, PREVIEW_WIDTH)}")
    return lines


def _open(seen: Seen) -> Iterator[str]:
    state = seen.view.state
    if not state.commands:
        return
    yield ""
    yield "outstanding"
    for row in state.commands:
        call = None if row.call_id is None else state.call(row.call_id)
        what = (
            "" if call is None else f" {printable(call.tool)}, {call.waiting.value}, attempt {call.attempt}"
        )
        held = f", held by {row.owner}" if row.owner else ""
        yield f"  {row.queue} {row.id}{what}, due {moment(row.due_at)}, sent {row.sends}x, deaths {row.deaths}{held}"


def _calls(seen: Seen) -> dict[str, ItemCall]:
    return {
        str(call.call_id): call
        for stored in seen.items
        if isinstance(stored.item, AssistantItem)
        for call in stored.item.calls
    }
