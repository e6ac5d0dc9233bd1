"""The model client of a fleet that was given none: the default server, those of the settings, those of the table."""

from __future__ import annotations

from toolfleet.adapters.llm.model_servers import DEFAULT, ModelServer, ModelServers
from toolfleet.definitions import Registry
from toolfleet.prices import price_table
from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.settings import Settings, key_of


def model_servers(settings: Settings) -> ModelServers:
    """All servers of the settings; nothing is connected."""
    key = settings.openai_api_key
    servers = {
        DEFAULT: ModelServer(settings.openai_base_url, None if key is None else key.get_secret_value())
    }
    for name, given in settings.model_servers.items():
        if ":" in name or not name:
            raise UnsafeSettings(
                f"a model server cannot be called {name!r}", hint="Give it a name without a colon."
            )
        own_key = None
        if given.api_key_env is not None:
            own_key = key_of(given.api_key_env)
            if own_key is None:
                raise UnsafeSettings(
                    f"model server {name!r}: {given.api_key_env} is not set",
                    hint="Set it to the key, or take api_key_env out of the setting.",
                )
        headers = {header: value.get_secret_value() for header, value in given.headers.items()}
        servers[name] = ModelServer(given.base_url, own_key, given.profile, given.options, headers)
    return ModelServers(servers, key_of, prices=price_table(settings))


def open_models(settings: Settings, registry: Registry) -> ModelServers:
    """The client, ready for every model the agents name. Raises UnsafeSettings: a key that is missing."""
    servers = model_servers(settings)
    models = [name for agent in registry.agents.values() for name in (agent.model, *agent.fallback_models)]
    servers.open(models or [DEFAULT])
    return servers
