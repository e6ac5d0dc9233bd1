"""What a tool's contract asks of every attempt, between the executor and whatever runs the tool.

Fills in what is injected, checks the result against its model, projects the result to its declared fields, keeps secrets out of what is stored, shortens what
is too long, and answers the tools the runtime brings itself. It stands before every backend, so that no tool escapes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import orjson
import structlog

from toolfleet.schemas.builtin_tools import BUILTIN_TOOLS, PAGE_CHARS, READ_RESULT, summary_key
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.ports import (
    Credentials,
    MayBegin,
    ResultCache,
    StoredResults,
    ToolAnswer,
    ToolBackend,
    ToolFailed,
    ToolPlace,
    ToolReturned,
)
from toolfleet.schemas.projection import REDACTED, UNTRUSTED_NOTE, project
from toolfleet.schemas.tools import CallFacts, ToolContext, ToolSpec
from toolfleet.workers.executor.result_cache import Cache, key_of
from toolfleet.workers.executor.result_check import unfit

log = structlog.get_logger("toolfleet.contract")

CREDENTIAL_S: Final = 10.0  # for the provider of credentials to answer
SUMMARY_S: Final = 10.0  # for a summariser; then the model gets an excerpt
SECRET_CHARS_MIN: Final = 6  # a shorter credential would be found everywhere by chance


class ContractTools:
    """A backend of tools that keep their contracts, over one that only runs them.

    `summarised`: the tools that bring a function of their own to shorten results; the backend has it under
    `summary_key`.
    """

    def __init__(
        self,
        backend: ToolBackend,
        *,
        results: StoredResults,
        credentials: Credentials | None = None,
        cache: ResultCache | None = None,
        summarised: Sequence[str] = (),
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._results = results
        self._credentials = credentials
        self._summarised = frozenset(summarised)

    def spec(self, name: str) -> ToolSpec | None:
        own = self._backend.spec(name)
        return BUILTIN_TOOLS.get(name) if own is None else own

    def facts(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallFacts | ToolFailed:
        spec = self.spec(name)
        if spec is not None and self._backend.spec(name) is None:
            return CallFacts(None, spec.tier)  # one of our own
        return self._backend.facts(name, arguments, context)

    @asynccontextmanager
    async def place(self, name: str, tier: Tier) -> AsyncIterator[ToolPlace]:
        spec = self.spec(name)
        if self._backend.spec(name) is None and name == READ_RESULT.name:
            yield _Kept(READ_RESULT, _ReadResult(self._results), AsyncExitStack())
            return
        async with AsyncExitStack() as held:
            place = await held.enter_async_context(self._backend.place(name, tier))
            if spec is None:
                yield place
                return
            summariser = None
            if name in self._summarised:
                summariser = lambda: self._backend.place(summary_key(name), tier)
            cache = Cache(self._cache, spec) if self._cache is not None and spec.cache_ttl_s else None
            yield _Kept(spec, place, held, self._credentials, summariser, cache)

    async def aclose(self) -> None:
        await self._backend.aclose()


class _Kept:
    """One attempt under its contract."""

    def __init__(
        self,
        spec: ToolSpec,
        place: ToolPlace,
        held: AsyncExitStack,
        credentials: Credentials | None = None,
        summariser: Callable[[], AbstractAsyncContextManager[ToolPlace]] | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._spec = spec
        self._place = place
        self._credentials = credentials
        self._summariser = summariser
        self._held = held
        self._cache = cache

    async def run(
        self,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        timeout_s: float,
        part: str | None = None,
        may_begin: MayBegin | None = None,
    ) -> ToolAnswer:
        secrets: list[str] = []
        try:
            injected = await self._injected(context, secrets)
        except _NotThere as missing:
            return ToolFailed("raised", str(missing), 0.0, code="tool_error", began=False)
        if self._cache is None or part is not None:
            return await self._made(
                arguments, injected, secrets, context, timeout_s, part=part, may_begin=may_begin
            )
        key = key_of(self._spec, arguments, injected, context)
        kept = await self._cache.get(key)
        if kept is not None:
            return kept
        answer = await self._made(arguments, injected, secrets, context, timeout_s)
        if isinstance(answer, ToolReturned):
            await self._cache.put(key, context.tenant, answer)
        return answer

    async def _made(
        self,
        arguments: dict[str, Any],
        injected: dict[str, Any],
        secrets: list[str],
        context: ToolContext,
        timeout_s: float,
        *,
        part: str | None = None,
        may_begin: MayBegin | None = None,
    ) -> ToolAnswer:
        answer = await self._place.run(
            {**arguments, **injected}, context, timeout_s=timeout_s, part=part, may_begin=may_begin
        )
        answer = _without(answer, secrets)
        if isinstance(answer, ToolFailed):
            return answer
        if part is not None:
            return _projected_part(self._spec, answer)
        wrong = _unfit(self._spec, answer)
        if wrong:
            log.error("result_invalid", tool=self._spec.name, wrong=wrong)
            return ToolFailed("result_invalid", wrong, answer.seconds)
        shown = _projected(self._spec, answer)
        data = shown.value_json if shown.shown_json is None else shown.shown_json
        if self._summariser is not None and len(data) > self._spec.result_bytes_to_model:
            await self._held.aclose()  # its child is free again: a summary must not wait for itself
            return await self._summarised(shown, data, context, secrets)
        return shown

    async def _injected(self, context: ToolContext, secrets: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for argument, source in self._spec.injected.items():
            kind, _, name = source.partition(":")
            if kind == "credential":
                found[argument] = await self._credential(context.tenant, name)
                secrets.append(found[argument])
            elif source.startswith("context."):
                key = source.removeprefix("context.")
                if key not in context.context:
                    raise _NotThere(
                        f"the request was made without {key!r} in its context, which this tool needs"
                    )
                found[argument] = context.context[key]
            else:
                found[argument] = getattr(context, source)
        return found

    async def _credential(self, tenant: str, name: str) -> str:
        if self._credentials is None:
            raise _NotThere(f"this fleet has no provider of credentials, and the tool needs {name!r}")
        try:
            async with asyncio.timeout(CREDENTIAL_S):
                return await self._credentials.credential(tenant, name)
        except Exception as exc:
            log.warning("credential_missing", tenant=tenant, credential=name, error=type(exc).__name__)
            raise _NotThere(f"the credential {name!r} could not be had") from exc

    async def _summarised(
        self, answer: ToolReturned, data: bytes, context: ToolContext, secrets: Sequence[str]
    ) -> ToolReturned:
        """With a summary of what the model may see, or as it was where none came of it."""
        assert self._summariser is not None
        try:
            async with asyncio.timeout(SUMMARY_S), self._summariser() as place:
                summary = await place.run({"data": orjson.loads(data)}, context, timeout_s=SUMMARY_S)
        except TimeoutError:
            summary = ToolFailed("timed_out", "", SUMMARY_S)
        summary = _without(summary, secrets)
        if isinstance(summary, ToolFailed):
            log.warning("summary_failed", tool=self._spec.name, kind=summary.kind, error=summary.error_type)
            return replace(answer, notes=(*answer.notes, "it could not be summarised"))
        return replace(answer, shown_json=summary.value_json, summarised=True)


class _NotThere(Exception):
    """Something to be injected is missing; its text is for the model and holds no value."""


def _projected(spec: ToolSpec, answer: ToolReturned) -> ToolReturned:
    """The declared part of what the tool returned; `next_actions` of the data are the envelope's."""
    if not spec.result_fields:
        return answer
    value = orjson.loads(answer.value_json)
    actions: tuple[str, ...] = ()
    if isinstance(value, dict) and any(one.path == "next_actions[]" for one in spec.result_fields):
        given = value.pop("next_actions", None)
        actions = tuple(one for one in given if isinstance(one, str)) if isinstance(given, list) else ()
    seen = project(value, spec.result_fields)
    return replace(
        answer,
        value_json=orjson.dumps(seen.whole),
        shown_json=orjson.dumps(seen.shown) if seen.cut else None,
        notes=(*answer.notes, UNTRUSTED_NOTE) if seen.untrusted else answer.notes,
        omitted=seen.omitted,
        next_actions=actions,
    )


