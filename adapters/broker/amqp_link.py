"""One AMQP connection with one channel that never blocks the thread that owns it.

kombu opens it: address, login, TLS, heartbeat, the declarations. From `run_free` on frames are read and written here,
because py-amqp waits for the broker inside its calls, and needs nine system calls to read a message. Methods other than
publish are still encoded by py-amqp's channel. No queue semantics here.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import pack, unpack_from
from typing import Any, Final
from urllib.parse import urlsplit

import amqp  # type: ignore[import-untyped]
from amqp import spec
from amqp.method_framing import frame_writer  # type: ignore[import-untyped]
from kombu.connection import Connection

from toolfleet.adapters.broker.amqp_topology import Topology
from toolfleet.schemas.errors import UnsafeSettings

READ_BYTES: Final = 1 << 18
READS_MAX: Final = 64  # per turn, so that a fast broker does not keep the thread from its other work
SEND_BYTES: Final = 1 << 20
FRAME_END: Final = 0xCE

# A write that the broker's kernel does not acknowledge ends the connection after this; py-amqp's own setting, 1 s, is
# shorter than a pause of a virtual machine. The heartbeat notices the rest.
TCP_USER_TIMEOUT_MS: Final = 15_000

Handler = Callable[[bytes, bytes, bytes], None]  # method with its arguments, content header, body


class ConnectionEnded(Exception):
    """The connection is over, or could not be opened. `reason` is for people and holds no secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Node:
    """One address of the broker. `label` is what may be shown."""

    url: str = field(repr=False)
    label: str
    tls: bool


def nodes_of(url: str) -> tuple[Node, ...]:
    """The nodes of `amqp://user:password@host:port/vhost;…`. Raises UnsafeSettings, which does not quote the URL."""
    nodes = []
    for position, part in enumerate(url.split(";"), start=1):
        try:
            parts = urlsplit(part.strip())
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("amqp", "pyamqp", "amqps") or not parts.hostname:
            raise UnsafeSettings(
                f"the broker's address number {position} is not of the form amqp://user:password@host:port/vhost",
                hint="Separate several nodes by ';'; write special characters of a password as %XX; amqps:// is TLS.",
            )
        tls = parts.scheme == "amqps"
        nodes.append(Node(part.strip(), f"{parts.hostname}:{port or (5671 if tls else 5672)}", tls))
    return tuple(nodes)


class Channel:
    """One channel of a link. `on` maps methods to handlers, which are called from `Link.receive`, in the broker's order.

    A channel carries out one thing after the other: what a queue without a leader is asked for stops its channel and no
    other.
    """

    def __init__(self, sender: Any, number: int) -> None:
        self._sender = sender  # py-amqp's channel, or its connection, which is channel 0
        self.number = number
        self.on: dict[bytes, Handler] = {}
        self._method = b""
        self._header = b""
        self._body: list[bytes] = []
        self._body_left = 0

    def send(self, method: tuple[int, int], layout: str, *arguments: Any) -> None:
        """Queues a method; its answer, if it has one, comes to its handler."""
        self._sender.send_method(method, layout, arguments)

    def declare(self, declare: Callable[[Any], None]) -> None:
        """Queues what `declare` asks py-amqp's channel for: only what has no answer."""
        declare(self._sender)

    def frame(self, kind: int, payload: bytes) -> None:
        if kind == 1:
            if payload[:4] in _WITH_CONTENT:
                self._method = payload
            else:
                self._handle(payload, b"", b"")
        elif kind == 2:
            self._header = payload
            (self._body_left,) = unpack_from(">Q", payload, 4)
            if not self._body_left:
                self._handle(self._method, payload, b"")
        elif kind == 3:
            self._body_left -= len(payload)
            self._body.append(payload)
            if self._body_left <= 0:
                body, self._body = b"".join(self._body), []
                self._handle(self._method, self._header, body)

    def _handle(self, method: bytes, header: bytes, body: bytes) -> None:
        handler = self.on.get(method[:4])
        if handler is not None:
            handler(method, header, body)


