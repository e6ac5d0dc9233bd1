"""One process before the model server of quota_server.py: interactive calls at their times, and a flood of batch ones.

`python -m tests.fault.governor_client JSON` prints `ready`, begins when a line comes in, and prints what it measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

from toolfleet.adapters.clock import SystemClock
from toolfleet.adapters.llm.openai_chat import OpenAIChatClient
from toolfleet.adapters.redis.governor import RedisGovernor
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.conversation import UserItem
from toolfleet.schemas.errors import ModelError
from toolfleet.schemas.model import ModelRequest
from toolfleet.schemas.pace import Quota
from toolfleet.workers.decision.pace import ModelPace, NotNow, lane_of

AGENT = AgentSpec(name="a", model="m1")


class Client:
    """`told`: redis, prefix, server, name, quota, tokens used and reserved, seconds, how many of which calls."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.model = OpenAIChatClient(base_url=told["server"], api_key="k")
        self.governor = RedisGovernor(told["redis"], prefix=told["prefix"])
        quota = Quota(told["requests"], told["quota_tokens"], told["period_s"])
        self.pace = ModelPace(
            self.governor, SystemClock(), owner=told["name"], draw=random.random, quotas={"m1": quota}
        )
        self.until = 0.0
        self.latencies: list[float] = []
        self.faults = 0

    async def once(self, *, batch: bool) -> None:
        """One call, however often it is sent away."""
        request = ModelRequest(AGENT, (UserItem(str(self.told["used"])),), (), output_tokens_max=512)
        while time.monotonic() < self.until:
            try:
                await self.pace.call(
                    lane_of(self.model, AGENT),
                    lambda: int(self.told["reserved"]),
                    lambda: self.model.complete(request),
                    batch=batch,
                )
                return
            except NotNow as exc:  # its row is due then
                await asyncio.sleep(min(exc.delay_s, max(0.0, self.until - time.monotonic())))
            except ModelError as exc:
                self.faults += 1
                await asyncio.sleep(exc.fault.retry_after_s or 0.5)

    async def flood(self) -> None:
        while time.monotonic() < self.until:
            await self.once(batch=True)

    async def timed(self) -> None:
        started = time.monotonic()
        await self.once(batch=False)
        self.latencies.append(time.monotonic() - started)

    async def interactive(self) -> None:
        tasks = []
        while time.monotonic() < self.until:
            await asyncio.sleep(self.told["every_s"] * random.uniform(0.5, 1.5))
            tasks.append(asyncio.create_task(self.timed()))
        await asyncio.gather(*tasks)

    async def run(self) -> dict[str, Any]:
        self.until = time.monotonic() + self.told["seconds"]
        floods = [self.flood() for _ in range(self.told["floods"])]
        await asyncio.gather(self.interactive(), *floods)
        await self.governor.aclose()
        await self.model.aclose()
        return {"latencies": self.latencies, "faults": self.faults}


async def main() -> None:
    client = Client(json.loads(sys.argv[1]))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(await client.run()), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
