"""The tools: what each attempt does is drawn from (seed, call, attempt), so that a repeat meets the same world."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from tests.simulation.faults import Faults
from tests.simulation.outside import Ledger, Seen
from tests.simulation.plan import POISON, TOOLS
from tests.simulation.process import Killed, Process
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.ports import NOT_IN_TIME, MayBegin, ToolAnswer, ToolFailed, ToolReturned
from toolfleet.schemas.tools import CallFacts, ToolContext, ToolSpec

BIG = "x" * 40_000  # more than rides along in a message

# What an attempt may come to beside "ok", with weights. Names of effects say what happens before the answer.
_READ = {
    "raised": 2,
    "connection": 3,
    "retryable": 3,
    "timed_out": 2,
    "died": 2,
    "business": 2,
    "denied": 1,
    "not_json": 1,
    "big": 2,
}
_EFFECT = {
    "raised_before": 2,
    "raised_after": 3,
    "silent_before": 1,
    "silent_after": 2,
    "late": 3,
    "died_before": 1,
    "died_after": 1,
    "business": 2,
    "denied": 1,
    "not_sent": 2,
    "refused": 2,
}


class SimulatedPlace:
    """Room for one attempt; implements schemas.ports.ToolPlace."""

    def __init__(self, tools: SimulatedTools, name: str) -> None:
        self._tools = tools
        self._name = name

    async def run(
        self,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        timeout_s: float,
        part: str | None = None,
        may_begin: MayBegin | None = None,
    ) -> ToolAnswer:
        if part == "reconcile":
            return await self._tools.reconcile(self._name, arguments, context)
        if may_begin is not None and not may_begin():
            return NOT_IN_TIME
        return await self._tools.run(self._name, arguments, context, timeout_s=timeout_s)


class SimulatedTools:
    """The tool backend of one process; implements schemas.ports.ToolBackend."""

    def __init__(
        self,
        process: Process,
        seed: int,
        faults: Faults,
        ledger: Ledger,
        hit: Callable[..., Awaitable[None]],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._process = process
        self._seed = seed
        self._faults = faults
        self._ledger = ledger
        self._hit = hit
        self._later = later

    def spec(self, name: str) -> ToolSpec | None:
        return None if name in self._process.missing else TOOLS.get(name)

    def facts(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallFacts:
        return CallFacts(None, TOOLS[name].tier, f"{name} {arguments}")

    async def reconcile(self, name: str, arguments: dict[str, Any], context: ToolContext) -> ToolAnswer:
        """What the outside knows of the call now; or it does not answer."""
        await self._hit("tool.reconcile", call_id=context.call_id, tool=name)
        if name in self._process.missing:
            return ToolFailed("not_loaded", "not here", 0.0, began=False)
        await self._wait(0.3)
        if self._faults.silent_reconcile(name):
            return ToolFailed("timed_out", "no answer", 0.3)
        seen = self._ledger.calls.get(context.call_id)
        happened = seen is not None and seen.acts > 0
        said = (
            {"answer": "happened", "result": {"n": arguments["n"], "pad": ""}}
            if happened
            else {"answer": "did_not_happen"}
        )
        return ToolReturned(orjson.dumps(said), 0.3)

    def place(self, name: str, tier: Tier) -> contextlib.AbstractAsyncContextManager[SimulatedPlace]:
        return contextlib.nullcontext(SimulatedPlace(self, name))

    async def run(
        self, name: str, arguments: dict[str, Any], context: ToolContext, *, timeout_s: float
    ) -> ToolAnswer:
        checked_at = asyncio.get_running_loop().time()  # the sender looked at its clocks just before
        await self._hit("tool.before", call_id=context.call_id, tool=name)
        if name in self._process.missing:
            return ToolFailed("not_loaded", "not here", 0.0, began=False)
        spec = TOOLS[name]
        rng = random.Random(f"{self._seed}:{context.call_id}:{context.attempt}")
        seen = self._ledger.begin(
            self._process.name,
            context.call_id,
            name,
            context.attempt,
            woken_at=self._woken_at(spec, checked_at),
            arguments=orjson.dumps(arguments).decode(),
        )
        if name in POISON:
            seen.kills += 1
            self._faults.poison(self._process, f"{name} {context.call_id}")
            raise Killed(self._process.name)
        what = self._faults.tool_outcome(name, context.attempt, _EFFECT if spec.effect else _READ, rng)
        latency_s = rng.choice((0.01, 0.05, 0.2, 0.5, 1.0, 3.0))
        if spec.effect:
            key = context.idempotency_key if spec.idempotent else None
            changes = f"{context.run_id}/{name}/{arguments}"
            return await self._effect(seen, arguments, what, latency_s, timeout_s, key, rng, changes)
        return await self._read(seen, arguments, what, latency_s, timeout_s)

    def _woken_at(self, spec: ToolSpec, checked_at: float) -> float:
        """When the process was woken from a sleep that no check can have seen; of a read, from any."""
        woken_at = self._process.woken_at
        unseen = not spec.effect or woken_at >= checked_at or self._process.stood
        return woken_at if unseen else -1.0

    async def aclose(self) -> None:
        """Nothing is open."""

    async def _read(
        self, seen: Seen, arguments: dict[str, Any], what: str, latency_s: float, timeout_s: float
    ) -> ToolAnswer:
        if what == "timed_out":
            await self._wait(timeout_s)
            return ToolFailed("timed_out", "no answer", timeout_s)
        await self._wait(latency_s)
        if what == "died":
            seen.deaths += 1
            return ToolFailed("died", "its process ended", latency_s)
        if what == "retryable":
            seen.not_before = asyncio.get_running_loop().time() + 4.0
            return _failed(
                "Retryable", latency_s, code="retryable", retry_after_s=4.0, reason_code="unavailable"
            )
        if what in ("ok", "big"):
            return ToolReturned(
                orjson.dumps({"n": arguments["n"], "pad": BIG if what == "big" else ""}), latency_s
            )
        return _common(what, latency_s)

    async def _effect(
        self,
        seen: Seen,
        arguments: dict[str, Any],
        what: str,
        latency_s: float,
        timeout_s: float,
        key: str | None,
        rng: random.Random,
        changes: str,
    ) -> ToolAnswer:
        """`late`: the request is out and acts whatever becomes of its sender; the others act inside the process."""
        who, began_at = self._process.name, asyncio.get_running_loop().time()

        def later(seconds: float) -> None:
            seen.on_the_way += 1

            def act() -> None:
                seen.on_the_way -= 1
                self._ledger.act("outside", seen, key=key, what=changes)

            self._later(seconds, act)

        if what == "late_45":
            later(45.0)
        elif what == "late":  # a tool that says that its answers are final has no request that late
            later(
                rng.choice(
                    (0.1, 2.0, 45.0) if TOOLS[seen.tool].reconcile_is_final else (0.1, 2.0, 45.0, 100.0)
                )
            )
        elif what in ("ok", "raised_after", "silent_after", "died_after"):
            if rng.random() < 0.5:
                later(latency_s / 2)
                await self._wait(latency_s)
            else:
                await self._wait(latency_s / 2)
                slept = self._process.woken_at >= began_at
                self._ledger.act(who, seen, key=key, what=changes, slept=slept)
                await self._wait(latency_s / 2)
        if what == "ok":
            await self._hit("tool.acted", call_id=seen.call_id, tool=seen.tool)
            return ToolReturned(orjson.dumps({"n": arguments["n"], "pad": ""}), latency_s)
        if what == "not_sent":
            return _failed("NotSent", latency_s, code="not_sent", reason_code="not_sent")
        if what == "refused":
            seen.not_before = asyncio.get_running_loop().time() + 4.0
            return _failed("Refused", latency_s, code="refused", retry_after_s=4.0, reason_code="refused")
        if what in ("late", "late_45", "silent_before", "silent_after"):
            await self._wait(timeout_s)
            return ToolFailed("timed_out", "no answer", timeout_s)
        if what.startswith("died"):
            seen.deaths += 1
            return ToolFailed("died", "its process ended", latency_s)
        return _common(what, latency_s)

    async def _wait(self, seconds: float) -> None:
        await self._process.clock.sleep(seconds)


def _common(what: str, seconds: float) -> ToolFailed:
    match what:
        case "connection":
            return _failed("ConnectionResetError", seconds)
        case "business":
            return _failed("BusinessError", seconds, code="business_error", reason_code="not_found")
        case "denied":
            return _failed("PermissionDenied", seconds, code="denied", reason_code="permission_denied")
        case "not_json":
            return ToolFailed("not_json", "NaN", seconds)
        case _:
            return _failed("ValueError", seconds)


def _failed(error_type: str, seconds: float, *, code: str = "", **fields: Any) -> ToolFailed:
    return ToolFailed("raised", "it failed", seconds, error_type=error_type, code=code, fields=fields)
