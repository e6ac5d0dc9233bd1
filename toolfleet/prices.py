"""What model calls cost in this fleet: the agents' own prices, the operator's file, the table of the installation.

A limit in money holds only where a price is known, so a model without one is refused (docs/decisions/0011).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from toolfleet.adapters.llm.prices import PriceTable
from toolfleet.schemas.agents import AgentSpec, Price
from toolfleet.schemas.errors import InputError, UnsafeSettings
from toolfleet.settings import Settings

_FILE = TypeAdapter(dict[str, Price])


def price_table(settings: Settings) -> PriceTable:
    """The prices in force. Raises UnsafeSettings for a file that cannot be read."""
    return PriceTable(settings.openai_base_url, overrides=_overrides(settings.prices))


def _overrides(file: Path | None) -> dict[str, Price]:
    if file is None:
        return {}
    try:
        return _FILE.validate_json(file.read_bytes())
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
    except ValidationError as exc:
        first = exc.errors()[0]
        reason = f"{'.'.join(str(part) for part in first['loc']) or 'the file'}: {first['msg']}"
    raise UnsafeSettings(
        f"the prices in {file.name} cannot be used: {reason}",
        hint='It is JSON, US dollars for a million tokens: {"my-model": {"input_usd": 0.5, "output_usd": 1.5}}.',
    )


def unpriced(agent: AgentSpec, known: Callable[[AgentSpec], bool]) -> list[str]:
    """The models of the agent's chain that nobody knows a price of."""
    others = [agent.model_copy(update={"model": name, "price": None}) for name in agent.fallback_models]
    return [one.model for one in (agent, *others) if not known(one)]


def refuse_unpriced(agents: Iterable[AgentSpec], settings: Settings, model: object) -> None:
    """Raises UnsafeSettings naming agent and model. `model`: the client; one that names no prices has its own."""
    known = getattr(model, "price_known", None)
    if settings.unpriced == "ok" or known is None:
        return
    for agent in agents:
        missing = unpriced(agent, known)
        if missing:
            raise UnsafeSettings(_what(agent, missing), hint=_HINT)


def refuse_unpriced_run(agent: AgentSpec, settings: Settings, known: Callable[[AgentSpec], bool]) -> None:
    """As refuse_unpriced, for one request. Raises InputError; nothing is stored."""
    missing = [] if settings.unpriced == "ok" else unpriced(agent, known)
    if missing:
        raise InputError(_what(agent, missing), hint=_HINT)


_HINT = (
    "Say what it costs: price=Price(input_usd=…, output_usd=…) of the agent (0 where it is free), or a file of prices "
    "(TOOLFLEET_PRICES). Or let it cost nothing in the books: TOOLFLEET_UNPRICED=ok."
)


def _what(agent: AgentSpec, missing: list[str]) -> str:
    return (
        f"agent {agent.name!r} may spend {agent.limits.cost_usd_max:g} US dollars a run, and nobody knows what "
        f"{', '.join(missing)} costs, so that limit would never hold"
    )
