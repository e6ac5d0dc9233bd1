"""Tiers raised by configuration: `TOOLFLEET_TOOL_TIERS='{"send_mail": "irreversible"}'`. Never lowered.

Everything a tier decides (queue, pool, approval, audit) is read from the contract in force, so raising it there is all.
"""

from __future__ import annotations

from toolfleet.definitions import Registry
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.errors import UnsafeSettings
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.tools import ToolSpec
from toolfleet.settings import Settings

TIERS = tuple(Tier)  # from the least harm to the most


def raise_tiers(registry: Registry, settings: Settings, *, all_known: bool = True) -> None:
    """Put the tiers of the settings in force. Can be repeated; what was declared stays known.

    all_known: a name that is no tool of the registry is refused too, so that a misspelt one does not leave its tool as it
    was. Raises UnsafeSettings; then nothing was changed.
    """
    wanted = {name: tier for name, tier in settings.tool_tiers.items() if name in registry.declared}
    unknown = sorted(set(settings.tool_tiers) - set(wanted))
    if unknown and all_known:
        known = ", ".join(sorted(registry.declared)) or "none"
        raise UnsafeSettings(
            f"setting 'tool_tiers': no tool is called {unknown[0]!r}", hint=f"Tools: {known}."
        )
    for name, tier in sorted(wanted.items()):
        declared = registry.declared[name].spec.tier
        if TIERS.index(tier) < TIERS.index(declared):
            raise UnsafeSettings(
                f"setting 'tool_tiers' would lower {name} from {declared.value} to {tier.value}",
                hint="Configuration can only raise a tier. Lower it where the tool is declared, if it was reviewed.",
            )
    for name, tool in registry.declared.items():
        spec = at_tier(tool.spec, wanted.get(name, tool.spec.tier))
        registry.tools[name] = tool if spec is tool.spec else tool.with_spec(spec)
    for name, agent in registry.agents.items():
        registry.agents[name] = _with_tools(agent, registry)


def at_tier(spec: ToolSpec, tier: Tier) -> ToolSpec:
    """The contract with this tier in place of the declared one; itself, where that is the same."""
    if tier is spec.tier:
        return spec
    fields = {name: getattr(spec, name) for name in ToolSpec.model_fields}
    return ToolSpec(**{**fields, "tier": tier, "raised_from": spec.tier})


def _with_tools(agent: AgentSpec, registry: Registry) -> AgentSpec:
    tools = tuple(
        registry.tools[spec.name].spec if spec.name in registry.tools else spec for spec in agent.tools
    )
    if tools == agent.tools:
        return agent
    fields = {name: getattr(agent, name) for name in AgentSpec.model_fields}
    return AgentSpec(**{**fields, "tools": tools})
