"""The model client for OpenAI's Chat Completions and every server that speaks it.

The official SDK does address, authentication and typed errors; its request building is bypassed (`post` with bytes
of ours instead of `create`): `create` walks every message of the conversation again on every call, 10 ms for 42 of
them. Retries are off, they belong to the scheduler. The transport is the SDK's own one over aiohttp, whose pool does
not slow down with the number of open connections.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import httpx2
import openai

from toolfleet.adapters.llm.answers import Answer
from toolfleet.adapters.llm.chat_parse import parse_reply
from toolfleet.adapters.llm.chat_render import ChatRenderer
from toolfleet.adapters.llm.faults import bad_reply, fault_of_exception, request_id_of
from toolfleet.adapters.llm.prices import PriceTable
from toolfleet.adapters.llm.profiles import DEFAULT_BASE_URL, Profile, profile_for
from toolfleet.adapters.llm.rate_headers import rate_hint
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import ModelError, UnsafeSettings
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage

CONNECT_TIMEOUT_S: Final = (
    10.0  # a server that takes longer to accept is down; the reply itself may take minutes
)
REPLY_BYTES_MAX: Final = 16_000_000  # far above 128,000 tokens with their log probabilities
CONNECTIONS_MAX: Final = 1000  # the SDK's own default
_NO_KEY: Final = "not-needed"  # local servers take any; the SDK insists on one
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class OpenAIChatClient:
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
        organization: str | None = None,
        project: str | None = None,
        profile: Profile | None = None,
        connections_max: int = CONNECTIONS_MAX,
        prices: PriceTable | None = None,
    ) -> None:
        """Raises UnsafeSettings: a base URL that is none, no key for a server that is not on this machine."""
        self._base_url = base_url or DEFAULT_BASE_URL
        parts = urlsplit(self._base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UnsafeSettings(
                f"the model's base URL has to begin with http:// or https:// and a host; it does not ({parts.scheme!r})",
                hint="Set OPENAI_BASE_URL, e.g. http://127.0.0.1:8000/v1.",
            )
        self._local = parts.hostname in _LOOPBACK
        self.host = parts.netloc.rpartition("@")[2]  # for messages: never with credentials
        self._api_key = _checked_key(api_key, self.host, local=self._local)
        self._timeout_s = timeout_s
        self._organization = organization
        self._project = project
        self._connections_max = connections_max
        self._renderer = ChatRenderer(profile or profile_for(self._base_url))
        self._prices = prices or PriceTable(self._base_url)
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def credential(self) -> str:
        """A fingerprint of server and key: calls with an equal one share a quota."""
        return hashlib.sha256(f"{self._base_url}\0{self._api_key}".encode()).hexdigest()[:12]

    def __repr__(self) -> str:
        return f"<OpenAIChatClient {self.host}>"

    async def complete(self, request: ModelRequest) -> ModelReply:
        """One attempt. Raises ModelError with what went wrong; cancelled, it closes the connection."""
        content = self._renderer.render(request)
        limit_s = min(request.timeout_s, self._timeout_s or request.timeout_s)
        outcome = await self._exchange(content, request, limit_s)
        if isinstance(outcome, ModelFault):
            # Outside every `except`: the SDK's exceptions hold the request and the provider's words about it.
            raise ModelError(outcome)
        reply = self._renderer.restored(parse_reply(outcome), request)
        return replace(reply, rate=rate_hint(outcome.headers))

    def render(self, request: ModelRequest) -> bytes:
        return self._renderer.render(request)

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float:
        return self._prices.cost_usd(agent, usage)

    def price_known(self, agent: AgentSpec) -> bool:
        """Whether this agent's calls can be priced; if not, their cost is given as 0.0."""
        return self._prices.price_known(agent)

    async def aclose(self) -> None:
        """Closes the connections. Does nothing where none was made; a later call would connect anew."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

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
        response = await self._connected().post(
            "/chat/completions",
            cast_to=httpx2.Response,  # the answer itself: no pydantic model that we would take apart again
            content=content,
            stream=True,  # only the reading: so that the answer can be bounded
            stream_cls=openai.AsyncStream[object],  # required beside `stream`, not used with this cast
            options={
                "timeout": openai.Timeout(limit_s, connect=min(CONNECT_TIMEOUT_S, limit_s)),
                "follow_redirects": False,  # would send conversation and key to a place nobody configured
            },
        )
        assert isinstance(response, httpx2.Response), "what cast_to asks for"
        body = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > REPLY_BYTES_MAX:
                    request_id = request_id_of(response.headers)
                    return bad_reply(self.host, f"more than {REPLY_BYTES_MAX} bytes", request_id)
        finally:
            await response.aclose()
        return Answer(
            body=bytes(body),
            host=self.host,
            model=request.agent.model,
            headers=response.headers,
            request_bytes=len(content),
            output_tokens_max=request.output_tokens_max,
        )

    def _connected(self) -> openai.AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            client = openai.AsyncOpenAI(
                api_key=self._api_key,
                base_url=self._base_url,
                max_retries=0,
                organization=self._organization,
                project=self._project,
                http_client=openai.DefaultAioHttpClient(
                    # A proxy of the environment is for the world outside, not for this machine.
                    trust_env=not self._local,
                    limits=httpx2.Limits(max_connections=self._connections_max),
                ),
            )
            # The SDK takes these from the environment where they are None; another server must not learn them.
            client.organization, client.project = self._organization, self._project
            self._client, self._loop = client, loop
        return self._client


def _checked_key(api_key: str | None, host: str, *, local: bool) -> str:
    """The key, fit for a header. Its text is in no message: a header error of a library would quote it."""
    key = (api_key or "").strip()
    if not key and local:
        return _NO_KEY
    if not key:
        raise UnsafeSettings(
            f"there is no API key for {host}",
            hint="Set OPENAI_API_KEY. A server on this machine (OPENAI_BASE_URL=http://127.0.0.1:...) needs none.",
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UnsafeSettings(
            f"the API key for {host} holds characters no key has (a line break, a space?)",
            hint="Set OPENAI_API_KEY to the bare key.",
        )
    return key
