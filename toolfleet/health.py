"""Where a worker process answers how it is: /live, /ready and /metrics, plain HTTP on one address.

Live means that it gets on: steps are settled while there is work (workers/progress.py). Ready means that it is started
and not stopping. A process that answers 503 to /live should be restarted: its leases expire, and others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web


class HealthServer:
    """Serves what the callables say; they must answer at once."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        live: Callable[[], dict[str, Any]],
        ready: Callable[[], dict[str, Any]],
        metrics: Callable[[], tuple[bytes, str]] | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._answers = {"/live": live, "/ready": ready}
        self._metrics = metrics
        self._runner: web.AppRunner | None = None
        self.address = ""

    async def start(self) -> None:
        """Listens when this returns. Raises OSError where the address is taken."""
        app = web.Application()
        for path in self._answers:
            app.router.add_get(path, self._answer)
        if self._metrics is not None:
            app.router.add_get("/metrics", self._exposed)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self._port)
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        host, port = runner.addresses[0][:2]
        self.address = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        """`{"ok": true, ...}` with 200, or 503 where ok is false."""
        document = self._answers[request.path]()
        status = 200 if document["ok"] else 503
        return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")

    async def _exposed(self, request: web.Request) -> web.Response:
        assert self._metrics is not None
        body, content_type = self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})
