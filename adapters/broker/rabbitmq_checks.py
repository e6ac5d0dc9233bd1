"""Whether a RabbitMQ can be used with this login: asked at start, said with the reason."""

from __future__ import annotations

import asyncio
from typing import Final

import amqp  # type: ignore[import-untyped]

from toolfleet.adapters.broker.amqp_link import ConnectionEnded, Node, nodes_of, open_link
from toolfleet.schemas.errors import BrokerUnavailable, UnsafeSettings

CONNECT_S: Final = 5.0
HEARTBEAT_S: Final = 10.0


async def refuse_unsafe(url: str) -> None:
    """Raises UnsafeSettings where the first node that answers refuses user, password or virtual host, BrokerUnavailable
    where no node answers."""
    reasons = []
    for node in nodes_of(url):
        reason = await asyncio.to_thread(_problem, node)
        if reason is None:
            return
        reasons.append(reason)
    raise BrokerUnavailable(
        f"RabbitMQ is not available: {'; '.join(reasons)}",
        hint="Start it, or correct the address: --broker amqp://user:password@host:5672/vhost (TOOLFLEET_BROKER).",
    )


def _problem(node: Node) -> str | None:
    """Why this node cannot be asked now; None: it took the login."""
    try:
        link = open_link(node, heartbeat_s=HEARTBEAT_S, connect_s=CONNECT_S, tls={})
    except ConnectionEnded as exc:
        if _is_refusal(exc.__cause__):
            raise UnsafeSettings(
                f"the broker does not let us in: {exc.reason}",
                hint="Correct user, password and virtual host of the URL; // at its end is the virtual host '/'.",
            ) from exc
        return exc.reason
    link.close(within_s=CONNECT_S)
    return None


def _is_refusal(exc: BaseException | None) -> bool:
    """A login that stays wrong; not a virtual host that is just starting, nor a limit of connections that is reached."""
    if isinstance(exc, amqp.NotAllowed):
        return not any(word in str(exc.reply_text) for word in ("is down", "limit"))
    return isinstance(exc, amqp.AccessRefused)
