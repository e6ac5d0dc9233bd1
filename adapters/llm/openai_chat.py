"""The model clients for OpenAI's two wires and every server that speaks one of them.

The official SDK does address, authentication and typed errors; its request building is bypassed (`post` with bytes
of ours instead of `create`): `create` walks every message of the conversation again on every call, 10 ms for 42 of
them. Retries are off, they belong to the scheduler. The transport is the SDK's own one over aiohttp, whose pool does
not slow down with the number of open connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx2
import openai

from toolfleet.adapters.llm.prices import PriceTable
from toolfleet.adapters.llm.profiles import OPENAI_RESPONSES, Profile
from toolfleet.adapters.llm.wire_client import CONNECT_TIMEOUT_S, CONNECTIONS_MAX, WireClient


class OpenAIChatClient(WireClient):
    """A server that speaks Chat Completions, or Responses where its profile says so."""

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
        headers: Mapping[str, str] | None = None,
        prices: PriceTable | None = None,
    ) -> None:
        """Raises UnsafeSettings: a base URL that is none, no key for a server that is not on this machine."""
        super().__init__(
            base_url,
            api_key,
            timeout_s=timeout_s,
            profile=profile,
            connections_max=connections_max,
            headers=headers,
            prices=prices,
        )
        self._organization = organization
        self._project = project
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _open(self, content: bytes, limit_s: float) -> httpx2.Response:
        response = await self._connected().post(
            self._wire.path,
            cast_to=httpx2.Response,  # the answer itself: no pydantic model that we would take apart again
            content=content,
            stream=True,  # only the reading: so that the answer can be bounded
            stream_cls=openai.AsyncStream[object],  # required beside `stream`, not used with this cast
            options={
                "timeout": openai.Timeout(limit_s, connect=min(CONNECT_TIMEOUT_S, limit_s)),
                "follow_redirects": False,
                "headers": self._headers,
            },
        )
        assert isinstance(response, httpx2.Response), "what cast_to asks for"
        return response

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


class OpenAIResponsesClient(OpenAIChatClient):
    """The Responses API of OpenAI, or of a server whose profile is given."""

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
        headers: Mapping[str, str] | None = None,
        prices: PriceTable | None = None,
    ) -> None:
        """Raises UnsafeSettings: a base URL that is none, no key for a server that is not on this machine."""
        super().__init__(
            base_url,
            api_key,
            timeout_s=timeout_s,
            organization=organization,
            project=project,
            profile=profile or OPENAI_RESPONSES,
            connections_max=connections_max,
            headers=headers,
            prices=prices,
        )
