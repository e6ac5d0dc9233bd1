"""The model client for Anthropic's Messages and every server that speaks it.

Plain HTTP over the same transport as the other clients: what the SDK would add (typed models, retries) is not used,
and its request building grows with the conversation. Requests are held against its types in the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import httpx2
import openai

from toolfleet.adapters.llm.messages_parse import WIRE, paused
from toolfleet.adapters.llm.prices import PriceTable
from toolfleet.adapters.llm.profiles import ANTHROPIC, Profile
from toolfleet.adapters.llm.wire_client import CONNECT_TIMEOUT_S, CONNECTIONS_MAX, WireClient
from toolfleet.schemas.conversation import AssistantItem
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage

VERSION: Final = "2023-06-01"  # of the API; what is newer comes by anthropic-beta headers
PAUSES_MAX: Final = 8  # of one turn; the provider's own tools make at most ten steps between two of them


class AnthropicClient(WireClient):
    """A server that speaks Anthropic's Messages."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float | None = None,
        profile: Profile | None = None,
        connections_max: int = CONNECTIONS_MAX,
        headers: Mapping[str, str] | None = None,
        prices: PriceTable | None = None,
    ) -> None:
        """Raises UnsafeSettings: a base URL that is none, no key for a server that is not on this machine."""
        super().__init__(
            base_url,
            api_key,
            timeout_s=timeout_s,
            profile=profile or ANTHROPIC,
            connections_max=connections_max,
            headers=headers,
            prices=prices,
        )
        self._http: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def complete(self, request: ModelRequest) -> ModelReply:
        """One attempt. A turn the provider paused is sent back as it is and gone on with, within the same deadline."""
        limit_s = min(request.timeout_s, self._timeout_s or request.timeout_s)
        loop = asyncio.get_running_loop()
        ends_at, parts, asked = loop.time() + limit_s, list[ModelReply](), request
        for _ in range(PAUSES_MAX + 1):
            answer = await self._answer(asked, max(0.001, ends_at - loop.time()))
            reply = self._read(answer, asked)
            parts.append(reply)
            if not paused(reply):
                return _joined(parts)
            said = AssistantItem(reply.text, wire=WIRE, provider=_joined(parts).provider)
            asked = replace(request, items=(*request.items, said))
        raise ModelError(
            ModelFault("unavailable", f"{self.host} paused one turn {PAUSES_MAX + 1} times.", retryable=True)
        )

    async def aclose(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _open(self, content: bytes, limit_s: float) -> httpx2.Response:
        http = self._connected()
        request = http.build_request(
            "POST",
            self._base_url.rstrip("/") + self._wire.path,
            content=content,
            headers={
                "x-api-key": self._api_key,
                "anthropic-version": VERSION,
                "content-type": "application/json",
                **self._headers,
            },
            timeout=httpx2.Timeout(limit_s, connect=min(CONNECT_TIMEOUT_S, limit_s)),
        )
        return await http.send(request, stream=True, follow_redirects=False)

    def _connected(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            self._http = openai.DefaultAioHttpClient(
                trust_env=not self._local, limits=httpx2.Limits(max_connections=self._connections_max)
            )
            self._loop = loop
        return self._http


def _joined(parts: list[ModelReply]) -> ModelReply:
    """One reply out of the pieces of a paused turn: all blocks in their order, all tokens."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    blocks = [block for part in parts for block in part.provider["content"]]
    usages = [part.usage for part in parts]
    return replace(
        last,
        text="".join(part.text or "" for part in parts) or None,
        provider={**last.provider, "content": blocks},
        usage=Usage(
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
            known=all(usage.known for usage in usages),
            cache_written_tokens=sum(usage.cache_written_tokens for usage in usages),
        ),
    )