def _unfit(spec: ToolSpec, answer: ToolReturned) -> str:
    """What of the result does not fit what the tool declares; empty where nothing, or nothing is declared."""
    if spec.result_schema is None:
        return ""
    return unfit(orjson.loads(answer.value_json), spec.result_schema, answer.notes)


def _projected_part(spec: ToolSpec, answer: ToolReturned) -> ToolReturned:
    """What `reconcile` tells of a result is shown as the result itself would be."""
    said = orjson.loads(answer.value_json)
    if not isinstance(said, dict) or said.get("answer") != "happened":
        return answer
    told = ToolReturned(orjson.dumps(said.get("result")), 0.0, answer.notes)
    if wrong := _unfit(spec, told):
        log.error("result_invalid", tool=spec.name, part="reconcile", wrong=wrong)
        return replace(answer, value_json=orjson.dumps({"answer": "happened", "wrong": wrong}))
    whole = _projected(spec, told)
    shown = whole.value_json if whole.shown_json is None else whole.shown_json
    return replace(answer, value_json=orjson.dumps({**said, "result": orjson.loads(shown)}))


def _without(answer: ToolAnswer, secrets: Sequence[str]) -> ToolAnswer:
    """The answer without the credentials the tool was given, wherever they stand in it."""
    known = [one for one in secrets if len(one) >= SECRET_CHARS_MIN]
    if not known:
        return answer
    if isinstance(answer, ToolReturned):
        data = answer.value_json
        for one in known:
            data = data.replace(orjson.dumps(one)[1:-1], REDACTED.encode())
        return replace(answer, value_json=data)
    return replace(
        answer,
        message=_clean(answer.message, known),
        detail=_clean(answer.detail, known),
        fields=None if answer.fields is None else _clean(answer.fields, known),
    )


