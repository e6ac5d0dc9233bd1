"""Asks a tool, in this process, what became of one of its effects: for an operator, before anything is repeated by hand."""

from __future__ import annotations

import orjson

from toolfleet.app import contract_tools
from toolfleet.approving import Looked
from toolfleet.definitions import Registry
from toolfleet.schemas.ids import idempotency_key_of
from toolfleet.schemas.ports import RunStore, ToolBackend, ToolFailed
from toolfleet.schemas.tools import ToolContext
from toolfleet.schemas.views import EffectView
from toolfleet.settings import Settings


async def ask_again(registry: Registry, settings: Settings, store: RunStore, view: EffectView) -> Looked:
    """The answer of the tool's own `reconcile`, under its deadline; whatever is no clear answer is none."""
    now = await store.now()
    tool = registry.runnable.get(view.tool)
    if tool is None:
        return Looked("nothing", now, why=f"{view.tool} is no tool of this fleet")
    if "reconcile" not in tool.spec.parts:
        return Looked("nothing", now, why=f"{view.tool} has no reconcile")
    tools = contract_tools(registry, settings.model_copy(update={"children": 1}), store)
    try:
        return await _asked(tools, store, view, now, tool.spec.timeout_s)
    finally:
        await tools.aclose()


async def _asked(
    tools: ToolBackend, store: RunStore, view: EffectView, now: float, timeout_s: float
) -> Looked:
    run = await store.run(view.run_id)
    assert run is not None, "an effect is of a run"
    info = run.info
    context = ToolContext(
        run_id=view.run_id,
        turn=view.turn,
        call_id=view.call_id,
        attempt=view.entry.attempt,
        idempotency_key=idempotency_key_of(view.call_id),
        tenant=view.tenant,
        agent=info.agent,
        correlation_id=info.correlation_id,
        deadline_at=now + timeout_s,
        principal=info.principal or str(info.context.get("principal") or ""),
        context=info.context,
    )
    async with tools.place(view.tool, view.tier) as place:
        answer = await place.run(orjson.loads(view.arguments), context, timeout_s=timeout_s, part="reconcile")
    if isinstance(answer, ToolFailed):
        why = f"{view.tool} could not be asked ({answer.error_type or answer.kind})"
        return Looked("nothing", now, why=why)
    said = orjson.loads(answer.value_json)
    match said.get("answer") if isinstance(said, dict) else None:
        case "happened":
            return Looked("happened", now, result=orjson.dumps(said.get("result")).decode())
        case "did_not_happen":
            return Looked("did_not_happen", now)
        case _:
            return Looked("nothing", now, why=f"the other side of {view.tool} cannot tell now")
