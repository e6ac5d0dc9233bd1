"""Serves the HTTP API of one process with uvicorn, on a loop that may be carrying workers as well."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Final

import structlog
import uvicorn

from toolfleet.api.app import make_api
from toolfleet.api.context import Api
from toolfleet.api.edge import is_loopback
from toolfleet.app import open_files
from toolfleet.cache import Cache
from toolfleet.client import Client
from toolfleet.files import Files
from toolfleet.schemas.errors import FilesUnavailable, StoreUnavailable, UnsafeSettings
from toolfleet.schemas.limits import WORKER_BEAT_S
from toolfleet.schemas.views import WorkerBeat
from toolfleet.settings import Settings
from toolfleet.version import __version__

log = structlog.get_logger("toolfleet.api")

DEFAULT_PORT: Final = 8080
BACKLOG: Final = 1024
SWEEP_S: Final = 600.0
ROLE: Final = "api"  # what `toolfleet workers ls` calls such a process


class ApiServer:
    """Starts, serves and stops. `up`: it is part of `toolfleet up`, which on a loopback address asks for no keys."""

    def __init__(self, settings: Settings, client: Client, cache: Cache, *, up: bool = False) -> None:
        self._settings = settings
        self._api = Api(
            client,
            cache.pace,
            cache.requests,
            asks=asks_for_keys(settings, up=up),
            streams_max=settings.http_streams_max,
            files=open_files(settings, client.store),
            uploads_max=settings.http_uploads_max,
        )
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Listens when this returns. Raises OSError where the address is taken, FilesUnavailable."""
        settings = self._settings
        if self._api.files is not None:
            await asyncio.to_thread(self._api.files.bytes.check)
        listening = _listen(
            settings.http_host, DEFAULT_PORT if settings.http_port is None else settings.http_port
        )
        host, port = listening.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        config = uvicorn.Config(
            make_api(self._api, settings),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
            h11_max_incomplete_event_size=32_768,
            ws="none",
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        answering = asyncio.create_task(self._server.answering.wait())
        await asyncio.wait({self._serving, answering}, return_when=asyncio.FIRST_COMPLETED)
        answering.cancel()
        if self._serving.done():
            await self._serving
        if self._api.files is not None:
            self._sweeping = asyncio.create_task(_sweep(self._api.files))
        log.info("api_started", address=self.address, keys=self._api.asks)

    @property
    def asks(self) -> bool:
        """Whether a key is asked for."""
        return self._api.asks

    async def stop(self) -> None:
        """Streams end where they are, so that their readers go on elsewhere; requests that came in are answered."""
        self._api.closing.set()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)


async def _sweep(files: Files) -> None:
    """Every replica does; what is gone already is gone."""
    while True:
        try:
            await files.sweep()
        except (FilesUnavailable, StoreUnavailable) as exc:
            log.warning("sweep_failed", error=exc.message)
        await asyncio.sleep(SWEEP_S)


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the process; `answering` is set once it does."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answering = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answering.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def asks_for_keys(settings: Settings, *, up: bool) -> bool:
    """Raises UnsafeSettings where anybody who reaches this machine could use the fleet."""
    loopback = is_loopback(settings.http_host)
    if settings.http_auth == "off" and not loopback:
        raise UnsafeSettings(
            f"without keys whoever reaches {settings.http_host} could submit runs and stop them",
            hint="Leave TOOLFLEET_HTTP_AUTH alone and make keys (toolfleet keys create NAME), or answer on 127.0.0.1.",
        )
    if settings.http_auth == "auto":
        return not (up and loopback)
    return settings.http_auth == "required"


class Beating:
    """A process that only serves the API says that it is there, as workers do. A database that is away is waited for."""

    def __init__(self, client: Client, address: str) -> None:
        self._client = client
        self._address = address
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._id = f"{self._host}:{self._pid}:{secrets.token_hex(4)}"
        self._started_at = time.time()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._client.store.beat(self._beat())
        self._task = asyncio.create_task(self._on())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._client.store.leave(self._id)
        except StoreUnavailable as exc:
            log.info("leave_failed", error=exc.message)  # it is listed as silent

    def _beat(self) -> WorkerBeat:
        state = {"in_flight": 0, "taken": 0, "settled": 0, "stuck": "", "health": f"{self._address}/health"}
        return WorkerBeat(self._id, self._host, self._pid, (ROLE,), __version__, self._started_at, state)

    async def _on(self) -> None:
        while True:
            await asyncio.sleep(WORKER_BEAT_S)
            try:
                await self._client.store.beat(self._beat())
            except StoreUnavailable as exc:
                log.warning("beat_failed", error=exc.message)
