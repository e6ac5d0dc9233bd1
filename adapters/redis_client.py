"""The connection to Redis or Valkey: its settings, its errors in our words, and the pump that batches commands.

Shared by the message layer and by what goes through the cache; `error` is what a server that cannot be used is called
by whoever asks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from toolfleet.schemas.errors import BrokerUnavailable, ToolfleetError, UnsafeSettings

CONNECT_S: Final = 3.0
SOCKET_S: Final = 5.0  # longer than the longest command that blocks (streams.BLOCK_S)
HEALTH_S: Final = 5.0  # a connection idle for longer is asked first: half-open ones are noticed
CONNECTIONS_MAX: Final = 32  # one per waiting fetch and the pump; more wait for a free one
PIPELINE_MAX: Final = 1000  # commands in one pipeline: bounds what one answer holds up
SCHEMES: Final = {"valkey": "redis", "valkeys": "rediss"}


def open_client(
    url: str, *, name: str, what: str = "broker", connect_s: float = CONNECT_S, socket_s: float = SOCKET_S
) -> Redis:
    """A client that connects with its first command. Raises UnsafeSettings for a URL that cannot be read."""
    parts = urlsplit(url)
    plain = urlunsplit(parts._replace(scheme=SCHEMES.get(parts.scheme, parts.scheme)))
    try:
        pool = BlockingConnectionPool.from_url(
            plain,
            max_connections=CONNECTIONS_MAX,
            timeout=socket_s,
            protocol=2,
            client_name=name,
            socket_connect_timeout=connect_s,
            socket_timeout=socket_s,
            socket_keepalive=True,
            health_check_interval=HEALTH_S,
            # Once: a connection the server closed meanwhile. What was sent may have been done: at least once.
            retry=Retry(ConstantBackoff(0.05), 1),
        )
    except (ValueError, TypeError) as exc:
        raise UnsafeSettings(
            f"the {what} URL cannot be read as one of Redis", hint="Write it as redis://host:6379/0."
        ) from exc
    return Redis.from_pool(pool)


@contextmanager
def translated(error: type[ToolfleetError] = BrokerUnavailable) -> Iterator[None]:
    """Inside, a server that cannot be used is `error`. Errors of single commands pass."""
    try:
        yield
    except AuthenticationError as exc:
        raise error(f"Redis refused the login: {exc}", hint="Check user and password.") from exc
    except ResponseError:
        raise
    except (RedisError, OSError, TimeoutError) as exc:
        raise error(
            f"Redis cannot be used: {type(exc).__name__}: {exc}",
            hint="Check that it runs and can be reached; nothing that was accepted is lost.",
        ) from exc


@dataclass(slots=True)
class _Asked:
    commands: Sequence[tuple[Any, ...]]
    answer: asyncio.Future[list[Any]]


class Pump:
    """Sends what many callers ask at the same time in one pipeline; each gets the answers to its own commands."""

    def __init__(self, redis: Redis, *, error: type[ToolfleetError] = BrokerUnavailable) -> None:
        self._redis = redis
        self._error = error
        self._asked: deque[_Asked] = deque()
        self._task: asyncio.Task[None] | None = None

    async def run(self, commands: Sequence[tuple[Any, ...]], *, errors: bool = False) -> list[Any]:
        """The answers, in order. An answer that is an error is raised as `error` (NOGROUP as it came), or with
        `errors` returned in its place. Cancelling the caller does not stop what was asked."""
        if not commands:
            return []
        asked = _Asked(commands, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())  # lives while there is something to send
        answers = await asked.answer
        if not errors:
            for answer in answers:
                if isinstance(answer, Exception):
                    raise self._refused(answer)
        return answers

    async def aclose(self) -> None:
        """Returns when everything that was asked before is answered."""
        while self._task is not None and not self._task.done():
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while self._asked:
            await self._send(self._take())

    def _take(self) -> list[_Asked]:
        taken: list[_Asked] = []
        count = 0
        while self._asked and (not taken or count + len(self._asked[0].commands) <= PIPELINE_MAX):
            taken.append(self._asked.popleft())
            count += len(taken[-1].commands)
        return taken

    async def _send(self, batch: list[_Asked]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for asked in batch:
            for command in asked.commands:
                pipeline.execute_command(*command)
        try:
            with translated(self._error):
                answers = await pipeline.execute(raise_on_error=False)
        except BaseException as exc:
            failed = exc if isinstance(exc, Exception) else self._error("the connection was closed")
            for asked in batch:
                if not asked.answer.done():
                    asked.answer.set_exception(failed)
                    asked.answer.exception()  # a caller that was cancelled leaves nobody to look at it
            if not isinstance(exc, Exception):
                raise
            return
        at = 0
        for asked in batch:
            mine = answers[at : at + len(asked.commands)]
            at += len(asked.commands)
            if not asked.answer.done():
                asked.answer.set_result(mine)

    def _refused(self, answer: Exception) -> Exception:
        if isinstance(answer, ResponseError) and "NOGROUP" in str(answer):
            return answer
        return self._error(f"Redis refused a command: {answer}", hint="Look at the server's memory and role.")
