"""Results of reads kept for other runs: what they are found by, and how they are written down. Pure, but for `Cache`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import orjson
import structlog

from toolfleet.schemas.errors import ToolfleetError
from toolfleet.schemas.ports import ResultCache, ToolReturned
from toolfleet.schemas.tools import ToolContext, ToolSpec
from toolfleet.schemas.views import CachedResult

log = structlog.get_logger("toolfleet.cache")

FORM: Final = 1  # of what is written down; another one is not read


class Cache:
    """The cache for one tool. Where it is away, calls are made as if nothing had been kept."""

    def __init__(self, cache: ResultCache, spec: ToolSpec) -> None:
        self._cache = cache
        self._spec = spec

    async def get(self, key: str) -> ToolReturned | None:
        try:
            found = await self._cache.cached_result(key)
        except ToolfleetError as exc:
            log.warning("cache_unreadable", tool=self._spec.name, error=exc.code)
            return None
        return None if found is None else loaded(found)

    async def put(self, key: str, tenant: str, answer: ToolReturned) -> None:
        body = dumped(answer)
        try:
            await self._cache.keep_result(
                key, tenant=tenant, tool=self._spec.name, body=body, ttl_s=self._spec.cache_ttl_s
            )
        except ToolfleetError as exc:
            log.warning("cache_unwritable", tool=self._spec.name, error=exc.code)


def key_of(
    spec: ToolSpec, arguments: Mapping[str, Any], injected: Mapping[str, Any], context: ToolContext
) -> str:
    """The name of what this call comes to: tenant, tool and version, arguments, and what was injected but credentials.

    A new version of the contract is another name, so that nothing is shown by the rules of an old one.
    """
    filled = {
        one: injected[one] for one, source in spec.injected.items() if not source.startswith("credential:")
    }
    parts = [context.tenant, spec.name, spec.version, dict(arguments), filled]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def dumped(answer: ToolReturned) -> str:
    """The answer as text; secrets were taken out of it before."""
    return orjson.dumps(
        {
            "form": FORM,
            "value": answer.value_json.decode(),
            "shown": None if answer.shown_json is None else answer.shown_json.decode(),
            "notes": answer.notes,
            "summarised": answer.summarised,
            "omitted": answer.omitted,
            "next_actions": answer.next_actions,
        }
    ).decode()


def loaded(found: CachedResult) -> ToolReturned | None:
    """The answer that was written down, with a note of its age; None where it is of another form."""
    kept = orjson.loads(found.body)
    if kept.get("form") != FORM:
        return None
    return ToolReturned(
        kept["value"].encode(),
        0.0,
        notes=(*kept["notes"], f"kept from a call {found.age_s:.0f} s ago"),
        shown_json=None if kept["shown"] is None else kept["shown"].encode(),
        summarised=kept["summarised"],
        omitted=kept["omitted"],
        next_actions=tuple(kept["next_actions"]),
    )
