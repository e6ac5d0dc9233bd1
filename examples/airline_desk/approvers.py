"""Two people for the demo, each with a policy: what they are asked they compare with what the desk recorded, and sign.

One may decide about tier high, the other about what cannot be undone; the scope of their tokens holds that, not this
code. Both approve a call whose arguments are those of a recorded call of its conversation, and reject every other.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from toolfleet.approving import Approving
from toolfleet.client import Client
from toolfleet.examples.airline_desk.database import effects
from toolfleet.examples.airline_desk.difference import same_json
from toolfleet.examples.airline_desk.recordings import Recording
from toolfleet.schemas.effects import ApprovalStatus
from toolfleet.schemas.ids import CallId, idempotency_key_of
from toolfleet.schemas.outcomes import Tier
from toolfleet.schemas.views import ApprovalView

PEOPLE: Final = {Tier.HIGH: "shift lead", Tier.IRREVERSIBLE: "duty manager"}
LOOKS_EVERY_S: Final = 0.1
AT_ONCE: Final = 200
QUESTIONS_MAX: Final = 100_000  # of one demo


class PolicyApprovers:
    """Decides what is pending. A demo that was killed and is started again has the same people."""

    def __init__(self, client: Client, recordings: Iterable[Recording]) -> None:
        self._client = client
        self._door = Approving(client.store, client.publish_due)
        self._recorded = {one.id: _calls(one) for one in recordings}
        self._tokens: dict[Tier, str] = {}

    async def decide(self) -> None:
        """Answer whatever is asked, until cancelled."""
        for tier, name in PEOPLE.items():
            self._tokens[tier] = await self._door.add_approver(name, tiers=[tier.value])
        while True:
            pending = await self._door.approvals(limit=AT_ONCE)
            for view in pending:
                await self._answer(view)
            if not pending:
                await asyncio.sleep(LOOKS_EVERY_S)

    async def _answer(self, view: ApprovalView) -> None:
        info = (await self._client.get(view.run_id)).info
        token = self._tokens[view.approval.tier]
        recorded = self._recorded.get(str(info.context.get("conversation")), [])
        asked = json.loads(view.arguments)
        if any(name == view.tool and same_json(asked, arguments) for name, arguments in recorded):
            await self._door.approve(
                view.approval.id, token=token, arguments_hash=view.approval.arguments_hash
            )
        else:
            await self._door.reject(view.approval.id, token=token, reason="the desk recorded no such call")

    async def summary(self, desk_db: Path) -> dict[str, Any]:
        """From stored rows: who approved how many calls, and whether any change was made that nobody approved."""
        found = await self._door.approvals(status=None, limit=QUESTIONS_MAX)
        granted = {
            idempotency_key_of(CallId(one.call_id))
            for one in found
            if one.approval.status is ApprovalStatus.GRANTED
            and one.approval.granted_by == (PEOPLE[one.approval.tier],)
        }
        by = Counter(name for one in found for name in one.approval.granted_by)
        done = {effect.idempotency_key for effect in await asyncio.to_thread(effects, desk_db)}
        return {
            "asked": len(found),
            "approved": dict(sorted(by.items())),
            "rejected": sum(one.approval.status is ApprovalStatus.REJECTED for one in found),
            "unapproved_effects": len(done - granted),
        }


def _calls(recording: Recording) -> list[tuple[str, Any]]:
    """Name and arguments of every recorded call; what is no JSON was never a call."""
    found = []
    for message in recording.messages:
        for call in message.get("tool_calls") or ():
            try:
                found.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
            except ValueError:
                continue
    return found
