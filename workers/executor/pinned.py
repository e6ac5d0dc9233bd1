"""Is the tool that is loaded here still the one the run is pinned to? Code is not stored, so it can only be compared.

A run goes on under the definition it was accepted with, whatever is deployed meanwhile. Arguments were checked against
that definition, and tier and effect of it decided who was asked; a tool that takes other arguments now, or does more,
is not run for it.
"""

from __future__ import annotations

from toolfleet.schemas.ports import RunStore, ToolFailed
from toolfleet.schemas.tools import ToolSpec
from toolfleet.schemas.views import CallView


class Pinned:
    """The contracts of the pinned versions one process has met; immutable under their version."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._hashes: dict[tuple[str, str], dict[str, str]] = {}  # bounded by what is deployed

    async def changed(self, view: CallView, spec: ToolSpec) -> ToolFailed | None:
        """Why the loaded tool must not run this call; None where it is the pinned one."""
        key = (view.agent, view.agent_version)
        pinned = self._hashes.get(key)
        if pinned is None:
            agent = await self._store.agent(*key)
            if (
                agent is None
            ):  # never registered here, so nothing to compare with: the decision was not made here either
                return None
            pinned = self._hashes[key] = {tool.name: tool.schema_hash for tool in agent.tools}
        if pinned.get(spec.name, spec.schema_hash) == spec.schema_hash:
            return None
        message = f"{spec.name} is no longer the tool of version {view.agent_version} of {view.agent}"
        return ToolFailed("tool_changed", message, 0.0, began=False)
