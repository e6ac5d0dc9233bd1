"""What the model clients of all wires share: one server, one key, one attempt; render, send, read, price.

How the bytes get there is `_open` of the client; everything else (deadline, bounded answer, faults) is the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import httpx2
import openai

from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.faults import bad_reply, fault_of_exception, fault_of_status, request_id_of
from toolfleet.adapters.llm.prices import PriceTable
from toolfleet.adapters.llm.profiles import DEFAULT_BASE_URL, Profile, profile_for
from toolfleet.adapters.llm.rate_headers import rate_hint
from toolfleet.adapters.llm.strict_json import loads
from toolfleet.adapters.llm.wires import WIRES
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import ModelError, UnsafeSettings
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage

CONNECT_TIMEOUT_S: Final = (
    10.0  # a server that takes longer to accept is down; the reply itself may take minutes
)
REPLY_BYTES_MAX: Final = 16_000_000  # far above 128,000 tokens with their log probabilities
CONNECTIONS_MAX: Final = 1000  # the SDK's own default
NO_KEY: Final = "not-needed"  # local servers take any; the SDK insists on one
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class WireClient(ABC):
    """One server, one key. Safe for any number of calls at a time in one event loop.

    Connections are made in the loop of the first call and belong to it: a process that forks makes its client after
    the fork, and `aclose` is awaited in the same loop. Used in another loop later, it connects anew. The environment
    is not read: settings come in as arguments. `timeout_s` caps what requests allow.
    """

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
        self._base_url = base_url or (profile.base_url if profile is not None else None) or DEFAULT_BASE_URL
        parts = urlsplit(self._base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UnsafeSettings(
                f"the model's base URL has to begin with http:// or https:// and a host; it does not ({parts.scheme!r})",
                hint="Set OPENAI_BASE_URL, e.g. http://127.0.0.1:8000/v1.",
            )
        self.profile = profile or profile_for(self._base_url)
        self._local = parts.hostname in _LOOPBACK
        self.host = parts.netloc.rpartition("@")[2]  # for messages: never with credentials
        self._api_key = _checked_key(api_key, self.host, self.profile.key_env, local=self._local)
        self._timeout_s = timeout_s
        self._connections_max = connections_max
        self._headers = dict(headers or {})
        self._wire = WIRES[self.profile.wire]
        self._renderer = self._wire.renderer(self.profile)
        self._prices = prices or PriceTable(self._base_url)

    @property
    def credential(self) -> str:
        """A fingerprint of server and key: calls with an equal one share a quota."""
        return hashlib.sha256(f"{self._base_url}\0{self._api_key}".encode()).hexdigest()[:12]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.host}>"

    async def complete(self, request: ModelRequest) -> ModelReply:
        """One attempt. Raises ModelError with what went wrong; cancelled, it closes the connection."""
        limit_s = min(request.timeout_s, self._timeout_s or request.timeout_s)
        answer = await self._answer(request, limit_s)
        return self._read(answer, request)

    def render(self, request: ModelRequest) -> bytes:
        return self._renderer.render(request)

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float:
        return self._prices.cost_usd(agent, usage)

    def price_known(self, agent: AgentSpec) -> bool:
        """Whether this agent's calls can be priced; if not, their cost is given as 0.0."""
        return self._prices.price_known(agent)

    @abstractmethod
    async def aclose(self) -> None:
        """Closes the connections. Does nothing where none was made; a later call would connect anew."""

    @abstractmethod
    async def _open(self, content: bytes, limit_s: float) -> httpx2.Response:
        """The answer with its body still to be read. Redirects are not followed: they would send conversation and key
        to a place nobody configured."""

    def _read(self, answer: Answer, request: ModelRequest) -> ModelReply:
        reply = self._renderer.restored(self._wire.parse(answer), request)
        return replace(reply, rate=rate_hint(answer.headers))

    async def _answer(self, request: ModelRequest, limit_s: float) -> Answer:
        """The whole answer of status 200. Raises ModelError."""
        outcome = await self._exchange(self._renderer.render(request), request, limit_s)
        if isinstance(outcome, ModelFault):
            # Outside every `except`: the SDK's exceptions hold the request and the provider's words about it.
            raise ModelError(outcome)
        return outcome

    async def _exchange(self, content: bytes, request: ModelRequest, limit_s: float) -> Answer | ModelFault:
        try:
            async with asyncio.timeout(limit_s):
                return await self._post(content, request, limit_s)
        except (
            openai.OpenAIError,
            httpx2.HTTPError,
            httpx2.StreamError,
            aiohttp.ClientError,
            OSError,
        ) as exc:
            return fault_of_exception(exc, self.host, limit_s)

    async def _post(self, content: bytes, request: ModelRequest, limit_s: float) -> Answer | ModelFault:
        response = await self._open(content, limit_s)
        body = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > REPLY_BYTES_MAX:
                    request_id = request_id_of(response.headers)
                    return bad_reply(self.host, f"more than {REPLY_BYTES_MAX} bytes", request_id)
        finally:
            await response.aclose()
        if response.status_code != 200:
            return fault_of_status(response.status_code, response.headers, _json(bytes(body)), self.host)
        return Answer(
            body=bytes(body),
            host=self.host,
            model=request.agent.model,
            headers=response.headers,
            request_bytes=len(content),
            output_tokens_max=request.output_tokens_max,
        )


def _json(body: bytes) -> object:
    try:
        return loads(body)
    except ValueError:
        return None


def _checked_key(api_key: str | None, host: str, variable: str | None, *, local: bool) -> str:
    """The key, fit for a header. Its text is in no message: a header error of a library would quote it."""
    key = (api_key or "").strip()
    name = variable or "OPENAI_API_KEY"
    if not key and local:
        return NO_KEY
    if not key:
        raise UnsafeSettings(
            f"there is no API key for {host}",
            hint=f"Set {name}. A server on this machine (OPENAI_BASE_URL=http://127.0.0.1:...) needs none.",
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UnsafeSettings(
            f"the API key for {host} holds characters no key has (a line break, a space?)",
            hint=f"Set {name} to the bare key.",
        )
    return key
