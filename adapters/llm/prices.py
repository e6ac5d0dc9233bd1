"""What a model call costs: the agent's own price, else a table that comes with the installation. Nothing is fetched.

Only its rates are taken from the table, once per model: its own calculation costs 0.2 ms, several times in each turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from toolfleet.adapters.llm.profiles import split_model
from toolfleet.schemas.agents import AgentSpec, Price
from toolfleet.schemas.model import Usage

_MODELS_MAX: Final = 256  # models one process knows the rates of; more are looked up again
_MILLION: Final = 1_000_000

Steps = tuple[
    tuple[int, float], ...
]  # (from more than so many input tokens, US dollars for a million), falling


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars for a million tokens; a long prompt can make all of its tokens dearer."""

    read: Steps
    cached: Steps
    written: Steps
    stored: Steps  # what is put into the provider's cache

    def cost_usd(self, usage: Usage) -> float:
        size = usage.input_tokens
        cached = min(usage.cached_tokens, size)
        stored = min(usage.cache_written_tokens, size - cached)
        return (
            (size - cached - stored) * _at(self.read, size)
            + cached * _at(self.cached, size)
            + stored * _at(self.stored, size)
            + usage.output_tokens * _at(self.written, size)
        ) / _MILLION


class PriceTable:
    """Prices of the models at one server."""

    def __init__(
        self, base_url: str | None = None, *, overrides: Mapping[str, Price] = MappingProxyType({})
    ) -> None:
        """`overrides`: the operator's prices, by model; they go before the table and after an agent's own."""
        self._base_url = base_url
        self._overrides = overrides
        self._rates: OrderedDict[str, Rates | None] = OrderedDict()

    def cost_usd(self, agent: AgentSpec, usage: Usage) -> float:
        """US dollars; 0.0 where no price is known."""
        rates = self.rates(agent)
        return 0.0 if rates is None else rates.cost_usd(usage)

    def price_known(self, agent: AgentSpec) -> bool:
        """Whether a cost of 0.0 means free of charge."""
        return self.rates(agent) is not None

    def rates(self, agent: AgentSpec) -> Rates | None:
        if agent.price is not None:
            return _declared(agent.price)
        if agent.model in self._overrides:
            return _declared(self._overrides[agent.model])
        if agent.model not in self._rates:
            profile, name = split_model(agent.model)
            base_url = self._base_url if profile is None else profile.base_url or self._base_url
            self._rates[agent.model] = _tabled(name, base_url)
            if len(self._rates) > _MODELS_MAX:
                self._rates.popitem(last=False)
        return self._rates[agent.model]


def _declared(price: Price) -> Rates:
    cached = price.input_usd if price.cached_input_usd is None else price.cached_input_usd
    read = ((0, price.input_usd),)
    return Rates(read, ((0, cached),), ((0, price.output_usd),), read)


def _tabled(model: str, base_url: str | None) -> Rates | None:
    """By the server's provider where the table knows that address, else by the model's name alone."""
    import genai_prices  # lazily: reading the table takes a moment, and not everybody pays

    for address in (base_url, None) if base_url is not None else (None,):
        try:
            found = genai_prices.calc_price(genai_prices.Usage(), model, provider_api_url=address)
        except LookupError:
            continue
        return _rates(found.model_price)
    return None


def _rates(prices: Any) -> Rates:
    read = _steps(prices.input_mtok, ())
    return Rates(
        read,
        _steps(prices.cache_read_mtok, read),
        _steps(prices.output_mtok, ()),
        _steps(prices.cache_write_mtok, read),
    )


def _steps(price: Any, otherwise: Steps) -> Steps:
    if price is None:
        return otherwise
    tiers = [(tier.start, float(tier.price)) for tier in getattr(price, "tiers", ())]
    return (*sorted(tiers, reverse=True), (0, float(getattr(price, "base", price))))


def _at(steps: Steps, size: int) -> float:
    """The rate for a prompt of that size; as the table has it, one rate holds for all tokens of a call."""
    return next((rate for start, rate in steps if size > start or start == 0), 0.0)