def _clean(value: Any, secrets: Sequence[str]) -> Any:
    match value:
        case str():
            for one in secrets:
                value = value.replace(one, REDACTED)
            return value
        case Mapping():
            return {name: _clean(inner, secrets) for name, inner in value.items()}
        case list() | tuple():
            return [_clean(inner, secrets) for inner in value]
        case _:
            return value


class _ReadResult:
    """Reads on in a result of the same conversation; references of others are unknown here, whoever they belong to."""

    def __init__(self, results: StoredResults) -> None:
        self._results = results

    async def run(
        self,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        timeout_s: float,
        part: str | None = None,
        may_begin: MayBegin | None = None,
    ) -> ToolAnswer:
        reference, offset = str(arguments["reference"]), int(arguments.get("offset", 0))
        try:
            async with asyncio.timeout(timeout_s):
                full = await self._results.full_result(context.run_id, reference)
        except TimeoutError:
            return ToolFailed("timed_out", f"no answer within {timeout_s:g} s", timeout_s)
        if full is None:
            return ToolFailed(
                "raised",
                "This conversation has no result under that reference. References stand in results that were shortened.",
                0.0,
                code="business_error",
                fields={
                    "reason_code": "unknown_reference",
                    "suggested_action": "use_a_reference_from_a_result",
                },
            )
        page = full[offset : offset + int(arguments.get("length", PAGE_CHARS))]
        end = offset + len(page)
        found = {
            "reference": reference,
            "offset": offset,
            "total_chars": len(full),
            "next_offset": end if end < len(full) else None,
            "text": page,
        }
        return ToolReturned(orjson.dumps(found), 0.0)