class Link:
    """An open connection. Channels are opened before `run_free`; after it nothing waits.

    `queued` and `sent` count bytes: what was queued before is with the kernel when `sent` has reached it.
    """

    def __init__(self, connection: Any, out: _Out) -> None:
        self._connection = connection
        self._out = out
        self.sock: socket.socket = connection.sock
        self.heartbeat_s: float = connection.heartbeat
        self.control = Channel(connection, 0)  # what is said about the connection
        self.control.on[method_key(spec.Connection.Close)] = _closed_by_broker
        self._channels = {0: self.control}
        self._in = bytearray()
        self._read_at = self._beat_at = time.monotonic()

    @property
    def waiting_bytes(self) -> int:
        return len(self._out.waiting)

    @property
    def queued(self) -> int:
        return self._out.sent + len(self._out.waiting)

    @property
    def sent(self) -> int:
        return self._out.sent

    def open_channel(self, *, confirms: bool = False) -> Channel:
        """`confirms`: the broker confirms what is published on it."""
        opened = self._connection.channel()
        if confirms:
            opened.confirm_select()
        channel = self._channels[opened.channel_id] = Channel(opened, opened.channel_id)
        channel.on[method_key(spec.Channel.Close)] = _closed_by_broker
        return channel

    def declare(self, topology: Topology) -> None:
        """Raises UnsafeSettings where something of the name exists with other arguments."""
        try:
            with self._connection.channel() as channel:
                topology.declare(channel)
                channel.queue_declare(topology.marker, passive=True)  # its answer follows all the others'
        except amqp.PreconditionFailed as exc:
            raise UnsafeSettings(
                f"RabbitMQ has a queue or exchange of ours with other settings: {exc.reply_text}",
                hint="Choose another prefix, or stop the fleet, delete that queue and start again: what was in it"
                " is published again from the database.",
            ) from exc

    def run_free(self) -> None:
        """From here on nothing waits: `receive` and `flush` do what can be done at once."""
        self.sock.setblocking(False)
        self._out.held = True

    def publish(self, channel: int, route: bytes, number: int, body: bytes) -> None:
        """Queues a persistent message under a route of `route_to`; `number` comes back with it if it is returned."""
        out = self._out.waiting
        identity = b"%d" % number
        properties = b"%s%c%s" % (_PROPERTIES, len(identity), identity)
        header = pack(">BHIHHQ", 2, channel, 12 + len(properties), spec.Basic.CLASS_ID, 0, len(body))
        out += b"%s%s%s\xce" % (route, header, properties)
        chunk = self._connection.frame_max - 8
        for start in range(0, len(body), chunk):
            part = body[start : start + chunk]
            out += b"%s%s\xce" % (pack(">BHI", 3, channel, len(part)), part)

    def flush(self) -> None:
        """Writes what the kernel takes. Raises ConnectionEnded."""
        out = self._out
        try:
            while out.waiting:
                with memoryview(out.waiting) as view:
                    count = self.sock.send(view[:SEND_BYTES])
                del out.waiting[:count]
                out.sent += count
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as exc:
            raise ConnectionEnded(f"write: {_said(exc)}") from exc

    def receive(self) -> bool:
        """Reads until nothing is there, calling the handlers. True: there may be more. Raises ConnectionEnded."""
        for _ in range(READS_MAX):
            try:
                data = self.sock.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError as exc:
                raise ConnectionEnded(f"read: {_said(exc)}") from exc
            if not data:
                raise ConnectionEnded("the broker closed the connection")
            self._read_at = time.monotonic()
            self._in += data
            self._frames()
        return True

    def beat(self, now: float) -> None:
        """To be called every second: sends a heartbeat when one is due. Raises ConnectionEnded for a silent broker."""
        if not self.heartbeat_s:
            return
        if now - self._read_at > 2 * self.heartbeat_s:
            raise ConnectionEnded(f"no word from the broker for {now - self._read_at:.0f} s")
        if now - self._beat_at >= self.heartbeat_s / 2 and not self._out.waiting:
            self._out.waiting += _HEARTBEAT
            self._beat_at = now

    def close(self, *, within_s: float) -> None:
        """Says goodbye if the broker listens, and lets the socket go in any case; never raises."""
        try:
            self.control.send(spec.Connection.Close, "BsBB", 200, "closed by the client", 0, 0)
            self.control.on[method_key(spec.Connection.CloseOk)] = _closed_by_broker
            self._channels = {0: self.control}  # the others are not listened to any more
            self._out.held = False
            self.sock.settimeout(within_s)
            self.sock.sendall(self._out.waiting)
            give_up_at = time.monotonic() + within_s
            while time.monotonic() < give_up_at and (data := self.sock.recv(READ_BYTES)):
                self._in += data
                self._frames()
        except (OSError, ConnectionEnded, amqp.AMQPError):
            pass  # over, one way or the other
        self.drop()

    def drop(self) -> None:
        """Lets go of the socket without a word."""
        self._connection.collect()

    def _frames(self) -> None:
        data, at = self._in, 0
        while len(data) - at >= 8:
            kind, number, size = unpack_from(">BHI", data, at)
            end = at + 7 + size
            if len(data) <= end:
                break
            if data[end] != FRAME_END:
                raise ConnectionEnded("the broker sent something that is not AMQP")
            channel = self._channels.get(number)
            if channel is not None:
                channel.frame(kind, bytes(data[at + 7 : end]))
            at = end + 1
        del data[:at]


