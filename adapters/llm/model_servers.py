"""Which server a model is asked at: the part of its name before the colon, or the default one.

`anthropic:claude-sonnet-4-5`, `openai-responses:gpt-5`, `lab:qwen3` for a server of the settings; everything else goes
to the default server, with its whole name. Clients are made when they are first needed and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from toolfleet.adapters.llm.anthropic_messages import AnthropicClient
from toolfleet.adapters.llm.openai_chat import OpenAIChatClient
from toolfleet.adapters.llm.prices import PriceTable
from toolfleet.adapters.llm.profiles import DEFAULT_BASE_URL, PROFILES, Profile, profile_for
from toolfleet.adapters.llm.wire_client import WireClient
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import ModelError, UnsafeSettings
from toolfleet.schemas.model import ModelFault, ModelReply, ModelRequest, Usage

DEFAULT = ""  # the name of the server of models without one


@dataclass(frozen=True, slots=True)
class ModelServer:
    """One server as the settings give it. What is not given is that of its profile.

    `profile`: a name of the table; without one, the profile of this server's own name, else of its host. `options`:
    fields of the profile that are otherwise here.
    """

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    profile: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class ModelServers:
    """A ModelClient over all servers of the settings and all those of the table of profiles.

    `key_of` gives the key of a variable such as GROQ_API_KEY, or None.
    """

    def __init__(
        self,
        servers: Mapping[str, ModelServer],
        key_of: Callable[[str], str | None] = lambda name: None,
        *,
        prices: PriceTable | None = None,
    ) -> None:
        self._servers = dict(servers)
        self._key_of = key_of
        self._clients: dict[str, WireClient] = {}
        self._prices = prices or PriceTable(self._servers.get(DEFAULT, ModelServer()).base_url)

    def open(self, models: Iterable[str]) -> None:
        """Make the clients of these models. Raises UnsafeSettings: a key that is missing, a setting that is wrong."""
        for model in models:
            self.client(model)

    def client(self, model: str) -> WireClient:
        """The client of that model's server. Raises UnsafeSettings."""
        name = self.server_of(model)
        if name not in self._clients:
            self._clients[name] = self._connect(name)
        return self._clients[name]

    def server_of(self, model: str) -> str:
        """The name of the server of that model; empty for the default one."""
        name, colon, rest = model.partition(":")
        return name if colon and rest and (name in self._servers or name in PROFILES) else DEFAULT

    async def complete(self, request: ModelRequest) -> ModelReply:
        """One attempt. Raises ModelError, `auth` where the model's server cannot be asked for want of a key."""
        return await self._ready(request.agent.model).complete(request)

    def render(self, request: ModelRequest) -> bytes:
        return self._ready(request.agent.model).render(request)

    def credential_of(self, agent: AgentSpec) -> str:
        """A fingerprint of server and key of that agent's model: calls with an equal one share a quota."""
        try:
            return self.client(agent.model).credential
        except UnsafeSettings:
            return "none"  # it cannot be asked; `complete` says why

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float:
        return self._prices.cost_usd(agent, usage)

    def price_known(self, agent: AgentSpec) -> bool:
        """Whether this agent's calls can be priced; if not, their cost is given as 0.0."""
        return self._prices.price_known(agent)

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def _ready(self, model: str) -> WireClient:
        try:
            return self.client(model)
        except UnsafeSettings as exc:
            message = f"{exc.message}. {exc.hint or ''}".strip()
        raise ModelError(ModelFault("auth", message, retryable=False))

    def _connect(self, name: str) -> WireClient:
        server = self._servers.get(name, ModelServer())
        profile = profile_of(name, server)
        variable = profile.key_env
        key = server.api_key or (self._key_of(variable) if variable is not None else None)
        base_url = server.base_url or profile.base_url
        if base_url is None and name != DEFAULT:
            raise UnsafeSettings(
                f"the model server {name!r} has no base_url",
                hint=f'Set TOOLFLEET_MODEL_SERVERS=\'{{"{name}": {{"base_url": "https://..."}}}}\'.',
            )
        kind = AnthropicClient if profile.wire == "messages" else OpenAIChatClient
        return kind(base_url, key, profile=profile, headers=server.headers, prices=self._prices)


def profile_of(name: str, server: ModelServer) -> Profile:
    """The profile of a server of the settings, under its own name. Raises UnsafeSettings: unknown profile or option."""
    if server.profile is not None and server.profile not in PROFILES:
        raise UnsafeSettings(
            f"model server {name!r}: there is no profile {server.profile!r}",
            hint=f"There are: {', '.join(PROFILES)}.",
        )
    found = PROFILES.get(server.profile or name)
    if found is None:
        found = profile_for(server.base_url or (DEFAULT_BASE_URL if name == DEFAULT else ""))
    fields = asdict(found) | ({"name": name} if name != DEFAULT else {})
    unknown = sorted(server.options.keys() - fields.keys())
    if unknown:
        raise UnsafeSettings(
            f"model server {name!r}: a profile has no {', '.join(unknown)}",
            hint=f"It has: {', '.join(sorted(fields))} (docs/providers.md).",
        )
    try:
        return _PROFILE.validate_python(fields | dict(server.options))
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnsafeSettings(
            f"model server {name!r}: option {where}: {first['msg']}",
            hint="docs/providers.md has all options.",
        ) from None


_PROFILE: TypeAdapter[Profile] = TypeAdapter(Profile)
