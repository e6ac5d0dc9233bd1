"""The pace where nobody asked for one: everything may begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toolfleet.schemas.pace import BreakerView, Ended, Open, Permit, ToolEntry, Wait
from toolfleet.schemas.ports import ToolPace


class _Unpaced:
    async def enter(self, entry: ToolEntry) -> Permit | Wait | Open:
        return Permit(entry.call_id, entry)

    async def leave(self, permit: Permit, ended: Ended) -> None:
        return None

    async def open_breakers(self, tenant: str) -> Mapping[str, float]:
        return {}

    async def breakers(self) -> list[BreakerView]:
        return []

    async def reset(self, tenant: str, tool: str) -> bool:
        return False

    async def aclose(self) -> None:
        return None


UNPACED: Final[ToolPace] = _Unpaced()