def open_link(node: Node, *, heartbeat_s: float, connect_s: float, tls: Mapping[str, Any]) -> Link:
    """Connected and logged in. Raises ConnectionEnded, with what to do about it where that is known."""
    out = _Out()
    client = Connection(  # type: ignore[no-untyped-call]
        node.url,
        transport="amqps" if node.tls else "pyamqp",
        ssl={"server_hostname": None, **tls} if node.tls else False,  # None: the name in the URL is checked
        connect_timeout=connect_s,
        heartbeat=heartbeat_s,
        transport_options={
            "client_properties": {"product": "toolfleet"},
            "socket_settings": _socket_settings(),
            "frame_writer": out.frame_writer,
        },
    )
    connection = None
    try:
        connection = client.transport.establish_connection()
        connection.sock.settimeout(connect_s)  # for what is still asked and waited for
        return Link(connection, out)
    except Exception as exc:  # py-amqp also raises AttributeError, ValueError and struct.error for a bad peer
        if connection is not None:
            connection.collect()
        raise ConnectionEnded(f"{node.label}: {_said(exc)}") from exc


class _Out:
    """Where py-amqp writes to: through to the socket at first, into `waiting` once `held` is set."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.sent = 0
        self.held = False
        self._transport: Any = None

    def frame_writer(self, connection: Any, transport: Any) -> Any:
        self._transport = transport
        return frame_writer(connection, self)

    def write(self, data: bytes) -> None:
        if self.held:
            self.waiting += data
        else:
            self._transport.write(data)


def method_key(method: tuple[int, int]) -> bytes:
    """The key of a method in `Link.on`."""
    return pack(">HH", *method)


def short_string(data: bytes, at: int) -> tuple[str, int]:
    """The short string at that place, and the place after it."""
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(), end


def route_to(channel: int, exchange: str, routing_key: str) -> bytes:
    """The method frame of a mandatory publish."""
    names = b"".join(pack(">B", len(name.encode())) + name.encode() for name in (exchange, routing_key))
    method = pack(">HHH", *spec.Basic.Publish, 0) + names + b"\x01"
    return pack(">BHI", 1, channel, len(method)) + method + b"\xce"


def returned_number(header: bytes) -> int:
    """The number a returned message was published under: its properties are those of `Link.publish`."""
    number, _ = short_string(header, 12 + len(_PROPERTIES))
    return int(number)


def _socket_settings() -> dict[int, int]:
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux only
    return {} if option is None else {option: TCP_USER_TIMEOUT_MS}


def _closed_by_broker(method: bytes, header: bytes, body: bytes) -> None:
    if method[:4] == method_key(spec.Connection.CloseOk):
        raise ConnectionEnded("closed")
    raise ConnectionEnded(short_string(method, 6)[0])  # after the code, which the text repeats


def _said(exc: Exception) -> str:
    """What went wrong in one line. py-amqp and the operating system put no password into their messages."""
    match exc:
        case amqp.AccessRefused():
            return f"RabbitMQ refused user, password or permission: {exc.reply_text}"
        case amqp.NotAllowed():
            return f"RabbitMQ refused the virtual host: {exc.reply_text}"
        case amqp.AMQPError():
            return str(exc.reply_text or type(exc).__name__)
        case TimeoutError():
            return "no answer in time"
        case OSError():
            return exc.strerror or str(exc) or type(exc).__name__
        case _:
            return type(exc).__name__


_PROPERTIES: Final = (
    pack(">H", 1 << 15 | 1 << 12 | 1 << 7)  # content type, delivery mode, message id
    + b"\x18application/octet-stream"
    + b"\x02"  # persistent
)
_HEARTBEAT: Final = pack(">BHI", 8, 0, 0) + b"\xce"
_WITH_CONTENT: Final = frozenset(
    method_key(method) for method in (spec.Basic.Deliver, spec.Basic.GetOk, spec.Basic.Return)
)
